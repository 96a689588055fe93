//! The packets that a filter is to be fast on (`--profile`).

use std::path::Path;
use std::sync::Arc;

use bpf_capture::{Capture, link};
use bpf_filter::{Beside, Gain, LinkType, Packet, Profile};

use super::args::FilterArgs;
use crate::failure::Failure;
use crate::files;

/// The profile that the arguments name, of packets of a link type.
pub(super) fn of(args: &FilterArgs, link_type: LinkType) -> Result<Option<Arc<Profile>>, Failure> {
    let Some(path) = &args.profile else { return Ok(None) };
    let profile = read(path, link_type)?;
    if profile.is_empty() {
        files::complain(format!("bpf-opt: warning: --profile {}: there is no packet in it", path.display()));
        return Ok(None);
    }
    Ok(Some(Arc::new(profile)))
}

fn read(path: &Path, link_type: LinkType) -> Result<Profile, Failure> {
    let failed = |e: bpf_capture::Error| Failure::bad_input(format!("--profile {e}"));
    let mut capture = Capture::open(path).map_err(failed)?;
    let mut profile = Profile::new(link_type);
    check(path, None, LinkType(link::dlt(capture.link_type())), link_type)?;
    while let Some(packet) = capture.next_packet().map_err(failed)? {
        let number = profile.added() + 1;
        check(path, Some(number), LinkType(link::dlt(packet.link_type)), link_type)?;
        profile.add(&Packet { captured: packet.captured, length: packet.length, beside: Beside::default() });
    }
    Ok(profile)
}

/// Packets of another link type say nothing of those that the filter is for.
fn check(path: &Path, packet: Option<u64>, theirs: LinkType, ours: LinkType) -> Result<(), Failure> {
    if theirs == ours {
        return Ok(());
    }
    let packet = packet.map_or(String::new(), |n| format!("packet {n}: "));
    let text = format!("--profile {}: {packet}link type {theirs}, and the filter is for {ours}", path.display());
    Err(Failure::bad_input(text).with_hint("its packets begin as those of the filter do: -y says how"))
}

/// What a profile brings a form, for statistics.
pub(super) fn text(Gain { before, after, refused }: Gain) -> String {
    let refused = if refused > 0 { format!(" ({refused} better ones are not proven)") } else { String::new() };
    format!("{after:.2} operations per packet of the profile, {before:.2} without it{refused}")
}
