//! What became of a program since the baseline.

use bpf_object::SourceLine;
use serde::Serialize;

use super::baseline::Figures;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Figure {
    /// Instruction slots.
    Slots,
    /// Instructions that the verifier processed.
    Insns,
    /// Stack bytes.
    Stack,
    /// Nanoseconds an input.
    Ns,
}

impl Figure {
    /// All of them.
    pub const ALL: [Figure; 4] = [Figure::Slots, Figure::Insns, Figure::Stack, Figure::Ns];

    /// Its name in files and options.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Slots => "slots",
            Figure::Insns => "insns",
            Figure::Stack => "stack",
            Figure::Ns => "ns",
        }
    }

    /// The figure of a program, if it was taken.
    pub fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Figure::Slots => Some(figures.slots as f64),
            Figure::Insns => figures.insns.map(|n| n as f64),
            Figure::Stack => figures.stack.map(|n| n as f64),
            Figure::Ns => figures.ns,
        }
    }

    /// What is no difference: as `bench` says it, half a nanosecond.
    fn noise(self) -> f64 {
        if self == Figure::Ns { 0.5 } else { 0.0 }
    }

    /// By how many percent it may grow, where nothing is said.
    fn usual_allowance(self) -> f64 {
        if self == Figure::Ns { 10.0 } else { 0.0 }
    }
}

/// By how many percent a figure may grow; all but times, if none is named.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    /// Which.
    pub figure: Option<Figure>,
    /// By how many.
    pub percent: f64,
}

/// By how many percent a figure may grow: as is said of it, as is said of all, or as is usual.
fn allowed(said: &[Allowance], figure: Figure) -> f64 {
    let of = |wanted: Option<Figure>| said.iter().rev().find(|a| a.figure == wanted).map(|a| a.percent);
    let of_all = if figure == Figure::Ns { None } else { of(None) };
    of(Some(figure)).or(of_all).unwrap_or(figure.usual_allowance())
}

/// What became of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No figure is less, and none is more by more than is allowed.
    Same,
    /// Some figure is less, and none is more by more than is allowed.
    Better,
    /// Some figure is more, by more than is allowed.
    Worse,
    /// It is not in the baseline.
    New,
    /// It is in the baseline only.
    Vanished,
    /// The kernel takes it, and did not.
    NowAccepted,
    /// The kernel refuses it, and did not, or it is new.
    NowRefused,
    /// What the baseline has could not be measured here.
    NotMeasured,
}

impl Status {
    /// All, in the order in which they are counted.
    pub const WORDS: [&str; 8] =
        ["same", "better", "worse", "new", "vanished", "now-accepted", "now-refused", "not-measured"];

    /// A word for it, in tables and reports.
    pub fn word(self) -> &'static str {
        Status::WORDS[self as usize]
    }

    /// Whether a pipeline fails.
    pub fn fails(self) -> bool {
        matches!(self, Status::Worse | Status::NowRefused)
    }
}

impl Serialize for Status {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.word())
    }
}

/// Why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reason {
    /// Which figure, if it is one.
    pub figure: Option<Figure>,
    /// In words.
    pub text: String,
}

/// A program that was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What the baseline calls it.
    pub name: String,
    /// Where its source begins.
    pub source: Option<SourceLine>,
    /// Its figures.
    pub figures: Figures,
    /// Why figures are missing.
    pub why: String,
}

/// A program beside what it was.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// What the baseline calls it.
    pub name: String,
    /// What became of it.
    pub verdict: Status,
    /// Why it is worse, refused or not measured.
    pub reasons: Vec<Reason>,
    /// What it was.
    pub before: Option<Figures>,
    /// What it is.
    pub now: Option<Figures>,
    /// Where its source begins.
    #[serde(skip)]
    pub source: Option<SourceLine>,
}

impl Judged {
    /// A program of the baseline that is not there any more.
    pub fn vanished(name: &str, before: &Figures) -> Judged {
        let before = Some(before.clone());
        Judged {
            name: name.to_owned(),
            verdict: Status::Vanished,
            reasons: Vec::new(),
            before,
            now: None,
            source: None,
        }
    }

    /// A program, and what the baseline says of it as far as that can be compared here. `timed`: programs were to be timed.
    pub fn of(measured: &Measured, before: Option<&Figures>, said: &[Allowance], timed: bool) -> Judged {
        let now = &measured.figures;
        let (verdict, reasons) = judge(before, now, &measured.why, said, timed);
        Judged {
            name: measured.name.clone(),
            verdict,
            reasons,
            before: before.cloned(),
            now: Some(now.clone()),
            source: measured.source.clone(),
        }
    }
}

fn judge(before: Option<&Figures>, now: &Figures, why: &str, said: &[Allowance], timed: bool) -> (Status, Vec<Reason>) {
    let because = |text: String| vec![Reason { figure: None, text }];
    let Some(before) = before else {
        return match now.is_rejected() {
            true => (Status::NowRefused, because(format!("new, and the kernel rejects it: {why}"))),
            false => (Status::New, Vec::new()),
        };
    };
    if before.is_accepted() && now.is_rejected() {
        return (Status::NowRefused, because(format!("the kernel rejects it: {why}")));
    }
    let worse: Vec<Reason> = Figure::ALL.iter().filter_map(|f| grown(*f, before, now, allowed(said, *f))).collect();
    if !worse.is_empty() {
        return (Status::Worse, worse);
    }
    if before.is_accepted() && now.verdict.is_some() {
        return (Status::NotMeasured, because(format!("the kernel has not judged it: {why}")));
    }
    if timed && before.ns.is_some() && now.ns.is_none() {
        return (Status::NotMeasured, because(format!("not timed: {why}")));
    }
    let less = |f: &Figure| matches!((f.of(before), f.of(now)), (Some(b), Some(n)) if n < b - f.noise());
    match () {
        () if before.is_rejected() && now.is_accepted() => (Status::NowAccepted, Vec::new()),
        () if Figure::ALL.iter().any(less) => (Status::Better, Vec::new()),
        () => (Status::Same, Vec::new()),
    }
}

/// Why a figure is worse, if it is.
fn grown(figure: Figure, before: &Figures, now: &Figures, allowed: f64) -> Option<Reason> {
    let (before, now) = (figure.of(before)?, figure.of(now)?);
    let most = before * (1.0 + allowed / 100.0) + figure.noise();
    // What is allowed to the last digit is not to fail by how numbers are rounded.
    if now <= most + 1e-9 * most.abs() {
        return None;
    }
    let percent = if before > 0.0 { format!(" (+{:.1}%)", 100.0 * (now - before) / before) } else { String::new() };
    let text = format!("{} {before} -> {now}{percent}, {allowed}% more is allowed", figure.name());
    Some(Reason { figure: Some(figure), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(slots: u64, insns: u64) -> Figures {
        Figures { slots, insns: Some(insns), stack: Some(16), ns: None, verdict: None }
    }

    fn status(before: &Figures, now: &Figures, said: &[Allowance]) -> Status {
        judge(Some(before), now, "", said, false).0
    }

    fn all(percent: f64) -> Allowance {
        Allowance { figure: None, percent }
    }

    #[test]
    fn a_figure_may_grow_by_as_much_as_is_allowed() {
        let base = figures(100, 1000);
        assert_eq!(status(&base, &base, &[]), Status::Same);
        assert_eq!(status(&base, &figures(101, 1000), &[]), Status::Worse);
        assert_eq!(status(&base, &figures(102, 1000), &[all(2.0)]), Status::Same);
        assert_eq!(status(&base, &figures(103, 1000), &[all(2.0)]), Status::Worse);
        let insns = Allowance { figure: Some(Figure::Insns), percent: 50.0 };
        assert_eq!(status(&base, &figures(100, 1500), &[all(2.0), insns]), Status::Same);
        assert_eq!(status(&base, &figures(100, 1501), &[insns, all(2.0)]), Status::Worse);
        assert_eq!(status(&base, &figures(99, 1010), &[all(2.0)]), Status::Better);
        let (_, reasons) = judge(Some(&base), &figures(110, 1100), "", &[all(2.0)], false);
        let texts: Vec<&str> = reasons.iter().map(|r| r.text.as_str()).collect();
        assert_eq!(
            texts,
            ["slots 100 -> 110 (+10.0%), 2% more is allowed", "insns 1000 -> 1100 (+10.0%), 2% more is allowed"]
        );
    }

    #[test]
    fn times_have_an_allowance_of_their_own() {
        let timed = |ns: f64| Figures { ns: Some(ns), ..figures(1, 1) };
        assert_eq!(status(&timed(100.0), &timed(110.0), &[all(0.0)]), Status::Same);
        assert_eq!(status(&timed(100.0), &timed(111.0), &[all(50.0)]), Status::Worse);
        let ns = Allowance { figure: Some(Figure::Ns), percent: 50.0 };
        assert_eq!(status(&timed(100.0), &timed(140.0), &[ns]), Status::Same);
        assert_eq!(status(&timed(0.0), &timed(0.4), &[]), Status::Same);
        assert_eq!(judge(Some(&timed(1.0)), &figures(1, 1), "", &[], true).0, Status::NotMeasured);
        assert_eq!(judge(Some(&timed(1.0)), &figures(1, 1), "", &[], false).0, Status::Same);
    }

    #[test]
    fn verdicts_of_the_kernel_count_first() {
        let (base, said) = (figures(100, 1000), |verdict: &str| Figures {
            slots: 90,
            verdict: Some(verdict.into()),
            ..Figures::default()
        });
        assert_eq!(status(&base, &said("rejected"), &[]), Status::NowRefused);
        assert_eq!(status(&base, &said("unsupported"), &[]), Status::NotMeasured);
        assert_eq!(status(&said("rejected"), &said("rejected"), &[]), Status::Same);
        assert_eq!(status(&said("rejected"), &Figures { slots: 90, ..base.clone() }, &[]), Status::NowAccepted);
        // Not asked.
        assert_eq!(status(&base, &Figures { slots: 100, ..Figures::default() }, &[]), Status::Same);
        assert_eq!(judge(None, &base, "", &[], false).0, Status::New);
        assert_eq!(judge(None, &said("rejected"), "why", &[], false).0, Status::NowRefused);
    }
}
