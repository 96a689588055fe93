//! The shape of comparisons that find out in which part of the numbers a value is.

use rustc_hash::FxHashMap;

use crate::intervals::Intervals;
use crate::program::BlockId;
use crate::sample::Frequencies;

/// A part of the numbers, and where it leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) low: u32,
    pub(super) high: u32,
    pub(super) to: BlockId,
}

/// All numbers up to `most` in order, by where they lead.
pub(super) fn segments(cases: &[(Intervals, BlockId)], default: BlockId, most: u32) -> Vec<Segment> {
    let mut all: Vec<Segment> = cases
        .iter()
        .flat_map(|(set, to)| set.as_slice().iter().map(|(low, high)| Segment { low: *low, high: *high, to: *to }))
        .filter(|s| s.low <= most)
        .collect();
    all.sort_by_key(|s| s.low);
    let mut out: Vec<Segment> = Vec::with_capacity(all.len() * 2 + 1);
    let mut push = |segment: Segment| match out.last_mut() {
        Some(last) if last.to == segment.to => last.high = segment.high,
        _ => out.push(segment),
    };
    let mut next = Some(0u32);
    for segment in all {
        if let Some(n) = next
            && n < segment.low
        {
            push(Segment { low: n, high: segment.low - 1, to: default });
        }
        push(Segment { high: segment.high.min(most), ..segment });
        next = segment.high.min(most).checked_add(1);
    }
    if let Some(n) = next
        && n <= most
    {
        push(Segment { low: n, high: most, to: default });
    }
    out
}

/// Where to split segments so that both sides are as likely, if possible beside no single number, which a comparison finds.
pub(super) fn split(segments: &[Segment]) -> usize {
    let total: f64 = segments.iter().map(width).sum();
    let mut before = 0.0;
    let mut best = (f64::INFINITY, segments.len() / 2);
    for i in 1..segments.len() {
        before += width(&segments[i - 1]);
        let beside_single = segments[i - 1].low == segments[i - 1].high || segments[i].low == segments[i].high;
        let is_gap = segments[i].low != segments[i].high;
        // A single number goes with what is before it.
        let penalty = if beside_single && !is_gap { total } else { 0.0 };
        let uneven = (total - 2.0 * before).abs() + penalty;
        if uneven < best.0 {
            best = (uneven, i);
        }
    }
    best.1
}

/// How likely a segment is if nothing else is known. A wide one is likelier than a narrow one, but not by as much as it is wider:
/// of ports the low ones are used more.
fn width(segment: &Segment) -> f64 {
    (f64::from(segment.high - segment.low) + 1.0).sqrt()
}

/// Comparisons.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    To(BlockId),
    Equal { n: u32, yes: BlockId, no: Box<Shape> },
    AtLeast { n: u32, yes: Box<Shape>, no: Box<Shape> },
}

/// The comparisons of which fewest are executed if numbers are as frequent as they were; of such ones the fewest.
///
/// A comparison takes the most frequent number out, or splits what is left. Of up to [`EXACT`] segments all ways to do so are looked
/// at, of more ones the one that divides them most evenly.
pub(super) fn by_frequency(segments: &[Segment], seen: &Frequencies) -> Shape {
    /// What is not seen is this much of all that is, in thousandths: other packets come.
    const UNSEEN: f64 = 50.0;
    let counts: Vec<u64> = segments.iter().map(|s| seen.count(s.low, s.high)).collect();
    let unseen = counts.iter().sum::<u64>() as f64 * UNSEEN / segments.iter().map(width).sum::<f64>();
    let weights =
        segments.iter().zip(&counts).map(|(s, count)| 1 + count * 1000 + (width(s) * unseen) as u64).collect();
    let live: Vec<usize> = (0..segments.len()).collect();
    Search { segments, weights, known: FxHashMap::default() }.best(&live).1
}

/// Of so many segments all shapes are looked at.
const EXACT: usize = 12;

/// What a shape costs: how much is executed, and how many comparisons there are.
type Cost = (u64, usize);

struct Search<'a> {
    segments: &'a [Segment],
    weights: Vec<u64>,
    known: FxHashMap<Vec<usize>, (Cost, Shape)>,
}

impl Search<'_> {
    /// The best shape for the segments that are left, in order.
    fn best(&mut self, left: &[usize]) -> (Cost, Shape) {
        let to = self.segments[left[0]].to;
        if left.iter().all(|i| self.segments[*i].to == to) {
            return ((0, 0), Shape::To(to));
        }
        if let Some(known) = self.known.get(left) {
            return known.clone();
        }
        let best = if left.len() <= EXACT { self.best_of_all(left) } else { self.most_even(left) };
        self.known.insert(left.to_vec(), best.clone());
        best
    }

    fn total(&self, left: &[usize]) -> u64 {
        left.iter().map(|i| self.weights[*i]).sum()
    }

    /// Where the most frequent single number stands among those left.
    fn heaviest(&self, left: &[usize]) -> Option<usize> {
        let is_single = |i: &usize| self.segments[left[*i]].low == self.segments[left[*i]].high;
        (0..left.len()).filter(is_single).max_by_key(|i| (self.weights[left[*i]], std::cmp::Reverse(*i)))
    }

    fn best_of_all(&mut self, left: &[usize]) -> (Cost, Shape) {
        let first = self.heaviest(left).map(|i| self.without(left, i));
        let splits: Vec<(Cost, Shape)> = (1..left.len()).map(|middle| self.split_at(left, middle)).collect();
        let all = first.into_iter().chain(splits);
        all.min_by_key(|(cost, _)| *cost).unwrap_or(((0, 0), Shape::To(self.segments[left[0]].to)))
    }

    fn most_even(&mut self, left: &[usize]) -> (Cost, Shape) {
        let total = self.total(left);
        // A number that a third of all are is found at once.
        if let Some(i) = self.heaviest(left).filter(|i| self.weights[left[*i]] * 3 >= total) {
            return self.without(left, i);
        }
        let mut before = 0;
        let uneven = left[..left.len() - 1].iter().map(|i| {
            before += self.weights[*i];
            total.abs_diff(2 * before)
        });
        let middle = uneven.enumerate().min_by_key(|(_, uneven)| *uneven).map_or(1, |(i, _)| i + 1);
        self.split_at(left, middle)
    }

    /// One of those left is taken out first.
    fn without(&mut self, left: &[usize], i: usize) -> (Cost, Shape) {
        let mut rest = left.to_vec();
        let Segment { low, to, .. } = self.segments[rest.remove(i)];
        let (cost, no) = self.best(&rest);
        ((self.total(left) + cost.0, 1 + cost.1), Shape::Equal { n: low, yes: to, no: Box::new(no) })
    }

    /// Those left are split first.
    fn split_at(&mut self, left: &[usize], middle: usize) -> (Cost, Shape) {
        let ((low, no), (high, yes)) = (self.best(&left[..middle]), self.best(&left[middle..]));
        let n = self.segments[left[middle]].low;
        let cost = (self.total(left) + low.0 + high.0, 1 + low.1 + high.1);
        (cost, Shape::AtLeast { n, yes: Box::new(yes), no: Box::new(no) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(shape: &Shape, n: u32) -> (BlockId, usize) {
        let deeper = |shape: &Shape| {
            let (to, depth) = found(shape, n);
            (to, depth + 1)
        };
        match shape {
            Shape::To(to) => (*to, 0),
            Shape::Equal { n: m, yes, no } => {
                if n == *m {
                    (*yes, 1)
                } else {
                    deeper(no)
                }
            }
            Shape::AtLeast { n: m, yes, no } => deeper(if n >= *m { yes } else { no }),
        }
    }

    /// Every number comes to where its segment leads, and the frequent ones soon.
    #[test]
    fn shapes_find_what_segments_hold() {
        for count in [1u32, 2, 5, 12, 40] {
            let cases: Vec<(Intervals, BlockId)> =
                (0..count).map(|i| (Intervals::range(i * 10, i * 10 + i % 3), BlockId(2 + i as usize % 4))).collect();
            let all = segments(&cases, BlockId(1), 0xffff);
            let hot = (count - 1) / 3 * 30;
            let shape = by_frequency(&all, &Frequencies::of([(hot, 1000), (5, 10)].into_iter()));
            for n in (0..count * 10 + 10).chain([0xffff]) {
                let to = all.iter().find(|s| s.low <= n && n <= s.high).map(|s| s.to);
                assert_eq!(Some(found(&shape, n).0), to, "{count} {n}");
            }
            assert!(found(&shape, hot).1 <= 2, "{count}: {shape:?}");
            assert!((0..count * 10).all(|n| found(&shape, n).1 <= 16), "{count}: {shape:?}");
        }
    }
}
