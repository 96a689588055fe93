//! What is tested: programs of the K2 paper's Tables 2 and 3, each with its packet and what its maps hold.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use bpf_kernel::{LoadOptions, LoadedObject};

use crate::network::{self, BACK_MAC};
use crate::packets::{Packet, destination, mac, udp};

/// What a program does with its packets (`enum xdp_action`).
const TX: u32 = 3;
const REDIRECT: u32 = 4;

/// Elements of maps, by name.
pub type Elements = BTreeMap<String, Vec<(Vec<u8>, Vec<u8>)>>;

/// Where packets and elements come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The shortest packet of UDP, and no elements.
    Udp,
    /// The same, and the tables of a router: the destination is behind the device `out`.
    Router,
    /// The same, and the ports that may be sent to; the kernel has the routes.
    Forwarder,
    /// The first of the inputs that `bpf-opt inputs` finds with which the packet is sent back.
    Found,
}

/// A program with its traffic.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The object's file, below the benchmark.
    pub object: &'static str,
    /// As the paper calls it.
    pub name: &'static str,
    /// Its traffic.
    pub source: Source,
    /// What K2 gains over the best that clang writes, in percent, as the paper's Table 2 has it.
    pub paper: Option<f64>,
}

/// The programs of the paper, and one more that sends packets on.
pub const SCENARIOS: [Scenario; 7] = [
    Scenario { object: "k2/12-xdp2.o", name: "xdp2", source: Source::Udp, paper: Some(2.11) },
    Scenario { object: "k2/09-xdp_router_ipv4.o", name: "xdp_router_ipv4", source: Source::Router, paper: Some(0.0) },
    Scenario { object: "k2/13-xdp_fwd.o", name: "xdp_fwd", source: Source::Forwarder, paper: Some(1.77) },
    Scenario { object: "k2/11-xdp1.o", name: "xdp1", source: Source::Udp, paper: Some(4.75) },
    Scenario { object: "k2/16-xdp_map_access.o", name: "xdp_map_access", source: Source::Udp, paper: Some(2.70) },
    Scenario { object: "k2/19-xdp-balancer.o", name: "xdp-balancer", source: Source::Found, paper: Some(2.94) },
    Scenario {
        object: "public/es-linux-xdp_tx_iptunnel_kern.o",
        name: "xdp_tx_iptunnel",
        source: Source::Found,
        paper: None,
    },
];

/// Traffic for a program: the packet, and what its maps hold.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// What is sent.
    pub packet: Packet,
    /// What maps hold before the first packet.
    pub elements: Elements,
}

impl Scenario {
    /// Its traffic; more than one where it has to be seen which of them comes back. The calling thread is in the device's network.
    ///
    /// # Errors
    /// If `bpf-opt` finds no inputs.
    pub fn traffic(&self, object: &Path, tool: &Path, seconds: u32) -> Result<Vec<Traffic>, String> {
        let out = network::number("out")?.to_le_bytes().to_vec();
        let ports = |map: &str| (map.to_owned(), vec![(out.clone(), out.clone())]);
        let elements: Elements = match self.source {
            Source::Found => return found(object, tool, seconds),
            Source::Udp => Elements::new(),
            Source::Forwarder => [ports("xdp_tx_ports")].into(),
            Source::Router => {
                // `struct trie_value` of samples/bpf/xdp_router_ipv4: prefix, the device's address, its number, metric, gateway.
                let to = destination();
                let prefix = [&32u32.to_le_bytes()[..], &to].concat();
                let mut route = vec![0; 32];
                route[..4].copy_from_slice(&to);
                route[8..14].copy_from_slice(&mac("02:00:00:00:00:02"));
                route[16..20].copy_from_slice(&out);
                let neighbour = [&mac(BACK_MAC)[..], &[0, 0]].concat();
                let tables = [("lpm_map", (prefix, route)), ("arp_table", (to.to_vec(), neighbour))];
                let tables = tables.map(|(map, element)| (map.to_owned(), vec![element]));
                tables.into_iter().chain([ports("tx_port")]).collect()
            }
        };
        Ok(vec![Traffic { packet: udp(), elements }])
    }
}

/// Inputs that `bpf-opt inputs` finds, those that a test run in the kernel can make.
fn found(object: &Path, tool: &Path, seconds: u32) -> Result<Vec<Traffic>, String> {
    let file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    let mut command = Command::new(tool);
    command.arg("inputs").arg(object).arg("--json").arg(file.path()).args(["--time-limit", &seconds.to_string()]);
    command.output().map_err(|e| format!("{}: {e}", tool.display()))?;
    let text = std::fs::read_to_string(file.path()).map_err(|e| e.to_string())?;
    let report: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("the report of inputs: {e}"))?;
    let list = report.pointer("/programs/0/inputs").and_then(serde_json::Value::as_array);
    let list = list.ok_or_else(|| format!("{}: no inputs were found", object.display()))?;
    let possible = list.iter().filter(|input| input["kernel"] == "same");
    Ok(possible.filter_map(traffic_of).collect())
}

fn traffic_of(input: &serde_json::Value) -> Option<Traffic> {
    let bytes = |value: &serde_json::Value| hex::decode(value.as_str()?).ok();
    let element = |pair: &serde_json::Value| Some((bytes(&pair[0])?, bytes(&pair[1])?));
    let map = |(name, list): (&String, &serde_json::Value)| {
        Some((name.clone(), list.as_array()?.iter().map(element).collect::<Option<Vec<_>>>()?))
    };
    let elements = input["maps"].as_object()?.iter().map(map).collect::<Option<Elements>>()?;
    Some(Traffic { packet: Packet::stamped(bytes(&input["packet"])?), elements })
}

/// A program, loaded, its maps filled.
pub struct Subject {
    /// Its object.
    pub object: LoadedObject,
    /// Its name.
    pub program: String,
    /// What it does with the packet.
    pub verdict: u32,
    /// Where the clock stands in what comes back; `None` if nothing does.
    pub stamp_back: Option<usize>,
}

impl Subject {
    /// Loads the first program of an object. The calling thread is in the device's network.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn load(bytes: &[u8], traffic: &Traffic) -> Result<Subject, String> {
        let object = LoadedObject::load_for_runs(bytes, &LoadOptions::default(), None).map_err(|e| e.to_string())?;
        let program = object.programs().first().ok_or("no program")?.name.clone();
        for (name, elements) in &traffic.elements {
            let map = object.map(name).map_err(|e| e.to_string())?;
            elements.iter().try_for_each(|(key, value)| {
                // The report has one value of a map with one for each processor.
                let value = value.repeat(map.value_len() / value.len().max(1));
                map.update(key, &value).map_err(|e| e.to_string())
            })?;
        }
        let run = object.test_run(&program, &traffic.packet.bytes, None, 1).map_err(|e| e.to_string())?;
        let comes_back = matches!(run.retval, TX | REDIRECT);
        let stamp_back = Packet::stamp_in(&run.data_out).filter(|_| comes_back);
        Ok(Subject { object, program, verdict: run.retval, stamp_back })
    }

    /// Whether it sends packets back as a load test wants it.
    pub fn comes_back(&self) -> bool {
        self.stamp_back.is_some()
    }
}
