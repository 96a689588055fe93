//! The order of the search's work: what it depends on, and that nothing of what was found is lost.

use bpf_isa::Goal;
use bpf_object::Object;
use bpf_prove::Step;

use super::*;
use crate::module::Module;
use crate::report::Silent;

const OBJECTS: [&[u8]; 2] =
    [include_bytes!("../../../../examples/hooks.o"), include_bytes!("../../../../examples/legacy_maps.o")];

/// An object after the passes, and what a search made of it.
struct Run {
    candidates: Vec<Candidate>,
    report: SearchReport,
}

impl Run {
    fn new(bytes: &[u8], options: &Options, time: Option<Duration>) -> Run {
        let module = Module::new(Object::parse(bytes.to_vec()).expect("a committed object"));
        let mut settings = Settings::default();
        let mut candidates: Vec<Candidate> = (0..module.graphs.len()).map(|i| Candidate::new(&module, i)).collect();
        candidates.iter_mut().for_each(|c| c.run_passes(&module, &settings));
        settings.deadline = time.map(|t| Instant::now() + t);
        let wanted = vec![true; candidates.len()];
        let report = {
            let search = Search::new(&module, &settings, options, &Silent, Instant::now());
            run(&mut candidates, &wanted, search, &mut Vec::new()).0
        };
        Run { candidates, report }
    }

    fn rounds(bytes: &[u8], rounds: u64, jobs: usize) -> Run {
        Run::new(bytes, &Options { rounds: Some(rounds), jobs, search: true, ..Options::default() }, None)
    }

    /// The steps of each function, in words.
    fn log(&self) -> Vec<Vec<String>> {
        let words = |s: &Step| s.rewrite().map_or_else(|| "shape".to_owned(), |r| format!("{r:?}"));
        self.candidates.iter().map(|c| c.steps().iter().map(words).collect()).collect()
    }
}

#[test]
fn fewer_rounds_do_the_first_part_of_the_work_of_more() {
    let bytes = OBJECTS[0];
    let long = Run::rounds(bytes, 3, 1);
    assert!(long.report.improved > 0, "the example no longer gains");
    for rounds in 0..3 {
        let short = Run::rounds(bytes, rounds, 1);
        assert_eq!((short.report.rounds, short.report.ended), (rounds, Ended::Rounds));
        for (short, long) in short.log().iter().zip(long.log()) {
            assert!(long.starts_with(short), "after {rounds} rounds");
        }
    }
}

#[test]
fn states_beside_the_last_are_others_and_come_in_the_order_of_their_cost() {
    let module = Module::new(Object::parse(OBJECTS[0].to_vec()).expect("a committed object"));
    let settings = Settings { goal: Goal::latency(), ..Settings::default() };
    let (mut candidates, _) = crate::candidate::after_passes(&module, &settings);
    let states = |candidates: &mut Vec<Candidate>, forms| {
        let options = Options { goal: Goal::latency(), rounds: Some(2), search: true, forms, ..Options::default() };
        let search = Search::new(&module, &settings, &options, &Silent, Instant::now());
        let wanted = vec![true; candidates.len()];
        run(candidates, &wanted, search, &mut Vec::new()).1.beside(candidates, &module, &settings)
    };
    assert!(states(&mut candidates.clone(), 1).is_empty(), "nobody wants them");
    let found = states(&mut candidates, 4);
    assert!(found.len() >= 3, "{}", found.len());
    let time = |c: &Candidate| crate::weight::weight(c.function().expect("a graph"), &settings, &module.maps);
    let more =
        |state: &Vec<Candidate>| state.iter().map(|c| time(c).0 as i64 - time(&candidates[c.id]).0 as i64).sum::<i64>();
    assert!(found.is_sorted_by_key(more));
    for state in &found {
        assert!(!state.is_empty() && state.iter().all(|c| c.function() != candidates[c.id].function()));
    }
}

#[test]
fn so_many_rounds_give_the_same_whatever_the_number_of_threads() {
    for bytes in OBJECTS {
        let one = Run::rounds(bytes, 2, 1);
        assert_eq!(one.log(), Run::rounds(bytes, 2, 1).log());
        assert_eq!(one.log(), Run::rounds(bytes, 2, 3).log());
    }
}

#[test]
fn whenever_time_ends_the_work_is_the_first_part_and_what_was_found_is_kept() {
    let bytes = OBJECTS[0];
    let long = Run::rounds(bytes, 3, 1);
    let whole = Duration::from_secs_f64(long.report.seconds);
    for part in [8, 4, 2] {
        let options = Options { jobs: 1, search: true, time_limit: Duration::from_secs(30), ..Options::default() };
        let short = Run::new(bytes, &options, Some(whole / part));
        // The machine may be faster now.
        if short.report.rounds > 2 {
            continue;
        }
        for (short, long) in short.log().iter().zip(long.log()) {
            // The window that was being looked at when time ended may have given less than it would have.
            let done = short.len().saturating_sub(1);
            assert!(long.starts_with(&short[..done]), "within {:?}", whole / part);
        }
        let found = short.report.by_chain + short.report.by_enumerator + short.report.by_rule;
        assert!(found == 0 || short.report.improved > 0, "what was found is lost: {:?}", short.report);
    }
}
