//! eBPF: the filter as assembly and as an object file, for a hook of the kernel or to link into programs.

mod emitter;
mod form;
mod frame;
mod growth;
mod header;
mod held;
mod hook;
mod loads;
mod lookup;
mod name;
mod peephole;
mod reach;
mod symbols;
mod tails;
mod text;

use bpf_assembly::{Function, Map, Role, Signature, Surroundings, Type, Variable, object};

use form::{COUNTERS, REPORT, counters_map, report_map};
pub use form::{EbpfForm, Takes};
use growth::longest_jump;
pub(crate) use header::header;
pub use hook::{Actions, EbpfError, Hook};
pub use name::FunctionName;
pub use reach::FURTHEST;
use reach::Reach;
use symbols::{BITMAP, DISPLACEMENTS, SLOTS, column_name, is_symbol, table_name};

use crate::program::{Operation, Program};
use crate::tables::{Table, TupleHash};
use bpf_perfect_hash::PerfectHash;

/// What a program is called.
const PROGRAM: &str = "filter";

/// Whether an object may have something of this name that is no set of the user's: names are symbols.
pub(crate) fn is_own_name(name: &str) -> bool {
    [COUNTERS, REPORT, PROGRAM].contains(&name) || is_symbol(name)
}

/// The listing of a program or a function.
pub(crate) fn assembly(program: &Program, form: &EbpfForm) -> Result<String, EbpfError> {
    match form.hook().filter(|hook| hook.data().is_none()) {
        Some(hook) => loads::assembly(program, form, hook),
        None => emitter::assembly(program, form),
    }
}

/// How far into packets the program reads, if that may be further than this eBPF can follow: packets are then rejected where it reads.
/// What no packet has, whoever runs the filter, does not count: so a way is written that ends with rejection.
pub(crate) fn beyond_reach(program: &Program, form: &EbpfForm) -> Option<u64> {
    // A socket's program reads by calls.
    let reads_directly = form.hook().is_none_or(|hook| hook.data().is_some());
    let reach = Reach::of(program);
    let wants = program.blocks.iter().flat_map(|b| &b.operations).filter_map(Operation::wants);
    let is_lost = |base, end| end <= u64::from(u32::MAX) && reach.may_be_too_far(base, end);
    wants.filter(|(base, end)| reads_directly && is_lost(*base, *end)).map(|(_, end)| end).max()
}

/// The object file of a program or a function.
pub(crate) fn write_object(program: &Program, form: &EbpfForm) -> Result<Vec<u8>, EbpfError> {
    let listing = assembly(program, form)?;
    let hook_section = form.hook().map_or("", Hook::section);
    let variables = program.tables.iter().enumerate().flat_map(|(i, table)| variables(i, table)).collect();
    let ends = form.ends(program.predicates);
    let counters = ends.counts.map(|_| counters_map());
    let report = ends.reports.map(|_| report_map(program.predicates));
    let mut maps: Vec<Map> = counters.iter().chain(&report).map(|map| Map::parse(map)).collect::<Result<_, _>>()?;
    for map in program.maps.iter() {
        if matches!(form, EbpfForm::Function { name, .. } if name.as_str() == map.name) {
            let text = format!("--name {}: a map of the filter is called so", map.name);
            return Err(EbpfError::Unsupported(text));
        }
        let (kind, keys, flags) = if map.by_prefix { ("lpm_trie", "prefix", "flags 1") } else { ("hash", "bytes", "") };
        let (size, most) = (map.key_size(), map.max_entries);
        maps.push(Map::parse(&format!("{} {kind} {size} 1 {most} keys {keys} {flags}", map.name))?);
    }
    let linkable = matches!(form, EbpfForm::Function { .. });
    let around = Surroundings {
        section: hook_section.to_owned(),
        maps,
        variables,
        linkable,
        // libbpf takes functions without lines in no program that has some, and complains of programs without.
        lines: true,
        ..Surroundings::default()
    };
    let (name, params, role, section) = match form {
        EbpfForm::Program { .. } => (PROGRAM, vec![Type::Context], Role::Program, hook_section),
        EbpfForm::Function { name, takes: Takes::Data } => {
            (name.as_str(), vec![Type::Pointer, Type::Pointer], Role::Hidden, ".text")
        }
        EbpfForm::Function { name, takes: Takes::Context(_) } => {
            (name.as_str(), vec![Type::Context], Role::Global, ".text")
        }
    };
    let signature = Signature { name: name.to_owned(), params, returns: Type::Int { bytes: 4, signed: true } };
    // Programs that read directly keep their context in the register in which it comes.
    let context = if form.hook().is_some_and(|hook| hook.data().is_none()) { 6 } else { 1 };
    let (jump, slots) = longest_jump(&listing, context);
    if jump > FURTHEST_JUMP {
        return Err(EbpfError::Unsupported(format!(
            "the filter is too large for eBPF: it takes {slots} slots in the kernel, and a jump over {jump} of them; {FURTHEST_JUMP} is the most"
        )));
    }
    Ok(object(&around, &[Function { signature, role, section: section.to_owned(), listing }])?)
}

/// Over no more slots does a jump lead (16 bits), neither here nor as the kernel has the program.
const FURTHEST_JUMP: usize = i16::MAX as usize;

/// The variables that hold a table, in the order of the host's bytes: objects are little-endian.
fn variables(i: usize, table: &Table) -> Vec<Variable> {
    let variable = |part: &str, value: Vec<u8>| Variable {
        name: table_name(i, part),
        section: ".rodata".to_owned(),
        size: value.len() as u32,
        value,
        pointer: None,
    };
    let words = |part: &str, words: &[u32]| variable(part, words.iter().flat_map(|w| w.to_le_bytes()).collect());
    let displacements =
        |hash: &PerfectHash| variable(DISPLACEMENTS, hash.displacements.iter().flat_map(|d| d.to_le_bytes()).collect());
    match table {
        Table::Bitmap { words: all, .. } => vec![words(BITMAP, all)],
        Table::Hash(hash) => vec![words(SLOTS, &hash.slots), displacements(hash)],
        Table::Tuples(TupleHash { hash, columns, .. }) => {
            let columns = columns.iter().enumerate().map(|(word, column)| words(&column_name(word), column));
            columns.chain([displacements(hash)]).collect()
        }
    }
}
