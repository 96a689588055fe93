//! What a campaign tells: a line while it runs, a table at its end, an exit code.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::campaign::{CampaignState, LanePlan};

/// 0: no disagreement; 1: some; 3: none, but a lane cannot run here.
pub fn exit_code(plans: &[LanePlan], state: &CampaignState) -> u8 {
    let cannot = plans.iter().any(|p| state.lanes[p.name].cannot.is_some());
    match (state.disagreements().next(), cannot) {
        (Some(_), _) => 1,
        (None, true) => 3,
        (None, false) => 0,
    }
}

/// The progress in one line.
pub fn line(plans: &[LanePlan], state: &CampaignState) -> String {
    let mut text = format!("{:.1} min", state.seconds / 60.0);
    for p in plans {
        let lane = &state.lanes[p.name];
        let n = lane.tally.counts.get(p.counter).copied().unwrap_or(0);
        let _ = write!(text, "  {} {n} {}", p.name, p.counter);
    }
    let wrong = state.disagreements().count();
    if wrong > 0 {
        let _ = write!(text, "  {wrong} DISAGREEMENTS");
    }
    text
}

/// What was done and what disagreed, with how to see it again.
pub fn text(plans: &[LanePlan], state: &CampaignState, stopped: bool) -> String {
    let mut text =
        format!("seed {}, {:.1} minutes{}\n", state.seed, state.seconds / 60.0, if stopped { ", stopped" } else { "" });
    for p in plans {
        let lane = &state.lanes[p.name];
        let n = lane.tally.counts.get(p.counter).copied().unwrap_or(0);
        let _ = writeln!(
            text,
            "{}: {n} {} of {} planned for an hour, in {:.0} s of work ({:.0} a second)",
            p.name,
            p.counter,
            p.per_hour,
            lane.seconds,
            n as f64 / lane.seconds.max(1e-3)
        );
        let others: BTreeMap<&String, &u64> = lane.tally.counts.iter().filter(|(k, _)| *k != p.counter).collect();
        for (what, n) in others {
            let _ = writeln!(text, "    {n} {what}");
        }
        for (what, names) in &lane.tally.names {
            let _ = writeln!(text, "    {} {what}", names.len());
        }
        if let Some(why) = &lane.cannot {
            let _ = writeln!(text, "    CANNOT RUN HERE: {why}");
        }
    }
    let mut wrong = 0;
    for (lane, d) in state.disagreements() {
        wrong += 1;
        let _ = writeln!(text, "\nDISAGREEMENT in lane {lane}: {}", d.what);
        let _ = writeln!(text, "  again: bpf-soak --seed {} --unit {lane}:{}", d.seed, d.index);
    }
    let _ = writeln!(text, "{wrong} disagreements");
    text
}
