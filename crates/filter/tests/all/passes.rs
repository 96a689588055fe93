//! The optimizer's passes: any selection of them means the same, and each is worth something.

use bpf_filter::{Actions, ClassicGoal, Filter, Form, Hook, LinkType, Options, Pass, Passes, compile};
use bpf_pcap_oracle::data::Data;

use crate::common::{cuts, machine_code, options};

fn with(expression: &str, passes: impl IntoIterator<Item = Pass>) -> Filter {
    let options = Options { passes: Passes::of(passes), ..options(LinkType::EN10MB) };
    compile(expression, &options).unwrap_or_else(|e| panic!("{}", e.render(expression)))
}

fn without(pass: Pass) -> impl Iterator<Item = Pass> {
    Pass::ALL.into_iter().filter(move |other| *other != pass)
}

#[test]
fn any_selection_means_the_same() {
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let own = ["vlan and tcp port 80 or udp", "ip[0] / ip[1] < 80 and tcp", "geneve and host 10.0.0.1"];
    let filters = data.filters().into_iter().map(|f| f.expression).filter(|e| e.len() < 3000);
    let expressions: Vec<String> = own.map(str::to_owned).into_iter().chain(filters).collect();
    let mut compared = 0;
    for (n, expression) in expressions.iter().enumerate() {
        let all = with(expression, Pass::ALL);
        // Each selection with some of the filters.
        for selection in (0..1u32 << Pass::ALL.len()).skip(n % 17).step_by(17) {
            let chosen =
                Pass::ALL.into_iter().enumerate().filter(|(i, _)| selection >> i & 1 != 0).map(|(_, pass)| pass);
            let filter = with(expression, chosen);
            for form in [Form::Here, Form::Machine, Form::Kernel] {
                assert_eq!(filter.unproven(form), None, "{form:?} of {expression:.200}, passes {selection:07b}");
            }
            let jit = machine_code(&filter);
            for (i, packet) in packets.iter().enumerate().step_by(211) {
                for packet in cuts(packet, i) {
                    let verdict = all.run(&packet) != 0;
                    let what = || format!("{expression:.200}, passes {selection:07b}");
                    assert_eq!(filter.run(&packet) != 0, verdict, "{}", what());
                    if let Some(jit) = &jit {
                        assert_eq!(jit.run(&packet), verdict, "machine code: {}", what());
                    }
                    compared += 1;
                }
            }
        }
    }
    eprintln!("{compared} verdicts");
    assert!(compared > 10_000);
}

/// Geometric means over filters: operations that packets take in the interpreter, classic instructions, lines of eBPF.
fn cost(data: &Data, passes: &[Pass]) -> [f64; 3] {
    let packets = data.packets(1);
    let macs: Vec<String> =
        (0..150).map(|i| format!("ether host 02:00:5e:{:02x}:{:02x}:01", i % 256, i * 37 % 100)).collect();
    let filters = data.filters().into_iter().map(|f| f.expression).filter(|e| e.len() < 8000).step_by(2);
    let filters = filters.chain([macs.join(" or ")]);
    let (mut logarithms, mut n) = ([0.0; 3], 0.0);
    for expression in filters {
        let filter = with(&expression, passes.iter().copied());
        let of = |(i, packet)| cuts(packet, i).next().map_or(0, |packet| filter.count(&packet).operations);
        let operations: u64 = packets.iter().enumerate().step_by(101).map(of).sum();
        let classic = filter.classic(ClassicGoal::Size).map_or(1, <[_]>::len);
        let assembly = filter.assembly(Hook::Xdp, Actions::passing(Hook::Xdp)).map_or(1, |text| text.lines().count());
        let costs = [operations as f64, classic as f64, assembly as f64];
        logarithms.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost.ln());
        n += 1.0;
    }
    logarithms.map(|sum| (sum / n).exp())
}

#[test]
fn every_pass_is_worth_something() {
    let Some(data) = Data::for_test() else { return };
    let all = cost(&data, &Pass::ALL);
    let ratios = |passes: &[Pass]| {
        let mut ratios = cost(&data, passes);
        ratios.iter_mut().zip(all).for_each(|(cost, all)| *cost /= all);
        ratios
    };
    for pass in Pass::ALL {
        let ratios = ratios(&without(pass).collect::<Vec<Pass>>());
        let [operations, classic, lines] = ratios;
        eprintln!("without {:<11} {operations:.3} operations, {classic:.3} classic, {lines:.3} eBPF", pass.name());
        assert!(ratios.iter().any(|ratio| *ratio > 1.001), "{pass:?}: {ratios:?}");
    }
    let [operations, classic, lines] = ratios(&[]);
    eprintln!("none                {operations:.3} operations, {classic:.3} classic, {lines:.3} eBPF");
}
