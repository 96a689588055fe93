use bpf_filter::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut op = Options::default();
    if let Some(l) = a.get(2) { op.link_type = LinkType::of_name(l).unwrap(); }
    op.optimize = !a.contains(&"plain".to_string());
    match compile(&a[1], &op) { Ok(f) => { print!("{}", f.listing()); for (i, c) in f.classic(ClassicGoal::Size).unwrap().iter().enumerate() { println!("{}", c.listing(i)) } } Err(e) => println!("{}", e.render(&a[1])) }
}
