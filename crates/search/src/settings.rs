//! Parameters of a chain: the paper's Table 8, and the full set of sixteen.

/// How far two values are apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    /// Number of bits that differ.
    Pop,
    /// Absolute difference of the numbers, up to a limit: beyond it, wrong is wrong.
    Abs,
}

/// Which tests are counted where a candidate is not equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Those that failed.
    Failed,
    /// Those that passed: what passes all and is still wrong is farthest away.
    Passed,
}

/// How often each proposal rule is chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rules {
    /// Replace an instruction.
    pub instruction: f64,
    /// Replace an operand.
    pub operand: f64,
    /// Replace by nothing.
    pub nop: f64,
    /// Memory exchange, type 1: width and value operand.
    pub exchange1: f64,
    /// Memory exchange, type 2: width.
    pub exchange2: f64,
    /// Replace two instructions next to each other.
    pub contiguous: f64,
}

impl Rules {
    /// The same with these rules' shares given to the others (for the paper's Table 10).
    #[must_use]
    pub fn without(mut self, exchange1: bool, exchange2: bool, contiguous: bool) -> Rules {
        if exchange1 {
            self.exchange1 = 0.0;
        }
        if exchange2 {
            self.exchange2 = 0.0;
        }
        if contiguous {
            self.contiguous = 0.0;
        }
        self
    }
}

/// All parameters of a chain.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setting {
    /// Its number, 1 to 16; 1 to 5 are those of Table 8.
    pub id: u8,
    /// Error of a value.
    pub distance: Distance,
    /// Divide the error by the number of tests.
    pub average: bool,
    /// Tests counted for a candidate that is not equal.
    pub counted: Counted,
    /// Weight of the error (α).
    pub error: f64,
    /// Weight of what the program costs (β).
    pub performance: f64,
    /// Weight of an unsafe access (γ).
    pub safety: f64,
    /// The inverse temperature of the acceptance.
    pub cold: f64,
    /// Proposal rules.
    pub rules: Rules,
    /// Whether the acceptance knows that proposals are not symmetric (the Hastings ratio).
    pub hastings: bool,
}

const RULES_1: Rules =
    Rules { instruction: 0.2, operand: 0.4, nop: 0.15, exchange1: 0.2, exchange2: 0.0, contiguous: 0.05 };
const RULES_2: Rules =
    Rules { instruction: 0.17, operand: 0.33, nop: 0.15, exchange1: 0.17, exchange2: 0.0, contiguous: 0.18 };
const RULES_4: Rules =
    Rules { instruction: 0.17, operand: 0.33, nop: 0.15, exchange1: 0.0, exchange2: 0.17, contiguous: 0.18 };

/// Inverse temperatures, found by trying; the paper does not print its own. An averaged error is smaller
/// by the number of tests, so it needs more cold to mean the same.
const COLD: f64 = 0.3;
const COLD_AVERAGE: f64 = 2.0;
/// What a warm setting has of it.
const WARM: f64 = 0.4;

const fn setting(id: u8, distance: Distance, average: bool, performance: f64, rules: Rules) -> Setting {
    let cold = if average { COLD_AVERAGE } else { COLD };
    Setting {
        id,
        distance,
        average,
        counted: Counted::Failed,
        error: 0.5,
        performance,
        safety: 1.0,
        cold,
        rules,
        hastings: true,
    }
}

const fn passed(s: Setting) -> Setting {
    Setting { counted: Counted::Passed, ..s }
}

const fn warm(s: Setting) -> Setting {
    Setting { cold: s.cold * WARM, ..s }
}

/// The settings by number − 1. The first five are Table 8; the paper says of the other eleven only
/// that they vary the same parameters, so these do: every variant of the error cost occurs, with
/// both memory rules.
pub const SETTINGS: [Setting; 16] = [
    setting(1, Distance::Abs, false, 5.0, RULES_1),
    setting(2, Distance::Pop, false, 5.0, RULES_2),
    setting(3, Distance::Pop, false, 5.0, RULES_1),
    setting(4, Distance::Abs, false, 5.0, RULES_4),
    setting(5, Distance::Abs, true, 1.5, RULES_4),
    setting(6, Distance::Pop, true, 1.5, RULES_2),
    setting(7, Distance::Pop, true, 5.0, RULES_1),
    setting(8, Distance::Abs, true, 5.0, RULES_2),
    warm(setting(9, Distance::Pop, true, 1.5, RULES_1)),
    warm(setting(10, Distance::Abs, true, 1.5, RULES_2)),
    passed(setting(11, Distance::Pop, false, 5.0, RULES_4)),
    passed(setting(12, Distance::Abs, false, 5.0, RULES_2)),
    passed(setting(13, Distance::Pop, true, 1.5, RULES_2)),
    passed(setting(14, Distance::Abs, true, 1.5, RULES_1)),
    passed(warm(setting(15, Distance::Pop, true, 5.0, RULES_4))),
    passed(warm(setting(16, Distance::Abs, false, 5.0, RULES_1))),
];

/// How many of them are Table 8's.
pub const BEST: usize = 5;

impl Setting {
    /// The setting with this number.
    pub fn by_id(id: u8) -> Option<Setting> {
        SETTINGS.iter().find(|s| s.id == id).copied()
    }
}
