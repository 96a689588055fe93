use bpf_filter::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut op = Options::default();
    if let Some(l) = a.get(2) { op.link_type = LinkType::of_name(l).unwrap(); }
    if a.len() > 3 { op.optimize = false; }
    match compile(&a[1], &op) { Ok(f) => print!("{}", f.listing()), Err(e) => println!("{}", e.render(&a[1])) }
}
