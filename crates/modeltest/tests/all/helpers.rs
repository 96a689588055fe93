//! A slice of the comparison of the helper table with the running kernel.

use bpf_kernel::testing::{available, permitted};
use bpf_kernel::{Map, ProgramType, RawOptions, RawProgram};
use bpf_modeltest::campaign::{Random, Report};
use bpf_modeltest::compare::judge;
use bpf_modeltest::observe::{Bench, Filling};
use bpf_modeltest::recipe::{self, Call};
use bpf_platform::helpers::{Helper, LAST};

#[test]
fn helpers_do_what_the_table_says_and_nothing_else() {
    if !permitted() {
        return;
    }
    let recipes = recipe::all().unwrap();
    let Some(bench) = available(Bench::new()) else { return };
    let mut report = Report::default();
    report.slice(&bench, &recipes, 1);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    report.varied(&bench, &recipes, &mut Random::new(1), until);
    println!("{report}");
    assert!(report.contradictions.is_empty(), "{:#?}", report.contradictions);
    if report.offered() < 150 {
        eprintln!("SKIPPED: the counts, because this kernel offers {} of the helpers only", report.offered());
        return;
    }
    assert!(report.called() >= 120, "{} called", report.called());
    assert!(report.both_ways() >= 80, "{} seen both ways", report.both_ways());
}

#[test]
fn every_helper_has_a_recipe_or_a_reason_or_is_not_offered_here() {
    if !permitted() {
        return;
    }
    let recipes = recipe::all().unwrap();
    let mut offered = 0;
    let mut missing = Vec::new();
    for id in 1..=LAST {
        let code = format!("call {id}\nr0 = 0\nexit");
        let code = bpf_isa::encode_all(&bpf_isa::parse_listing(&code).unwrap()).unwrap();
        let refused = ["cannot use helper", "unknown func", "invalid func", "not supported for program type"];
        let is_offered = bpf_modeltest::kinds::KINDS.iter().any(|kind| {
            match RawProgram::load(kind.program, &code, &bpf_modeltest::fields::options(kind)) {
                Ok(_) => true,
                Err(r) => !r.log.is_empty() && !refused.iter().any(|t| r.log.contains(t)),
            }
        });
        offered += usize::from(is_offered);
        let known = recipes.calls.iter().any(|c| c.helper == id) || recipes.skipped.iter().any(|s| s.0 == id);
        if is_offered && !known {
            missing.push(format!("{id} {}", Helper::get(id).map_or("?", |h| h.name)));
        }
    }
    println!("{offered} helpers are offered to programs that can be run here");
    assert!(missing.is_empty(), "no recipe: {missing:?}");
}

#[test]
fn recipes_call_helpers_by_their_names() {
    for call in recipe::all().unwrap().calls {
        assert_eq!(Helper::get(call.helper).map(|h| h.name), Some(call.name.as_str()), "{}", call.place);
    }
}

/// What the table calls constant is the same for all calls of one run: five hundred calls, many runs.
#[test]
fn constant_helpers_give_one_result_in_a_run() {
    if !permitted() {
        return;
    }
    let constant = (1..=LAST).filter_map(Helper::get).filter(|h| h.effects.is_constant());
    let (mut tried, mut refused) = (Vec::new(), Vec::new());
    for helper in constant {
        let out = Map::create(2, 4, 8, 1).unwrap();
        let text = format!(
            "r9 = 0\nr8 = 0\ncall {0}\nr7 = r0\nagain:\ncall {0}\nr0 ^= r7\nr9 |= r0\nr8 += 1\nif r8 < 500 goto again\n\
             r1 = map_value[{1}] ll\n*(u64 *)(r1 + 0) = r9\nr0 = 0\nexit",
            helper.id,
            out.fd()
        );
        let code = bpf_isa::encode_all(&bpf_isa::parse_listing(&text).unwrap()).unwrap();
        let Ok(program) = RawProgram::load(ProgramType::SCHED_CLS, &code, &RawOptions::default()) else {
            refused.push(helper.name);
            continue;
        };
        for _ in 0..200 {
            program.test_run(&[0; 64], None, 1).unwrap();
            assert_eq!(out.lookup(&[0; 4]).unwrap().unwrap(), [0; 8], "{}", helper.name);
        }
        tried.push(helper.name);
    }
    println!("constant: {tried:?}");
    assert!(!tried.is_empty());
    assert!(refused.is_empty(), "taken for constant, and not tried: {refused:?}");
}

/// The judge must be able to say no: what one helper did is held against the row of another one.
#[test]
fn a_row_that_is_wrong_is_noticed() {
    if !permitted() {
        return;
    }
    let recipes = recipe::all().unwrap();
    let Some(bench) = available(Bench::new()) else { return };
    let swapped = [
        ("tc", "map_update_elem(map:hash, u32:2, u64:77, 0)", "map_lookup_elem", "map hash changed"),
        ("tc", "skb_store_bytes(ctx, 20, in:1122334455667788, 8, 0)", "skb_load_bytes", "the packet changed"),
        ("tc", "get_current_comm(out:16, 16)", "ktime_get_ns", "frame byte"),
        ("tc", "set_hash(ctx, 0x12345678)", "get_cgroup_classid", "context field 68 changed"),
        ("xdp", "xdp_load_bytes(ctx, 95, out:16, 16)", "skb_load_bytes", "Zeroed on failure"),
        ("tc", "skb_load_bytes(ctx, 95, out:16, 16)", "xdp_load_bytes", "Untouched on failure"),
        ("tc", "probe_read_kernel_str(out:16, 16, r8)", "probe_read_kernel", "declared certain, not seen"),
        ("xdp", "xdp_adjust_head(ctx, 14)", "xdp_get_buff_len", "packet pointer"),
    ];
    for (kind, text, other, complaint) in swapped {
        let kind = bpf_modeltest::kinds::named(kind).unwrap();
        let call = recipes.calls.iter().find(|c| c.text == text).unwrap_or_else(|| panic!("no recipe {text}"));
        let baseline = bench.without(call, kind);
        let [one, two] = [Filling::One, Filling::Other]
            .map(|filling| bench.observe(call, kind, filling, None, baseline.as_ref()).unwrap());
        let fields = &bench.fields[kind.name];
        let right = judge(call, kind, fields, &one, &two).contradictions;
        assert!(right.is_empty(), "{text}: {right:?}");
        let row = Helper::named(other).unwrap();
        let wrong = judge(&Call { helper: row.id, ..call.clone() }, kind, fields, &one, &two).contradictions;
        assert!(wrong.iter().any(|c| c.contains(complaint)), "{text} as {other}: {wrong:?}");
    }
}
