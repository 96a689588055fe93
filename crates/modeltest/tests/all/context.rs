//! A slice of the comparison of the table of context fields with the running kernel.

use bpf_kernel::testing::permitted;
use bpf_modeltest::context::{Extent, all};
use bpf_platform::{FieldKind, ProgKind, ctx_field};

#[test]
fn context_fields_are_as_wide_as_the_table_says_and_change_no_others() {
    if !permitted() {
        return;
    }
    let report = all(Extent::Slice);
    println!("{report}");
    assert!(report.contradictions.is_empty(), "{:#?}", report.contradictions);
    assert!(report.kinds.len() >= 8, "only {:?} could be tried: {:?}", report.kinds.keys(), report.broken);
    let tc = &report.kinds["tc"];
    assert_eq!(tc.reads_back[&(8, 4)], 32, "skb->mark");
    assert_eq!(tc.reads_back[&(44, 4)], 16, "skb->tc_index");
    // Kernels without tstamp_type (before 5.18) have nothing to find.
    let has_type = bpf_modeltest::fields::loads(bpf_modeltest::kinds::named("tc").unwrap(), 180, 1).is_some();
    assert_eq!(tc.presence.iter().any(|p| p.contains("at 180") && p.contains("at 152")), has_type, "{:?}", tc.presence);
}

#[test]
fn upper_halves_of_short_fields_are_not_promised() {
    for at in [4, 12, 16, 24, 28, 44, 72, 88, 132, 164, 176] {
        let row = ctx_field(ProgKind::Skb, at).unwrap();
        assert_eq!(row.kind, FieldKind::Scalar { narrow: false }, "field {at}");
    }
    assert_eq!(ctx_field(ProgKind::Skb, 8).unwrap().kind, FieldKind::Scalar { narrow: true });
}
