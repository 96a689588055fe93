//! Packets that a filter is compiled for: what it is to be fast on.

use crate::link::LinkType;
use crate::program::{Beside, Packet};

/// A sample of the packets that matter, taken evenly from all that are added. What a filter accepts does not depend on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    link_type: LinkType,
    packets: Vec<Sampled>,
    /// How many packets were added.
    added: u64,
    /// Each so-manieth is kept.
    step: u64,
    /// The bytes of those that are kept.
    bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Sampled {
    captured: Box<[u8]>,
    length: u32,
    beside: Beside,
}

impl Profile {
    /// No more packets are kept.
    pub const MOST: usize = 10_000;
    /// No more bytes are kept, but for one packet.
    const MOST_BYTES: usize = 64 << 20;

    /// A profile of a link, without packets.
    pub fn new(link_type: LinkType) -> Profile {
        Profile { link_type, packets: Vec::new(), added: 0, step: 1, bytes: 0 }
    }

    /// The link that the packets come from.
    pub fn link_type(&self) -> LinkType {
        self.link_type
    }

    /// Adds a packet. Where that makes too many, every second one goes, and of later ones half as many are kept.
    pub fn add(&mut self, packet: &Packet) {
        let is_kept = self.added.is_multiple_of(self.step);
        self.added += 1;
        if !is_kept {
            return;
        }
        self.bytes += packet.captured.len();
        let Packet { captured, length, beside } = *packet;
        self.packets.push(Sampled { captured: captured.into(), length, beside });
        while self.packets.len() > Profile::MOST || self.bytes > Profile::MOST_BYTES && self.packets.len() > 1 {
            let mut numbers = 0..;
            self.packets.retain(|_| numbers.next().is_some_and(|n: usize| n.is_multiple_of(2)));
            self.bytes = self.packets.iter().map(|p| p.captured.len()).sum();
            self.step *= 2;
        }
    }

    /// How many packets are kept.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// No packet is kept: none was added.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The packets that are kept, in order.
    pub fn packets(&self) -> impl Iterator<Item = Packet<'_>> {
        self.packets.iter().map(Sampled::packet)
    }

    /// One of the packets that are kept.
    pub(crate) fn packet(&self, i: usize) -> Packet<'_> {
        self.packets[i].packet()
    }
}

impl Sampled {
    fn packet(&self) -> Packet<'_> {
        Packet { captured: &self.captured, length: self.length, beside: self.beside }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_taken_evenly() {
        for count in [0u32, 1, 9_999, 10_000, 10_001, 20_001, 123_456] {
            let mut profile = Profile::new(LinkType::EN10MB);
            for n in 0..count {
                profile.add(&Packet { captured: &n.to_be_bytes(), length: n, beside: Beside::default() });
            }
            let kept: Vec<u32> = profile.packets().map(|p| p.length).collect();
            assert!(kept.len() <= Profile::MOST && kept.len() >= (count as usize).min(Profile::MOST / 2), "{count}");
            let step = kept.get(1).copied().unwrap_or(1);
            assert!(kept.iter().zip(0..).all(|(length, i)| *length == i * step), "{count}");
        }
    }

    #[test]
    fn large_packets_are_few() {
        let mut profile = Profile::new(LinkType::EN10MB);
        let captured = vec![0; 1 << 20];
        for _ in 0..200 {
            profile.add(&Packet { captured: &captured, length: 1 << 20, beside: Beside::default() });
        }
        assert!((32..=64).contains(&profile.len()), "{}", profile.len());
    }
}
