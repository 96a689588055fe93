use bpf_filter::*;
use std::io::Read;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut b = Vec::new();
    std::fs::File::open(&a[1]).unwrap().read_to_end(&mut b).unwrap();
    let u = |i: usize| u32::from_le_bytes(b[i..i + 4].try_into().unwrap());
    let mut ps: Vec<(u32, u32, usize, usize, usize)> = vec![];
    let (mut i, mut n) = (0, 0usize);
    while i < b.len() { let (l, c, d) = (u(i), u(i + 4), u(i + 8)); ps.push((l, d, i + 12, c as usize, n)); i += 12 + c as usize; n += 1; }
    let ex = std::fs::read_to_string(&a[2]).unwrap();
    let out = std::fs::read_to_string(&a[3]).unwrap();
    let (mut agree, mut bad, mut skipped, mut errdiff, mut shown) = (0u64, 0u64, 0u64, 0u64, 0);
    let opt = a.get(4).map(|s| s != "plain").unwrap_or(true);
    let mut ops_file = a.get(5).map(|f| std::fs::File::create(f).unwrap());
    for (e, o) in ex.lines().zip(out.lines()) {
        let (d, e) = e.split_once('\t').unwrap();
        let d: u32 = d.parse().unwrap();
        let mut op = Options::default();
        op.link_type = LinkType(d as u16);
        op.netmask = Some(0xffffff00);
        op.optimize = opt;
        let t = std::time::Instant::now();
        let f = compile(e, &op);
        let t = t.elapsed().as_secs_f64();
        if t > 0.5 { println!("SLOW {t:.2} {d} {}", &e[..e.len().min(80)]); }
        match (f, o.strip_prefix("V ")) {
            (Err(x), Some(_)) => { errdiff += 1; if errdiff < 40 { println!("OURS REFUSES {d} {e:.100}: {x}") } }
            (Ok(_), None) => { skipped += 1; if a.get(4).map(|s| s == "show").unwrap_or(false) { println!("THEIRS REFUSES {d} {e:.100}: {o}") } }
            (Err(_), None) => agree += 1,
            (Ok(f), Some(v)) => {
                let v = v.as_bytes();
                let mut k = 0; let mut badhere = 0; let mut ops = 0u64; let mut np = 0u64;
                for (l, pd, off, cap, i) in &ps {
                    if *pd != d { continue; }
                    let r = (v[k] as char).to_digit(16).unwrap(); k += 1;
                    let caps = [*cap as u32, *cap as u32 / 2, (*i as u32).wrapping_mul(7919) % (*cap as u32 + 1), (*i as u32).wrapping_mul(104729) % (if *cap < 70 { *cap as u32 + 1 } else { 70 })];
                    for q in 0..4 {
                        let p = Packet { captured: &b[*off..*off + caps[q] as usize], length: *l, beside: Beside::default() };
                        let run = f.count(&p);
                        if q == 0 { ops += run.operations; np += 1; }
                        if (r >> q & 1 == 1) == run.accepted { agree += 1 } else { bad += 1; badhere += 1; if badhere == 1 && shown < 40 { shown += 1; println!("DIFF {d} {e:.120} packet {i} cap {} theirs {}", caps[q], r >> q & 1) } }
                    }
                }
                if let Some(w) = &mut ops_file { use std::io::Write; writeln!(w, "{}\t{:.2}\t{}\t{:.4}", f.size(), ops as f64 / np.max(1) as f64, np, t).unwrap(); }
            }
        }
    }
    println!("agree {agree} bad {bad} skipped {skipped} ours-refused {errdiff}");
}
