//! ELF objects, loaded by libbpf as their users would load them: relocations, CO-RE, global data, subprograms.
//!
//! The one idea: an object is first loaded whole, with statistics only, which is the quick and common case. When that
//! fails, libbpf stops at the first bad program and says nothing of the others, so each program is loaded again alone,
//! with the others switched off, and gets a verdict of its own; a rejected one once more, with the verifier's full log.
//!
//! Promises: nothing is attached; nothing is pinned, whatever the object's maps ask for, nor are maps pinned by others
//! reused; and all that was loaded is closed when [`load_object`] returns or [`LoadedObject`] is dropped.

use std::{fs, os::fd::BorrowedFd, path::Path};

use bpf_platform::ByteOrder;
use object::{Object as _, ObjectSection as _};

use crate::{
    KernelError, LoadVerdict, Map, Marks, ObjectVerdict, ProgramType, ProgramVerdict, RunResult, Timing, VerifierStats,
    failure::Failure, permitted, raw::LOG_BYTES, run::Runner, sys,
};

/// Verifier log levels (BPF_LOG_STATS, and with BPF_LOG_LEVEL1).
pub(crate) const STATISTICS: u32 = 4;
const FULL_LOG: u32 = 1 | 4;
/// Room for statistics: three lines, one of them with a number per subprogram.
const STATISTICS_BYTES: usize = 16 << 10;

/// How to load an object.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Load every program as this type instead of what its section name says: a name that bpftool's `type` takes
    /// (`xdp`, `classifier`, `socket`, …), or the kernel's (`sched_cls`).
    pub program_type: Option<String>,
    /// Load this program and no other: programs of different types may share a map that takes only one of them.
    pub only: Option<String>,
}

/// Asks the kernel about every program of an object, or the one that is wanted, and unloads everything again.
pub fn load_object(bytes: &[u8], options: &LoadOptions) -> Result<ObjectVerdict, KernelError> {
    permitted().require()?;
    let object = match open(bytes, options, false) {
        Ok(object) => object,
        Err(KernelError::Open { reason }) => {
            return Ok(ObjectVerdict { programs: Vec::new(), not_loadable: Some(reason) });
        }
        Err(error) => return Err(error),
    };
    let is_wanted = |index: &usize| options.only.as_ref().is_none_or(|only| object.program_name(*index) == *only);
    let wanted: Vec<usize> = (0..object.program_count()).filter(is_wanted).collect();
    let attempt = Attempt::of_those(object, STATISTICS, |index| wanted.contains(&index));
    let Err(failure) = attempt.outcome else {
        let programs = wanted.into_iter().map(|index| accepted(&attempt.object, index)).collect::<Result<_, _>>()?;
        return Ok(ObjectVerdict { programs, not_loadable: None });
    };
    drop(attempt.object);
    let programs = wanted.into_iter().map(|index| judge(bytes, options, index)).collect::<Result<Vec<_>, _>>()?;
    let innocent = programs.iter().all(|program| program.verdict.is_accepted());
    Ok(ObjectVerdict { programs, not_loadable: innocent.then(|| failure.reason()) })
}

/// [`load_object`] for a file.
pub fn load_object_file(path: &Path, options: &LoadOptions) -> Result<ObjectVerdict, KernelError> {
    load_object(&read(path)?, options)
}

fn read(path: &Path) -> Result<Vec<u8>, KernelError> {
    fs::read(path).map_err(|source| KernelError::Read { path: path.to_owned(), source })
}

/// An object whose programs can be run and whose maps can be read and written. Dropping it unloads everything.
pub struct LoadedObject {
    object: sys::Object,
    programs: Vec<ProgramVerdict>,
}

impl LoadedObject {
    /// Loads all programs of an object, or the one that is wanted, or fails.
    pub fn load(bytes: &[u8], options: &LoadOptions) -> Result<Self, KernelError> {
        permitted().require()?;
        Self::of(Attempt::chosen(open(bytes, options, false)?, options)?)
    }

    pub(crate) fn of(Attempt { object, outcome }: Attempt) -> Result<Self, KernelError> {
        outcome.map_err(|failure| KernelError::Load { reason: failure.reason() })?;
        let programs = (0..object.program_count()).map(|index| accepted(&object, index)).collect::<Result<_, _>>()?;
        Ok(Self { object, programs })
    }

    /// [`LoadedObject::load`] for a file.
    pub fn load_file(path: &Path, options: &LoadOptions) -> Result<Self, KernelError> {
        Self::load(&read(path)?, options)
    }

    /// The entry programs. All of them are accepted, unless only one was wanted.
    pub fn programs(&self) -> &[ProgramVerdict] {
        &self.programs
    }

    /// The file descriptor of a program, for program arrays.
    pub fn program_fd(&self, name: &str) -> Result<BorrowedFd<'_>, KernelError> {
        self.runner(name).map(|runner| runner.fd)
    }

    /// Handles to all maps of the object.
    pub fn maps(&self) -> Result<Vec<Map>, KernelError> {
        (0..self.object.map_count()).filter_map(|index| self.map_at(index).transpose()).collect()
    }

    /// A handle to a map by its name; `.rodata`, `.data`, `.bss` for global data.
    pub fn map(&self, name: &str) -> Result<Map, KernelError> {
        let index = (0..self.object.map_count()).find(|&index| self.object.map_name(index) == name);
        match index.map(|index| self.map_at(index)).transpose()?.flatten() {
            Some(map) => Ok(map),
            None => Err(KernelError::NoMap { name: name.to_owned() }),
        }
    }

    /// Runs a program `repeat` times on a packet and a context.
    pub fn test_run(
        &self,
        name: &str,
        data_in: &[u8],
        ctx: Option<&[u8]>,
        repeat: u32,
    ) -> Result<RunResult, KernelError> {
        self.runner(name)?.run(data_in, ctx, repeat)
    }

    /// Times a program: `batches` test runs of `repeat` repetitions each.
    pub fn time(
        &self,
        name: &str,
        data_in: &[u8],
        ctx: Option<&[u8]>,
        repeat: u32,
        batches: usize,
    ) -> Result<Timing, KernelError> {
        self.runner(name)?.time(data_in, ctx, repeat, batches)
    }

    fn runner(&self, name: &str) -> Result<Runner<'_>, KernelError> {
        let index = self.programs.iter().position(|program| program.name == name);
        let loaded = index.and_then(|index| Some((self.object.program_fd(index)?, self.programs[index].kind)));
        let (fd, kind) = loaded.ok_or_else(|| KernelError::NoProgram { name: name.to_owned() })?;
        Ok(Runner { fd, kind })
    }

    /// `None` for a map that libbpf did not create (struct_ops without support, for one).
    fn map_at(&self, index: usize) -> Result<Option<Map>, KernelError> {
        let Some(fd) = self.object.map_fd(index) else { return Ok(None) };
        let name = self.object.map_name(index);
        let fd = fd.try_clone_to_owned().map_err(KernelError::refused(format!("duplicating map {name}")))?;
        Map::described(fd, name).map(Some)
    }
}

/// An opened object and what became of loading it.
pub(crate) struct Attempt {
    pub(crate) object: sys::Object,
    pub(crate) outcome: Result<(), Failure>,
}

impl Attempt {
    pub(crate) fn alone(
        bytes: &[u8],
        options: &LoadOptions,
        wanted: usize,
        log_level: u32,
    ) -> Result<Self, KernelError> {
        Ok(Self::of_those(open(bytes, options, false)?, log_level, |index| index == wanted))
    }

    /// Loads all programs of an opened object, or the one that is wanted.
    pub(crate) fn chosen(object: sys::Object, options: &LoadOptions) -> Result<Self, KernelError> {
        let Some(only) = &options.only else { return Ok(Self::of_those(object, STATISTICS, |_| true)) };
        let wanted = (0..object.program_count()).find(|&index| object.program_name(index) == *only);
        let wanted = wanted.ok_or_else(|| KernelError::NoProgram { name: only.clone() })?;
        Ok(Self::of_those(object, STATISTICS, |index| index == wanted))
    }

    /// Loads some programs of an opened object.
    fn of_those(mut object: sys::Object, log_level: u32, wanted: impl Fn(usize) -> bool) -> Self {
        let room = if log_level == STATISTICS { STATISTICS_BYTES } else { LOG_BYTES };
        for index in 0..object.program_count() {
            object.set_autoload(index, wanted(index));
            if wanted(index) {
                object.request_log(index, log_level, room);
            }
        }
        Self::load(object)
    }

    fn load(mut object: sys::Object) -> Self {
        let (outcome, messages) = sys::capture(|| object.load());
        Self { outcome: outcome.map_err(|error| Failure { error, messages }), object }
    }
}

/// Opens an object, without pins and with the types the caller wants; `lenient` ignores attributes of maps that libbpf
/// does not know.
pub(crate) fn open(bytes: &[u8], options: &LoadOptions, lenient: bool) -> Result<sys::Object, KernelError> {
    is_for_this_machine(bytes)?;
    if let Some(fault) = type_fault(bytes) {
        return Err(KernelError::Open { reason: format!("section .BTF: {fault}") });
    }
    let (opened, messages) = sys::capture(|| sys::Object::open(bytes, lenient));
    let mut object = opened.map_err(|error| KernelError::Open { reason: Failure { error, messages }.reason() })?;
    if let Some(name) = &options.program_type {
        let (kind, attach) = ProgramType::named(name)?;
        for index in 0..object.program_count() {
            object.set_program_type(index, kind.0, attach);
        }
    }
    Ok(object)
}

/// Whether an object is in this machine's byte order, as `EI_DATA` of its ELF header says. libbpf would read some others, and
/// the kernel would take their code for another.
pub(crate) fn is_for_this_machine(bytes: &[u8]) -> Result<(), KernelError> {
    let order = match bytes.get(5) {
        Some(1) => ByteOrder::Little,
        Some(2) => ByteOrder::Big,
        // What else it is, libbpf says.
        _ => return Ok(()),
    };
    if order == ByteOrder::HOST { Ok(()) } else { Err(KernelError::ByteOrder { order }) }
}

/// What libbpf would stumble over in the types of an object.
fn type_fault(bytes: &[u8]) -> Option<String> {
    let file = object::File::parse(bytes).ok()?;
    sys::type_fault(file.section_by_name(".BTF")?.data().ok()?)
}

/// The verdict on one program, loaded alone, if the kernel accepts it; `None` if it has looked at it and does not, or libbpf
/// does not give it to the kernel.
pub(crate) fn accepted_alone(
    bytes: &[u8],
    options: &LoadOptions,
    index: usize,
) -> Result<Option<ProgramVerdict>, KernelError> {
    let Attempt { object, outcome } = Attempt::alone(bytes, options, index, STATISTICS)?;
    match outcome {
        Ok(()) => Ok(Some(accepted(&object, index)?).filter(|p| p.verdict.is_accepted())),
        Err(failure) if failure.is_of_the_kernel(&object.program_name(index)) => Ok(None),
        Err(failure) => Err(KernelError::Load { reason: failure.reason() }),
    }
}

/// The verdict on one program, loaded alone.
fn judge(bytes: &[u8], options: &LoadOptions, index: usize) -> Result<ProgramVerdict, KernelError> {
    let quick = Attempt::alone(bytes, options, index, STATISTICS)?;
    let Err(failure) = &quick.outcome else { return accepted(&quick.object, index) };
    if !failure.is_of_the_kernel(&quick.object.program_name(index)) {
        return Ok(described(&quick.object, index, failure.blames_the_place()));
    }
    drop(quick);
    let full = Attempt::alone(bytes, options, index, FULL_LOG)?;
    let Err(failure) = &full.outcome else { return accepted(&full.object, index) };
    let verdict = failure.verdict_of_the_kernel(&full.object.log(index));
    Ok(described(&full.object, index, verdict))
}

pub(crate) fn accepted(object: &sys::Object, index: usize) -> Result<ProgramVerdict, KernelError> {
    match object.program_fd(index) {
        Some(program) => with_info(object, index, program),
        // The kernel was not asked.
        None => {
            let reason = "libbpf loads the object without it".to_owned();
            Ok(described(object, index, LoadVerdict::NotLoadable { reason }))
        }
    }
}

/// That a program of an object is accepted, with what the kernel says and keeps of the loaded program.
pub(crate) fn with_info(
    object: &sys::Object,
    index: usize,
    program: BorrowedFd<'_>,
) -> Result<ProgramVerdict, KernelError> {
    let verdict = described(object, index, LoadVerdict::Accepted);
    let describing = KernelError::refused(format!("describing program {}", verdict.name));
    let info = sys::program_info(program).map_err(describing)?;
    let marks = Marks::of(program, info.id, &object.function_names(index));
    Ok(ProgramVerdict { marks, info: Some(info), ..verdict })
}

pub(crate) fn described(object: &sys::Object, index: usize, verdict: LoadVerdict) -> ProgramVerdict {
    let (name, section) = (object.program_name(index), object.program_section(index));
    let kind = ProgramType(object.program_type(index));
    let stats = VerifierStats::parse(&object.log(index));
    ProgramVerdict { stats, ..ProgramVerdict::new(name, section, kind, object.program_slots(index), verdict) }
}
