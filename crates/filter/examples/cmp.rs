use bpf_filter::*;
use std::io::Read;
fn ld(p: &Packet, k: u64, s: u64) -> Option<u32> { let b = p.captured.get(k as usize..(k + s) as usize)?; Some(b.iter().fold(0, |n, b| n << 8 | *b as u32)) }
fn classic(c: &[Classic], p: &Packet) -> (bool, u64) {
    let (mut a, mut x, mut m, mut pc, mut n) = (0u32, 0u32, [0u32; 16], 0usize, 0u64);
    loop {
        if pc >= c.len() { panic!("off the end") }
        n += 1;
        let i = c[pc]; let k = i.k; pc += 1;
        macro_rules! l { ($e:expr) => { match $e { Some(v) => v, None => return (false, n) } } }
        let sz = |c: u16| match c & 0x18 { 8 => 2u64, 0x10 => 1, _ => 4 };
        match i.code & 7 {
            0 => a = match i.code & 0xe0 { 0 => k, 0x20 => l!(ld(p, k as u64, sz(i.code))), 0x40 => l!(ld(p, k as u64 + x as u64, sz(i.code))), 0x60 => m[k as usize], 0x80 => p.length, _ => panic!() },
            1 => x = match i.code & 0xe0 { 0 => k, 0x60 => m[k as usize], 0x80 => p.length, 0xa0 => (l!(ld(p, k as u64, 1)) & 15) << 2, _ => panic!() },
            2 => m[k as usize] = a, 3 => m[k as usize] = x,
            4 => { let b = if i.code & 8 != 0 { x } else { k }; a = match i.code & 0xf0 { 0 => a.wrapping_add(b), 0x10 => a.wrapping_sub(b), 0x20 => a.wrapping_mul(b), 0x30 => l!(a.checked_div(b)), 0x40 => a | b, 0x50 => a & b, 0x60 => a.checked_shl(b).unwrap_or(0), 0x70 => a.checked_shr(b).unwrap_or(0), 0x80 => a.wrapping_neg(), 0x90 => l!(a.checked_rem(b)), 0xa0 => a ^ b, _ => panic!() } }
            5 => { let b = if i.code & 8 != 0 { x } else { k }; let t = match i.code & 0xf0 { 0 => { pc = (pc as i64 + k as i32 as i64) as usize; continue } 0x10 => a == b, 0x20 => a > b, 0x30 => a >= b, 0x40 => a & b != 0, _ => panic!() }; pc += if t { i.jt } else { i.jf } as usize }
            6 => return (k != 0, n),
            _ => if i.code & 0xf8 == 0x80 { a = x } else { x = a },
        }
    }
}
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
                let cl = if a.get(4).map(|s| s == "classic").unwrap_or(false) { match f.classic(if std::env::var("GOAL").is_ok() { ClassicGoal::Time } else { ClassicGoal::Size }) { Ok(c) => Some(c), Err(x) => { errdiff += 1; println!("NO CLASSIC {d} {e:.100} {x}"); continue } } } else { None };
                let mut k = 0; let mut badhere = 0; let mut ops = 0u64; let mut np = 0u64;
                for (l, pd, off, cap, i) in &ps {
                    if *pd != d { continue; }
                    let r = (v[k] as char).to_digit(16).unwrap(); k += 1;
                    let caps = [*cap as u32, *cap as u32 / 2, (*i as u32).wrapping_mul(7919) % (*cap as u32 + 1), (*i as u32).wrapping_mul(104729) % (if *cap < 70 { *cap as u32 + 1 } else { 70 })];
                    for q in 0..4 {
                        let p = Packet { captured: &b[*off..*off + caps[q] as usize], length: *l, beside: Beside::default() };
                        let mut run = f.count(&p); if let Some(c) = &cl { let (acc, n) = classic(c, &p); run = Run { accepted: acc, operations: n } }
                        if q == 0 { ops += run.operations; np += 1; }
                        if (r >> q & 1 == 1) == run.accepted { agree += 1 } else { bad += 1; badhere += 1; if badhere == 1 && shown < 40 { shown += 1; println!("DIFF {d} {e:.120} packet {i} cap {} theirs {}", caps[q], r >> q & 1) } }
                    }
                }
                if let Some(w) = &mut ops_file { use std::io::Write; writeln!(w, "{}\t{:.2}\t{}\t{:.4}", cl.as_ref().map_or(f.size(), |c| c.len()), ops as f64 / np.max(1) as f64, np, t).unwrap(); }
            }
        }
    }
    println!("agree {agree} bad {bad} skipped {skipped} ours-refused {errdiff}");
}
