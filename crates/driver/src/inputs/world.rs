//! One run in the interpreter, in a world in which a script may answer calls.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bpf_isa::{Call, Imm64Kind, Insn, Reg, Size};
use bpf_object::{FuncId, Object, Variable};
use bpf_platform::Effects;
use bpf_platform::helpers::Ret;
use bpf_program::{BlockId, ByteOrder, Function, Link, Op};
use bpf_semantics::interp::{Cpu, Fault, Host, Interp, KernelHost, MapSpec, Next, Outcome, Step};

use bpf_prove::path::{Answered, Given};

use super::input::{Hook, Input};
use crate::interpret::{InterpretError, Section, map_spec, sections, visits};

/// A block of a function, by the function's number in the object.
pub type Block = (usize, BlockId);
/// From where to where control goes.
pub type Edge = (usize, BlockId, BlockId);
/// Key and value.
pub(super) type Entry = (Vec<u8>, Vec<u8>);

/// Steps of one run.
const FUEL: u64 = 1 << 18;
/// Bytes of an object that only a script hands out.
const OBJECT_BYTES: usize = 256;

/// All that a program's runs have in common.
pub(super) struct World {
    pub hook: Hook,
    pub main: Arc<Function>,
    /// The functions beside it, and which of the object each is; the program's own number stands for itself.
    pub others: Vec<Arc<Function>>,
    pub numbers: Vec<usize>,
    pub own_number: usize,
    pub maps: Vec<MapSpec>,
    pub sections: Vec<Section>,
    /// Variables: section, place. In read-only data they are the loader's to set.
    variables: Vec<(String, Range<u64>)>,
}

/// What a run did.
pub(super) struct Run {
    pub trail: Vec<Step>,
    pub outcome: Result<Outcome, Fault>,
    /// Calls whose result was said by the script, or made up for want of a model.
    pub assumed: Vec<usize>,
    pub packet: Vec<u8>,
    /// Elements of the maps after it, by the map's name.
    pub maps: BTreeMap<String, Vec<Entry>>,
}

impl World {
    pub fn of(
        object: &Object,
        chosen: FuncId,
        graphs: &[Option<Arc<Function>>],
        hook: Hook,
    ) -> Result<World, InterpretError> {
        let missing = || InterpretError::Code { function: String::new(), reason: "is not understood".to_owned() };
        let main = graphs[chosen.0].clone().ok_or_else(missing)?;
        let main = Arc::new(Function { kind: hook.kind, ..main.as_ref().clone() });
        let numbers: Vec<usize> = (0..graphs.len()).filter(|i| *i != chosen.0 && graphs[*i].is_some()).collect();
        let others = numbers.iter().filter_map(|i| graphs[*i].clone()).collect();
        let maps = object.maps().iter().map(map_spec).collect::<Result<_, _>>()?;
        let place = |v: Variable| (v.section.to_owned(), v.offset..v.offset.saturating_add(v.size));
        let variables = object.variables().map(place).collect();
        Ok(World { hook, main, others, numbers, own_number: chosen.0, maps, sections: sections(object)?, variables })
    }

    /// A byte of a section as the object has it.
    fn data(&self, section: &str, offset: u64) -> u8 {
        let section = self.sections.iter().find(|s| s.name == section);
        section.and_then(|s| s.bytes.get(usize::try_from(offset).ok()?)).copied().unwrap_or(0)
    }

    /// An input, for the prover.
    pub fn whole<'a>(&'a self, input: &'a Input) -> Whole<'a> {
        Whole { world: self, input, context: self.context(input) }
    }

    /// Whether a test run can make the input: one that goes without changes that only the interpreter can make.
    pub fn can_be_run(&self, input: &Input) -> bool {
        let is_read_only = |name: &String| self.sections.iter().any(|s| s.name == *name && !s.writable);
        input.linear.is_none()
            && input.context.keys().all(|at| self.hook.sets_context(*at as u64))
            && !input.data.keys().any(is_read_only)
    }

    /// How long the values of a map are.
    pub fn value_size(&self, map: &str) -> Option<usize> {
        self.maps.iter().find(|m| m.name == map).map(|m| m.value_size as usize)
    }

    /// The context that a run on this input begins with.
    pub fn context(&self, input: &Input) -> Vec<u8> {
        let mut context = self.hook.context(&input.packet);
        for (at, byte) in &input.context {
            if context.len() <= *at && *at < 4096 {
                context.resize(at + 1, 0);
            }
            if let Some(place) = context.get_mut(*at) {
                *place = *byte;
            }
        }
        context
    }

    /// Runs it; `seed` makes clock and random numbers.
    pub fn run(&self, input: &Input, seed: u64) -> Run {
        let mut host = KernelHost::of_order(self.hook.byte_order, self.hook.kind, &input.packet);
        host.core_as_compiled = true;
        host.seed(seed);
        host.set_clock(1_000_000_000 + seed.wrapping_mul(7_777_777_777));
        if let Some(linear) = input.linear {
            host.set_linear(linear);
        }
        for spec in &self.maps {
            let map = host.add_map(spec.clone());
            for (key, value) in input.maps.get(&spec.name).into_iter().flatten() {
                // One that does not fit is not there.
                let _ = host.map_update(map, key, value);
            }
        }
        for section in &self.sections {
            let mut bytes = section.bytes.clone();
            for (at, byte) in input.data.get(&section.name).into_iter().flatten() {
                if let Some(place) = usize::try_from(*at).ok().and_then(|at| bytes.get_mut(at)) {
                    *place = *byte;
                }
            }
            host.add_section(&section.name, &bytes, section.writable);
        }
        host.set_context(&self.context(input));
        let kernel = host.start();
        let cpu = kernel.cpu;
        let scripted = Scripted { inner: kernel.host, answers: &input.answers, calls: 0, assumed: vec![] };
        let mut interp = Interp::with_cpu(cpu, scripted);
        interp.cpu.recording = false;
        interp.may_goto_budget = 64;
        for f in &self.others {
            interp.add_function(f.clone());
        }
        interp.leave_trail();
        let outcome = interp.run(&self.main, FUEL);
        let trail = interp.take_trail();
        let Scripted { inner, assumed, .. } = interp.host;
        let maps = self.maps.iter().enumerate().map(|(i, m)| (m.name.clone(), inner.map_entries(i))).collect();
        Run { trail, outcome, assumed, packet: inner.packet().to_vec(), maps }
    }

    /// The blocks of a trail, in order, and from where to where control went, each with the function's number.
    pub fn blocks(&self, trail: &[Step]) -> (Vec<Block>, Vec<Edge>) {
        let visits = visits(trail, self.own_number, &self.numbers);
        let blocks = visits.iter().map(|v| (v.function, v.block)).collect();
        let edges = visits.iter().filter_map(|v| Some((v.function, v.block, v.next?))).collect();
        (blocks, edges)
    }
}

/// An input as a run in a world takes it, for the prover.
pub(super) struct Whole<'a> {
    world: &'a World,
    input: &'a Input,
    context: Vec<u8>,
}

impl Given for Whole<'_> {
    fn packet(&self) -> &[u8] {
        &self.input.packet
    }

    fn linear(&self) -> usize {
        self.input.linear.unwrap_or(self.input.packet.len())
    }

    fn context(&self) -> &[u8] {
        &self.context
    }

    fn sets_context(&self, offset: u64) -> bool {
        self.world.hook.sets_context(offset)
    }

    fn data(&self, section: &str, offset: u64) -> u8 {
        let changed = self.input.data.get(section).and_then(|s| s.get(&offset));
        changed.copied().unwrap_or_else(|| self.world.data(section, offset))
    }

    fn sets_constant(&self, section: &str, offset: u64) -> bool {
        self.world.variables.iter().any(|(name, place)| name == section && place.contains(&offset))
    }

    fn value(&self, map: &str, key: &[u8], offset: u64) -> u8 {
        let value = self.input.maps.get(map).and_then(|m| m.get(key));
        value.and_then(|v| v.get(usize::try_from(offset).ok()?)).copied().unwrap_or(0)
    }

    fn has_ethernet(&self) -> bool {
        self.world.hook.has_ethernet()
    }
}

/// A kernel's world in which a script answers some calls, and calls without a model do nothing.
struct Scripted<'a> {
    inner: KernelHost,
    answers: &'a BTreeMap<usize, Answered>,
    calls: usize,
    assumed: Vec<usize>,
}

impl Scripted<'_> {
    /// A call without a model: it does nothing, and returns 0 or a pointer to zeros.
    fn without_model(&mut self, cpu: &mut Cpu, effects: &Effects) {
        match effects.result {
            Ret::Ptr => {
                let object = self.inner.add_object(&[0; OBJECT_BYTES]);
                cpu.set(Reg::R0, object);
            }
            Ret::Void => cpu.clear(Reg::R0),
            _ => cpu.set(Reg::R0, 0),
        }
    }
}

impl Host for Scripted<'_> {
    fn byte_order(&self) -> ByteOrder {
        self.inner.byte_order()
    }

    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.inner.read(address, out)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.inner.write(address, bytes)
    }

    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        let number = self.calls;
        self.calls += 1;
        let effects = Effects::of(&op.insn, op.link.is_some());
        let answer = self.answers.get(&number);
        if let Some(answer) = answer {
            self.assumed.push(number);
            let result = match answer {
                Answered::Object => self.inner.add_object(&[0; OBJECT_BYTES]),
                // What fails does nothing.
                Answered::Number(0) if effects.result != Ret::Scalar => 0,
                Answered::Number(error) if (*error as i32) < 0 => *error,
                Answered::Number(result) => {
                    let before = cpu.clone();
                    if self.inner.call(cpu, op).is_err() {
                        *cpu = before;
                    }
                    *result
                }
            };
            cpu.set(Reg::R0, result);
            return Ok(Next::Done);
        }
        let before = cpu.clone();
        match self.inner.call(cpu, op) {
            Err(Fault::Unmodelled(_)) if matches!(op.insn, Insn::Call(Call::Helper(_))) => {
                *cpu = before;
                self.assumed.push(number);
                self.without_model(cpu, effects);
                Ok(Next::Done)
            }
            other => other,
        }
    }

    fn address_of(&mut self, kind: Imm64Kind, imm: u64, link: Option<&Link>) -> Result<u64, Fault> {
        self.inner.address_of(kind, imm, link)
    }

    fn load(&mut self, address: u64, size: Size) -> Result<u64, Fault> {
        self.inner.load(address, size)
    }

    fn store(&mut self, address: u64, size: Size, v: u64, imm: bool) -> Result<(), Fault> {
        self.inner.store(address, size, v, imm)
    }

    fn legacy_load(&mut self, context: u64, offset: i32, size: Size) -> Result<Option<u64>, Fault> {
        self.inner.legacy_load(context, offset, size)
    }

    fn addr_space_cast(&mut self, v: u64, imm: u32) -> Result<u64, Fault> {
        self.inner.addr_space_cast(v, imm)
    }

    fn relocate(&mut self, op: &Op) -> Result<Insn, Fault> {
        self.inner.relocate(op)
    }

    fn map_sizes(&self, map: u64) -> Option<(u32, u32)> {
        self.inner.map_sizes(map)
    }
}
