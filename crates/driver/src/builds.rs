//! Other builds of one source: what another run of the compiler has made of each function, as a place to begin.
//!
//! The one idea: which of a compiler's levels gives the better beginning differs from function to function. So the functions
//! of other builds are put in terms of the first one: its maps, its data, its functions. Nothing of another build is
//! trusted, its names neither: each is a proposal for a whole function ([`crate::global::Start`]), and stands only once it has
//! been proven to do what the first build's does. Where it refers to something that the first build's function does not refer to,
//! nothing could carry its relocation, and it is left.

use std::collections::HashMap;

use bpf_isa::Insn;
use bpf_object::compare::Comparison;
use bpf_object::{FuncId, Object, SourceLine};
use bpf_program::{Function, Link, Op, Symbol, Terminator};

use crate::error::DriverError;
use crate::module::Module;
use crate::rename::Names;

/// Functions of other builds, by those of the first.
pub(crate) struct Builds {
    /// For each function of the first build: what others made of it, and which.
    functions: Vec<Vec<(String, Function)>>,
}

impl Builds {
    /// Reads other builds (name, bytes) of the object in `module`.
    pub(crate) fn read(module: &Module, builds: &[(String, Vec<u8>)]) -> Result<Builds, DriverError> {
        let mut functions = vec![Vec::new(); module.graphs.len()];
        for (name, bytes) in builds {
            let other = Module::new(Object::parse(bytes.clone())?);
            if other.object.byte_order() != module.object.byte_order() {
                let [is, wanted] = [&other, module].map(|m| m.object.byte_order().name());
                return Err(DriverError::OtherOrder { name: name.clone(), is, wanted });
            }
            let comparison = Comparison::of(&module.object, &other.object);
            let list = comparison.matchings().list;
            let Some(matching) = list.first() else { continue };
            let names = Names { a: module, b: &other, matching, comparison: &comparison };
            for (id, found) in functions.iter_mut().enumerate() {
                let partner = matching.function(FuncId(id));
                found.extend(partner.and_then(|p| put(&names, FuncId(id), p)).map(|f| (name.clone(), f)));
            }
        }
        Ok(Builds { functions })
    }

    /// What other builds have in the place of a function.
    pub(crate) fn of(&self, id: usize) -> &[(String, Function)] {
        &self.functions[id]
    }
}

/// Function `j` of the other build in terms of the first, as something that may stand in the place of its `i`.
fn put(names: &Names, i: FuncId, j: FuncId) -> Option<Function> {
    let (mine, theirs) = (names.a.graphs[i.0].as_ref().ok()?, names.b.graphs[j.0].as_ref().ok()?);
    let mut f = names.second(theirs);
    // Who calls it, and with what, is said of the place that it would take.
    (f.name, f.kind, f.arguments) = (mine.name.clone(), mine.kind, mine.arguments.clone());
    let mut carriers: HashMap<&Symbol, &Op> = HashMap::new();
    for op in mine.layout.iter().flat_map(|b| &mine.block(*b).ops) {
        if let Some(link) = &op.link {
            carriers.entry(&link.symbol).or_insert(op);
        }
    }
    let lines = Lines::of(names, i, j);
    for op in f.blocks.iter_mut().flat_map(|b| &mut b.ops) {
        let origin = op.origin;
        if let Some(link) = &op.link {
            *op = carried(op, carriers.get(&link.symbol)?)?;
        }
        op.origin = origin.and_then(|slot| lines.partner(slot));
    }
    for block in &mut f.blocks {
        if let Terminator::Branch { origin, .. } | Terminator::MayGoto { origin, .. } | Terminator::Exit { origin } =
            &mut block.term
        {
            *origin = origin.and_then(|slot| lines.partner(slot));
        }
    }
    Some(f)
}

/// The operation with the reference of `carrier`, which is to the same thing; `None` where the loader would patch it otherwise.
fn carried(op: &Op, carrier: &Op) -> Option<Op> {
    let link = carrier.link.clone().filter(|link| !matches!(link.symbol, Symbol::Core { .. }))?;
    let insn = match (op.insn, carrier.insn) {
        (Insn::LoadImm64 { dst, .. }, Insn::LoadImm64 { kind, imm, .. }) => Insn::LoadImm64 { dst, kind, imm },
        (Insn::Call(_), Insn::Call(callee)) => Insn::Call(callee),
        _ => return None,
    };
    Some(Op { insn, origin: None, link: Some(Link { slot: link.slot, symbol: link.symbol }) })
}

/// Slots of both builds by lines of source, so that logs of the verifier still name them.
struct Lines<'a> {
    theirs: &'a Object,
    function: FuncId,
    /// The first slot of each line in the first build.
    mine: HashMap<(String, u32), usize>,
}

impl<'a> Lines<'a> {
    fn of(names: &Names<'a, '_>, i: FuncId, j: FuncId) -> Lines<'a> {
        let object = &names.a.object;
        let mut mine = HashMap::new();
        // Only where an instruction begins a line can be inherited from.
        let starts = bpf_isa::decode_all(object.code(i)).unwrap_or_default();
        for (slot, _) in starts {
            if let Some(SourceLine { file, line, .. }) = object.line_of(i, slot) {
                mine.entry((file, line)).or_insert(slot);
            }
        }
        Lines { theirs: &names.b.object, function: j, mine }
    }

    /// A slot of the first build that comes from the line of this one of the other.
    fn partner(&self, slot: usize) -> Option<usize> {
        let SourceLine { file, line, .. } = self.theirs.line_of(self.function, slot)?;
        self.mine.get(&(file, line)).copied()
    }
}
