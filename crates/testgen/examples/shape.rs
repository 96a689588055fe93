//! Writes an object of a shape, and its plain form: `shape SHAPE SEED SIZE OUT.o PLAIN.o`; without arguments, the shapes.

use std::error::Error;

use bpf_testgen::shapes::{Shape, generate};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, seed, size, out, plain] = &args[..] else {
        for shape in Shape::ALL {
            println!("{shape:?}: sizes of tests {} and {}", shape.small(), shape.large());
        }
        return Ok(());
    };
    let shape = Shape::ALL.into_iter().find(|s| format!("{s:?}") == *name).ok_or("no such shape")?;
    let generated = generate(shape, seed.parse()?, size.parse()?)?;
    std::fs::write(out, generated.bytes)?;
    std::fs::write(plain, generated.plain)?;
    for p in generated.programs {
        println!("{:?} {} {}", p.fate, p.section, p.name);
    }
    Ok(())
}
