//! Records of `.BTF.ext` that the kernel refuses (`check_btf_func` and `check_btf_line` in `kernel/bpf/verifier.c`).

use super::*;

/// Unknown because of records, in both directions.
#[track_caller]
fn refused_records(words: &str, change: impl FnOnce(&mut Btf, &mut Ext)) {
    unknown(DECLARATIONS, words, |elf| {
        elf.change_btf(change);
        elf.empty(|name| name == ".rel.BTF.ext");
    });
}

#[test]
fn lines_inside_an_instruction_are_unknown() {
    // The first `ld_imm64` of each section; an existing record is moved to its second half, or one is added there.
    for section in ["xdp", "kprobe/f", "socket"] {
        refused_records("a line record is inside an instruction", |_, ext| {
            let code = Elf::parse(&fixture(DECLARATIONS)).section(section).data.clone();
            let at = (0..code.len()).step_by(8).find(|at| code[*at] == 0x18).expect("an ld_imm64") as u32;
            let lines = records(ext, 1, section);
            let before = lines.iter().rposition(|r| number(&r[0]) <= at).expect("a line before it");
            let mut inside = lines[before].clone();
            inside[0] = Word::Number(at + 8);
            lines.retain(|r| number(&r[0]) != at + 8);
            lines.insert(before + 1, inside);
        });
    }
}

#[test]
fn functions_without_their_first_line_are_unknown() {
    for section in ["xdp", "kprobe/f", "kprobe/g", "socket"] {
        refused_records("its first instruction has no line record", |_, ext| {
            records(ext, 1, section).remove(0);
        });
    }
    refused_records("has no line record, though its caller has some", |_, ext| {
        ext.tables[1].1.retain(|(name, _)| name != ".text");
    });
}

#[test]
fn lines_out_of_order_are_unknown() {
    for section in ["xdp", "kprobe/f", "kprobe/g"] {
        refused_records("its line records are not in order", |_, ext| {
            let lines = records(ext, 1, section);
            assert!(lines.len() >= 3);
            lines.swap(1, 2);
        });
    }
    // Twice the same.
    refused_records("its line records are not in order", |_, ext| {
        let lines = records(ext, 1, "xdp");
        lines.insert(1, lines[1].clone());
    });
}

#[test]
fn lines_without_a_text_are_unknown() {
    for word in [1, 2] {
        refused_records("not among the strings", |_, ext| records(ext, 1, "xdp")[1][word] = Word::Number(0x00ff_ffff));
    }
}

#[test]
fn function_records_that_the_kernel_refuses_are_not_equal() {
    // No function, elsewhere, more than one, none.
    type Change<'c> = &'c dyn Fn(&mut Btf, &mut Ext, &str);
    let changes: [Change<'_>; 4] = [
        &|btf, ext, section| records(ext, 0, section)[0][1] = Word::Type(btf.find(1, "int")),
        &|_, ext, section| records(ext, 0, section)[0][0] = Word::Number(8),
        &|_, ext, section| {
            let all = records(ext, 0, section);
            let mut second = all[0].clone();
            second[0] = Word::Number(8);
            all.insert(1, second);
        },
        &|_, ext, section| ext.tables[0].1.retain(|(name, _)| name != section),
    ];
    for section in ["xdp", ".text", "kprobe/f"] {
        for change in changes {
            not_equal(DECLARATIONS, |elf| {
                elf.change_btf(|btf, ext| change(btf, ext, section));
                elf.empty(|name| name == ".rel.BTF.ext");
            });
        }
    }
}

/// `None` if this machine cannot say: no kernel, no permission, no bpftool.
fn loads_here(file: &[u8]) -> Option<bool> {
    let pid = std::process::id();
    let (path, pins) =
        (std::env::temp_dir().join(format!("bpf-records-{pid}.o")), format!("/sys/fs/bpf/records-{pid}"));
    std::fs::write(&path, file).ok()?;
    let out = std::process::Command::new("bpftool").args(["prog", "loadall"]).arg(&path).arg(&pins).output();
    let _ = std::fs::remove_dir_all(&pins);
    let _ = std::fs::remove_file(&path);
    Some(out.ok()?.status.success())
}

#[test]
fn the_kernel_refuses_the_records_that_are_unknown_and_takes_the_others() {
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/subprogs.o");
    let before = std::fs::read(example).expect("example");
    if loads_here(&before) != Some(true) {
        let required = std::env::var("BPF_OPT_REQUIRE_KERNEL").is_ok_and(|v| v == "1");
        assert!(!required, "BPF_OPT_REQUIRE_KERNEL=1, but bpftool does not load examples/subprogs.o");
        eprintln!("skipped: bpftool does not load examples/subprogs.o here");
        return;
    }
    let first =
        |ext: &Ext, table: usize| ext.tables[table].1.iter().position(|(name, _)| name != ".text").expect("one");
    let (mut taken, mut refused) = (0, 0);
    for n in 0..13 {
        let mut elf = Elf::parse(&before);
        let code = |elf: &Elf, section: &str| elf.sections[elf.find(section)].data.clone();
        let copy = elf.clone();
        elf.change_btf(|btf, ext| {
            let (f, l) = (first(ext, 0), first(ext, 1));
            match n {
                0 => ext.tables[1].1.clear(),
                1 => drop(ext.tables[1].1[l].1.remove(0)),
                2 => ext.tables[1].1[l].1.swap(1, 2),
                3 => ext.tables[1].1.retain(|(name, _)| name != ".text"),
                4 => ext.tables[1].1.retain(|(name, _)| name == ".text"),
                5 => ext.tables[1].1[l].1[1][2] = Word::Number(0x00ff_ffff),
                6 => ext.tables[0].1[f].1[0][1] = Word::Type(btf.find(1, "int")),
                7 => ext.tables[0].1[f].1[0][0] = Word::Number(8),
                8 => drop(ext.tables[1].1[l].1.remove(1)),
                9 => ext.tables[1].1[l].1[1][1] = Word::Text("elsewhere.c".into()),
                10 => {
                    let second = ext.tables[1].1[l].1[1].clone();
                    ext.tables[1].1[l].1.insert(1, second);
                }
                11 => {
                    let (name, lines) = &mut ext.tables[1].1[l];
                    let code = code(&copy, name);
                    let Some(at) = (0..code.len()).step_by(8).find(|at| code[*at] == 0x18) else { return };
                    let before = lines.iter().rposition(|r| number(&r[0]) <= at as u32).expect("a line before it");
                    let mut inside = lines[before].clone();
                    inside[0] = Word::Number(at as u32 + 8);
                    lines.insert(before + 1, inside);
                }
                _ => {
                    ext.tables[1].0 += 4;
                    ext.tables[1].1.iter_mut().flat_map(|(_, records)| records).for_each(|r| r.push(Word::Number(1)));
                }
            }
        });
        elf.empty(|name| name == ".rel.BTF.ext");
        let after = elf.bytes();
        let options = Options { kernel: false, time_limit: Duration::from_secs(10), ..Options::default() };
        let report = bpf_driver::verify(&before, &after, &options).expect("both can be read");
        let loads = loads_here(&after).expect("bpftool");
        assert_eq!(loads, report.is_equal(), "change {n}: {report:#?}");
        // Loading with lines of its own, the gate refuses the lines that the kernel refuses.
        let verdict = Loader::new(LoadOptions::default()).and_then(|mut l| l.judge(&after, |_, _| true, None));
        assert_eq!(loads, verdict.as_ref().is_ok_and(ObjectVerdict::is_accepted), "change {n}: {verdict:#?}");
        taken += usize::from(loads);
        refused += usize::from(!loads);
    }
    assert!(taken >= 3 && refused >= 6, "{taken} taken, {refused} refused");
}

#[test]
fn records_of_all_functions_may_go_together() {
    equal(DECLARATIONS, |elf| {
        elf.change_btf(|_, ext| ext.tables[1].1.clear());
        elf.empty(|name| name == ".rel.BTF.ext");
    });
    // Without those of a program libbpf loads none of what it calls.
    equal(DECLARATIONS, |elf| {
        elf.change_btf(|_, ext| ext.tables[1].1.retain(|(name, _)| name != "kprobe/f"));
        elf.empty(|name| name == ".rel.BTF.ext");
    });
    // What the kernel does not know of longer records, libbpf leaves out.
    for table in [0, 1] {
        equal(DECLARATIONS, |elf| {
            elf.change_btf(|_, ext| {
                ext.tables[table].0 += 4;
                ext.tables[table].1.iter_mut().flat_map(|(_, records)| records).for_each(|r| r.push(Word::Number(1)));
            });
            elf.empty(|name| name == ".rel.BTF.ext");
        });
    }
}
