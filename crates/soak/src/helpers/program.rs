//! A program of the lane `helpers`: a list of items of assembly, any of which may be left out, and the object made of
//! what is left.

use std::collections::BTreeSet;

use bpf_modeltest::kinds::Kind;
use bpf_modeltest::lab::{self, INNER, Shape};
use bpf_testgen::assembly::{self, AssemblyError, Map, Signature, Surroundings, Variable};

/// Bytes of the variable `out`, which a program writes and nobody but the comparison reads.
pub const OUT_BYTES: u32 = 256;
/// Bytes of the variables `data` and `input`.
pub const DATA_BYTES: u32 = 64;

/// Kernel functions that recipes call: signatures as [`Signature::parse`] reads them.
const KFUNCS: [&str; 4] = [
    "bpf_task_acquire(struct task_struct) struct task_struct",
    "bpf_task_release(struct task_struct) void",
    "bpf_cgroup_from_id(u64) struct cgroup",
    "bpf_cgroup_release(struct cgroup) void",
];

/// libbpf's name for the section of a program of each kind (`section_defs` in `tools/lib/bpf/libbpf.c`); `None` for
/// kinds that the comparison does not run.
pub fn section(kind: &Kind) -> Option<&'static str> {
    Some(match kind.name {
        "tc" => "tc",
        "act" => "action",
        "socket" => "socket",
        "cgroup_skb" => "cgroup_skb/ingress",
        "cgroup_skb_out" => "cgroup_skb/egress",
        "lwt_in" => "lwt_in",
        "lwt_out" => "lwt_out",
        "lwt_xmit" => "lwt_xmit",
        "xdp" => "xdp",
        "flow_dissector" => "flow_dissector",
        "netfilter" => "netfilter",
        "raw_tp" => "raw_tp",
        "syscall" => "syscall",
        _ => return None,
    })
}

/// A piece of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Which function it stands in; 0 is the program itself.
    pub function: usize,
    /// Lines.
    pub text: String,
    /// Stays whatever is left out: labels, the beginning and the end.
    pub fixed: bool,
    /// The helpers that it calls by number.
    pub helpers: BTreeSet<i32>,
}

/// A callback: its name and its lines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Callback {
    /// Its name.
    pub name: String,
    /// Lines.
    pub text: String,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Name of the kind of program.
    pub kind: &'static str,
    /// Its section.
    pub section: &'static str,
    /// All items, those of a function in order.
    pub items: Vec<Item>,
    /// Callbacks.
    pub callbacks: Vec<Callback>,
}

/// What subprogram `n` is called.
pub fn subprogram(n: usize) -> String {
    format!("sub{n}")
}

impl Program {
    /// Items that can be left out.
    pub fn parts(&self) -> usize {
        self.items.iter().filter(|i| !i.fixed).count()
    }

    /// The items with these parts only.
    fn kept(&self, parts: &[usize]) -> Vec<&Item> {
        let mut part = 0;
        let wanted = |item: &&Item| {
            part += usize::from(!item.fixed);
            item.fixed || parts.contains(&(part - 1))
        };
        self.items.iter().filter(wanted).collect()
    }

    /// Helpers that the whole program calls.
    pub fn helpers(&self) -> BTreeSet<i32> {
        self.items.iter().flat_map(|i| i.helpers.iter().copied()).collect()
    }

    /// The listing of these parts. Functions that nobody calls are left out.
    pub fn listing(&self, parts: &[usize]) -> String {
        let items = self.kept(parts);
        let body = |f: usize| -> String { items.iter().filter(|i| i.function == f).map(|i| i.text.as_str()).collect() };
        let mut text = body(0);
        let functions = self.items.iter().map(|i| i.function).max().unwrap_or(0);
        for f in 1..=functions {
            let name = subprogram(f);
            if mentions(&text, &name) {
                text += &format!("static {name}(ctx, ptr, u64) u64:\n{}", body(f));
            }
        }
        for callback in &self.callbacks {
            if mentions(&text, &callback.name) {
                text += &format!("static {}(ptr, ptr, ptr, ptr) s32:\n{}", callback.name, callback.text);
            }
        }
        text
    }

    /// The object of a listing.
    ///
    /// # Errors
    /// What is wrong with the listing.
    pub fn object(&self, listing: &str) -> Result<Vec<u8>, AssemblyError> {
        let around = self.surroundings(listing)?;
        assembly::object(&around, &assembly::functions(listing, self.section)?)
    }

    /// The maps, variables and kernel functions that a listing names.
    fn surroundings(&self, listing: &str) -> Result<Surroundings, AssemblyError> {
        let pattern = |n: u32| (0..n).map(|i| (i as u8).wrapping_mul(29) ^ 0x5a).collect();
        let variable = |name: &str, section: &str, size, value| Variable {
            name: name.into(),
            section: section.into(),
            size,
            value,
            pointer: None,
        };
        let variables = vec![
            variable("out", ".bss", OUT_BYTES, vec![]),
            variable("input", ".data", DATA_BYTES, pattern(DATA_BYTES)),
            variable("data", ".data", DATA_BYTES, pattern(DATA_BYTES)),
            variable("strings", ".rodata", 256, lab::strings().to_vec()),
        ];
        let mut maps: Vec<Map> = vec![];
        let names: BTreeSet<&str> = listing.lines().filter_map(named).collect();
        for name in names {
            let Some(shape) = lab::shape(name).filter(|_| variables.iter().all(|v| v.name != name)) else { continue };
            let inner = shape.of_maps.then(|| format!("inner_{name}"));
            maps.extend(inner.as_ref().map(|inner| map(inner, INNER, None)));
            maps.push(map(name, shape, inner.clone()));
        }
        let kfuncs = KFUNCS.iter().filter(|k| listing.contains(k.split('(').next().unwrap_or(k)));
        let kfuncs = kfuncs.map(|k| Signature::parse(k)).collect::<Result<_, _>>()?;
        Ok(Surroundings { section: self.section.into(), maps, variables, kfuncs, ..Surroundings::default() })
    }
}

fn map(name: &str, shape: Shape, inner: Option<String>) -> Map {
    let Shape { map_type, key_size, value_size, max_entries, flags, .. } = shape;
    Map { name: name.into(), map_type, key_size, value_size, max_entries, flags, inner, ..Map::default() }
}

/// The name in `rN = NAME ll` or `rN = NAME + K ll`.
fn named(line: &str) -> Option<&str> {
    let (_, value) = line.trim().strip_suffix(" ll")?.split_once(" = ")?;
    value.split(' ').next()
}

/// Whether a line calls the function of this name or takes its address.
fn mentions(text: &str, name: &str) -> bool {
    text.lines().any(|l| l.trim().strip_prefix("call ").is_some_and(|callee| callee == name) || named(l) == Some(name))
}
