//! Agreement with the running kernel over the benchmark's objects and this project's examples.

use std::path::PathBuf;

use bpf_driver::agreement::{Comparison, compare};
use bpf_kernel::testing::permitted;
use bpf_object::Object;

use crate::common::root;

/// More folders of objects, separated by colons.
const MORE: &str = "BPF_OPT_OBJECTS";

fn objects() -> Vec<PathBuf> {
    let more = std::env::var(MORE).unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        ["examples", "../shared/bench/k2", "../shared/bench/public"].iter().map(|d| root().join(d)).collect();
    folders.extend(more.split(':').filter(|d| !d.is_empty()).map(PathBuf::from));
    let mut files: Vec<PathBuf> = folders
        .iter()
        .flat_map(|d| std::fs::read_dir(d).into_iter().flatten().flatten())
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
        .collect();
    files.sort();
    files
}

fn line(file: &str, c: &Comparison) -> String {
    let ours = c.ours.problem.as_ref().map_or(String::new(), |p| format!(" at {}: {}", p.slot, p.what));
    format!(
        "{file}, {}: {:?}{ours}; the kernel: {:?} {}",
        c.name,
        c.ours.verdict,
        c.kernel.is_accepted(),
        c.kernel.reason()
    )
}

#[test]
fn agrees_with_the_kernel_on_real_objects() {
    if !permitted() {
        return;
    }
    let (mut agreed, mut differ, mut apart) = (0, Vec::new(), Vec::new());
    for path in objects() {
        let file = path.file_name().expect("a name").to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).expect("readable");
        let Ok(object) = Object::parse(bytes.clone()) else { continue };
        for c in compare(&bytes, &object, None).expect("the kernel answers") {
            match c.agrees() {
                Some(true) => agreed += 1,
                Some(false) => differ.push(line(&file, &c)),
                None => apart.push(line(&file, &c)),
            }
        }
    }
    let judged = agreed + differ.len();
    println!("the kernel judged {judged} programs, {agreed} agree");
    println!("differ:\n  {}\nthe kernel did not look at the code of:\n  {}", differ.join("\n  "), apart.join("\n  "));
    assert!(differ.len() * 20 <= judged, "{agreed} of {judged} agree\n{}", differ.join("\n"));
}
