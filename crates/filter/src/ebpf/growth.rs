//! How far a program's jumps lead once the kernel has it.
//!
//! The verifier replaces some instructions by several (`bpf_convert_ctx_accesses`, `do_misc_fixups` in kernel/bpf/verifier.c), and
//! then refuses a program of which a jump has become too long: "insn %d cannot be patched due to 16-bit range".

use rustc_hash::FxHashMap;

/// A load by call: `bpf_gen_ld_abs` in net/core/filter.c.
const LOAD: usize = 6;
/// The same behind a base: its offset is added.
const LOAD_BEHIND: usize = 7;
/// A field of the context: at most `ingress_ifindex` of `xdp_md` (`xdp_convert_ctx_access`), and `pkt_type`, `ifindex` of
/// `__sk_buff` (`bpf_convert_ctx_access`).
const FIELD: usize = 4;
/// A division by a register: 0 is looked for (`do_misc_fixups`).
const DIVISION: usize = 5;
/// A lookup in a map: at most that of an array for each processor (`percpu_array_map_gen_lookup`).
const LOOKUP: usize = 9;
/// An address of a variable or a map.
const ADDRESS: usize = 2;

/// How many slots an instruction takes at most.
fn slots(line: &str, context: &str) -> usize {
    if line.contains("skb[") {
        return if line.contains("skb[r") { LOAD_BEHIND } else { LOAD };
    }
    if line.ends_with(" ll") {
        return ADDRESS;
    }
    if line == "call bpf_map_lookup_elem" {
        return LOOKUP;
    }
    let is_divided = |symbol: &str| line.split_once(symbol).is_some_and(|(_, by)| by.starts_with(['w', 'r']));
    if is_divided(" /= ") || is_divided(" %= ") {
        return DIVISION;
    }
    if line.contains(" = *(") && line.contains(context) { FIELD } else { 1 }
}

/// How many slots the longest jump of a listing leads over, and how many there are. The context is in this register.
pub(super) fn longest_jump(listing: &str, context: u8) -> (usize, usize) {
    let context = format!(")(r{context} + ");
    let mut labels: FxHashMap<&str, usize> = FxHashMap::default();
    let mut jumps: Vec<(usize, &str)> = Vec::new();
    let mut at = 0;
    for line in listing.lines().map(str::trim) {
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, at);
            continue;
        }
        at += slots(line, &context);
        if let Some((_, label)) = line.split_once("goto ") {
            jumps.push((at, label));
        }
    }
    let over = |(from, label): &(usize, &str)| labels.get(label).map_or(0, |to| to.abs_diff(*from));
    (jumps.iter().map(over).max().unwrap_or_default(), at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_for_an_instruction_counts() {
        let listing = "    r6 = r1\n    if w0 == 1 goto b1\n    r0 = *(u16 *)skb[12]\n    r0 = *(u8 *)skb[r3 + 2]\n    w3 /= w4\n    w3 /= 4\n\
                       \x20   r1 = *(u32 *)(r6 + 4)\n    r2 = *(u32 *)(r7 + 4)\n    r1 = counters ll\nb1:\n    exit\n";
        let between = LOAD + LOAD_BEHIND + DIVISION + 1 + FIELD + 1 + ADDRESS;
        assert_eq!(longest_jump(listing, 6), (between, between + 3));
    }
}
