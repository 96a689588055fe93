//! Lane `clang`: random C programs, compiled by clang, original against optimized in the kernel.
//!
//! Nobody of this project is asked whether a result is right. A unit is one program: generated, compiled at a random
//! level and for a random cpu, optimized (passes, and now and then a short search), and both objects run on the same
//! packets with the same map contents, in a network namespace of its own. What differs is shrunk, statement by
//! statement, and written to a folder ([`crate::finds`]): source, both objects, and what to do to see it again.

use std::path::Path;

use bpf_driver::difftest::Setup;
use bpf_testgen::c::{Clang, Program, Settings};
use bpf_testgen::random::Rng;

use crate::finds::{Finder, NotCompared, REAL, SEARCHED, Subject, in_own_thread};
use crate::{Lane, Tally};

pub use crate::finds::Optimizer;

/// The lane.
pub struct ClangLane {
    clang: Clang,
    finder: Finder,
}

struct Compiled<'a> {
    clang: &'a Clang,
    program: Program,
    settings: Settings,
    search: bool,
    traffic: u64,
}

impl Subject for Compiled<'_> {
    fn parts(&self) -> usize {
        self.program.statements()
    }

    fn object(&self, kept: &[usize]) -> Result<Vec<u8>, NotCompared> {
        let source = self.program.source(kept);
        self.clang.compile(&source, self.settings).map_err(|e| ("programs that clang refuses", e))
    }

    fn source(&self, kept: &[usize]) -> (&'static str, String) {
        ("find.c", self.program.source(kept))
    }

    fn made_by(&self) -> String {
        format!("clang -target bpf -g {} -mcpu={} -c find.c -o before.o", self.settings.level, self.settings.cpu)
    }

    fn search(&self) -> bool {
        self.search
    }

    fn traffic(&self) -> u64 {
        self.traffic
    }
}

impl ClangLane {
    /// The lane.
    ///
    /// # Errors
    /// Why it cannot run here: no `bpf()`, no clang.
    pub fn new(keep: &Path) -> Result<ClangLane, String> {
        ClangLane::of(REAL, keep)
    }

    /// The lane with another optimizer.
    ///
    /// # Errors
    /// As [`ClangLane::new`].
    pub fn of(optimizer: Optimizer, keep: &Path) -> Result<ClangLane, String> {
        bpf_kernel::permitted().require().map_err(|e| e.to_string())?;
        let clang = Clang::find().ok_or("there is no clang")?;
        Ok(ClangLane { clang, finder: Finder::new("clang", optimizer, keep) })
    }
}

impl Lane for ClangLane {
    fn name(&self) -> &'static str {
        "clang"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        in_own_thread(tally, |tally| {
            bpf_kernel::own_network().map_err(|e| e.to_string())?;
            let mut r = Rng::of(seed ^ 0xc1a9, index);
            let program = Program::random(&mut r);
            let settings = Settings::random(&mut r);
            let search = r.chance(SEARCHED);
            let subject = Compiled { clang: &self.clang, program, settings, search, traffic: r.next() };
            self.finder.program(&subject, &Setup::default(), (seed, index), tally);
            Ok(())
        });
    }
}
