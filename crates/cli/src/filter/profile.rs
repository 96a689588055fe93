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
    let first = LinkType(link::dlt(capture.link_type()));
    // Packets of another link type say nothing of those that the filter is for.
    let mut others = 0u64;
    while let Some(packet) = capture.next_packet().map_err(failed)? {
        if LinkType(link::dlt(packet.link_type)) != link_type {
            others += 1;
            continue;
        }
        profile.add(&Packet { captured: packet.captured, length: packet.length, beside: Beside::default() });
    }
    let path = path.display();
    if profile.is_empty() && (others > 0 || first != link_type) {
        let text = format!("--profile {path}: link type {first}, and the filter is for {link_type}");
        return Err(Failure::bad_input(text).with_hint("its packets begin as those of the filter do: -y says how"));
    }
    if others > 0 {
        files::complain(format!(
            "bpf-opt: warning: --profile {path}: {others} packets of other link types than {link_type} are not looked at"
        ));
    }
    Ok(profile)
}

/// What a profile brings a form, for statistics.
pub(super) fn text(Gain { before, after, refused }: Gain) -> String {
    let refused = if refused > 0 { format!(" ({refused} better ones are not proven)") } else { String::new() };
    format!("{after:.2} operations per packet of the profile, {before:.2} without it{refused}")
}
