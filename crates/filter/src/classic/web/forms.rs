//! The programs that come of a web: some are right for packets that end early, of others the proof finds out.

use super::Web;
use crate::program::Program;

/// Programs that test what one tests, in other orders and with fewer questions. They may accept other packets: each is to be proven.
pub(crate) fn forms(program: &Program) -> Vec<Program> {
    /// Nothing changes any more after a few.
    const ROUNDS: usize = 12;
    /// Of larger ones there is one form.
    const LARGE: usize = 600;
    let mut all = Vec::new();
    let Some(start) = Web::of(program) else { return all };
    let ways = [(true, false), (true, true), (false, true), (false, false)];
    let ways = if start.nodes.len() > LARGE { &ways[..1] } else { &ways[..] };
    for &(is_careful, gathers) in ways {
        let mut web = start.clone();
        web.unite(is_careful);
        for _ in 0..ROUNDS {
            let before = web.clone();
            web.settle(is_careful);
            web.unite(is_careful);
            if gathers {
                web.gather(is_careful);
            }
            if web == before {
                break;
            }
        }
        let form = web.program(program);
        if !all.contains(&form) {
            all.push(form);
        }
    }
    all
}
