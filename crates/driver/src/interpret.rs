//! A program of an object in the interpreter: its world, with the maps and global data that a loader would make.
//!
//! Each run gets a world of its own, into which the state of an earlier one can be carried over. No kernel is involved.

use std::collections::BTreeMap;
use std::sync::Arc;

use bpf_isa::Costs;
use bpf_kernel::Entry;
use bpf_object::{FuncId, MapDef, Object};
use bpf_program::{BlockId, Function, ProgKind};
use bpf_semantics::interp::{Fault, Interp, KernelHost, MapSpec, Outcome, Step};
use thiserror::Error;

use crate::estimate::{self, Estimate};

/// Largest map value or data section, in bytes; the kernel's own limits are lower.
const LARGEST: u64 = 64 << 20;

/// Why a program cannot be interpreted.
#[derive(Debug, Error)]
pub enum InterpretError {
    /// Its code is not understood.
    #[error("function {function}, {reason}")]
    Code {
        /// The function.
        function: String,
        /// Why.
        reason: String,
    },
    /// A map has too large elements.
    #[error("map {map}: its elements are too large")]
    LargeMap {
        /// The map.
        map: String,
    },
    /// A data section is too large.
    #[error("section {section}: {bytes} bytes are too many")]
    LargeSection {
        /// The section.
        section: String,
        /// Its size.
        bytes: u64,
    },
}

/// All that the interpreter needs of an object.
pub struct Program {
    main: Function,
    others: Vec<Arc<Function>>,
    /// Which of the object's functions `main` is, and which the others are.
    own_number: usize,
    numbers: Vec<usize>,
    maps: Vec<MapSpec>,
    sections: Vec<Section>,
    /// Execute instructions with a CO-RE record as compiled, instead of calling them a fault.
    pub core_as_compiled: bool,
    /// Note where runs go.
    pub leaves_trail: bool,
    /// Bytes by which the addresses of map values and global data are moved.
    pub address_shift: usize,
}

/// A section of global data.
pub(crate) struct Section {
    pub name: String,
    pub bytes: Vec<u8>,
    pub writable: bool,
}

/// What stays from run to run.
#[derive(Clone)]
pub struct RunState {
    /// The maps, in the object's order.
    pub maps: Vec<MapState>,
    /// Name and contents of each section of global data.
    pub sections: Vec<(String, Vec<u8>)>,
}

/// The contents of one map.
#[derive(Clone, PartialEq, Eq)]
pub struct MapState {
    /// Its name.
    pub name: String,
    /// Its elements, in the order of the keys. Elements of an array that nobody touched are left out.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Program {
    /// The program `chosen` of an object.
    ///
    /// # Errors
    /// [`InterpretError`].
    pub fn of(object: &Object, chosen: FuncId) -> Result<Program, InterpretError> {
        let main = bpf_program::build(object, chosen).map_err(|e| {
            let function = object.functions().get(chosen.0).map_or("?", |f| f.name.as_str()).to_owned();
            InterpretError::Code { function, reason: e.to_string() }
        })?;
        let others = (0..object.functions().len()).map(FuncId).filter(|f| *f != chosen);
        let others = others.filter_map(|f| Some((f.0, Arc::new(bpf_program::build(object, f).ok()?))));
        let (numbers, others) = others.unzip();
        let maps = object.maps().iter().map(map_spec).collect::<Result<_, _>>()?;
        Ok(Program {
            main,
            others,
            own_number: chosen.0,
            numbers,
            maps,
            sections: sections(object)?,
            core_as_compiled: false,
            leaves_trail: false,
            address_shift: 0,
        })
    }

    /// What the kernel would run it as.
    pub fn kind(&self) -> ProgKind {
        self.main.kind
    }

    /// The world of a run on a packet, without maps and global data.
    pub(crate) fn host(&self, packet: &[u8]) -> KernelHost {
        KernelHost::of_order(self.main.byte_order, self.main.kind, packet)
    }

    /// Whether it runs on packets.
    pub fn takes_packets(&self) -> bool {
        matches!(self.main.kind, ProgKind::Xdp | ProgKind::Skb)
    }

    /// The state before the first run.
    pub fn start(&self) -> RunState {
        let mut host = self.host(&[]);
        self.furnish(&mut host, None);
        self.state(&host)
    }

    /// What a world's maps and global data hold now.
    pub fn state(&self, host: &KernelHost) -> RunState {
        let map = |(i, spec): (usize, &MapSpec)| MapState { name: spec.name.clone(), entries: host.map_entries(i) };
        let section = |s: &Section| (s.name.clone(), host.section(&s.name).unwrap_or_default().to_vec());
        RunState {
            maps: host.maps().enumerate().map(map).collect(),
            sections: self.sections.iter().map(section).collect(),
        }
    }

    /// Gives a world its maps and global data, with the contents they had.
    fn furnish(&self, host: &mut KernelHost, state: Option<&RunState>) {
        if self.address_shift > 0 {
            host.add_section("", &vec![0; self.address_shift], false);
        }
        for (i, spec) in self.maps.iter().enumerate() {
            let map = host.add_map(spec.clone());
            for (key, value) in state.and_then(|s| s.maps.get(i)).map_or(&[][..], |m| &m.entries) {
                // It was in the map, so it fits.
                let _ = host.map_update(map, key, value);
            }
        }
        for (i, section) in self.sections.iter().enumerate() {
            let bytes = state.and_then(|s| s.sections.get(i)).map_or(&section.bytes, |(_, bytes)| bytes);
            host.add_section(&section.name, bytes, section.writable);
        }
    }

    /// Runs it on a packet, and a context where the kind has another than that of packets, for `fuel` steps at most.
    pub fn run(
        &self,
        packet: &[u8],
        context: Option<&[u8]>,
        state: &RunState,
        fuel: u64,
    ) -> (Interp<KernelHost>, Result<Outcome, Fault>) {
        let mut host = self.host(packet);
        host.core_as_compiled = self.core_as_compiled;
        self.furnish(&mut host, Some(state));
        if let Some(bytes) = context {
            host.set_context(bytes);
        }
        let mut interp = host.start();
        for f in &self.others {
            interp.add_function(f.clone());
        }
        if self.leaves_trail {
            interp.leave_trail();
        }
        let outcome = interp.run(&self.main, fuel);
        (interp, outcome)
    }

    /// Gives the maps of these names these contents, as the kernel returns them.
    pub(crate) fn fill(&self, state: &mut RunState, contents: &BTreeMap<String, Vec<Entry>>) {
        for (map, spec) in state.maps.iter_mut().zip(&self.maps) {
            let Some(entries) = contents.get(&map.name) else { continue };
            // Of a map with a value for each processor the first counts.
            let size = spec.value_size as usize;
            let one = |(key, value): &Entry| (key.clone(), value[..size.min(value.len())].to_vec());
            map.entries = entries.iter().map(one).collect();
        }
    }

    /// The blocks that a trail goes through.
    pub(crate) fn visits(&self, trail: &[Step]) -> Vec<Visit> {
        visits(trail, self.own_number, &self.numbers)
    }

    /// The estimate of a run that left this trail, by a table of costs.
    pub(crate) fn estimate(&self, trail: &[Step], costs: &Costs) -> Estimate {
        estimate::along(&self.main, &self.others, trail, costs, &|i| self.maps.get(i).map(|m| m.map_type))
    }
}

/// A block that a run went through, and where it went from there, if it did not leave the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Visit {
    /// The function, by its number in the object.
    pub function: usize,
    pub block: BlockId,
    pub next: Option<BlockId>,
}

/// The blocks of a trail of a program with this number, beside functions with those.
pub(crate) fn visits(trail: &[Step], own_number: usize, numbers: &[usize]) -> Vec<Visit> {
    let mut all: Vec<Visit> = Vec::new();
    // Of each function that is open its number, and the last visit.
    let mut frames: Vec<(usize, Option<usize>)> = Vec::new();
    for step in trail {
        match step {
            Step::Enter(number) => frames.push((number.map_or(own_number, |i| numbers[i]), None)),
            Step::Leave => drop(frames.pop()),
            Step::Block(block) => {
                let Some((function, last)) = frames.last_mut() else { continue };
                if let Some(last) = *last {
                    all[last].next = Some(*block);
                }
                *last = Some(all.len());
                all.push(Visit { function: *function, block: *block, next: None });
            }
            _ => {}
        }
    }
    all
}

pub(crate) fn map_spec(m: &MapDef) -> Result<MapSpec, InterpretError> {
    let spec = MapSpec {
        name: m.name.clone(),
        map_type: m.map_type.unwrap_or(0),
        key_size: m.key_size.unwrap_or(0),
        value_size: m.value_size.unwrap_or(0),
        max_entries: m.max_entries.unwrap_or(0),
    };
    match u64::from(spec.key_size.max(spec.value_size)) > LARGEST {
        true => Err(InterpretError::LargeMap { map: spec.name }),
        false => Ok(spec),
    }
}

/// The sections that libbpf makes maps of global data from.
pub(crate) fn sections(object: &Object) -> Result<Vec<Section>, InterpretError> {
    let mut found = Vec::new();
    for section in object.data_sections() {
        let name = section.name.to_owned();
        let size = usize::try_from(section.size).ok().filter(|_| section.size <= LARGEST);
        let Some(size) = size else { return Err(InterpretError::LargeSection { section: name, bytes: section.size }) };
        let mut bytes = section.bytes.to_vec();
        bytes.resize(size, 0);
        found.push(Section { name, bytes, writable: !section.is_read_only() });
    }
    Ok(found)
}
