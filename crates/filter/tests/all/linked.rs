//! Filters as functions: linked to a program of C by `bpftool gen object`, their verdicts in this kernel are the interpreter's.

use std::fs;
use std::path::Path;
use std::process::Command;

use bpf_filter::{Beside, EbpfForm, Filter, FunctionName, Hook, LinkType, Options, Packet, Source, Takes, compile};
use bpf_kernel::testing::{available, permitted};
use bpf_kernel::{LoadOptions, LoadedObject};
use bpf_pcap_oracle::data::Data;

use crate::common::{expressions, handed, link_type, options, seen};

/// A form of a filter, and where it is linked to and called.
struct Case {
    takes: Takes,
    hook: Hook,
    source: Source,
    link_type: LinkType,
}

fn cases() -> Vec<Case> {
    let of = |takes, hook: Hook| {
        let source = if takes == Takes::Data { Source::Xdp } else { hook.source() };
        Case { takes, hook, source, link_type: link_type(hook) }
    };
    let by_data = [Hook::Xdp, Hook::Tc, Hook::CgroupSkb].map(|hook| of(Takes::Data, hook));
    let by_context = [Hook::Xdp, Hook::Tc, Hook::CgroupSkb, Hook::Socket].map(|hook| of(Takes::Context(hook), hook));
    by_data.into_iter().chain(by_context).collect()
}

/// The structures of contexts, as far as they are needed.
const CONTEXTS: &str = "
struct xdp_md { unsigned int data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };
struct __sk_buff { unsigned int others[19]; unsigned int data, data_end; };
char _license[] __attribute__((section(\"license\"), used)) = \"Dual BSD/GPL\";
";

/// A program that calls a function, and returns 1 for what matches and 0 for the rest.
fn caller(case: &Case) -> String {
    let context = if case.hook == Hook::Xdp { "xdp_md" } else { "__sk_buff" };
    let call = match case.takes {
        Takes::Data => "filter((void *)(long)ctx->data, (void *)(long)ctx->data_end)",
        Takes::Context(_) => "filter(ctx)",
    };
    let section = case.hook.section();
    format!(
        "#include \"filter.h\"\n{CONTEXTS}
        __attribute__((section(\"{section}\"), used)) int caller(struct {context} *ctx) {{ return {call} ? 1 : 0; }}"
    )
}

fn run(command: &mut Command) {
    let out = command.output().expect("it is here");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn compile_c(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name).with_extension("c"), format!("{text}\n")).expect("room");
    let args = ["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    run(Command::new("clang").current_dir(folder).args(args).args([
        "-c",
        &format!("{name}.c"),
        "-o",
        &format!("{name}.o"),
    ]));
}

fn link(folder: &Path, parts: &[&str]) -> Vec<u8> {
    run(Command::new("bpftool").current_dir(folder).args(["gen", "object", "linked.o"]).args(parts));
    fs::read(folder.join("linked.o")).expect("it was written")
}

/// Whether what links is here.
fn has_tools() -> bool {
    let tool = |name: &str, arg| available(Command::new(name).arg(arg).output().map_err(|e| format!("{name}: {e}")));
    permitted() && tool("clang", "--version").is_some() && tool("bpftool", "version").is_some()
}

fn function(name: &str, takes: Takes) -> EbpfForm {
    EbpfForm::Function { name: FunctionName::new(name).expect("a name"), takes }
}

#[test]
fn verdicts_of_linked_functions_are_those_of_the_interpreter() {
    const STEP: usize = 397;
    let Some(data) = Data::for_test().filter(|_| has_tools()) else { return };
    let packets = data.packets(1);
    for case in cases() {
        let folder = tempfile::tempdir().expect("a folder");
        let form = function("filter", case.takes);
        let options = Options { source: case.source, ..options(case.link_type) };
        let expressions = expressions(&data, case.link_type, 4);
        let text = Filter::header(&form, &expressions[0], &options).expect("functions have headers");
        fs::write(folder.path().join("filter.h"), text).expect("room");
        compile_c(folder.path(), "caller", &caller(&case));
        let (mut linked, mut runs, mut matched) = (0, 0, 0);
        for expression in &expressions {
            let Ok(filter) = compile(expression, &options) else { continue };
            let Ok(object) = filter.object_of(&form) else { continue };
            fs::write(folder.path().join("filter.o"), object).expect("room");
            let object = LoadedObject::load(&link(folder.path(), &["caller.o", "filter.o"]), &LoadOptions::default())
                .unwrap_or_else(|e| panic!("{:?} at {:?}, {expression:.200}: {e}", case.takes, case.hook));
            linked += 1;
            for packet in packets.iter().step_by(STEP) {
                let captured = &packet.captured[..packet.captured.len().min(1500)];
                let seen = seen(case.hook, captured);
                let Ok(run) = object.test_run("caller", &handed(case.hook, captured), None, 1) else { continue };
                let ours = Packet { captured: seen, length: seen.len() as u32, beside: Beside::default() };
                let is_match = filter.run(&ours) != 0;
                assert_eq!(run.retval, u32::from(is_match), "{:?} at {:?}: {expression:.200}", case.takes, case.hook);
                runs += 1;
                matched += u32::from(is_match);
            }
        }
        eprintln!(
            "{:?} at {:?}: {linked} functions linked, {runs} runs, {matched} packets matched",
            case.takes, case.hook
        );
        assert!(linked > 60 && matched > 100);
    }
}

/// Tables of two functions have the same names, and nothing of one is seen in the other.
#[test]
fn two_functions_with_tables_are_linked_to_one_program() {
    if !has_tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let hosts = |first: u32| -> Vec<String> {
        (first..first + 200).map(|i| std::net::Ipv4Addr::from(i.wrapping_mul(2_654_435_761)).to_string()).collect()
    };
    let (low, high) = (hosts(0), hosts(200));
    for (name, hosts) in [("is_low", &low), ("is_high", &high)] {
        let text = format!("src host {}", hosts.join(" or "));
        let options = options(LinkType::EN10MB);
        let (filter, form) = (compile(&text, &options).expect("a filter"), function(name, Takes::Data));
        let path = |end| folder.path().join(name).with_extension(end);
        fs::write(path("o"), filter.object_of(&form).expect("an object")).expect("room");
        fs::write(path("h"), Filter::header(&form, &text, &options).expect("a header")).expect("room");
    }
    let program = format!(
        "#include \"is_low.h\"\n#include \"is_high.h\"\n#include \"is_low.h\"\n{CONTEXTS}
        __attribute__((section(\"xdp\"), used)) int caller(struct xdp_md *ctx) {{
            void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
            return is_low(data, data_end) + 2 * is_high(data, data_end);
        }}"
    );
    compile_c(folder.path(), "caller", &program);
    let object =
        LoadedObject::load(&link(folder.path(), &["is_low.o", "caller.o", "is_high.o"]), &LoadOptions::default());
    let object = object.expect("the kernel takes it");
    let mut packet = vec![0u8; 60];
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    for (hosts, wanted) in [(low, 1), (high, 2), (hosts(400), 0)] {
        for host in hosts {
            packet[26..30].copy_from_slice(&host.parse::<std::net::Ipv4Addr>().expect("an address").octets());
            assert_eq!(object.test_run("caller", &packet, None, 1).expect("a run").retval, wanted, "{host}");
        }
    }
}
