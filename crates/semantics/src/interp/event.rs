//! The trace of calls, by which two executions are compared.

use bpf_isa::{Call, Insn, Reg};
use bpf_program::{Op, Symbol};

use super::{Cpu, Host};
use bpf_platform::helpers::{Arg, Helper, Len};

/// Longest memory argument whose bytes are recorded.
const LONGEST: u64 = 1 << 16;

/// The value of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgValue {
    /// A number, or a pointer that is not into the stack.
    Plain(u64),
    /// A pointer into the stack to memory that the callee reads or writes: where in the stack is private, the
    /// bytes read through it are in [`Event::memory`].
    StackBuffer,
    /// The register had no value.
    Uninitialised,
}

/// One call that left the program. Equal events mean that the callee could not tell the difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The helper's name, or the text of the call.
    pub call: String,
    /// The arguments the callee has; all five where its prototype is not known.
    pub args: Vec<ArgValue>,
    /// What the callee reads through its arguments: the argument's number, from 1, and the bytes.
    pub memory: Vec<(usize, Vec<u8>)>,
}

impl Event {
    /// The event of `op` about to be executed.
    pub(super) fn of(cpu: &Cpu, host: &mut impl Host, op: &Op) -> Event {
        let helper = match op.insn {
            Insn::Call(Call::Helper(id)) => Helper::get(id),
            _ => None,
        };
        let call = match (helper, &op.link) {
            (Some(h), _) => h.name.to_string(),
            (None, Some(link)) => match &link.symbol {
                Symbol::Func { name } | Symbol::Extern { name } => name.to_string(),
                _ => op.insn.to_string(),
            },
            (None, None) => op.insn.to_string(),
        };
        let known = [Arg::Vararg; 5];
        let args = helper.map_or(&known[..], |h| &h.args);
        let mut event = Event { call, args: Vec::with_capacity(args.len()), memory: vec![] };
        let map = args.iter().position(|a| *a == Arg::Map).and_then(|i| cpu.arg(i + 1));
        let (key, value) = map.and_then(|m| host.map_sizes(m)).unwrap_or_default();
        for (i, arg) in args.iter().enumerate() {
            let v = cpu.arg(i + 1);
            let length = |len: Len| match len {
                Len::Bytes(n) => u64::from(n),
                Len::Arg(n) => cpu.arg(n.into()).unwrap_or(0),
            };
            let read = match *arg {
                Arg::Key => Some(u64::from(key)),
                Arg::Value => Some(u64::from(value)),
                Arg::Mem { len, read: true, .. } => Some(length(len)),
                _ => None,
            };
            let memory = matches!(arg, Arg::Key | Arg::Value | Arg::OutValue | Arg::Mem { .. });
            event.args.push(match v {
                None => ArgValue::Uninitialised,
                Some(v) if memory && cpu.in_stack(v) => ArgValue::StackBuffer,
                Some(v) => ArgValue::Plain(v),
            });
            if let (Some(address), Some(n @ 1..=LONGEST)) = (v, read) {
                let mut bytes = vec![0; n as usize];
                if cpu.read(host, address, &mut bytes).is_ok() {
                    event.memory.push((i + 1, bytes));
                }
            }
        }
        event
    }
}

impl Cpu {
    /// Argument `n`, from 1, if it has a value.
    pub fn arg(&self, n: usize) -> Option<u64> {
        Reg::new(n as u8).and_then(|r| self.register(r))
    }
}
