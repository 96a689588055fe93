use bpf_filter::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut op = Options::default();
    let hook = match a[2].as_str() { "xdp" => Hook::Xdp, "tc" => { op.source = Source::Tc; Hook::Tc } _ => { op.source = Source::CgroupSkb; op.link_type = LinkType::RAW; Hook::CgroupSkb } };
    match compile(&a[1], &op) { Ok(f) => { let act = Actions { matched: 2, other: 1 }; println!("{}", f.assembly(hook, act).unwrap()); if a.len() > 3 { std::fs::write(&a[3], f.object(hook, act).unwrap()).unwrap() } } Err(e) => println!("{}", e.render(&a[1])) }
}
