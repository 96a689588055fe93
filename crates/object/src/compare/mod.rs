//! Comparing two objects by what they mean.
//!
//! The one idea: a loader sees names, places and types, never numbers; so everything that refers to something is
//! followed to what it refers to, and that is compared: functions, maps and sections through one [`Matching`], BTF
//! types structurally, CO-RE records by the question they ask. What functions *do* is not known here: the caller proves
//! the pairs of a matching equal, under the names that [`Comparison`] gives to both sides.
//!
//! Promise: what has no effect on a loader may differ and is noted; what has, is a difference; what is not understood
//! is unknown. If there is neither difference nor unknown, and all pairs of functions of the same matching are equal,
//! then so are the objects.

mod code;
mod contents;
pub(crate) mod core;
mod declarations;
mod definition;
mod findings;
mod loading;
mod matching;
mod records;
mod reference;
mod symbols;
mod taken;
mod types;
mod wellformed;
mod written;

pub use findings::{Finding, Findings};
pub use matching::{Matching, Matchings};
pub use written::beside_bodies;

use self::core::Question;
use self::types::{Names, Outcome, TypeComparison};
use crate::btf::Btf;
use crate::btf_ext::LINE_INFO;
use crate::core_relo;
use crate::functions::{CoreReloc, FuncId, FuncKind};
use crate::object::Object;
use std::collections::{BTreeSet, HashMap};

/// Renamed types named in notes, at most.
const RENAMED_MAX: usize = 8;

/// Which of the two objects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The one that sets the standard.
    First,
    /// The other.
    Second,
}

/// Two objects, and what has been found out about their types.
pub struct Comparison<'a> {
    a: &'a Object,
    b: &'a Object,
    types: TypeComparison<'a>,
    /// CO-RE records by side, kind, root type and access string: the number of their question.
    questions: HashMap<(Side, u32, u32, String), usize>,
    asked: Vec<Asked>,
    /// Numbers of questions by kind and words.
    worded: HashMap<(u32, String), Vec<usize>>,
}

/// A question that CO-RE records ask.
struct Asked {
    question: Result<Question, String>,
    side: Side,
}

impl<'a> Comparison<'a> {
    /// Prepares to compare `b` with `a`.
    #[must_use]
    pub fn of(a: &'a Object, b: &'a Object) -> Self {
        let types = TypeComparison::of(a.btf.as_ref(), b.btf.as_ref());
        let mut this = Comparison { a, b, types, questions: HashMap::new(), asked: Vec::new(), worded: HashMap::new() };
        for (side, o) in [(Side::First, a), (Side::Second, b)] {
            for f in (0..o.functions().len()).map(FuncId) {
                for record in o.core_relocs(f) {
                    this.ask(side, record);
                }
            }
        }
        this
    }

    /// The ways to pair the objects' functions.
    #[must_use]
    pub fn matchings(&self) -> Matchings {
        matching::matchings(self.a, self.b)
    }

    /// A number for what a CO-RE record asks: equal for two records, of one object or of both, only if the kernel
    /// gives both the same answer.
    #[must_use]
    pub fn core_question(&self, side: Side, kind: u32, type_id: u32, access: &str) -> Option<usize> {
        self.questions.get(&(side, kind, type_id, access.to_owned())).copied()
    }

    fn ask(&mut self, side: Side, r: &CoreReloc) {
        let key = (side, r.kind, r.type_id, r.access.clone());
        if self.questions.contains_key(&key) {
            return;
        }
        let types = if side == Side::First { &self.types.a } else { &self.types.b };
        let question = core::question(types, r);
        // The same bytes ask the same, understood or not.
        let literally = (Side::First, r.kind, r.type_id, r.access.clone());
        let known = self.questions.get(&literally).filter(|_| self.types.identical()).copied();
        let number = known.or_else(|| self.same_question(side, r, &question)).unwrap_or_else(|| {
            if let Ok(question) = &question {
                self.worded.entry((r.kind, question.text.clone())).or_default().push(self.asked.len());
            }
            self.asked.push(Asked { question, side });
            self.asked.len() - 1
        });
        self.questions.insert(key, number);
    }

    fn same_question(&mut self, side: Side, r: &CoreReloc, question: &Result<Question, String>) -> Option<usize> {
        let question = question.as_ref().ok()?;
        for &number in self.worded.get(&(r.kind, question.text.clone()))? {
            let Some(asked) = self.asked.get(number) else { continue };
            let Ok(other) = &asked.question else { continue };
            let same = match (other.whole, question.whole) {
                (None, None) => true,
                (Some(x), Some(y)) if asked.side == side => x == y,
                (Some(x), Some(y)) => self.types.compare(x, y, Names::Count) == Outcome::Same,
                _ => false,
            };
            if same {
                return Some(number);
            }
        }
        None
    }

    /// Whether two functions have the same code as it stands, references and records followed.
    #[must_use]
    pub fn same_code(&self, m: &Matching, i: FuncId, j: FuncId) -> bool {
        let records = |side: Side, o: &Object, f: FuncId| -> Vec<(usize, Option<usize>)> {
            let number = |r: &CoreReloc| self.core_question(side, r.kind, r.type_id, &r.access);
            o.core_relocs(f).iter().map(|r| (r.slot, number(r))).collect()
        };
        code::same(self.a, i, self.b, j, m) && records(Side::First, self.a, i) == records(Side::Second, self.b, j)
    }

    /// What cannot be read of the CO-RE records of a pair of functions, if that is anything that is not the same on both
    /// sides. No verdict about such functions can be trusted.
    #[must_use]
    pub fn unreadable_records(&self, i: FuncId, j: FuncId) -> Option<String> {
        let numbers = |side: Side, o: &Object, f: FuncId| -> BTreeSet<Option<usize>> {
            let number = |r: &CoreReloc| self.core_question(side, r.kind, r.type_id, &r.access);
            o.core_relocs(f).iter().map(number).collect()
        };
        let (first, second) = (numbers(Side::First, self.a, i), numbers(Side::Second, self.b, j));
        first.symmetric_difference(&second).find_map(|n| self.asked.get((*n)?)?.question.as_ref().err().cloned())
    }

    /// Compares everything but the bodies of functions; what is said of single functions only for those `wanted`.
    #[must_use]
    pub fn findings(&mut self, m: &Matching, wanted: &dyn Fn(&str) -> bool) -> Findings {
        let mut out = Findings::default();
        let (a, b) = (self.a, self.b);
        self.functions(m, wanted, &mut out);
        loading::compare(a, b, m, &mut out);
        contents::compare(a, b, m, &mut out);
        symbols::compare(a, b, m, &mut out);
        taken::compare(a, b, m, &mut out);
        declarations::variables(a, b, m, &mut self.types, &mut out);
        declarations::externals(a, &mut self.types, &mut out);
        self.readable(&mut out);
        wellformed::compare(&mut self.types, &mut out);
        records::compare(a, b, m, &mut out);
        self.ignored(m, &mut out);
        for list in [&mut out.differences, &mut out.unknowns, &mut out.notes] {
            let mut seen = BTreeSet::new();
            list.retain(|f| seen.insert(f.clone()));
        }
        out
    }

    fn functions(&mut self, m: &Matching, wanted: &dyn Fn(&str) -> bool, out: &mut Findings) {
        let (a, b) = (self.a, self.b);
        for (i, f) in a.functions().iter().enumerate().filter(|(_, f)| wanted(&f.name)) {
            let place = format!("function {}", a.function_identity(FuncId(i)));
            let Some(j) = m.function(FuncId(i)) else {
                out.different(place, format!("it is missing in section {} of the second object", f.section));
                continue;
            };
            let Some(g) = b.functions().get(j.0) else { continue };
            if f.kind != g.kind {
                out.different(place.clone(), format!("it was {}, is {}", kind(f.kind), kind(g.kind)));
            }
            declarations::function(a, FuncId(i), b, j, &mut self.types, out);
            self.core_records(FuncId(i), j, &place, out);
        }
        for (j, g) in b.functions().iter().enumerate().filter(|(_, g)| wanted(&g.name)) {
            if m.function_back(FuncId(j)).is_none() {
                let place = format!("function {}", b.function_identity(FuncId(j)));
                out.different(place, format!("only the second object has it, in section {}", g.section));
            }
        }
    }

    /// The second function may ask less than the first (instructions go), never something else.
    fn core_records(&self, i: FuncId, j: FuncId, place: &str, out: &mut Findings) {
        if let Some(why) = self.unreadable_records(i, j) {
            out.unknown(format!("{place}, CO-RE records"), why);
            return;
        }
        // With what the instruction holds before it is patched, because libbpf checks that (`bpf_core_patch_insn`);
        // numbers of types it does not.
        let held = |o: &Object, f: FuncId, r: &CoreReloc| {
            let numbers_type = matches!(r.kind, core_relo::TYPE_ID_LOCAL | core_relo::TYPE_ID_TARGET);
            if numbers_type { None } else { code::patched_field(o.code(f), r.slot) }
        };
        let mut first: HashMap<usize, BTreeSet<Option<u64>>> = HashMap::new();
        for r in self.a.core_relocs(i) {
            if let Some(n) = self.core_question(Side::First, r.kind, r.type_id, &r.access) {
                first.entry(n).or_default().insert(held(self.a, i, r));
            }
        }
        for r in self.b.core_relocs(j) {
            let number = self.core_question(Side::Second, r.kind, r.type_id, &r.access);
            if let Some(values) = number.and_then(|n| first.get(&n)) {
                if !values.contains(&held(self.b, j, r)) {
                    let what = "its instruction holds another value than in the first object, and libbpf checks that";
                    out.different(format!("{place}, CO-RE record of slot {}", r.slot), what.into());
                }
                continue;
            }
            let Some(Asked { question: Ok(q), .. }) = number.and_then(|n| self.asked.get(n)) else { continue };
            let mut what = format!("it asks for the {}, which nothing in the first object's function does", q.text);
            // What stood there before, if it is that simple.
            if let [was] = self.a.core_relocs(i)
                && let Some(n) = self.core_question(Side::First, was.kind, was.type_id, &was.access)
                && let Some(Asked { question: Ok(q), .. }) = self.asked.get(n)
            {
                what = format!("{what}: that asks for the {}", q.text);
            }
            out.different(format!("{place}, CO-RE record of slot {}", r.slot), what);
        }
    }

    /// Parts that this crate does not understand have to be the same bytes.
    fn readable(&self, out: &mut Findings) {
        if let Some(why) = self.types.b.broken().filter(|_| !self.types.identical()) {
            out.unknown("section .BTF".into(), format!("{why} (second object)"));
        }
        for (o, which) in [(self.a, "first"), (self.b, "second")] {
            if let Some(why) = o.btf.as_ref().and_then(|b| b.unknown_kind.as_ref())
                && !self.types.identical()
            {
                out.unknown("section .BTF".into(), format!("{why} ({which} object)"));
            }
            let same_ext = self.bytes_of(self.a, ".BTF.ext") == self.bytes_of(self.b, ".BTF.ext");
            if let Some(why) = o.ext.as_ref().and_then(|e| e.frozen.as_ref())
                && !(same_ext && self.types.identical())
            {
                out.unknown("section .BTF.ext".into(), format!("{why} ({which} object)"));
            }
            for name in [".BTF", ".BTF.ext"] {
                if o.elf.sections.iter().filter(|s| s.name == name && s.size > 0).count() > 1 {
                    out.unknown(format!("section {name}"), format!("the {which} object has several"));
                }
            }
        }
    }

    fn bytes_of<'o>(&self, o: &'o Object, name: &str) -> Option<&'o [u8]> {
        Some(o.elf.data(o.elf.find(name)?))
    }

    /// What differs without effect.
    fn ignored(&self, m: &Matching, out: &mut Findings) {
        let types = |o: &'a Object| o.btf.as_ref().map(Btf::bytes);
        if types(self.a) != types(self.b) {
            out.note("section .BTF".into(), "its bytes differ; compared were the types that something uses".into());
        }
        for (was, is) in self.types.renamed.iter().take(RENAMED_MAX) {
            out.note("section .BTF".into(), format!("{was} is called {is} in the second object"));
        }
        if let Some(more) = self.types.renamed.len().checked_sub(RENAMED_MAX).filter(|n| *n > 0) {
            out.note("section .BTF".into(), format!("{more} more types have other names"));
        }
        let lines = |o: &'a Object| -> Vec<(u32, [u32; 4])> {
            let ext = o.ext.iter().flat_map(|e| &e.tables[LINE_INFO].subs).flat_map(|s| &s.records);
            ext.map(|r| (r.insn_off, [0, 1, 2, 3].map(|i| r.word(i)))).collect()
        };
        // Whether the kernel takes them has been asked ([`records`]).
        if lines(self.a) != lines(self.b) {
            out.note("section .BTF.ext".into(), "source lines of instructions differ".into());
        }
        let order = |i: usize| m.function(FuncId(i)).map(|j| j.0);
        let orders: Vec<usize> = (0..self.a.functions().len()).filter_map(order).collect();
        if !orders.is_sorted() {
            out.note("symbol table".into(), "functions come in another order".into());
        }
        if !m.maps.iter().flatten().is_sorted() {
            out.note("symbol table".into(), "maps come in another order".into());
        }
    }
}

fn kind(kind: FuncKind) -> &'static str {
    match kind {
        FuncKind::Program => "a program",
        FuncKind::Static => "a static function",
        FuncKind::Global => "a global function",
    }
}
