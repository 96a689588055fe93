//! Several settings at once, with more time for those that pay off.
//!
//! Which setting is best differs from window to window, and a little experience tells a lot. Each
//! setting is an arm of a bandit: its reward is what it saved, its price the proposals it took. The
//! experience outlives the window ([`Payoff`]).

use crate::chain::{Budget, Chain, Progress, keep};
use crate::settings::{SETTINGS, Setting};
use crate::window::{Found, Judge, Window};

/// What settings have earned so far.
#[derive(Clone, Debug, Default)]
pub struct Payoff {
    /// Reward and slices, by setting number − 1.
    arms: [(f64, f64); SETTINGS.len()],
}

/// Proposals of one slice.
pub const SLICE: u64 = 4096;
/// How much curiosity counts against experience.
const CURIOSITY: f64 = 0.5;
/// What of the past still counts after each slice.
const MEMORY: f64 = 0.9995;

impl Payoff {
    /// The setting to run next.
    fn choose(&self, among: impl Iterator<Item = usize>) -> Option<usize> {
        let total: f64 = self.arms.iter().map(|a| a.1).sum::<f64>() + 1.0;
        let best = self.arms.iter().map(|a| a.0 / a.1.max(1.0)).fold(1e-6, f64::max);
        let worth = |i: usize| {
            let (reward, slices) = self.arms[i];
            if slices < 0.5 {
                return f64::INFINITY;
            }
            reward / slices / best + CURIOSITY * (total.ln() / slices).sqrt()
        };
        // The first of equals, so that runs repeat.
        let mut chosen: Option<(usize, f64)> = None;
        for i in among {
            let x = worth(i);
            if chosen.is_none_or(|(_, y)| x > y) {
                chosen = Some((i, x));
            }
        }
        chosen.map(|c| c.0)
    }

    /// Notes a slice.
    fn note(&mut self, arm: usize, reward: f64) {
        for a in &mut self.arms {
            a.0 *= MEMORY;
            a.1 *= MEMORY;
        }
        self.arms[arm].0 += reward;
        self.arms[arm].1 += 1.0;
    }

    /// Adds what `later`, which went on from `base`, has learned since.
    pub fn learn(&mut self, later: &Payoff, base: &Payoff) {
        for ((a, l), b) in self.arms.iter_mut().zip(&later.arms).zip(&base.arms) {
            a.0 = (a.0 + l.0 - b.0).max(0.0);
            a.1 = (a.1 + l.1 - b.1).max(0.0);
        }
    }

    /// Slices given to each setting, by number.
    pub fn slices(&self) -> impl Iterator<Item = (u8, f64)> {
        SETTINGS.iter().zip(&self.arms).map(|(s, a)| (s.id, a.1))
    }
}

/// Chains of several settings over one window. Each is made when its turn comes: its tests take a while.
pub struct Portfolio<'a> {
    window: Window<'a>,
    seed: u64,
    arms: Vec<Arm<'a>>,
    best: Option<Found>,
    /// How many states are kept.
    keep: usize,
}

/// A setting with its number among all.
struct Arm<'a> {
    number: usize,
    setting: Setting,
    chain: Option<Chain<'a>>,
}

impl<'a> Portfolio<'a> {
    /// A chain for each of these settings. `None` if the window cannot be tested.
    pub fn new(window: Window<'a>, settings: &[Setting], seed: u64) -> Option<Portfolio<'a>> {
        let arm = |s: &Setting| {
            let number = SETTINGS.iter().position(|t| t.id == s.id)?;
            Some(Arm { number, setting: *s, chain: None })
        };
        let arms = settings.iter().filter_map(arm).collect();
        let mut portfolio = Portfolio { window, seed, arms, best: None, keep: 1 };
        // If one can be made, others can.
        portfolio.chain(0)?;
        Some(portfolio)
    }

    /// The same, whose chains keep so many states each ([`Chain::keeping`]).
    #[must_use]
    pub fn keeping(mut self, count: usize) -> Portfolio<'a> {
        self.keep = count;
        for arm in &mut self.arms {
            arm.chain = arm.chain.take().map(|chain| chain.keeping(count));
        }
        self
    }

    /// The cheapest states of all chains, as many as each was to keep.
    pub fn kept(&self) -> Vec<Found> {
        let mut kept = Vec::new();
        for found in self.arms.iter().filter_map(|a| a.chain.as_ref()).flat_map(Chain::kept) {
            keep(&mut kept, found, self.keep);
        }
        kept
    }

    /// The chain of an arm.
    fn chain(&mut self, at: usize) -> Option<&mut Chain<'a>> {
        let arm = self.arms.get_mut(at)?;
        if arm.chain.is_none() {
            let mut chain =
                Chain::new(self.window, arm.setting, self.seed.wrapping_add(arm.number as u64))?.keeping(self.keep);
            self.best.iter().for_each(|best| chain.adopt(best));
            arm.chain = Some(chain);
        }
        arm.chain.as_mut()
    }

    /// Runs slices until the budget is spent, and learns what pays.
    pub fn run(&mut self, budget: Budget, payoff: &mut Payoff, judge: &mut dyn Judge) -> Option<&Found> {
        let (mut left, mut questions) = (budget.proposals, budget.questions);
        while left > 0 && questions > 0 {
            let Some(number) = payoff.choose(self.arms.iter().map(|a| a.number)) else { break };
            let Some(at) = self.arms.iter().position(|a| a.number == number) else { break };
            let Some(chain) = self.chain(at) else {
                // Its seed gives no tests.
                self.arms.remove(at);
                continue;
            };
            let before = chain.progress;
            let slice = Budget { proposals: left.min(SLICE), questions, deadline: budget.deadline };
            let found = chain.run(slice, judge).cloned();
            let done = chain.progress.proposals - before.proposals;
            questions -= chain.progress.judged - before.judged;
            let old = self.best.as_ref().map(|b| b.cost);
            let mut reward = 0.0;
            if let Some(f) = found
                && old.is_none_or(|c| f.cost < c)
            {
                reward = old.map_or(1.0, |c| f64::from(c.first.saturating_sub(f.cost.first)) + 0.1);
                for chain in self.arms.iter_mut().filter(|a| a.number != number).filter_map(|a| a.chain.as_mut()) {
                    chain.adopt(&f);
                }
                self.best = Some(f);
            }
            payoff.note(number, reward);
            // The deadline has come, or the last question was asked.
            if done == 0 || done < slice.proposals {
                break;
            }
            left -= done;
        }
        self.best.as_ref()
    }

    /// The best so far.
    pub fn best(&self) -> Option<&Found> {
        self.best.as_ref()
    }

    /// What all chains did together.
    pub fn progress(&self) -> Progress {
        let mut p = Progress::default();
        self.arms.iter().filter_map(|a| a.chain.as_ref()).for_each(|c| p.add(&c.progress));
        p
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Plays so many slices in a world where each arm pays this often.
    fn play(payoff: &mut Payoff, pays: impl Fn(usize) -> f64, slices: usize, seed: u64) -> Vec<usize> {
        let mut rng = Rng::new(seed);
        let mut taken = vec![0; SETTINGS.len()];
        for _ in 0..slices {
            let arm = payoff.choose(0..SETTINGS.len()).expect("an arm");
            taken[arm] += 1;
            payoff.note(arm, f64::from(u8::from(rng.unit() < pays(arm))));
        }
        taken
    }

    #[test]
    fn every_setting_is_tried_and_those_that_pay_get_the_time() {
        let mut payoff = Payoff::default();
        let first = play(&mut payoff, |_| 0.0, SETTINGS.len(), 1);
        assert_eq!(first, vec![1; SETTINGS.len()], "nobody is left out");
        let pays = |arm| if arm == 6 { 0.3 } else { 0.01 };
        let taken = play(&mut payoff, pays, 4_000, 2);
        assert!(taken[6] > 4_000 / 4, "{taken:?}");
        assert!(taken.iter().all(|n| *n >= 3), "none is given up for good: {taken:?}");
        // The world changes, and so do the shares.
        let pays = |arm| if arm == 2 { 0.3 } else { 0.01 };
        let later = play(&mut payoff, pays, 12_000, 3);
        assert!(later[2] > later[6], "{later:?}");
    }

    #[test]
    fn where_nothing_pays_all_get_the_same() {
        let taken = play(&mut Payoff::default(), |_| 0.0, 1_600, 1);
        let (low, high) = (taken.iter().min().copied(), taken.iter().max().copied());
        assert!(high <= low.map(|n| n + 2), "{taken:?}");
    }

    #[test]
    fn experience_from_several_windows_adds_up_in_any_order() {
        let mut base = Payoff::default();
        play(&mut base, |_| 0.0, 2 * SETTINGS.len(), 5);
        let [one, two] = [(3, 6), (9, 7)].map(|(best, seed)| {
            let mut p = base.clone();
            play(&mut p, |arm| if arm == best { 0.9 } else { 0.0 }, 200, seed);
            p
        });
        let [mut ab, mut ba] = [base.clone(), base.clone()];
        ab.learn(&one, &base);
        ab.learn(&two, &base);
        ba.learn(&two, &base);
        ba.learn(&one, &base);
        for ((x, y), b) in ab.arms.iter().zip(&ba.arms).zip(&base.arms) {
            assert!((x.0 - y.0).abs() < 1e-9 && (x.1 - y.1).abs() < 1e-9);
            assert!(x.0 >= 0.0 && x.1 >= 0.0 && b.1 >= 0.0);
        }
        let rate = |p: &Payoff, arm: usize| p.arms[arm].0 / p.arms[arm].1;
        assert!(rate(&ab, 3) > rate(&base, 3) && rate(&ab, 9) > rate(&base, 9));
    }

    #[test]
    fn the_setting_that_found_something_is_run_again() {
        // The same through the front door: what a portfolio learns of one window counts in the next.
        let mut payoff = Payoff::default();
        payoff.arms.iter_mut().for_each(|a| a.1 = 10.0);
        payoff.arms[4].0 = 8.0;
        assert_eq!(payoff.choose(0..SETTINGS.len()), Some(4));
        assert_eq!(payoff.choose((0..SETTINGS.len()).filter(|i| *i != 4)), Some(0), "the first of equals");
        assert_eq!(payoff.choose(std::iter::empty()), None);
    }
}
