//! What the optimizer consists of: parts that can be left out, to see what each is worth.

/// A part of the optimizer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pass {
    /// `host A or host B or …` is one question about a set.
    Lists,
    /// A question whose answer is known on the way to it goes (BPF+, section 6.1).
    Predicates,
    /// That a packet has a field is looked for once on each way.
    Checks,
    /// Of questions that can change places the better one comes first, and those about one value come together.
    Order,
    /// Blocks are copied where more is known on one way to them than on another.
    Copies,
    /// A value is looked for among many by a tree of comparisons instead of by one after the other.
    Trees,
    /// Large sets become perfect hashes and bitmaps.
    Tables,
}

impl Pass {
    /// All of them, in the order in which they see the filter.
    pub const ALL: [Pass; 7] =
        [Pass::Lists, Pass::Predicates, Pass::Checks, Pass::Order, Pass::Copies, Pass::Trees, Pass::Tables];

    /// The name that the command line has for it.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Lists => "lists",
            Pass::Predicates => "predicates",
            Pass::Checks => "checks",
            Pass::Order => "order",
            Pass::Copies => "copies",
            Pass::Trees => "trees",
            Pass::Tables => "tables",
        }
    }

    /// The pass of a name.
    pub fn of_name(name: &str) -> Option<Pass> {
        Pass::ALL.into_iter().find(|pass| pass.name() == name)
    }
}

/// Which passes run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passes(u8);

impl Default for Passes {
    fn default() -> Passes {
        Passes::of(Pass::ALL)
    }
}

impl Passes {
    /// These passes.
    pub fn of(passes: impl IntoIterator<Item = Pass>) -> Passes {
        Passes(passes.into_iter().fold(0, |all, pass| all | 1 << pass as u8))
    }

    /// Whether a pass runs.
    pub fn has(self, pass: Pass) -> bool {
        self.0 >> (pass as u8) & 1 != 0
    }

    /// Whether none runs.
    pub(crate) fn are_none(self) -> bool {
        self.0 == 0
    }
}
