//! Perfect hashes of 32-bit numbers, by displacement: each member stands in the slot that it is sent to, and nine
//! instructions find that slot.
//!
//! `h = x * multiplier; h ^= h >> 15`; the upper bits of `h` choose a displacement, and `(h ^ displacement)` modulo the
//! number of slots is the slot (hash and displace: Belazzougui, Botelho, Dietzfelbinger, ESA 2009).

/// A perfect hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PerfectHash {
    /// Odd.
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
        let h = hashed(x, self.multiplier);
        let d = self.displacements[h.checked_shr(self.shift()).unwrap_or(0) as usize];
        ((h ^ u32::from(d)) as usize) & (self.slots.len() - 1)
    }

    /// The hash with one slot, which holds 0.
    #[must_use]
    pub fn empty() -> PerfectHash {
        PerfectHash { multiplier: 1, displacements: vec![0], slots: vec![0] }
    }

    fn with(members: &[u32], multiplier: u32) -> Option<PerfectHash> {
        let multiplier = multiplier | 1;
        let slots = (members.len() * 5 / 4).next_power_of_two().max(8);
        if slots > 1 << 26 {
            return None;
        }
        let buckets = (members.len() / 3).next_power_of_two().max(2);
        let bits = 32 - buckets.trailing_zeros();
        let mut by_bucket: Vec<Vec<u32>> = vec![Vec::new(); buckets];
        for x in members {
            let h = hashed(*x, multiplier);
            by_bucket[(h >> bits) as usize].push(h);
        }
        let mut order: Vec<usize> = (0..buckets).collect();
        order.sort_by_key(|b| std::cmp::Reverse(by_bucket[*b].len()));
        let mask = slots - 1;
        let mut taken = vec![false; slots];
        let mut displacements = vec![0u16; buckets];
        let mut chosen = Vec::new();
        for bucket in order {
            let hashes = &by_bucket[bucket];
            let found = (0..=u16::MAX).find(|d| {
                chosen.clear();
                hashes.iter().all(|h| {
                    let slot = (*h as usize ^ *d as usize) & mask;
                    let free = !taken[slot] && !chosen.contains(&slot);
                    chosen.push(slot);
                    free
                })
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

fn hashed(x: u32, multiplier: u32) -> u32 {
    let h = x.wrapping_mul(multiplier);
    h ^ h >> 15
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
}
