//! What is counted beside times. Few machines in which tests run count cycles; all of them count the time that a thread has.

use bpf_assembly::{Surroundings, functions, object};
use bpf_driver::timing::{self, Settings};
use bpf_kernel::testing::{available, permitted};
use bpf_kernel::{Counter, Event, in_private_network};

#[test]
fn what_is_counted_around_runs_is_of_one_run_of_the_program_alone() {
    if !permitted() || available(Counter::open(Event::TaskClock)).is_none() {
        return;
    }
    let text = format!("r0 = *(u32 *)(r1 + 0)\n{}r0 &= 1\nexit\n", "r0 *= 3\n".repeat(1000));
    let around = Surroundings { section: "socket".into(), ..Surroundings::default() };
    let bytes = object(&around, &functions(&text, "socket").expect("assembles")).expect("an object");
    let settings = Settings {
        packets: Some(vec![vec![0; 64]]),
        loads: 4,
        rounds: 4,
        counted: Event::TaskClock,
        ..Settings::default()
    };
    let timed = in_private_network(|| timing::time(&[&bytes], &settings, &mut |_, _| ()));
    let Some(timed) = available(timed) else { return };
    let programs = timed.expect("it loads");
    let own = &programs[0].classes[0].objects[0];
    // The kernel's nanoseconds and the thread's are the same but for what disturbs.
    let ratio = own.cycles.expect("it is counted").middle / own.ns.middle;
    assert!((0.3..3.0).contains(&ratio), "{own:?}");
}
