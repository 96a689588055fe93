//! Whether the kernel takes the BTF of both objects, types that nothing uses included.
//!
//! The one idea: the kernel checks every type before it uses any, and one that it refuses costs an object all of its
//! BTF, with it spin locks, global functions and struct_ops. So the checks of `btf_check_all_metas`,
//! `btf_check_type_tags` and `btf_resolve` (`kernel/bpf/btf.c`) are done here, the strict way where kernels differ.
//! Promise: a type that fails them is unknown, unless the other object has an equal one that fails them, too.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::findings::Findings;
use super::types::{Names, Outcome, TypeComparison, Types, kind_name};
use crate::btf::{
    ARRAY, Btf, CONST, DATASEC, DECL_TAG, ENUM, ENUM64, FLOAT, FUNC, FUNC_PROTO, FWD, INT, PTR, RESTRICT, STRUCT,
    TYPE_TAG, TYPEDEF, Type, UNION, VAR, VOLATILE, member_place,
};

/// `KSYM_NAME_LEN`, the limit on names.
const NAME_MAX: usize = 512;
/// The kernel follows no longer chains of types (`MAX_RESOLVE_DEPTH`, less what it starts with).
const DEPTH_MAX: usize = 30;
// `enum btf_func_linkage` and the linkage of variables in `include/uapi/linux/btf.h`.
const LINKAGE_GLOBAL: u32 = 1;
const LINKAGE_EXTERN: u32 = 2;
/// Nested members looked into, at most.
const NESTED_MAX: usize = 16;

/// Compares what kernel and libbpf find in the BTF of two objects when they read all of it.
pub(super) fn compare(types: &mut TypeComparison, out: &mut Findings) {
    if types.identical() {
        return;
    }
    let place = || "section .BTF".to_owned();
    let layout = |t: &Types| t.btf.and_then(Btf::layout_problem);
    if let (x, y) = (layout(&types.a), layout(&types.b))
        && x != y
    {
        out.unknown(place(), format!("the kernel refuses it in one of the two: {}", x.or(y).unwrap_or_default()));
    }
    if lacks_integer(&types.a) != lacks_integer(&types.b) {
        out.unknown(place(), "only one of the two has the integer of 32 bits that libbpf gives to .ksyms".into());
    }
    if callbacks(&types.a) != callbacks(&types.b) {
        out.different(place(), "tags of exception callbacks differ".into());
    }
    let (x, y) = (Checked::of(&types.a), Checked::of(&types.b));
    if x.too_deep != y.too_deep || x.too_deep.is_some() {
        out.unknown(place(), "the kernel may refuse it: types are nested too deep".into());
    }
    for (&id, why) in &y.refused {
        if !x.refused.keys().any(|&other| types.compare(other, id, Names::Count) == Outcome::Same) {
            out.unknown(
                place(),
                format!("the kernel may refuse it for {} (second object): {why}", types.b.describe(id)),
            );
        }
    }
    for (&id, why) in &x.refused {
        if !y.refused.keys().any(|&other| types.compare(id, other, Names::Count) == Outcome::Same) {
            out.unknown(
                place(),
                format!("the kernel may refuse it for {} (first object): {why}", types.a.describe(id)),
            );
        }
    }
}

/// Whether libbpf looks for any integer of 32 bits, to make it the type of what `.ksyms` declares, and finds none
/// (`find_int_btf_id`).
fn lacks_integer(types: &Types) -> bool {
    const BITS: u32 = 32;
    let Some(btf) = types.btf else { return false };
    let mut all = btf.ids().filter_map(|id| btf.get(id));
    types.data_sections().contains_key(".ksyms")
        && !all.any(|t| t.kind == INT && btf.word(t, 0).is_some_and(|encoding| encoding & 0xff == BITS))
}

/// The tags that name exception callbacks: the callback, kind and name of the type they are on.
fn callbacks(types: &Types) -> Vec<(String, u32, String)> {
    let Some(btf) = types.btf else { return vec![] };
    let described = |(callback, on): (String, Option<Type>)| {
        (callback, on.map_or(0, |t| t.kind), on.and_then(|t| btf.string(t.name)).unwrap_or_default())
    };
    let mut found: Vec<_> = btf.exception_callbacks().map(described).collect();
    found.sort();
    found
}

/// What the kernel refuses of one object's types.
struct Checked {
    refused: BTreeMap<u32, String>,
    /// A type that needs more steps than the kernel goes; whether it gets there depends on the order of types.
    too_deep: Option<u32>,
}

impl Checked {
    fn of(types: &Types) -> Self {
        let mut this = Checked { refused: BTreeMap::new(), too_deep: None };
        let Some(btf) = types.btf else { return this };
        let checker = Checker { btf, external: externals(btf), of_the_kernel: RefCell::default() };
        for id in btf.ids() {
            let Some(t) = btf.get(id) else { continue };
            if let Err(why) = checker.check(t) {
                this.refused.insert(id, why);
            }
        }
        for pointers in [true, false] {
            let walk = walk(btf, pointers);
            for id in walk.endless {
                this.refused.entry(id).or_insert_with(|| "it contains itself".into());
            }
            this.too_deep = this.too_deep.or(walk.too_deep);
        }
        this
    }
}

/// The variables and functions of `.ksyms` and `.kconfig`: libbpf gives them another type and linkage before the
/// kernel sees them (`bpf_object__collect_externs`).
fn externals(btf: &Btf) -> BTreeSet<u32> {
    let sections = btf.ids().filter_map(|id| btf.get(id)).filter(|t| t.kind == DATASEC);
    let external = sections.filter(|t| matches!(btf.string(t.name).as_deref(), Some(".ksyms" | ".kconfig")));
    external.flat_map(|t| btf.section_variables(t)).map(|v| v.id).collect()
}

struct Checker<'a> {
    btf: &'a Btf,
    external: BTreeSet<u32>,
    /// Whether structs hold objects of the kernel, as far as that has been asked.
    of_the_kernel: RefCell<HashMap<u32, bool>>,
}

type Check = Result<(), String>;

fn ensure(holds: bool, otherwise: &str) -> Check {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

impl Checker<'_> {
    fn check(&self, t: Type) -> Check {
        let counts = matches!(t.kind, STRUCT | UNION | ENUM | ENUM64 | FUNC | FUNC_PROTO | DATASEC);
        ensure(counts || t.vlen == 0, "it has parts, which its kind has not")?;
        ensure(!t.kflag || matches!(t.kind, STRUCT | UNION | ENUM | ENUM64 | FWD), "it has a flag of another kind")?;
        match t.kind {
            INT => self.integer(t),
            FLOAT => ensure(matches!(t.size_or_type, 2 | 4 | 8 | 12 | 16), "no float has this size"),
            PTR | VOLATILE | CONST | RESTRICT => {
                ensure(t.name == 0, "it has a name")?;
                self.refers(t)
            }
            TYPEDEF => {
                self.named(t.name)?;
                self.refers(t)
            }
            TYPE_TAG => {
                ensure(self.btf.string(t.name).is_some_and(|s| !s.is_empty()), "it has no text")?;
                self.refers(t)
            }
            FWD => {
                self.named(t.name)?;
                ensure(t.size_or_type == 0, "it refers to a type")
            }
            ARRAY => self.array(t),
            STRUCT | UNION => self.structure(t),
            ENUM | ENUM64 => self.enumeration(t),
            FUNC => self.function(t),
            FUNC_PROTO => self.signature(t),
            VAR => self.variable(t),
            DATASEC => self.section(t),
            DECL_TAG => self.declaration_tag(t),
            _ => Err("its kind is unknown".into()),
        }
    }

    fn word(&self, t: Type, index: usize) -> Result<u32, String> {
        self.btf.word(t, index).ok_or_else(|| "it is cut off".into())
    }

    /// `btf_name_valid_identifier`; dots are left to newer kernels.
    fn named(&self, name: u32) -> Check {
        let text = self.btf.string(name).unwrap_or_default();
        let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let rest = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        ensure(name != 0 && first && rest && text.len() < NAME_MAX, "its name, or that of a part, is no identifier")
    }

    fn named_or_not(&self, name: u32) -> Check {
        if name == 0 { Ok(()) } else { self.named(name) }
    }

    fn kind(&self, id: u32) -> u32 {
        self.btf.get(id).map_or(0, |t| t.kind)
    }

    /// An integer that fills its bytes (`btf_type_int_is_regular`).
    fn regular_integer(&self, id: u32) -> bool {
        let t = self.btf.plain(id).filter(|(_, t)| t.kind == INT);
        t.is_some_and(|(_, t)| self.integer(t).is_ok())
    }

    fn integer(&self, t: Type) -> Check {
        let data = self.word(t, 0)?;
        let (encoding, offset, bits) = (data >> 24, data >> 16 & 0xff, data & 0xff);
        ensure(data & 0xf000_ff00 == 0 && matches!(encoding, 0 | 1 | 2 | 4), "its encoding has no meaning")?;
        let regular = matches!(t.size_or_type, 1 | 2 | 4 | 8 | 16) && bits == t.size_or_type * 8 && offset == 0;
        ensure(regular, "its bits do not fill its bytes")
    }

    /// Where typedefs, qualifiers and pointers may lead.
    fn refers(&self, t: Type) -> Check {
        ensure(!self.declares(t.size_or_type), "it refers to a declaration")?;
        // Tags of pointers come before qualifiers (`btf_check_type_tags`).
        if t.kind != PTR {
            return Ok(());
        }
        let (mut next, mut tags) = (self.btf.get(t.size_or_type), true);
        for _ in 0..DEPTH_MAX {
            let Some(t) = next.filter(|t| matches!(t.kind, TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG)) else {
                return Ok(());
            };
            if t.kind == TYPE_TAG {
                ensure(tags, "a tag comes after a qualifier")?;
            } else {
                tags = false;
            }
            next = self.btf.get(t.size_or_type);
        }
        Err("it leads too far".into())
    }

    fn declares(&self, id: u32) -> bool {
        matches!(self.kind(id), FUNC | VAR | DATASEC | DECL_TAG)
    }

    /// A type of values: with a size, and no declaration.
    fn sized(&self, id: u32) -> Result<u64, String> {
        let size = self.btf.size_of(id).filter(|_| !self.declares(id));
        size.map(u64::from).ok_or_else(|| "it, or a part, has no size".into())
    }

    fn array(&self, t: Type) -> Check {
        ensure(t.name == 0 && t.size_or_type == 0, "it has a name or size")?;
        let (element, index) = (self.word(t, 0)?, self.word(t, 1)?);
        let size = self.sized(element)?;
        let whole = size.checked_mul(u64::from(self.word(t, 2)?));
        ensure(whole.is_some_and(|n| n <= u64::from(u32::MAX)), "it is too large")?;
        ensure(self.regular_integer(index), "its index is no integer")?;
        let integer = self.btf.plain(element).is_some_and(|(_, t)| t.kind == INT);
        ensure(!integer || self.regular_integer(element), "its elements are integers with gaps")
    }

    fn structure(&self, t: Type) -> Check {
        self.named_or_not(t.name)?;
        let mut last = 0;
        for i in 0..t.vlen {
            self.named_or_not(self.word(t, i * 3)?)?;
            let ty = self.word(t, i * 3 + 1)?;
            let (at, bits) = member_place(t, self.word(t, i * 3 + 2)?);
            ensure(t.kind == STRUCT || at == 0, "a member of a union is not at its start")?;
            ensure(last <= at, "its members are not in order")?;
            last = at;
            self.member(t, ty, u64::from(at), u64::from(bits))?;
            ensure(!self.of_the_kernel(ty, 0), "a member is an object that the kernel knows by name")?;
        }
        Ok(())
    }

    /// `btf_int_check_kflag_member` and its like.
    fn member(&self, t: Type, ty: u32, at: u64, bits: u64) -> Check {
        let size = self.sized(ty)?;
        let kind = self.btf.plain(ty).map_or(0, |(_, t)| t.kind);
        match kind {
            INT | ENUM | ENUM64 => {
                ensure(kind != INT || self.regular_integer(ty), "a member is an integer with gaps")?;
                ensure(bits <= size * 8, "a bit-field is wider than its type")?;
                ensure(bits != 0 || at.is_multiple_of(8), "a member does not start at a byte")?;
            }
            FLOAT => ensure(bits == 0 && at.is_multiple_of(size.min(8) * 8), "a float is not aligned")?,
            PTR | STRUCT | UNION | ARRAY => {
                ensure(bits == 0 && at.is_multiple_of(8), "a member does not start at a byte, or is no bit-field")?;
            }
            _ => return Err("a member is of a kind without values".into()),
        }
        let bits = if bits == 0 { size * 8 } else { bits };
        ensure(at + bits <= u64::from(t.size_or_type) * 8, "a member does not fit in")
    }

    /// Whether a type holds what `btf_parse_struct_metas` looks for, and may refuse (locks, lists, trees …).
    fn of_the_kernel(&self, id: u32, depth: usize) -> bool {
        let Some((id, t)) = self.btf.plain(id) else { return false };
        if let Some(&known) = self.of_the_kernel.borrow().get(&id) {
            return known;
        }
        let inside = |id: Option<u32>| id.is_none_or(|id| self.of_the_kernel(id, depth + 1));
        let found = match t.kind {
            ARRAY | STRUCT | UNION if depth > NESTED_MAX => true,
            ARRAY => inside(self.btf.word(t, 0)),
            STRUCT if self.btf.string(t.name).is_some_and(|n| n.starts_with("bpf_")) => true,
            STRUCT | UNION => (0..t.vlen).any(|i| inside(self.btf.word(t, i * 3 + 1))),
            _ => false,
        };
        self.of_the_kernel.borrow_mut().insert(id, found);
        found
    }

    fn enumeration(&self, t: Type) -> Check {
        self.named_or_not(t.name)?;
        ensure(matches!(t.size_or_type, 1 | 2 | 4 | 8), "no enumeration has this size")?;
        let words = if t.kind == ENUM64 { 3 } else { 2 };
        (0..t.vlen).try_for_each(|i| self.named(self.word(t, i * words)?))
    }

    fn function(&self, t: Type) -> Check {
        self.named(t.name)?;
        let linkage = u32::try_from(t.vlen).unwrap_or(u32::MAX);
        let external = self.is_external(t);
        ensure(linkage <= LINKAGE_GLOBAL || linkage == LINKAGE_EXTERN && external, "its linkage has no meaning")?;
        let proto = self.btf.get(t.size_or_type).filter(|t| t.kind == FUNC_PROTO);
        let proto = proto.ok_or("it has no signature")?;
        let mut named = (0..proto.vlen).map(|i| (self.btf.word(proto, i * 2), self.btf.word(proto, i * 2 + 1)));
        ensure(external || named.all(|(name, ty)| name != Some(0) || ty == Some(0)), "a parameter has no name")
    }

    fn is_external(&self, t: Type) -> bool {
        self.external.iter().any(|id| self.btf.get(*id).is_some_and(|other| other.body == t.body))
    }

    fn signature(&self, t: Type) -> Check {
        ensure(t.name == 0, "it has a name")?;
        if t.size_or_type != 0 {
            self.sized(t.size_or_type)?;
        }
        for i in 0..t.vlen {
            let (name, ty) = (self.word(t, i * 2)?, self.word(t, i * 2 + 1)?);
            if ty == 0 {
                // `...`
                ensure(i + 1 == t.vlen && name == 0, "a parameter has no type")?;
                continue;
            }
            self.named_or_not(name)?;
            self.sized(ty)?;
        }
        Ok(())
    }

    fn variable(&self, t: Type) -> Check {
        self.named(t.name)?;
        ensure(t.size_or_type != 0, "it has no type")?;
        let linkage = self.word(t, 0)?;
        if linkage == LINKAGE_EXTERN && self.is_external(t) {
            return Ok(());
        }
        ensure(linkage <= LINKAGE_GLOBAL, "its linkage has no meaning")?;
        self.sized(t.size_or_type).map(|_| ())
    }

    /// Sizes and offsets are libbpf's to fill in, and compared variable by variable.
    fn section(&self, t: Type) -> Check {
        let name = self.btf.string(t.name).unwrap_or_default();
        let printable = name.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        ensure(!name.is_empty() && printable && name.len() < NAME_MAX, "its name cannot be printed")?;
        for v in self.btf.section_variables(t) {
            let wanted = self.kind(v.id) == VAR || self.kind(v.id) == FUNC && name == ".ksyms";
            ensure(wanted, "it holds something that is no variable")?;
        }
        Ok(())
    }

    fn declaration_tag(&self, t: Type) -> Check {
        ensure(self.btf.string(t.name).is_some_and(|s| !s.is_empty()), "it has no text")?;
        let component = self.word(t, 0)? as i32;
        let on = self.btf.get(t.size_or_type).ok_or("it is on no type")?;
        let parts = match on.kind {
            STRUCT | UNION => on.vlen,
            FUNC => self.btf.get(on.size_or_type).map_or(0, |proto| proto.vlen),
            VAR | TYPEDEF => 0,
            kind => return Err(format!("it is on a {}", kind_name(kind))),
        };
        let part = usize::try_from(component).is_ok_and(|i| i < parts);
        ensure(component == -1 || part, "it is on a part that is not there")
    }
}

/// What following types to their end shows.
struct Walk {
    /// Types that lead back to themselves.
    endless: Vec<u32>,
    too_deep: Option<u32>,
}

/// Follows all types, through qualifiers and either pointers or members and elements: these are the two ways in which
/// `btf_resolve` goes on (`env_type_is_resolve_sink`).
fn walk(btf: &Btf, pointers: bool) -> Walk {
    let follows = |t: Type| match t.kind {
        TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => true,
        PTR => pointers,
        ARRAY | STRUCT | UNION => !pointers,
        _ => false,
    };
    let next = |id: u32| -> Vec<u32> {
        let Some(t) = btf.get(id).filter(|t| follows(*t)) else { return vec![] };
        let all: Vec<u32> = match t.kind {
            ARRAY => btf.word(t, 0).into_iter().collect(),
            STRUCT | UNION => (0..t.vlen).filter_map(|i| btf.word(t, i * 3 + 1)).collect(),
            _ => vec![t.size_or_type],
        };
        all.into_iter().filter(|id| btf.get(*id).is_some_and(follows)).collect()
    };
    let mut found = Walk { endless: vec![], too_deep: None };
    // Steps to the end of each type that is done.
    let mut done: HashMap<u32, usize> = HashMap::new();
    for start in btf.ids() {
        if done.contains_key(&start) {
            continue;
        }
        let mut path = vec![(start, next(start), 0)];
        let mut on_path = BTreeSet::from([start]);
        while let Some((id, rest, height)) = path.last_mut() {
            match rest.pop() {
                Some(to) if on_path.contains(&to) => {
                    let from = path.iter().position(|(id, ..)| *id == to).unwrap_or(0);
                    found.endless.extend(path.iter().skip(from).map(|(id, ..)| *id));
                }
                Some(to) => match done.get(&to) {
                    Some(steps) => *height = (*height).max(steps + 1),
                    None => {
                        on_path.insert(to);
                        path.push((to, next(to), 0));
                    }
                },
                None => {
                    let (id, steps) = (*id, *height);
                    if steps > DEPTH_MAX && found.too_deep.is_none() {
                        found.too_deep = Some(id);
                    }
                    done.insert(id, steps);
                    on_path.remove(&id);
                    path.pop();
                    if let Some((.., height)) = path.last_mut() {
                        *height = (*height).max(steps + 1);
                    }
                }
            }
        }
    }
    found
}
