//! Filters compiled for a profile of packets.

use std::sync::Arc;

use bpf_filter::{Beside, Form, LinkType, Options, Packet, Profile, compile};
use bpf_pcap_oracle::data::{Data, OwnedPacket};

use crate::common::{forms, options};

fn profile<'a>(link_type: LinkType, packets: impl IntoIterator<Item = &'a OwnedPacket>) -> Arc<Profile> {
    let mut profile = Profile::new(link_type);
    for packet in packets {
        profile.add(&Packet { captured: &packet.captured, length: packet.length, beside: Beside::default() });
    }
    Arc::new(profile)
}

#[test]
fn figures() {
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let profile = profile(LinkType::EN10MB, &packets);
    let mut logs = [0.0; 5];
    let all = data.filters();
    for filter in &all {
        let options = Options { profile: Some(profile.clone()), ..options(LinkType::EN10MB) };
        let start = std::time::Instant::now();
        let compiled = compile(&filter.expression, &options).expect("a filter");
        let mut line = format!("{:<18}", filter.name);
        for (i, form) in forms().into_iter().enumerate() {
            let _ = compiled.unproven(form);
            if let Some(gain) = compiled.gain(form) {
                logs[i] += (gain.after / gain.before).ln();
                line += &format!(" {:6.2} {:6.2}{}", gain.before, gain.after, if gain.refused > 0 { "!" } else { " " });
            }
        }
        eprintln!("{line} {:?} {}", start.elapsed(), compiled.size());
    }
    eprintln!("{:?}", logs.map(|log| (log / all.len() as f64).exp()));
    let _ = Form::Here;
}
