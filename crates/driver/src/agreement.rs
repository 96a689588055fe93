//! The verdict of `bpf_check` beside the running kernel's: the measure of that crate.

use bpf_isa::{Call, Imm64Kind, Insn, encode_all};
use bpf_kernel::{
    KernelError, LoadOptions, LoadVerdict, Loader, Map, ObjectVerdict, ProgramType, RawOptions, RawProgram, load_object,
};
use bpf_object::{FuncId, Function, Object};

use bpf_check::{MapInfo, Program, Report, SafetyVerdict, Target, programs};

/// Both verdicts on one program.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The program.
    pub function: FuncId,
    /// Its name.
    pub name: String,
    /// The type both judged it as.
    pub kind: (u32, u32),
    /// What we say.
    pub ours: Report,
    /// What the kernel says.
    pub kernel: LoadVerdict,
    /// The program as we saw it.
    pub program: Program,
}

impl Comparison {
    /// Do both say the same? `None` if the kernel did not look at the code.
    pub fn agrees(&self) -> Option<bool> {
        match (&self.kernel, self.ours.verdict) {
            (LoadVerdict::Unsupported { .. } | LoadVerdict::NotLoadable { .. }, _) => None,
            (LoadVerdict::OutOfMeans { .. } | LoadVerdict::OutOfTime, _) => None,
            (LoadVerdict::Accepted, ours) => Some(ours == SafetyVerdict::Accepted),
            (LoadVerdict::Rejected { .. }, ours) => Some(ours == SafetyVerdict::Violation),
        }
    }
}

/// Judges one program by ourselves, as `forced` type or as its section says; where that says nothing, as the first of the usual
/// types for which it is safe.
pub fn judged(object: &Object, f: FuncId, forced: Option<(ProgramType, u32)>) -> (Program, Report) {
    let section = object.functions().get(f.0).map_or("", |f| f.section.as_str());
    let types = forced.map_or_else(|| ProgramType::usual(section), |(kind, attach)| vec![(kind.0, attach)]);
    let mut first = None;
    for (kind, attach) in types {
        let program = Program::link(object, f, kind, attach);
        let report = Report::of(&program);
        if report.verdict == SafetyVerdict::Accepted {
            return (program, report);
        }
        first.get_or_insert((program, report));
    }
    first.unwrap_or_else(|| {
        let program = Program::link(object, f, 0, 0);
        let report = Report::of(&program);
        (program, report)
    })
}

/// Judges all programs of an object, by ourselves and by the kernel, as `forced` type or as their sections say.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn compare(bytes: &[u8], object: &Object, forced: Option<&str>) -> Result<Vec<Comparison>, KernelError> {
    let all = programs(object);
    let plain = load_object(bytes, &LoadOptions { program_type: forced.map(str::to_owned), only: None })?;
    let known = |f: &FuncId| object.functions().get(f.0);
    // Where the section name says nothing, the first of the usual types with which the kernel takes the object.
    let nameless = forced.is_none() && all.iter().filter_map(known).all(|f| ProgramType::usual(&f.section).len() > 1);
    let mut chosen: Option<(String, ObjectVerdict)> = None;
    if nameless {
        let mut refused = None;
        for name in ProgramType::USUAL {
            let verdict = load_object(bytes, &LoadOptions { program_type: Some(name.to_owned()), only: None })?;
            if verdict.is_accepted() && !verdict.programs.is_empty() {
                chosen = Some((name.to_owned(), verdict));
                break;
            }
            refused.get_or_insert((name.to_owned(), verdict));
        }
        chosen = chosen.or(refused);
    }
    let (forced, verdict) = match chosen {
        Some((name, verdict)) => (Some(name), verdict),
        None => (forced.map(str::to_owned), plain),
    };
    let forced = forced.map(|name| ProgramType::named(&name)).transpose()?;
    let mut rows = Vec::new();
    for f in all {
        let Some(function) = known(&f) else { continue };
        let kind = match forced {
            Some((kind, attach)) => (kind.0, attach),
            None => ProgramType::usual(&function.section).first().copied().unwrap_or((0, 0)),
        };
        let program = Program::link(object, f, kind.0, kind.1);
        let mut kernel = match verdict.program(&function.name) {
            Some(p) => p.verdict.clone(),
            None => {
                let reason = verdict.not_loadable.clone().unwrap_or_else(|| "not a program to libbpf".to_owned());
                LoadVerdict::NotLoadable { reason }
            }
        };
        if let LoadVerdict::NotLoadable { .. } = &kernel {
            kernel = without_libbpf(bytes, function, kind.0).unwrap_or(kernel);
        }
        let ours = Report::of(&program);
        rows.push(Comparison { function: f, name: function.name.clone(), kind, ours, kernel, program });
    }
    Ok(rows)
}

/// The kernel's verdict on a program of this type in an object that libbpf does not take (legacy maps, pins of other
/// loaders, sections without a type).
fn without_libbpf(bytes: &[u8], function: &Function, kind: u32) -> Option<LoadVerdict> {
    let program_type = Some(ProgramType(kind).to_string());
    let mut loader = Loader::new(LoadOptions { program_type, only: None }).ok()?;
    let section = function.section.trim_start_matches('?');
    let verdict = loader.judge(bytes, |name, of| name == function.name && of == section, None).ok()?;
    let program = verdict.programs.into_iter().next()?;
    matches!(program.verdict, LoadVerdict::Accepted | LoadVerdict::Rejected { .. }).then_some(program.verdict)
}

/// Hash tables need not be as long as their definition says: the verifier does not care.
const ENTRIES: u32 = 4096;

/// Creates a map; `None` if the kernel wants more than its shape.
pub fn create(m: &MapInfo) -> Option<Map> {
    const ARRAYS: [u32; 4] = [2, 3, 6, 27];
    let inner = match &m.inner {
        Some(inner) => Some(create(inner)?),
        None => None,
    };
    // A ring of events is as long as there are processors, unless it says otherwise.
    let most = if ARRAYS.contains(&m.kind) { u32::MAX } else { ENTRIES };
    let entries = m.max_entries.clamp(1, most);
    Map::create_with(m.kind, m.key_size, m.value_size, entries, m.flags, inner.as_ref()).ok()
}

/// Loads a linked program with these maps and unloads it: the outcome, or the verifier's log. `None` if it refers to
/// something that only libbpf resolves.
pub fn load_linked(p: &Program, maps: &[Map]) -> Option<Result<(), String>> {
    let insn = |at: usize, insn: Insn, target: &Target| {
        Some(match (insn, target) {
            (_, Target::Unknown(_)) => return None,
            (Insn::LoadImm64 { dst, .. }, Target::Map(m)) => {
                Insn::LoadImm64 { dst, kind: Imm64Kind::MapFd, imm: maps.get(*m)?.fd() as u64 }
            }
            (Insn::LoadImm64 { dst, .. }, Target::MapValue(m, off)) => {
                Insn::LoadImm64 { dst, kind: Imm64Kind::MapValue, imm: maps.get(*m)?.fd() as u64 | off << 32 }
            }
            (Insn::Call(Call::Local(_)), Target::Func(f)) => Insn::Call(Call::Local(*f as i32 - at as i32 - 1)),
            (Insn::LoadImm64 { dst, .. }, Target::Func(f)) => {
                let by = *f as i32 - at as i32 - 1;
                Insn::LoadImm64 { dst, kind: Imm64Kind::Func, imm: u64::from(by as u32) }
            }
            (insn, _) => insn,
        })
    };
    let slots = p.slots.iter().enumerate();
    let insns: Option<Vec<Insn>> = slots.filter_map(|(at, s)| Some(insn(at, s.insn?, &s.target))).collect();
    let code = encode_all(&insns?).ok()?;
    let license = if p.gpl { "GPL" } else { "Proprietary" }.to_owned();
    let options = RawOptions { license, expected_attach_type: p.attach, log_level: 0, flags: 0 };
    Some(match RawProgram::load(ProgramType(p.kind), &code, &options) {
        Ok(_) => Ok(()),
        // The log of a short walk says why; that of a long one would not fit, and says little.
        Err(_) => {
            let again = RawProgram::load(ProgramType(p.kind), &code, &RawOptions { log_level: 1, ..options });
            again.map(|_| ()).map_err(|e| e.log)
        }
    })
}
