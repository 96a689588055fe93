use bpf_filter::*;
use bpf_kernel::{LoadOptions, LoadedObject};
use std::io::Read;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut b = Vec::new();
    std::fs::File::open(&a[1]).unwrap().read_to_end(&mut b).unwrap();
    let u = |i: usize| u32::from_le_bytes(b[i..i + 4].try_into().unwrap());
    let mut ps: Vec<(u32, usize, usize)> = vec![];
    let mut i = 0;
    while i < b.len() { let (c, d) = (u(i + 4), u(i + 8)); ps.push((d, i + 12, c as usize)); i += 12 + c as usize; }
    let step: usize = a[4].parse().unwrap();
    let (hook, dlt) = match a[3].as_str() { "xdp" => (Hook::Xdp, 1), "tc" => (Hook::Tc, 1), _ => (Hook::CgroupSkb, 12) };
    let (mut agree, mut bad, mut refused, mut unsup, mut n, mut size) = (0u64, 0u64, 0, 0, 0, 0usize);
    for line in std::fs::read_to_string(&a[2]).unwrap().lines() {
        let (d, e) = line.split_once('\t').unwrap();
        if d != dlt.to_string() { continue }
        n += 1;
        let mut op = Options::default();
        op.link_type = LinkType(dlt);
        op.netmask = Some(0xffffff00);
        op.source = match hook { Hook::Xdp => Source::Xdp, Hook::Tc => Source::Tc, _ => Source::CgroupSkb };
        let Ok(f) = compile(e, &op) else { unsup += 1; continue };
        let acts = if hook == Hook::CgroupSkb { Actions { matched: 1, other: 0 } } else { Actions { matched: 2, other: 1 } };
        let o = match f.object(hook, acts) { Ok(o) => o, Err(x) => { unsup += 1; println!("NO {e:.80}: {x}"); continue } };
        let l = match LoadedObject::load(&o, &LoadOptions::default()) { Ok(l) => l, Err(x) => { refused += 1; if refused < 6 { println!("REFUSED {e:.120}: {:.900}", x.to_string()); std::fs::write("/tmp/orc/refused.o", &o).unwrap(); } continue } };
        size += f.assembly(hook, acts).unwrap().lines().filter(|l| l.starts_with(' ')).count();
        let mut here = 0;
        for (pd, off, cap) in ps.iter().filter(|p| p.0 == dlt as u32).step_by(step) {
            let _ = pd;
            for cap in [*cap, *cap / 2, 60.min(*cap), 34.min(*cap), 21.min(*cap)] {
                if cap < 14 || cap > 3500 { continue }
                let p = &b[*off..*off + cap];
                let want = f.count(&Packet { captured: p, length: cap as u32, beside: Beside::default() }).accepted;
                match l.test_run("filter", p, None, 1) {
                    Ok(r) => { if (r.retval == acts.matched as u32) == want { agree += 1 } else { bad += 1; here += 1; if here == 1 { println!("DIFF {e:.100} cap {cap} off {off} want {want} got {}", r.retval) } } }
                    Err(x) => { println!("RUN {x}"); break }
                }
            }
        }
    }
    println!("{n} filters, refused {refused}, unsupported {unsup}, agree {agree} bad {bad}, slots {size}");
}
