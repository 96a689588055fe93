//! An object in which the verdicts of a program wait: at each exit five multiplications follow, each of which waits for the one before, and
//! which together leave r0 as it was (3 · 3 · 3 · 3 · 81⁻¹ = 1 modulo 2^64). For `scripts/bench-check`, which has `bpf-opt bench` find them.

use std::path::PathBuf;

use bpf_isa::{AluOp, Imm64Kind, Insn, Reg, Src, Width};
use bpf_object::{FuncId, FuncKind, Object, WriteOptions};
use bpf_program::{Op, Terminator, build, lower};
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// The object.
    object: PathBuf,
    /// Where to write.
    #[arg(short, long)]
    output: PathBuf,
    /// Only this program.
    #[arg(long)]
    program: Option<String>,
}

/// Steps of the chain but the last.
const STEPS: usize = 4;

fn main() -> Result<(), String> {
    let args = Args::parse();
    let said = |e: &dyn std::fmt::Display| format!("{}: {e}", args.object.display());
    let mut object = Object::parse(std::fs::read(&args.object).map_err(|e| said(&e))?).map_err(|e| said(&e))?;
    let is_wanted = |name: &String| args.program.as_ref().is_none_or(|wanted| wanted == name);
    let programs: Vec<usize> = (0..object.functions().len())
        .filter(|i| object.functions()[*i].kind == FuncKind::Program && is_wanted(&object.functions()[*i].name))
        .collect();
    for number in programs {
        let mut f = build(&object, FuncId(number)).map_err(|e| said(&e))?;
        for b in f.layout.clone() {
            let block = f.block_mut(b);
            if let Terminator::Exit { origin } = block.term {
                block.ops.extend(chain().into_iter().map(|insn| Op::with_origin(insn, origin)));
            }
        }
        let insns = lower(&f).map_err(|e| said(&e))?.insns;
        object.set_body(FuncId(number), insns).map_err(|e| said(&e))?;
    }
    let written = object.write(&WriteOptions::default()).map_err(|e| said(&e))?;
    std::fs::write(&args.output, written.bytes).map_err(|e| said(&e))
}

fn chain() -> Vec<Insn> {
    let times = |src| Insn::Alu { op: AluOp::Mul, width: Width::W64, dst: Reg::R0, src };
    let mut insns =
        vec![Insn::LoadImm64 { dst: Reg::R1, kind: Imm64Kind::Const, imm: inverse(3_u64.pow(STEPS as u32)) }];
    insns.extend([times(Src::Imm(3)); STEPS]);
    insns.push(times(Src::Reg(Reg::R1)));
    insns
}

/// The inverse of an odd number modulo 2^64, by Newton's method: each step doubles the bits that are right.
fn inverse(n: u64) -> u64 {
    (0..6).fold(n, |x, _| x.wrapping_mul(2_u64.wrapping_sub(n.wrapping_mul(x))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_leaves_the_verdict_as_it_was() {
        assert_eq!(inverse(81).wrapping_mul(81), 1);
        let steps = chain().into_iter().filter(|insn| matches!(insn, Insn::Alu { .. })).count();
        assert_eq!(steps, STEPS + 1);
    }
}
