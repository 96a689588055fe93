//! Sets of 32-bit numbers.

impl std::fmt::Display for Intervals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// What is longer is cut.
        const MOST: usize = 8;
        let parts =
            self.0.iter().take(MOST).map(|(l, h)| if l == h { format!("{l:#x}") } else { format!("{l:#x}..{h:#x}") });
        let parts: Vec<String> = parts.collect();
        write!(f, "{{{}{}}}", parts.join(" "), if self.0.len() > MOST { " …" } else { "" })
    }
}

/// A set of numbers: disjoint intervals, both ends included, in order, with gaps between them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Intervals(Vec<(u32, u32)>);

impl Intervals {
    /// No number.
    pub(crate) fn none() -> Intervals {
        Intervals(Vec::new())
    }

    /// The numbers from `low` to `high`; none if that is less.
    pub(crate) fn range(low: u32, high: u32) -> Intervals {
        if low > high { Intervals::none() } else { Intervals(vec![(low, high)]) }
    }

    /// One number.
    pub(crate) fn one(n: u32) -> Intervals {
        Intervals(vec![(n, n)])
    }

    /// The union of intervals in any order.
    pub(crate) fn of(mut intervals: Vec<(u32, u32)>) -> Intervals {
        intervals.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(intervals.len());
        for (low, high) in intervals {
            match merged.last_mut() {
                Some((_, end)) if low <= end.saturating_add(1) => *end = high.max(*end),
                _ => merged.push((low, high)),
            }
        }
        Intervals(merged)
    }

    /// The intervals, in order.
    pub(crate) fn as_slice(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// The networks that the set consists of, by the length of their prefix, the longest first. Where there are few of a length,
    /// they are taken apart into those of the next longer one.
    pub(crate) fn networks(&self) -> Vec<(u32, Vec<u32>)> {
        let mut lengths: Vec<(u32, Vec<u32>)> = (0..=32).map(|length| (length, Vec::new())).collect();
        for (low, high) in &self.0 {
            let (mut low, end) = (u64::from(*low), u64::from(*high) + 1);
            while low < end {
                // As large as where it begins and what is left allow.
                let bits = low.trailing_zeros().min((end - low).ilog2()).min(32);
                lengths[32 - bits as usize].1.push(low as u32);
                low += 1 << bits;
            }
        }
        lengths.retain(|(_, networks)| !networks.is_empty());
        let mut i = 0;
        while i + 1 < lengths.len() {
            let more = lengths[i + 1].0 - lengths[i].0;
            let parts =
                (lengths[i].1.len() as u64).checked_shl(more).filter(|n| n >> more == lengths[i].1.len() as u64);
            if parts.is_none_or(|n| n > 64 + 2 * lengths[i + 1].1.len() as u64) {
                i += 1;
                continue;
            }
            let (_, networks) = lengths.remove(i);
            let step = 1u32.checked_shl(32 - lengths[i].0).unwrap_or(0);
            let apart = networks.iter().flat_map(|n| (0..1u32 << more).map(move |part| n + part * step));
            lengths[i].1.extend(apart);
        }
        lengths.reverse();
        lengths
    }

    /// How many numbers.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(low, high)| u64::from(high - low) + 1).sum()
    }

    /// The numbers, in order.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(low, high)| *low..=*high)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, n: u32) -> bool {
        let i = self.0.partition_point(|(_, high)| *high < n);
        self.0.get(i).is_some_and(|(low, _)| *low <= n)
    }

    /// The number that is the only one.
    pub(crate) fn single(&self) -> Option<u32> {
        match self.0[..] {
            [(low, high)] if low == high => Some(low),
            _ => None,
        }
    }

    /// The numbers of both.
    pub(crate) fn intersection(&self, other: &Intervals) -> Intervals {
        let (mut i, mut j) = (0, 0);
        let mut out = Vec::new();
        // One of few intervals among many: begin where it can meet any.
        if let (Some(a), Some(b)) = (self.0.first(), other.0.first()) {
            i = self.0.partition_point(|(_, high)| *high < b.0);
            j = other.0.partition_point(|(_, high)| *high < a.0);
        }
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            let (low, high) = (a.0.max(b.0), a.1.min(b.1));
            if low <= high {
                out.push((low, high));
            }
            if a.1 < b.1 {
                i += 1;
            } else {
                j += 1;
            }
        }
        Intervals(out)
    }

    /// All numbers are in the other, too.
    pub(crate) fn is_subset(&self, other: &Intervals) -> bool {
        self.0.iter().all(|(low, high)| {
            let i = other.0.partition_point(|(_, end)| end < low);
            other.0.get(i).is_some_and(|(start, end)| start <= low && high <= end)
        })
    }

    /// No number is in both.
    pub(crate) fn is_disjoint(&self, other: &Intervals) -> bool {
        let (few, many) = if self.0.len() < other.0.len() { (self, other) } else { (other, self) };
        few.0.iter().all(|(low, high)| {
            let i = many.0.partition_point(|(_, end)| end < low);
            many.0.get(i).is_none_or(|(start, _)| start > high)
        })
    }

    /// All other numbers.
    pub(crate) fn complement(&self) -> Intervals {
        let mut out = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(0u32);
        for (low, high) in &self.0 {
            if let Some(next) = next
                && next < *low
            {
                out.push((next, low - 1));
            }
            next = high.checked_add(1);
        }
        if let Some(next) = next {
            out.push((next, u32::MAX));
        }
        Intervals(out)
    }

    /// The numbers that are not in the other.
    pub(crate) fn without(&self, other: &Intervals) -> Intervals {
        self.intersection(&other.complement())
    }

    /// The numbers of either.
    pub(crate) fn union(&self, other: &Intervals) -> Intervals {
        Intervals::of(self.0.iter().chain(&other.0).copied().collect())
    }

    /// Each number with another added, modulo 2^32.
    pub(crate) fn shifted(&self, by: u32) -> Intervals {
        self.wrapped(|(low, high)| (low.wrapping_add(by), high.wrapping_add(by)))
    }

    /// Each number taken from another, modulo 2^32.
    pub(crate) fn mirrored(&self, from: u32) -> Intervals {
        self.wrapped(|(low, high)| (from.wrapping_sub(high), from.wrapping_sub(low)))
    }

    /// Each interval as another one, which goes on at 0 if it ends below where it begins.
    fn wrapped(&self, f: impl Fn((u32, u32)) -> (u32, u32)) -> Intervals {
        let mut out = Vec::with_capacity(self.0.len() + 1);
        for interval in &self.0 {
            let (low, high) = f(*interval);
            if low <= high {
                out.push((low, high));
            } else {
                out.extend([(low, u32::MAX), (0, high)]);
            }
        }
        Intervals::of(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_agree_with_their_members() {
        let mut random = 12345u32;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random >> 28
        };
        for _ in 0..2000 {
            let mut some = || {
                Intervals::of((0..next() % 4).map(|_| (next(), next())).map(|(a, b)| (a.min(b), a.max(b))).collect())
            };
            let (a, b) = (some(), some());
            let shift = next();
            for n in 0..32u32 {
                assert_eq!(a.intersection(&b).contains(n), a.contains(n) && b.contains(n));
                assert_eq!(a.union(&b).contains(n), a.contains(n) || b.contains(n));
                assert_eq!(a.without(&b).contains(n), a.contains(n) && !b.contains(n));
                assert_eq!(a.complement().contains(n), !a.contains(n));
                assert_eq!(a.is_disjoint(&b), a.intersection(&b).is_empty());
                let networks = a.networks();
                let in_one = |(length, all): &(u32, Vec<u32>)| all.contains(&(n & u32::MAX << (32 - length)));
                assert_eq!(networks.iter().any(in_one), a.contains(n));
                assert_eq!(a.shifted(shift).contains(n.wrapping_add(shift)), a.contains(n));
                assert_eq!(a.mirrored(shift).contains(shift.wrapping_sub(n)), a.contains(n));
            }
        }
    }
}
