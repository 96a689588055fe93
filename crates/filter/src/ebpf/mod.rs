//! eBPF: the filter as assembly and as an object file for a hook of the kernel.

mod emitter;
mod held;
mod hook;
mod loads;
mod lookup;
mod text;

use bpf_assembly::{Function, Role, Signature, Surroundings, Type, Variable, object};

pub use hook::{Actions, EbpfError, Hook};
use lookup::table_name;

use crate::program::Program;
use crate::tables::Table;

/// The listing of a program.
pub(crate) fn assembly(program: &Program, hook: Hook, actions: Actions) -> Result<String, EbpfError> {
    if hook.data().is_some() {
        emitter::assembly(program, hook, actions)
    } else {
        loads::assembly(program, hook, actions)
    }
}

/// The object file of a program.
pub(crate) fn write_object(program: &Program, hook: Hook, actions: Actions) -> Result<Vec<u8>, EbpfError> {
    let listing = assembly(program, hook, actions)?;
    let variables = program.tables.iter().enumerate().flat_map(|(i, table)| variables(i, table)).collect();
    let around = Surroundings { section: hook.section().to_owned(), variables, ..Surroundings::default() };
    let signature = Signature {
        name: "filter".to_owned(),
        params: vec![Type::Context],
        returns: Type::Int { bytes: 4, signed: true },
    };
    let function = Function { signature, role: Role::Program, section: hook.section().to_owned(), listing };
    Ok(object(&around, &[function])?)
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
