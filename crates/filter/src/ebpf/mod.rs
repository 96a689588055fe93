//! eBPF: the filter as assembly and as an object file for a hook of the kernel.

mod emitter;
mod form;
mod held;
mod hook;
mod loads;
mod lookup;
mod text;

use bpf_assembly::{Function, Map, Role, Signature, Surroundings, Type, Variable, object};

use form::COUNTERS;
pub use form::EbpfForm;
pub use hook::{Actions, EbpfError, Hook};
use lookup::table_name;

use crate::program::Program;
use crate::tables::Table;

/// The listing of a program.
pub(crate) fn assembly(program: &Program, form: &EbpfForm) -> Result<String, EbpfError> {
    if form.hook().data().is_some() { emitter::assembly(program, form) } else { loads::assembly(program, form) }
}

/// The object file of a program.
pub(crate) fn write_object(program: &Program, form: &EbpfForm) -> Result<Vec<u8>, EbpfError> {
    let listing = assembly(program, form)?;
    let section = form.hook().section().to_owned();
    let variables = program.tables.iter().enumerate().flat_map(|(i, table)| variables(i, table)).collect();
    let maps = form.ends().counts.map(|_| Map::parse(COUNTERS)).into_iter().collect::<Result<_, _>>()?;
    let around = Surroundings { section: section.clone(), maps, variables, ..Surroundings::default() };
    let signature = Signature {
        name: "filter".to_owned(),
        params: vec![Type::Context],
        returns: Type::Int { bytes: 4, signed: true },
    };
    Ok(object(&around, &[Function { signature, role: Role::Program, section, listing }])?)
}

/// The variables that hold a table, in the order of the host's bytes: objects are little-endian.
fn variables(i: usize, table: &Table) -> Vec<Variable> {
    let variable = |part: &str, value: Vec<u8>| Variable {
        name: table_name(i, part),
        section: ".rodata".to_owned(),
        size: value.len() as u32,
        value,
        pointer: None,
    };
    match table {
        Table::Bitmap { words, .. } => vec![variable("bitmap", words.iter().flat_map(|w| w.to_le_bytes()).collect())],
        Table::Hash(hash) => vec![
            variable("slots", hash.slots.iter().flat_map(|w| w.to_le_bytes()).collect()),
            variable("displacements", hash.displacements.iter().flat_map(|d| d.to_le_bytes()).collect()),
        ],
    }
}
