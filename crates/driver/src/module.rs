//! An object with everything the pipeline asks of it: graphs, maps, arities.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bpf_facts::{Env, ExternInfo, Facts, Liveness, MapInfo, SectionInfo};
use bpf_isa::Reg;
use bpf_object::{FuncId, FuncKind, MapDef, Object};
use bpf_platform::{first_key_of_longer, inner_maps_may_be_shorter, maps, maps::OpenSize};
use bpf_program::{Function, build};

use crate::shared::Shared;

/// Deepest call chain (`MAX_CALL_FRAMES` in the kernel's `bpf_verifier.h`).
const CALL_DEPTH: usize = 8;

/// An object and the graphs of its functions.
pub struct Module {
    /// The object.
    pub object: Object,
    /// Its maps.
    pub maps: Vec<MapInfo>,
    /// Its sections.
    sections: Vec<SectionInfo>,
    /// The functions it wants from elsewhere.
    externs: Vec<ExternInfo>,
    /// The graph of each function, or why there is none.
    pub graphs: Vec<Result<Function, String>>,
    /// How many argument registers each subprogram may read, by the name of its graph, which is unique.
    arities: HashMap<String, usize>,
    /// Highest cpu level in use.
    pub cpu: u8,
    /// What is known of functions of other objects.
    pub(crate) shared: Option<Arc<Shared>>,
    /// See [`crate::sensitive::is_sensitive`].
    pub(crate) sensitive: OnceLock<Vec<bool>>,
    /// See [`crate::results::is_ignored`].
    pub(crate) ignored: OnceLock<Vec<bool>>,
}

impl Module {
    /// Reads everything there is to know about `object`.
    pub fn new(object: Object) -> Module {
        let maps: Vec<MapInfo> =
            object.maps().iter().enumerate().map(|(i, m)| map_info(object.map_identity(i), m)).collect();
        let sections = object.alignments().map(|(name, zero_bits)| SectionInfo {
            name: name.to_owned(),
            zero_bits,
            managed: object.managed_fields(name),
        });
        let sections: Vec<SectionInfo> = sections.collect();
        let ids = (0..object.functions().len()).map(FuncId);
        let graphs: Vec<Result<Function, String>> = ids
            .map(|id| match object.locked(id) {
                Some(why) => Err(why.to_string()),
                None => build(&object, id).map_err(|e| e.to_string()),
            })
            .collect();
        let cpu = graphs
            .iter()
            .flatten()
            .flat_map(|f| f.blocks.iter())
            .flat_map(|b| {
                let width = match b.term {
                    bpf_program::Terminator::Branch { width: bpf_isa::Width::W32, .. } => 3,
                    _ => 1,
                };
                b.ops.iter().map(|o| o.insn.cpu()).chain([width])
            })
            .max()
            .unwrap_or(1);
        let externs = object.extern_functions().map(|(name, p)| ExternInfo { name, parameters: p.params.len() });
        let mut module = Module {
            externs: externs.collect(),
            sections,
            object,
            maps,
            graphs,
            arities: HashMap::new(),
            cpu,
            shared: None,
            sensitive: OnceLock::new(),
            ignored: OnceLock::new(),
        };
        // Each round knows the callees of the round before; the first takes them to read everything, so
        // every round is sound, and call chains are no deeper than the kernel allows.
        for _ in 0..CALL_DEPTH {
            let next = module.count_arguments();
            if std::mem::replace(&mut module.arities, next) == module.arities {
                break;
            }
        }
        let arity = |name: &str| module.arities.get(name).copied();
        let env = Env {
            maps: &module.maps,
            callee_args: &arity,
            sections: &module.sections,
            externs: &module.externs,
            byte_order: module.object.byte_order(),
        };
        crate::arguments::find(&module.object, &mut module.graphs, &env);
        module
    }

    fn count_arguments(&self) -> HashMap<String, usize> {
        let mut arities = HashMap::new();
        for (i, g) in self.graphs.iter().enumerate() {
            let Ok(f) = g else { continue };
            if f.kind != bpf_program::ProgKind::Subprogram {
                continue;
            }
            let callee_args = |name: &str| self.arities.get(name).copied();
            let env = self.env(&callee_args);
            let facts = Facts::of(f, &env);
            let live = Liveness::of(f, &env, &facts);
            let entry = live.entry(f.entry()).regs;
            let read = (1..=5).filter(|n| Reg::new(*n).is_some_and(|r| entry.contains(r))).max().unwrap_or(0);
            // Another may be put in its place, also in that of a static one whose callers pass what it declares
            // (`btf_check_subprog_call` in kernel/bpf/btf.c leaves it replaceable), and read all that is declared.
            let declared = self.object.func_proto(FuncId(i)).map_or(0, |p| p.params.len());
            let n = usize::from(read).max(declared).min(5);
            arities.insert(f.name.clone(), n);
        }
        arities
    }

    /// Calls `f` with the environment of this module's functions.
    pub fn with_env<T>(&self, f: impl FnOnce(&Env) -> T) -> T {
        let arity = |name: &str| self.arity(name);
        f(&self.env(&arity))
    }

    fn env<'a>(&'a self, callee_args: &'a dyn Fn(&str) -> Option<usize>) -> Env<'a> {
        Env {
            maps: &self.maps,
            callee_args,
            sections: &self.sections,
            externs: &self.externs,
            byte_order: self.object.byte_order(),
        }
    }

    /// Its sections.
    pub(crate) fn sections(&self) -> &[SectionInfo] {
        &self.sections
    }

    /// The functions it wants from elsewhere.
    pub(crate) fn externs(&self) -> &[ExternInfo] {
        &self.externs
    }

    /// How many argument registers the subprogram of this identity may read, if that is known.
    pub(crate) fn arity(&self, identity: &str) -> Option<usize> {
        self.arities.get(identity).copied()
    }
}

fn map_info(identity: &str, m: &MapDef) -> MapInfo {
    let holds_maps = m.map_type.is_none_or(|kind| maps::element(kind) == maps::Element::Map);
    let template = m.inner.as_ref().map(|inner| (inner.map_type, inner.map_flags));
    MapInfo {
        name: identity.to_owned(),
        map_type: m.map_type,
        key_size: key_rule(m).or_only(m.key_size),
        value_size: value_rule(m).or_only(m.value_size),
        max_entries: m.max_entries,
        managed: m.managed.clone(),
        values_known: m.values_known,
        inner_may_be_shorter: holds_maps && inner_maps_may_be_shorter(template),
        first_inner_key_of_longer: match &m.inner {
            _ if !holds_maps => None,
            Some(inner) => first_key_of_longer(inner.map_type, inner.max_entries),
            None => Some(0),
        },
        is_open: is_open(m),
    }
}

fn key_rule(m: &MapDef) -> OpenSize {
    m.map_type.map_or(OpenSize::OfTheLoader, maps::open_key_size)
}

fn value_rule(m: &MapDef) -> OpenSize {
    m.map_type.map_or(OpenSize::OfTheLoader, |kind| maps::open_value_size(kind, m.map_flags.unwrap_or(0)))
}

/// Whether only the loader knows how long keys or values of a map are, or those of the maps in it.
fn is_open(m: &MapDef) -> bool {
    let is_open_size = |said: Option<u32>, rule| said.is_none() && rule == OpenSize::OfTheLoader;
    let holds_maps = m.map_type.is_some_and(|kind| maps::element(kind) == maps::Element::Map);
    is_open_size(m.key_size, key_rule(m))
        || is_open_size(m.value_size, value_rule(m))
        || holds_maps && m.inner.as_deref().is_none_or(is_open)
}

/// Whether a function is an entry point the loader loads by itself.
pub(crate) fn is_program(object: &Object, id: usize) -> bool {
    object.functions()[id].kind == FuncKind::Program
}
