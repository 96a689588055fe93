//! What of a call goes into the trace: what the callee can see of its arguments and of the memory behind them.

use bpf_platform::effects::{Argument, Effects, Extent};
use bpf_platform::helpers::Arg;
use bpf_program::{Op, Symbol};

use super::{ArgValue, Cpu, Event, Host};

/// Longest memory argument whose bytes are recorded.
const LONGEST: u64 = 1 << 16;

impl Event {
    /// The event of `op` about to be executed.
    pub(super) fn of(cpu: &Cpu, host: &mut impl Host, op: &Op) -> Event {
        let row = Effects::helper(&op.insn, op.link.is_some());
        let call = match (row, &op.link) {
            (Some(h), _) => h.name.to_string(),
            (None, Some(link)) => match &link.symbol {
                Symbol::Func { name } | Symbol::Extern { name } => name.to_string(),
                _ => op.insn.to_string(),
            },
            (None, None) => op.insn.to_string(),
        };
        let effects = row.map_or(Effects::unknown(), |h| &h.effects);
        let mut event = Event { call, args: Vec::with_capacity(effects.arguments.len()), memory: vec![] };
        let map = effects.map_register().and_then(|r| cpu.register(r));
        let (key, value) = map.and_then(|m| host.map_sizes(m)).unwrap_or_default();
        for (i, argument) in effects.arguments.iter().enumerate() {
            let v = cpu.register(argument.register);
            event.args.push(match v {
                None => ArgValue::Uninitialised,
                Some(v) if is_buffer(argument) && cpu.in_stack(v) => ArgValue::StackBuffer,
                Some(v) => ArgValue::Plain(v & (u64::MAX >> (64 - argument.bits))),
            });
            let length = match argument.extent {
                Extent::Key => u64::from(key),
                Extent::Value => u64::from(value),
                Extent::Bytes(n) => u64::from(n),
                Extent::Register(r) => cpu.register(r).unwrap_or(0),
                Extent::Nothing | Extent::Unknown => 0,
            };
            if let (Some(address), true, 1..=LONGEST) = (v, is_input(argument), length) {
                let mut bytes = vec![0; length as usize];
                if cpu.read(host, address, &mut bytes).is_ok() {
                    event.memory.push((i + 1, bytes));
                }
            }
        }
        event
    }
}

/// Whether an argument is memory of known length, so that its place in the stack does not matter. Of an address that is
/// probed the place may be what is asked for.
fn is_buffer(argument: &Argument) -> bool {
    !matches!(argument.extent, Extent::Nothing | Extent::Unknown) && !matches!(argument.class, Arg::Probe { .. })
}

/// Whether what is read through an argument is all that the callee learns from it.
fn is_input(argument: &Argument) -> bool {
    is_buffer(argument) && argument.access.reads && argument.class != Arg::OutValue
}
