//! The functions of two objects under names that both share.
//!
//! The one idea: the prover takes equal names for equal things, so before it compares functions of two objects, every
//! name in the second one's graphs is replaced by that of its partner in the first one. What has no partner gets a name
//! that the first object cannot have. CO-RE records of both are numbered by the question they ask.

use std::sync::Arc;

use bpf_facts::{Env, SectionInfo};
use bpf_object::FuncId;
use bpf_object::compare::{Comparison, Matching, Side};
use bpf_program::{Argument, Function, Pointee, Symbol};

use crate::module::Module;

/// Marks names that only the second object has. No name read from a file holds this character.
const ONLY_SECOND: char = '\0';

/// The common names of two objects.
pub(crate) struct Names<'a, 'o> {
    pub a: &'a Module,
    pub b: &'a Module,
    pub matching: &'a Matching,
    pub comparison: &'a Comparison<'o>,
}

impl Names<'_, '_> {
    /// A graph of the first object.
    pub fn first(&self, f: &Function) -> Function {
        renamed(f, &|symbol| match symbol {
            Symbol::Core { kind, type_id, access } => self.record(Side::First, *kind, *type_id, access),
            other => other.clone(),
        })
    }

    /// A graph of the second object.
    pub fn second(&self, g: &Function) -> Function {
        let mut g = renamed(g, &|symbol| match symbol {
            Symbol::Core { kind, type_id, access } => self.record(Side::Second, *kind, *type_id, access),
            Symbol::Func { name } => Symbol::Func { name: self.function(name).into() },
            Symbol::Data { section, offset } => {
                let back = self.matching.section_name_back(&self.a.object, &self.b.object, section);
                Symbol::Data { section: back.map_or_else(|| only_second(section), Arc::from), offset: *offset }
            }
            Symbol::Map { name, index } => match self.matching.map_back(*index) {
                Some(index) => Symbol::Map { name: Arc::from(self.a.object.map_identity(index)), index },
                None => Symbol::Map { name: only_second(name), index: usize::MAX },
            },
            Symbol::Extern { .. } => symbol.clone(),
        });
        g.name = self.function(&g.name);
        for argument in g.arguments.iter_mut().flatten() {
            self.rename(argument);
        }
        g
    }

    /// An argument of the second object's function, in terms of the first one's maps and sections.
    fn rename(&self, argument: &mut Argument) {
        let Argument::Pointer(pointee, _) = argument else { return };
        let known = match pointee {
            Pointee::Map(index) | Pointee::MapValue(index) => match self.matching.map_back(*index) {
                Some(partner) => {
                    *index = partner;
                    true
                }
                None => false,
            },
            Pointee::Data(section) => {
                let back = self.matching.section_name_back(&self.a.object, &self.b.object, section);
                *section = back.map_or_else(|| only_second(section), Arc::from);
                true
            }
            Pointee::CallerFrame | Pointee::AnyMapValue | Pointee::Packet | Pointee::PacketEnd => true,
        };
        if !known {
            *argument = Argument::Unknown;
        }
    }

    /// The first object's sections of data, each as aligned as in both, with what the kernel manages in either.
    fn sections(&self) -> Vec<SectionInfo> {
        let mut sections = self.a.sections().to_vec();
        for theirs in self.b.sections() {
            let name = self.matching.section_name_back(&self.a.object, &self.b.object, &theirs.name);
            for mine in sections.iter_mut().filter(|s| Some(s.name.as_str()) == name) {
                mine.zero_bits = mine.zero_bits.min(theirs.zero_bits);
                mine.managed = mine.managed.union(&theirs.managed);
            }
        }
        sections
    }

    /// The first object's name of a function of the second.
    fn function(&self, identity: &str) -> String {
        let partner = self.b.function(identity).and_then(|j| self.matching.function_back(j));
        partner.map_or_else(|| only_second(identity).to_string(), |i| self.a.object.function_identity(i).to_owned())
    }

    fn record(&self, side: Side, kind: u32, type_id: u32, access: &Arc<str>) -> Symbol {
        let question = self.comparison.core_question(side, kind, type_id, access);
        match question.and_then(|n| u32::try_from(n).ok()) {
            Some(number) => Symbol::Core { kind, type_id: number, access: Arc::from("") },
            // Not of this object: like nothing else.
            None => Symbol::Core { kind, type_id, access: format!("{side:?} {access}").into() },
        }
    }

    /// Calls `f` with the surroundings of both sides: the first object's maps, and of paired callees the larger need.
    pub fn with_env<T>(&self, f: impl FnOnce(&Env) -> T) -> T {
        let callee_args = |identity: &str| {
            let mine = self.a.arity(identity)?;
            let partner = self.a.function(identity).and_then(|i| self.matching.function(i))?;
            let theirs = self.b.arity(self.b.object.function_identity(partner))?;
            Some(mine.max(theirs))
        };
        // What the two declare is compared elsewhere.
        let (externs, byte_order) = (self.a.externs(), self.a.object.byte_order());
        f(&Env { maps: &self.a.maps, callee_args: &callee_args, sections: &self.sections(), externs, byte_order })
    }
}

fn only_second(name: &str) -> Arc<str> {
    format!("{name}{ONLY_SECOND}").into()
}

fn renamed(f: &Function, name: &dyn Fn(&Symbol) -> Symbol) -> Function {
    let mut f = f.clone();
    for op in f.blocks.iter_mut().flat_map(|b| &mut b.ops) {
        if let Some(link) = &mut op.link {
            link.symbol = name(&link.symbol);
        }
    }
    f
}

impl Module {
    /// The function of this identity.
    fn function(&self, identity: &str) -> Option<FuncId> {
        (0..self.object.functions().len()).map(FuncId).find(|f| self.object.function_identity(*f) == identity)
    }
}
