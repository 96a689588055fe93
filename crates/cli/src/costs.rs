//! Tables of costs that are named on the command line.

use bpf_driver::Costs;

/// The table of this name: one that comes with the program, or a file.
pub fn table(name: &str) -> Result<&'static Costs, String> {
    if let Some(shipped) = Costs::shipped(name) {
        return Ok(shipped);
    }
    let known: Vec<&str> = Costs::shipped_names().collect();
    let text = std::fs::read_to_string(name)
        .map_err(|e| format!("{e}; it is no file that can be read, and none of {}", known.join(", ")))?;
    Ok(Costs::parse(&text).map_err(|e| e.to_string())?.keep())
}
