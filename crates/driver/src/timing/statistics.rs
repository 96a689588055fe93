//! What times say: their middle, and between which bounds the difference and the ratio of two middles lie.
//!
//! The middle is the mean of the half of the times that is neither short nor long (the interquartile mean): what disturbs a run does not
//! count, as with the median, and times of whole nanoseconds give parts of one.
//!
//! Two things make times differ that are not the program's: what else runs on the machine, from round to round, and where the kernel
//! happened to put the machine code, from load to load. So every object is loaded several times; a ratio is one number for each pair of
//! loads, and its bounds are those of both ways to make them: Student's t over the pairs, and the bootstrap, which draws pairs, and
//! rounds within them, again and again (Efron, 1979). The wider bound counts.

use fastrand::Rng;

/// Nanoseconds: by load and round.
pub type Times = Vec<Vec<f64>>;

/// What runs take: by load, round and input.
pub(super) type ByLoad<T> = Vec<Vec<Vec<T>>>;

/// Adds inputs to what was timed, round by round. Of either there may be fewer loads, and of these fewer rounds, where the time was
/// over: what is left are those in which all inputs were timed.
pub(super) fn add<T>(times: &mut [ByLoad<T>], more: Vec<ByLoad<T>>) {
    for (loads, more) in times.iter_mut().zip(more) {
        loads.truncate(more.len());
        for (rounds, more) in loads.iter_mut().zip(more) {
            rounds.truncate(more.len());
            rounds.iter_mut().zip(more).for_each(|(inputs, more)| inputs.extend(more));
        }
    }
}

/// The middle of some times.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Summary {
    /// The interquartile mean.
    pub middle: f64,
    /// A quarter of the times is shorter.
    pub lower_quartile: f64,
    /// Three quarters of the times are shorter.
    pub upper_quartile: f64,
}

impl Summary {
    /// Of all loads and rounds; of none, not a number.
    pub fn of(times: &Times) -> Summary {
        let mut all: Vec<f64> = times.iter().flatten().copied().collect();
        all.sort_unstable_by(f64::total_cmp);
        Summary { middle: middle_of_sorted(&all), lower_quartile: at(&all, 0.25), upper_quartile: at(&all, 0.75) }
    }

    /// The same, if there are any and all of them are numbers.
    pub(super) fn of_known(times: &Times) -> Option<Summary> {
        let summary = Summary::of(times);
        let is_known = summary.middle.is_finite() && times.iter().flatten().all(|time| time.is_finite());
        is_known.then_some(summary)
    }
}

/// How much longer one takes than another.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Comparison {
    /// The ratio of the middles; `None` if one takes no time that can be seen.
    pub ratio: Option<Bounded>,
    /// The difference of the middles in nanoseconds.
    pub difference_ns: Bounded,
}

/// A number and its interval of 99.9%.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Bounded {
    /// The number.
    pub value: f64,
    /// The interval's lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

/// What is to be believed of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// It takes less time.
    Faster,
    /// It takes more time.
    Slower,
    /// There is no difference that chance would not make.
    Noise,
}

/// The least difference, in nanoseconds, that is called one.
const LEAST: f64 = 0.5;
/// Drawn samples.
const DRAWS: usize = 10_000;
/// Each bound leaves so much of the draws outside.
const TAIL: f64 = 0.0005;

/// Compares `of` with `to`. Load `k` of one and load `k` of the other were timed in the same rounds. Less than two loads say nothing of
/// the bounds: they are infinite.
pub fn compare(of: &Times, to: &Times, random: &mut Rng) -> Comparison {
    let pairs: Vec<(&[f64], &[f64])> = of.iter().zip(to).map(|(a, b)| (&a[..], &b[..])).collect();
    let whole = (middle_of_all(pairs.iter().map(|p| p.0)), middle_of_all(pairs.iter().map(|p| p.1)));
    let by_load: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (middle(a.to_vec()), middle(b.to_vec()))).collect();
    let drawn: Vec<(f64, f64)> =
        if pairs.len() < 2 { Vec::new() } else { (0..DRAWS).map(|_| draw(&pairs, random)).collect() };
    let difference = |(a, b): (f64, f64)| a - b;
    let ratio = |(a, b): (f64, f64)| (a / b).ln();
    // Where a load takes no time, or less than nothing, there is no ratio.
    let is_ratio = [whole].iter().chain(&by_load).chain(&drawn).all(|(a, b)| *a > 0.0 && *b > 0.0);
    Comparison {
        ratio: is_ratio.then(|| {
            let Bounded { value, low, high } = bounded(whole, &by_load, &drawn, ratio);
            Bounded { value: value.exp(), low: low.exp(), high: high.exp() }
        }),
        difference_ns: bounded(whole, &by_load, &drawn, difference),
    }
}

/// A number of two middles, with the wider of two intervals.
fn bounded(whole: (f64, f64), by_load: &[(f64, f64)], drawn: &[(f64, f64)], of: impl Fn((f64, f64)) -> f64) -> Bounded {
    let value = of(whole);
    if by_load.len() < 2 || drawn.is_empty() {
        return Bounded { value, low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    let loads: Vec<f64> = by_load.iter().map(|pair| of(*pair)).collect();
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    let half = student_half_width(&loads);
    let mut draws: Vec<f64> = drawn.iter().map(|pair| of(*pair)).collect();
    draws.sort_unstable_by(f64::total_cmp);
    Bounded {
        value,
        low: at(&draws, TAIL).min(mean - half).min(value),
        high: at(&draws, 1.0 - TAIL).max(mean + half).max(value),
    }
}

/// What a comparison says.
pub fn call(comparison: &Comparison) -> Call {
    let Bounded { value, low, high } = comparison.difference_ns;
    let beyond =
        |high: bool| comparison.ratio.is_none_or(|ratio| if high { ratio.low > 1.0 } else { ratio.high < 1.0 });
    if value >= LEAST && low > 0.0 && beyond(true) {
        Call::Slower
    } else if value <= -LEAST && high < 0.0 && beyond(false) {
        Call::Faster
    } else {
        Call::Noise
    }
}

/// The middles of pairs of loads that are drawn, with rounds that are drawn: the same of both, which were timed beside each other.
fn draw(pairs: &[(&[f64], &[f64])], random: &mut Rng) -> (f64, f64) {
    let (mut of, mut to) = (Vec::new(), Vec::new());
    for _ in 0..pairs.len() {
        let (a, b) = pairs[random.usize(0..pairs.len())];
        let rounds = a.len().min(b.len());
        for _ in 0..rounds {
            let round = random.usize(0..rounds);
            of.push(a[round]);
            to.push(b[round]);
        }
    }
    (middle(of), middle(to))
}

/// Half the width of the interval of 99.9% around the mean: Student's t (two-sided, 0.001) times the mean's standard error.
fn student_half_width(all: &[f64]) -> f64 {
    /// By degrees of freedom, from 1 on; then that of the normal distribution at least.
    const T: [f64; 15] = [636.6, 31.6, 12.92, 8.61, 6.87, 5.96, 5.41, 5.04, 4.78, 4.59, 4.44, 4.32, 4.22, 4.14, 4.07];
    let n = all.len() as f64;
    let mean = all.iter().sum::<f64>() / n;
    let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let t = T.get(all.len().saturating_sub(2)).copied().unwrap_or(4.0);
    t * (variance / n).sqrt()
}

fn middle_of_all<'a>(times: impl Iterator<Item = &'a [f64]>) -> f64 {
    middle(times.flatten().copied().collect())
}

/// The interquartile mean; of none, not a number.
fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    middle_of_sorted(&all)
}

fn middle_of_sorted(all: &[f64]) -> f64 {
    // Of three the one in the middle.
    let quarter = (all.len() + 1) / 4;
    let half = &all[quarter..all.len() - quarter];
    half.iter().sum::<f64>() / half.len() as f64
}

/// The value at a part of some that are in order; of none, not a number.
fn at(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((part * last).round() as usize).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times around `mean`: loads differ by `spread`, rounds by as much, and every twentieth is disturbed.
    fn times(mean: f64, spread: f64, random: &mut Rng) -> Times {
        let noise = |random: &mut Rng| (0..6).map(|_| random.f64() - 0.5).sum::<f64>();
        (0..8)
            .map(|_| {
                let load = mean * (1.0 + spread * noise(random));
                let round = |random: &mut Rng| {
                    load * (1.0 + spread * noise(random)) * if random.u8(0..20) == 0 { 3.0 } else { 1.0 }
                };
                (0..16).map(|_| round(random)).collect()
            })
            .collect()
    }

    fn called(a: f64, b: f64, spread: f64, random: &mut Rng) -> Call {
        let (a, b) = (times(a, spread, random), times(b, spread, random));
        let comparison = compare(&a, &b, random);
        for Bounded { value, low, high } in comparison.ratio.into_iter().chain([comparison.difference_ns]) {
            assert!(low <= value && value <= high);
        }
        call(&comparison)
    }

    #[test]
    fn what_is_left_of_two_times_are_the_rounds_of_both() {
        let made = |input: f64, rounds: &[usize]| -> Vec<ByLoad<f64>> {
            let of_load = |rounds: &usize| vec![vec![input]; *rounds];
            vec![rounds.iter().map(of_load).collect(); 2]
        };
        for (a, b) in [(&[3, 3, 3][..], &[2, 4][..]), (&[2, 4], &[3, 3, 3])] {
            let mut times = made(1.0, a);
            add(&mut times, made(2.0, b));
            for loads in times {
                assert_eq!(loads.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3]);
                assert!(loads.iter().flatten().all(|inputs| inputs[..] == [1.0, 2.0]));
            }
        }
    }

    #[test]
    fn the_middle_is_of_the_half_between_short_and_long() {
        let of = |n: usize| middle((0..n).map(|i| if i + 1 == n { 100.0 } else { i as f64 }).collect());
        assert!(of(0).is_nan());
        assert_eq!([1, 2, 3, 4, 5, 7, 8].map(of), [100.0, 50.0, 1.0, 1.5, 2.0, 3.0, 3.5]);
    }

    #[test]
    fn of_what_is_not_known_there_is_no_middle() {
        assert_eq!(Summary::of_known(&vec![vec![1.0], vec![1.0, 1.0]]).map(|s| s.middle), Some(1.0));
        for times in [vec![], vec![vec![]], vec![vec![1.0, 2.0, f64::NAN]]] {
            assert_eq!(Summary::of_known(&times), None, "{times:?}");
        }
    }

    #[test]
    fn what_is_the_same_is_called_noise() {
        let mut random = Rng::with_seed(1);
        let false_calls = (0..300).filter(|_| called(20.0, 20.0, 0.03, &mut random) != Call::Noise).count();
        assert!(false_calls <= 1, "{false_calls} of 300");
    }

    #[test]
    fn what_differs_is_found() {
        let mut random = Rng::with_seed(2);
        for _ in 0..50 {
            assert_eq!(called(24.5, 20.0, 0.02, &mut random), Call::Slower);
            assert_eq!(called(20.0, 24.5, 0.02, &mut random), Call::Faster);
        }
    }

    #[test]
    fn less_than_half_a_nanosecond_is_no_difference() {
        let mut random = Rng::with_seed(3);
        assert_eq!(called(2.3, 2.0, 0.0, &mut random), Call::Noise);
    }

    #[test]
    fn nothing_is_said_of_what_takes_no_time() {
        let mut random = Rng::with_seed(4);
        let none = vec![vec![0.0; 4]; 4];
        let comparison = compare(&none, &none, &mut random);
        assert_eq!((comparison.ratio, call(&comparison)), (None, Call::Noise));
        let alone = compare(&vec![vec![5.0; 4]], &vec![vec![1.0; 4]], &mut random);
        assert_eq!(call(&alone), Call::Noise);
        // Against nothing there is a difference, though no ratio.
        let some = times(5.0, 0.02, &mut random);
        let against_none = compare(&some, &vec![vec![0.0; 16]; 8], &mut random);
        assert_eq!((against_none.ratio, call(&against_none)), (None, Call::Slower));
        assert!(Summary::of(&Vec::new()).middle.is_nan());
    }
}
