//! Throughput, latency and loss of several forms of a program, window by window beside each other.
//!
//! The one idea: every window of one form has a window of each other form next to it, and what is compared are middles.
//! The original takes part twice; its second loads show what is noise.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::trial::{Bench, Window, together};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// What one window takes.
    pub window: Duration,
    /// Windows of each form at each load.
    pub windows: usize,
    /// Loads of a curve.
    pub loads: usize,
}

/// The share of packets that may be lost at what is called loss-free. On a machine with other work nothing is without loss.
pub const LOSS: f64 = 0.001;
/// Halvings of the interval in which the highest loss-free rate is looked for.
const HALVINGS: usize = 6;

/// A load, with what each form made of it.
#[derive(Clone, Debug)]
pub struct Load {
    /// All windows of each form, together.
    pub forms: Vec<Window>,
    /// The mean latency of each form in nanoseconds: that of the window in the middle. Not a number where nothing comes back.
    pub means: Vec<f64>,
}

/// What was measured of a program.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Packets per second of each form when more come than it can take.
    pub capacity: Vec<f64>,
    /// The highest rate of each form that is loss-free ([`LOSS`]), or the lowest that was tried, if more was lost at each.
    pub loss_free: Vec<f64>,
    /// Whether any rate of each form was loss-free.
    pub is_loss_free: Vec<bool>,
    /// Low, medium, high, saturating, as in the paper's Table 3.
    pub latencies: Vec<Load>,
    /// Rising loads.
    pub curve: Vec<Load>,
}

/// Measures forms of a program. The first is the original.
///
/// # Errors
/// What the system says.
pub fn measure(bench: &Bench, forms: &[BorrowedFd<'_>], comes_back: bool, extent: Extent) -> Result<Measured, String> {
    let load = |rate: &dyn Fn(usize) -> Option<f64>| -> Result<Vec<Vec<Window>>, String> {
        let mut seen: Vec<Vec<Window>> = vec![Vec::new(); forms.len()];
        for round in 0..extent.windows {
            for turn in 0..forms.len() {
                // Whoever goes first in one round goes last in another.
                let form = (turn + round) % forms.len();
                seen[form].push(bench.window(forms[form], rate(form), extent.window)?);
            }
        }
        Ok(seen)
    };
    // The first packets fill caches and tables.
    for form in forms {
        bench.window(*form, None, extent.window)?;
    }
    let capacity: Vec<f64> = load(&|_| None)?
        .iter()
        .map(|windows| middle(windows.iter().map(|w| w.through(comes_back)).collect()))
        .collect();
    let lowest: Vec<f64> = capacity.iter().map(|most| 0.3 * most).collect();
    let mut bounds: Vec<(f64, f64)> = lowest.iter().zip(&capacity).map(|(low, most)| (*low, 1.1 * most)).collect();
    for _ in 0..HALVINGS {
        let asked: Vec<f64> = bounds.iter().map(|(low, high)| (low + high) / 2.0).collect();
        let seen = load(&|form| Some(asked[form]))?;
        for ((bound, windows), asked) in bounds.iter_mut().zip(&seen).zip(asked) {
            let loss = middle(windows.iter().map(|w| w.loss(comes_back)).collect());
            if loss <= LOSS { bound.0 = asked } else { bound.1 = asked }
        }
    }
    let is_loss_free: Vec<bool> = bounds.iter().zip(&lowest).map(|((found, _), lowest)| found > lowest).collect();
    let loss_free: Vec<f64> = bounds
        .iter()
        .zip(&is_loss_free)
        .map(|((found, lost), is_found)| if *is_found { *found } else { *lost })
        .collect();
    let least = loss_free.iter().copied().fold(f64::MAX, f64::min);
    let most = loss_free.iter().copied().fold(0.0, f64::max);
    let at = |rate: Option<f64>| -> Result<Load, String> {
        let seen = load(&|_| rate)?;
        let means = seen.iter().map(|windows| middle(windows.iter().map(Window::mean_latency).collect())).collect();
        Ok(Load { forms: seen.iter().map(|windows| together(windows)).collect(), means })
    };
    let mut latencies = Vec::new();
    if comes_back {
        for rate in [Some(0.8 * least), Some(least), Some(most), None] {
            latencies.push(at(rate)?);
        }
    }
    let top = capacity.iter().copied().fold(0.0, f64::max);
    let steps = (1..=extent.loads).map(|step| top * 1.3 * step as f64 / extent.loads as f64);
    let curve = steps.map(|rate| at(Some(rate))).collect::<Result<_, _>>()?;
    Ok(Measured { capacity, loss_free, is_loss_free, latencies, curve })
}

/// The one in the middle.
pub fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
