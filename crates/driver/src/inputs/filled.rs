//! Inputs made ready for test runs of the kernel.

use std::collections::BTreeMap;

use bpf_object::Object;

use super::input::Input;
use super::traced::Traced;
use crate::difftest::{self, Filled};
use crate::module::Module;

/// Inputs by program, as a test run takes them. Programs that are not in the object, or cannot be interpreted, are left out.
pub fn filled(
    object: &[u8],
    program_type: Option<&str>,
    inputs: &BTreeMap<String, Vec<Input>>,
) -> BTreeMap<String, Vec<Filled>> {
    let Ok(object) = Object::parse(object.to_vec()) else { return BTreeMap::new() };
    let module = Module::new(object);
    let of = |(name, inputs): (&String, &Vec<Input>)| {
        let number = module.object.functions().iter().position(|f| f.name == *name)?;
        let traced = Traced::new(&module, number, program_type).ok()?;
        let ready = |input: &Input| {
            let (packet, context) = traced.for_kernel(input);
            Filled { input: difftest::Input { packet, context }, maps: input.maps.clone(), data: input.data.clone() }
        };
        Some((name.clone(), inputs.iter().map(ready).collect()))
    };
    inputs.iter().filter_map(of).collect()
}
