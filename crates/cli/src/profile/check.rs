//! Whether a table of costs tells which of two programs is faster: forms of programs, timed and estimated beside each other.

use std::collections::HashSet;
use std::fmt::Write;

use bpf_driver::Costs;
use bpf_driver::profile::{spearman, spearman_of_ratios};
use bpf_driver::timing::{self, Call, Settings};
use bpf_kernel::in_private_network;
use serde::Serialize;

use super::forms::{self, Forms};
use crate::args::ProfileArgs;
use crate::failure::{Failure, exit};
use crate::progress::Programs;

/// Forms that differ by less than this are not compared: 3 %.
const LEAST: f64 = 0.03;

/// How often each form is loaded.
const LOADS: usize = 5;
/// Rounds for each.
const ROUNDS: usize = 16;

/// Two forms of a program, on inputs for which it returns the same.
#[derive(Debug, Clone, Serialize)]
pub struct Pair {
    /// The object, or what is built in.
    pub object: String,
    /// The program.
    pub program: String,
    /// What it returns, if there are several classes.
    pub returns: Option<u32>,
    /// What was done to make both.
    pub forms: [String; 2],
    /// Nanoseconds an input of both, measured.
    pub measured_ns: [f64; 2],
    /// Estimated: all operations beside each other, and the longest chain.
    pub estimated_beside_ns: [f64; 2],
    /// The longest chain.
    pub estimated_chain_ns: [f64; 2],
    /// Operations.
    pub operations: [f64; 2],
    /// What comes of that.
    pub estimated_ns: [f64; 2],
    /// How many times as long the second takes, measured.
    pub measured_ratio: f64,
    /// Estimated.
    pub estimated_ratio: f64,
}

/// What came of all pairs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Checked {
    /// Spearman's rank correlation of the logarithms of measured and estimated ratios, each pair in both orders.
    pub rank_correlation: Option<f64>,
    /// The same with the form that was made later always second.
    pub rank_correlation_in_order: Option<f64>,
    /// Pairs of which the faster one is estimated to be the faster one.
    pub right: usize,
    /// Pairs that differ by less, or not for sure.
    pub alike: usize,
    /// Pairs of programs that the interpreter does not run as the kernel does.
    pub not_estimated: usize,
    /// Those that count.
    pub pairs: Vec<Pair>,
}

/// Holds a table against the built-in forms and those of the objects.
pub fn check(args: &ProfileArgs, costs: &'static Costs) -> Result<Checked, Failure> {
    let bar = Programs::bar();
    let mut all = forms::built_in()?;
    for (i, path) in args.objects.iter().enumerate() {
        bar.tell(i, 2 * args.objects.len() + all.len());
        all.push(forms::of_object(path, costs, args.program_type.as_ref())?);
    }
    let mut checked = Checked::default();
    let count = all.len();
    for (i, forms) in all.iter().enumerate() {
        bar.tell(args.objects.len() + i, args.objects.len() + count);
        compare(forms, args, costs, &mut checked)?;
    }
    bar.finish();
    let logarithms: Vec<(f64, f64)> =
        checked.pairs.iter().map(|p| (p.measured_ratio.ln(), p.estimated_ratio.ln())).collect();
    checked.rank_correlation = spearman_of_ratios(&logarithms);
    checked.rank_correlation_in_order = spearman(&logarithms);
    checked.right = logarithms.iter().filter(|(measured, estimated)| measured * estimated > 0.0).count();
    Ok(checked)
}

/// Times the forms of an object and adds their pairs.
fn compare(forms: &Forms, args: &ProfileArgs, costs: &'static Costs, checked: &mut Checked) -> Result<(), Failure> {
    if forms.objects.len() < 2 {
        return Ok(());
    }
    let program_type = args.program_type.clone().filter(|_| forms.packets.is_none());
    let settings = Settings {
        costs: Some(costs),
        program_type,
        packets: forms.packets.clone(),
        loads: LOADS,
        rounds: ROUNDS,
        serialized: false,
        ..Settings::default()
    };
    let objects: Vec<&[u8]> = forms.objects.iter().map(Vec::as_slice).collect();
    let timed = in_private_network(|| timing::time(&objects, &settings, &mut |_, _| {}));
    let timed = timed.map_err(|e| Failure {
        code: exit::UNKNOWN,
        message: format!("no network namespace for the runs: {e}"),
        hint: None,
    })?;
    let Ok(programs) = timed else { return Ok(()) };
    for program in programs {
        // Of several classes each has its path; all together would count them twice.
        let classes = if program.classes.len() > 1 { &program.classes[1..] } else { &program.classes[..] };
        for class in classes {
            let mut seen = HashSet::new();
            for pair in &class.pairs {
                let ns = [pair.to, pair.of].map(|i| class.objects[i].ns.middle);
                let Some(ratio) = pair.comparison.ratio.map(|r| r.value) else { continue };
                if pair.call == Call::Noise || ratio.ln().abs() <= LEAST.ln_1p() {
                    checked.alike += 1;
                    continue;
                }
                let (Some(a), Some(b)) = (class.estimates[pair.to], class.estimates[pair.of]) else {
                    checked.not_estimated += 1;
                    continue;
                };
                // Forms that are one and the same on this path have been compared already.
                if !seen.insert((
                    a.beside_ns.to_bits(),
                    a.chain_ns.to_bits(),
                    b.beside_ns.to_bits(),
                    b.chain_ns.to_bits(),
                )) {
                    continue;
                }
                checked.pairs.push(Pair {
                    object: forms.name.clone(),
                    program: program.name.clone(),
                    returns: class.returns,
                    forms: [pair.to, pair.of].map(|i| forms.made_by[i].to_owned()),
                    measured_ns: ns,
                    estimated_beside_ns: [a.beside_ns, b.beside_ns],
                    estimated_chain_ns: [a.chain_ns, b.chain_ns],
                    operations: [a.operations, b.operations],
                    estimated_ns: [a.ns(), b.ns()],
                    measured_ratio: ratio,
                    estimated_ratio: b.ns() / a.ns(),
                });
            }
        }
    }
    Ok(())
}

/// All of it in words, with every pair if asked for.
pub fn text(checked: &Checked, all: bool) -> String {
    let mut out = String::new();
    if all {
        let _ = writeln!(
            out,
            "{:28} {:16} {:16} {:>8} {:>8} {:>9} {:>9}",
            "pair", "", "", "ns", "ns", "measured", "estimated"
        );
        for p in &checked.pairs {
            let name = p.object.rsplit('/').next().unwrap_or_default();
            let returns = p.returns.map_or_else(String::new, |r| format!(" ({})", r.cast_signed()));
            let _ = writeln!(
                out,
                "{:28} {:16} {:16} {:8.1} {:8.1} {:9.3} {:9.3}",
                format!("{name}{returns}"),
                p.forms[0],
                p.forms[1],
                p.measured_ns[0],
                p.measured_ns[1],
                p.measured_ratio,
                p.estimated_ratio
            );
        }
    }
    let number = |n: Option<f64>| n.map_or_else(|| "none".to_owned(), |n| format!("{n:.3}"));
    let _ = writeln!(
        out,
        "rank correlation {} (Spearman, of the logarithms of ratios) over {} pairs of forms that differ by more than 3 %",
        number(checked.rank_correlation),
        checked.pairs.len()
    );
    let _ = writeln!(
        out,
        "with the later form always second {}; the faster one is estimated to be faster in {} of {}",
        number(checked.rank_correlation_in_order),
        checked.right,
        checked.pairs.len()
    );
    let _ = writeln!(
        out,
        "left out: {} pairs that differ by less or not for sure, {} that the interpreter does not run",
        checked.alike, checked.not_estimated
    );
    out
}
