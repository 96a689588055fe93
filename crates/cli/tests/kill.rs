//! Whatever happens to the process, its files are whole.
//!
//! A binary of its own: when to kill is a share of the time that a run takes, so nothing else may run beside it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const BIN: &str = env!("CARGO_BIN_EXE_bpf-opt");

fn example(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn ok(args: &[&str]) -> bool {
    let out = Command::new(BIN).args(args).output().expect("the program starts");
    if !out.status.success() {
        eprintln!("{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    out.status.success()
}

#[test]
fn killed_at_fifty_moments_leaves_whole_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name).to_str().expect("a path").to_string();
    let (input, output, cache) = (at("in.o"), at("out.o"), at("rules.redb"));
    let original = example("xdp_count.o");
    std::fs::write(&input, &original).expect("written");
    // How long a run takes decides where to kill it.
    let started = std::time::Instant::now();
    assert!(ok(&["opt", &input, "-o", &at("whole.o"), "--time-limit", "1", "--no-cache", "--no-kernel"]));
    let whole = started.elapsed().as_micros() as u64;
    let (mut killed, mut written) = (0, 0);
    for i in 0..50u64 {
        // An older result is there: it stays, or the new one takes its place.
        std::fs::write(&output, b"older").expect("written");
        if i % 2 == 0 {
            let _ = std::fs::remove_file(&cache);
        }
        let seed = i.to_string();
        let args =
            ["opt", &input, "-o", &output, "--time-limit", "1", "--seed", &seed, "--cache", &cache, "--no-kernel"];
        let mut child = Command::new(BIN)
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // With the rules of the run before it is over sooner.
        let expected = if i % 2 == 0 { whole } else { whole / 10 };
        let moment = (i * 2_654_435_761 % 1_000) * expected / 900;
        std::thread::sleep(Duration::from_micros(moment));
        child.kill().expect("killed");
        killed += usize::from(!child.wait().expect("it ends").success());
        let bytes = std::fs::read(&output).expect("there");
        if bytes != b"older" {
            assert!(ok(&["verify", &input, &output]), "the output of run {i} is not whole");
            written += 1;
        }
        if Path::new(&cache).exists() {
            assert!(ok(&["rules", "list", "--cache", &cache]), "the rules are broken after run {i}");
        }
        let left: Vec<_> = std::fs::read_dir(dir.path())
            .expect("there")
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().ends_with(".o"))
            .collect();
        assert!(left.len() <= 3, "objects in parts under a name of their own: {left:?}");
    }
    assert!(killed > 10, "only {killed} of 50 runs were cut short");
    eprintln!("{killed} killed, {written} had written their result");
}
