//! Machine code against the interpreter, and read by another disassembler.

mod machine;
mod programs;

use fastrand::Rng;

use super::memory::Machine;
use super::translate::translate_for;
use crate::program::{BasicBlock, Beside, BlockId, Comparison, End, Operand, Operation, Packet, Program, Register};

/// The code of a program, checked.
fn machine(program: &Program, has_movbe: bool) -> (Machine, usize) {
    let code = translate_for(program, has_movbe).unwrap_or_else(|e| panic!("{e}\n{program}"));
    let callee = super::memory::chain as *const () as u64;
    let reads = std::panic::catch_unwind(|| machine::check(&code.bytes, code.instructions, callee));
    let reads = reads.unwrap_or_else(|_| panic!("{program}\n{}", listing(&code.bytes[..code.instructions])));
    (Machine::new(&code).expect("executable memory"), reads)
}

fn listing(code: &[u8]) -> String {
    let mut formatter = iced_x86::FastFormatter::new();
    let mut text = String::new();
    for instruction in &mut iced_x86::Decoder::with_ip(64, code, 0, iced_x86::DecoderOptions::NONE) {
        text += &format!("{:6x}: ", instruction.ip());
        formatter.format(&instruction, &mut text);
        text.push('\n');
    }
    text
}

/// Runs a program in both on packets; how many were accepted.
fn compare(program: &Program, machine: &Machine, rng: &mut Rng, packets: usize) -> usize {
    let mut registers = Vec::new();
    let mut accepted = 0;
    for _ in 0..packets {
        let bytes = programs::bytes(rng);
        let packet = Packet { captured: &bytes, length: rng.u32(0..400), beside: programs::beside(rng) };
        let expected = program.run(&packet, &mut registers).accepted;
        let found = machine.call(&packet);
        assert_eq!(expected, found, "{packet:?}\n{program}\n{}", listing(machine.instructions()));
        accepted += usize::from(found);
    }
    accepted
}

#[test]
fn random_programs_accept_what_the_interpreter_accepts() {
    let mut rng = Rng::with_seed(14);
    let (mut accepted, mut rejected, mut reads, mut without_movbe) = (0, 0, 0, 0);
    let has_movbe = std::arch::is_x86_feature_detected!("movbe");
    for i in 0..12_000 {
        // Few registers are written often; of many, some stand in the stack frame.
        let (registers, fills) = ([3, 8, 40][i % 3], i % 3 == 2 && rng.bool());
        let program = programs::program(&mut rng, registers, fills);
        let uses_movbe = has_movbe && i % 4 > 0;
        let (machine, packet_reads) = machine(&program, uses_movbe);
        let n = compare(&program, &machine, &mut rng, 40);
        accepted += n;
        rejected += 40 - n;
        reads += packet_reads;
        without_movbe += usize::from(!uses_movbe);
    }
    println!("{accepted} accepted, {rejected} rejected, {reads} reads of packets, {without_movbe} without movbe");
    assert!(accepted > 20_000 && rejected > 20_000 && reads > 10_000 && without_movbe > 2_000);
}

/// All values are alive at once.
#[test]
fn values_beyond_the_registers_of_the_machine_stand_in_the_stack() {
    let mut rng = Rng::with_seed(3);
    for count in [5u32, 12, 13, 20, 60, 500] {
        let mut operations: Vec<Operation> =
            (0..count).map(|i| Operation::Load { to: Register(i), base: None, offset: i % 40, size: 4 }).collect();
        for i in 1..count {
            let (a, b) = (Operand::Register(Register(0)), Operand::Register(Register(i)));
            operations.push(Operation::Binary { op: crate::language::Binary::Xor, to: Register(0), a, b });
        }
        let branch = |a: u32, yes, no| End::Branch {
            a: Register(a),
            comparison: Comparison::AnyBit(0x0101_0101),
            yes: BlockId(yes),
            no: BlockId(no),
        };
        let blocks = vec![
            BasicBlock { operations, end: branch(0, 1, 2) },
            BasicBlock { operations: Vec::new(), end: branch(count - 1, 3, 4) },
            BasicBlock { operations: Vec::new(), end: branch(count / 2, 3, 4) },
            BasicBlock { operations: Vec::new(), end: End::Accept },
            BasicBlock { operations: Vec::new(), end: End::Reject },
        ];
        let program = Program { blocks, registers: count, tables: Vec::new(), maps: Default::default(), predicates: 0 };
        let (machine, _) = machine(&program, false);
        let spills = listing(machine.instructions()).contains("[rsp");
        assert_eq!(spills, count > 12, "{count}\n{}", listing(machine.instructions()));
        assert!(compare(&program, &machine, &mut rng, 2000) > 100);
    }
}

#[test]
fn equality_of_fields_needs_no_swap() {
    let load = Operation::Load { to: Register(0), base: None, offset: 12, size: 2 };
    let branch = |n, yes, no| End::Branch {
        a: Register(0),
        comparison: Comparison::Equal(Operand::Constant(n)),
        yes: BlockId(yes),
        no: BlockId(no),
    };
    let end = |end| BasicBlock { operations: Vec::new(), end };
    let blocks = vec![
        BasicBlock { operations: vec![load], end: branch(0x0800, 2, 1) },
        end(branch(0x86dd, 2, 3)),
        end(End::Accept),
        end(End::Reject),
    ];
    let program = Program { blocks, registers: 1, tables: Vec::new(), maps: Default::default(), predicates: 0 };
    let (machine, reads) = machine(&program, true);
    let text = listing(machine.instructions());
    assert_eq!(reads, 1);
    assert!(!text.contains("rol") && text.contains(",8h\n") && text.contains("0DD86h"), "{text}");
    let mut packet = [0u8; 14];
    for (kind, expected) in [(0x0800u16, true), (0x86dd, true), (0x0008, false), (0xdd86, false)] {
        packet[12..].copy_from_slice(&kind.to_be_bytes());
        let packet = Packet { captured: &packet, length: 14, beside: Beside::default() };
        assert_eq!(machine.call(&packet), expected, "{kind:x}");
        assert!(!machine.call(&Packet { captured: &packet.captured[..13], ..packet }));
    }
}

/// What the checker of machine code is worth: it finds checks that are gone, shorter, or of something else.
#[test]
fn code_without_a_check_is_found() {
    let load = |to, base, offset| Operation::Load { to: Register(to), base, offset, size: 1 };
    let end = End::Branch {
        a: Register(1),
        comparison: Comparison::Equal(Operand::Constant(7)),
        yes: BlockId(1),
        no: BlockId(2),
    };
    let blocks = vec![
        BasicBlock { operations: vec![load(0, None, 20), load(1, Some(Register(0)), 40)], end },
        BasicBlock { operations: Vec::new(), end: End::Accept },
        BasicBlock { operations: Vec::new(), end: End::Reject },
    ];
    let program = Program { blocks, registers: 2, tables: Vec::new(), maps: Default::default(), predicates: 0 };
    let code = translate_for(&program, true).expect("code");
    machine::check(&code.bytes, code.instructions, 0);
    let mut found = 0;
    for i in 0..code.instructions {
        for bit in 0..8 {
            let mut damaged = code.bytes.clone();
            damaged[i] ^= 1 << bit;
            let is_found = std::panic::catch_unwind(|| machine::check(&damaged, code.instructions, 0)).is_err();
            found += usize::from(is_found);
            // The bounds: `cmp rsi, 21`, `lea rax, [r8 + 41]`. Without bits they are too short.
            let is_bound = matches!(code.bytes[i], 21 | 41) && code.bytes[i] >> bit & 1 == 1;
            assert!(is_found || !is_bound, "byte {i}, bit {bit}\n{}", listing(&damaged[..code.instructions]));
        }
    }
    println!("{found} of {} damaged programs found", code.instructions * 8);
    assert!(found > code.instructions * 2);
}
