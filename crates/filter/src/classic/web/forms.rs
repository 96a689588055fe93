//! The programs that come of a web: some are right for packets that end early, of others the proof finds out.

use super::Web;
use crate::program::Program;

/// Programs that test what one tests, in other orders and with fewer questions. They may accept other packets: each is to be proven.
pub(crate) fn forms(program: &Program) -> Vec<Program> {
    /// Nothing changes any more after a few.
    const ROUNDS: usize = 12;
    let mut all = Vec::new();
    let Some(start) = Web::of(program) else { return all };
    for (is_careful, gathers) in [(true, true), (true, false), (false, true), (false, false)] {
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
