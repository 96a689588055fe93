//! Perfect hashes of 32-bit numbers, by displacement: each member stands in the slot that it is sent to, and nine
//! instructions find that slot.
//!
//! The upper bits of the lower half of the 64-bit product `x * multiplier` choose a displacement; both halves, exclusive or each other
//! and the displacement, modulo the number of slots, are the slot (hash and displace: Belazzougui, Botelho, Dietzfelbinger, ESA 2009).
//! The lower half's upper bits depend on all bits of `x`, and so do the upper half's lower ones: whichever bits of the members
//! differ, they come apart. And both halves together are another number for each `x`, however many members there are.

/// A perfect hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PerfectHash {
    /// Odd, and below 2^31: where constants are extended by their sign, it is the same number in 64 bits.
    pub multiplier: u32,
    /// By the upper bits of the hash; a power of two of them, at least two but for a hash of one slot.
    pub displacements: Vec<u16>,
    /// A power of two of them. Slots without a member hold a number that is sent elsewhere.
    pub slots: Vec<u32>,
}

impl PerfectHash {
    /// How many multipliers are tried.
    const ATTEMPTS: u32 = 64;

    /// A perfect hash of numbers, no two of which are the same; `None` if none is found.
    #[must_use]
    pub fn of(members: &[u32]) -> Option<PerfectHash> {
        let multiplier = |i: u32| 0x9e37_79b1u32.wrapping_add(i.wrapping_mul(0x2545_f492));
        (0..Self::ATTEMPTS).find_map(|i| PerfectHash::with(members, multiplier(i)))
    }

    /// How far the hash is shifted for the number of its displacement.
    #[must_use]
    pub fn shift(&self) -> u32 {
        32 - self.displacements.len().trailing_zeros()
    }

    /// The slot that a number is sent to.
    #[must_use]
    pub fn slot(&self, x: u32) -> usize {
        let (lower, both) = halves(x, self.multiplier);
        let d = self.displacements[lower.checked_shr(self.shift()).unwrap_or(0) as usize];
        ((both ^ u32::from(d)) as usize) & (self.slots.len() - 1)
    }

    /// The hash with one slot, which holds 0.
    #[must_use]
    pub fn empty() -> PerfectHash {
        PerfectHash { multiplier: 1, displacements: vec![0], slots: vec![0] }
    }

    fn with(members: &[u32], multiplier: u32) -> Option<PerfectHash> {
        let multiplier = multiplier & i32::MAX as u32 | 1;
        let slots = (members.len() * 5 / 4).next_power_of_two().max(8);
        if slots > 1 << 26 {
            return None;
        }
        let buckets = (members.len() / 3).next_power_of_two().max(2);
        let bits = 32 - buckets.trailing_zeros();
        let mut by_bucket: Vec<Vec<u32>> = vec![Vec::new(); buckets];
        for x in members {
            let (lower, both) = halves(*x, multiplier);
            by_bucket[(lower >> bits) as usize].push(both);
        }
        let mask = slots - 1;
        // Members of one bucket that agree in all that a displacement changes stand in no two slots.
        let are_apart = |hashes: &mut Vec<u32>| {
            hashes.sort_unstable_by_key(|h| *h as usize & mask);
            hashes.windows(2).all(|two| (two[0] ^ two[1]) as usize & mask != 0)
        };
        if !by_bucket.iter_mut().all(are_apart) {
            return None;
        }
        let mut order: Vec<usize> = (0..buckets).collect();
        order.sort_by_key(|b| std::cmp::Reverse(by_bucket[*b].len()));
        let mut taken = vec![false; slots];
        let mut displacements = vec![0u16; buckets];
        let mut chosen: Vec<usize> = Vec::new();
        // Upper bits of a displacement change nothing.
        let last = u16::try_from(mask).unwrap_or(u16::MAX);
        for bucket in order {
            let hashes = &by_bucket[bucket];
            let found = (0..=last).find(|d| {
                chosen.clear();
                chosen.extend(hashes.iter().map(|h| (*h as usize ^ *d as usize) & mask));
                chosen.iter().all(|slot| !taken[*slot])
            })?;
            for slot in &chosen {
                taken[*slot] = true;
            }
            displacements[bucket] = found;
        }
        let mut hash = PerfectHash { multiplier, displacements, slots: Vec::new() };
        hash.slots = vec![0; slots];
        for x in members {
            let slot = hash.slot(*x);
            hash.slots[slot] = *x;
        }
        // A free slot must not hold a number that is sent to it.
        for (slot, is_taken) in taken.iter().enumerate() {
            if !is_taken {
                let other = (0..).find(|x| hash.slot(*x) != slot)?;
                hash.slots[slot] = other;
            }
        }
        Some(hash)
    }
}

/// The lower half of the product, and both halves, exclusive or each other.
fn halves(x: u32, multiplier: u32) -> (u32, u32) {
    let product = u64::from(x) * u64::from(multiplier);
    (product as u32, (product ^ product >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_stands_in_its_slot_and_the_others_hold_what_is_sent_elsewhere() {
        for n in [0u32, 1, 3, 65, 1000, 10_000] {
            let members: Vec<u32> = (0..n).map(|i| i.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995).collect();
            let hash = PerfectHash::of(&members).unwrap();
            assert!(members.iter().all(|x| hash.slots[hash.slot(*x)] == *x), "{n}");
            let found = hash.slots.iter().enumerate().filter(|(i, x)| hash.slot(**x) == *i).count();
            assert_eq!(found, n as usize);
        }
        assert_eq!(PerfectHash::of(&[7, 7]), None);
    }

    /// Addresses of networks, beginnings of addresses, and what else lists are made of.
    #[test]
    fn whichever_bits_differ_there_is_a_hash_and_soon() {
        let mut random = 1u32;
        let mut number = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random.swap_bytes()
        };
        let mut lists: Vec<(String, Vec<u32>)> = Vec::new();
        for n in [2u32, 5, 9, 16, 20, 24, 32, 48, 65, 100, 128, 1000, 10_000] {
            for zeros in (0..32).filter(|zeros| 32 - zeros >= n.next_power_of_two().trailing_zeros()) {
                let room = u32::MAX >> zeros;
                let spread = (room / n).max(1);
                lists.push((format!("{n} in a row, {zeros} zeros"), (0..n).map(|i| i << zeros).collect()));
                lists.push((format!("{n} spread, {zeros} zeros"), (0..n).map(|i| (i * spread) << zeros).collect()));
                lists.push((format!("{n} and ones, {zeros} zeros"), (0..n).map(|i| !(i << zeros)).collect()));
                lists
                    .push((format!("{n} random, {zeros} zeros"), (0..n).map(|_| (number() & room) << zeros).collect()));
            }
            // Two fields that differ, with some bits between them that do not.
            for (low, between) in [(0, 8), (0, 20), (8, 8), (16, 4), (18, 3), (18, 6), (20, 0)] {
                let side = n.isqrt() + 1;
                let high = side.next_power_of_two().trailing_zeros() + low + between;
                let pair = |i: u32| ((u64::from(i / side) << high) | u64::from(i % side) << low) as u32;
                lists.push((format!("{n} pairs, {low} zeros, {between} between"), (0..n).map(pair).collect()));
            }
        }
        let count = lists.len();
        for (what, mut members) in lists {
            members.sort_unstable();
            members.dedup();
            let began = std::time::Instant::now();
            let hash = PerfectHash::of(&members).unwrap_or_else(|| panic!("no hash of {what}"));
            assert!(members.iter().all(|x| hash.slots[hash.slot(*x)] == *x), "{what}");
            assert!(began.elapsed().as_millis() < 200, "{what}: {:?}", began.elapsed());
        }
        assert!(count > 1000, "{count} lists");
    }

    /// So many members that pairs of them agree in any 32 bits of a hash.
    #[test]
    fn a_million_members_have_a_hash() {
        let mut random = 1u32;
        let mut number = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random ^ random >> 16
        };
        let mut members: Vec<u32> = (0..1_000_000).map(|_| number()).collect();
        members.sort_unstable();
        members.dedup();
        let hash = PerfectHash::of(&members).expect("a hash");
        assert!(members.iter().all(|x| hash.slots[hash.slot(*x)] == *x));
    }

    /// What has no hash is refused at once.
    #[test]
    fn members_that_no_displacement_parts_are_refused_soon() {
        let began = std::time::Instant::now();
        let twice: Vec<u32> = (0..1000).flat_map(|i| [i, i]).collect();
        assert_eq!(PerfectHash::of(&twice), None);
        assert!(began.elapsed().as_millis() < 500, "{:?}", began.elapsed());
    }
}
