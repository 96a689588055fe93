//! Optimizes a file, proves the result equal, and writes it: `cargo run -p bpf-opt-api --example optimize IN.o OUT.o`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(input), Some(output)) = (args.next(), args.next()) else { return Err("IN.o OUT.o".into()) };
    let object = std::fs::read(input)?;
    let options = bpf_opt::Options { run_check: false, ..bpf_opt::Options::default() }.at_level(1);
    let done = bpf_opt::optimize(&object, &options)?;
    let (before, after) = done.slots();
    let equal = bpf_opt::verify(&object, &done.object, &options)?.is_equal();
    std::fs::write(output, &done.object)?;
    println!("{before} -> {after} slots, proven equal: {equal}");
    Ok(())
}
