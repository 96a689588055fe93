//! Numbers about a program: from the verifier's log, and from the kernel's description of a loaded program.
//!
//! The log's last lines are statistics that the kernel prints when asked with BPF_LOG_STATS:
//!
//! ```text
//! verification time 62 usec
//! stack depth 16+8
//! processed 29 insns (limit 1000000) max_states_per_insn 0 total_states 2 peak_states 2 mark_read 1
//! ```

/// What verification took, as the kernel tells at the end of its log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifierStats {
    /// Instructions processed, over all paths: the number the kernel limits to a million.
    pub processed: u64,
    /// States created.
    pub total_states: u64,
    /// States kept at once.
    pub peak_states: u64,
    /// The most states kept at one instruction.
    pub max_states_per_insn: u64,
    /// Stack bytes of each function, the entry first.
    pub stack_depths: Vec<u32>,
    /// Microseconds spent.
    pub micros: u64,
}

impl VerifierStats {
    /// Reads the statistics out of a verifier log; `None` when it has none.
    pub fn parse(log: &str) -> Option<Self> {
        let mut stats = Self::default();
        let mut found = false;
        for line in log.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["processed", processed, "insns", ..] => {
                    found = true;
                    stats.processed = number(processed);
                    stats.max_states_per_insn = number_after(&words, "max_states_per_insn");
                    stats.total_states = number_after(&words, "total_states");
                    stats.peak_states = number_after(&words, "peak_states");
                }
                ["verification", "time", micros, "usec"] => stats.micros = number(micros),
                ["stack", "depth", depths, ..] => {
                    stats.stack_depths = depths.split('+').map(|depth| number(depth) as u32).collect();
                }
                _ => {}
            }
        }
        found.then_some(stats)
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or(0)
}

fn number_after(words: &[&str], label: &str) -> u64 {
    words.iter().position(|word| *word == label).and_then(|at| words.get(at + 1)).map_or(0, |word| number(word))
}

/// The last line of a log that is neither a statistic nor a line of source, which older kernels print late: what the verifier
/// objects to.
pub(crate) fn last_complaint(log: &str) -> &str {
    const STATISTICS: [&str; 4] = ["processed ", "verification time ", "stack depth ", "mark_precise"];
    log.lines()
        .map(str::trim)
        .rfind(|line| {
            !line.is_empty() && !line.starts_with(';') && !STATISTICS.iter().any(|label| line.starts_with(label))
        })
        .unwrap_or("no reason given")
}

/// Does a log hold more than statistics?
pub(crate) fn complains(log: &str) -> bool {
    last_complaint(log) != last_complaint("")
}

/// The end of a log, at most `limit` bytes of it, from the start of a line.
pub(crate) fn tail(log: &str, limit: usize) -> String {
    if log.len() <= limit {
        return log.to_owned();
    }
    let cut = (log.len() - limit..).find(|&at| log.is_char_boundary(at)).expect("the end is a boundary");
    let end = &log[cut..];
    end.split_once('\n').map_or(end, |(_, lines)| lines).to_owned()
}

/// The kernel's description of a loaded program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Instructions the verifier processed; 0 on kernels older than 5.16.
    pub verified_insns: u32,
    /// Bytes of BPF code after the verifier's rewriting.
    pub xlated_bytes: u32,
    /// Bytes of machine code; 0 when the program is interpreted.
    pub jited_bytes: u32,
    /// The kernel's number for it, while it is loaded.
    pub id: u32,
    /// The verifier has seen a store to the packet of an skb, so that the kernel takes the packet from its clones before
    /// the program runs.
    pub unshares_packet: bool,
}

/// Slots that `bpf_unclone_prologue` in net/core/filter.c puts in front of a program.
const UNSHARING: usize = 10;
/// Slots within which that stands: before it there may be the counter of `may_goto` (`do_misc_fixups`), one store or two.
pub(crate) const BEGIN: usize = UNSHARING + 2;

/// Whether translated code begins by taking the packet from its clones, as `bpf_unclone_prologue` does. No program begins so by
/// itself: before anything is done to r2, it may not be read (`r2 ^= r2`).
pub(crate) fn unshares_packet(translated: &[[u8; 8]; BEGIN]) -> bool {
    /// `*(u64 *)(r10 + …) = …`
    const STORE: [u8; 2] = [0x7a, 0x0a];
    /// Opcode and registers; displacements of jumps and numbers, where they are the same in every kernel.
    type Shape = ([u8; 2], Option<[u8; 6]>);
    const PROLOGUE: [Shape; UNSHARING] = [
        // r6 = skb->cloned
        ([0x71, 0x16], None),
        ([0x54, 0x06], None),
        ([0x15, 0x06], Some([7, 0, 0, 0, 0, 0])),
        // bpf_skb_pull_data(skb, 0)
        ([0xbf, 0x16], Some([0; 6])),
        ([0xaf, 0x22], Some([0; 6])),
        ([0x85, 0x00], None),
        ([0x15, 0x00], Some([2, 0, 0, 0, 0, 0])),
        ([0xb4, 0x00], None),
        ([0x95, 0x00], Some([0; 6])),
        ([0xbf, 0x61], Some([0; 6])),
    ];
    let is = |slot: &[u8; 8], (begin, rest): &Shape| {
        slot.starts_with(begin) && rest.is_none_or(|rest| slot.ends_with(&rest))
    };
    let stores = translated.iter().take_while(|slot| slot.starts_with(&STORE)).count();
    let begin = &translated[stores.min(BEGIN - UNSHARING)..];
    begin.iter().zip(&PROLOGUE).all(|(slot, shape)| is(slot, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "0: R1=ctx() R10=fp0\n1: (95) exit\nR0 !read_ok\nverification time 62 usec\nstack depth 16+8\n\
        processed 29 insns (limit 1000000) max_states_per_insn 1 total_states 3 peak_states 2 mark_read 1\n";

    #[test]
    fn reads_the_statistics_of_a_log() {
        let stats = VerifierStats::parse(LOG).unwrap();
        let expected = VerifierStats {
            processed: 29,
            total_states: 3,
            peak_states: 2,
            max_states_per_insn: 1,
            stack_depths: vec![16, 8],
            micros: 62,
        };
        assert_eq!(stats, expected);
        assert_eq!(VerifierStats::parse("R0 !read_ok\n"), None);
    }

    #[test]
    fn the_complaint_stands_before_the_statistics() {
        assert_eq!(last_complaint(LOG), "R0 !read_ok");
        assert_eq!(last_complaint(""), "no reason given");
    }

    #[test]
    fn a_tail_starts_with_a_whole_line() {
        assert_eq!(tail("one\ntwo\nthree\n", 9), "three\n");
        assert_eq!(tail("one\n", 9), "one\n");
    }
}
