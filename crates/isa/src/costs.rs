//! How long instructions take: tables of costs, by classes of operations.
//!
//! One idea: whatever weighs code against code (passes, global passes, search, estimates in reports) goes by one table, and the goal
//! carries it ([`Goal::Latency`](crate::Goal::Latency)). A table is data: it is measured (`bpf-opt profile`), or made from a vendor's
//! figures, and its text says which. Of each class it has two numbers, in picoseconds: what an operation takes in a chain in which each
//! waits for the one before, and what it takes beside others that do not wait for it. What comes out of that for a whole program is the
//! estimator's business; an instruction alone weighs [`Costs::time`].
//!
//! Two tables with the same numbers are the same table, whatever is written about them; [`Costs::mark`] names them in what is
//! remembered from run to run.

mod class;
mod table;
mod text;

use std::sync::{LazyLock, Mutex, PoisonError};

pub use class::Class;
pub use table::{Cost, Costs, Origin};
pub use text::CostsError;

/// Tables that come with the program, by their names.
static SHIPPED: [(&str, LazyLock<Costs>); 2] = [
    ("x86-64", LazyLock::new(|| embedded(include_str!("../costs/x86-64.toml")))),
    ("arm64", LazyLock::new(|| embedded(include_str!("../costs/arm64.toml")))),
];

/// Tables that goals carry.
static KEPT: Mutex<Vec<&'static Costs>> = Mutex::new(Vec::new());

fn embedded(text: &str) -> Costs {
    Costs::parse(text).unwrap_or_else(|e| panic!("a shipped table of costs: {e}"))
}

impl Costs {
    /// The table that is shipped for an architecture, by its name: `x86-64` or `arm64`.
    pub fn shipped(name: &str) -> Option<&'static Costs> {
        SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, table)| &**table)
    }

    /// The names of those.
    pub fn shipped_names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// The one that is shipped for the architecture this program was built for; that of x86-64 if there is none.
    pub fn of_host() -> &'static Costs {
        let name = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86-64" };
        Costs::shipped(name).unwrap_or(Costs::rough())
    }

    /// This table until the process ends: goals carry it. The same one is kept once.
    pub fn keep(self) -> &'static Costs {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = kept.iter().copied().find(|c| *c == &self && c.origin == self.origin) {
            return same;
        }
        let new: &'static Costs = Box::leak(Box::new(self));
        kept.push(new);
        new
    }

    /// The table with this mark, of those that are shipped or kept; otherwise one that has only the mark, and rough weights: what was
    /// learnt by a table of another run can be read and proven, and is never used for one of this.
    pub fn marked(mark: u32) -> &'static Costs {
        let shipped = SHIPPED.iter().map(|(_, table)| &**table).find(|c| c.mark() == mark);
        let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().find(|c| c.mark() == mark);
        shipped.or_else(kept).unwrap_or_else(|| Costs::unknown(mark).keep())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn every_class_has_its_place_and_a_name_of_its_own() {
        for (i, class) in Class::ALL.iter().enumerate() {
            assert_eq!(*class as usize, i);
            assert_eq!(Class::named(class.name()), Some(*class));
        }
    }

    #[test]
    fn shipped_tables_are_read_and_say_where_they_are_from() {
        for name in Costs::shipped_names() {
            let table = Costs::shipped(name).expect("it is there");
            assert!(!table.origin.cpu.is_empty() && !table.origin.source.is_empty(), "{name}");
            for class in Class::ALL {
                let Cost { dependent, independent } = table.of(*class);
                assert!(
                    independent > 0 && dependent >= independent && dependent < 1_000_000,
                    "{name}: {}",
                    class.name()
                );
            }
            // What anybody would expect of a processor.
            let time = |text: &str| table.time(&parse(text).expect("an instruction"));
            assert!(time("r1 /= r2") > time("r1 *= r2"), "{name}");
            assert!(time("r1 *= r2") > time("r1 += r2"), "{name}");
            assert!(time("lock *(u64 *)(r1 + 0) += r2") > time("*(u64 *)(r1 + 0) = r2"), "{name}");
            let [wrong, right] = [Class::BranchMispredicted, Class::BranchTaken].map(|c| table.of(c).independent);
            assert!(wrong > right, "{name}");
        }
        assert_eq!(Costs::shipped("vax"), None);
    }

    #[test]
    fn numbers_make_a_table_and_words_do_not() {
        let table = |first: u32, cpu: &str| {
            let origin = Origin { cpu: cpu.to_owned(), ..Origin::default() };
            Costs::new(origin, |c| Cost { dependent: if c as usize == 0 { first } else { 500 }, independent: 100 })
        };
        assert_eq!(table(1, "a"), table(1, "b"));
        assert_ne!(table(1, "a").mark(), table(2, "a").mark());
        let kept = table(3, "c").keep();
        assert!(std::ptr::eq(kept, table(3, "c").keep()));
        assert!(std::ptr::eq(Costs::marked(kept.mark()), kept));
        let unknown = Costs::marked(12345);
        assert_eq!((unknown.mark(), unknown), (12345, Costs::marked(12345)));
    }
}
