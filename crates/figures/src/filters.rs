//! The filters that are measured, as expressions and, where that is compared, as C.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use fastrand::Rng;

/// Which figure's filters one belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// A chain of `and`.
    And,
    /// A chain of `or`.
    Or,
    /// TCP from one of some hosts.
    Hosts,
    /// The 27 predicates.
    Large,
}

/// A filter that is measured.
#[derive(Clone, Debug)]
pub struct Subject {
    /// What it belongs to.
    pub family: Family,
    /// How many predicates, or hosts, it has.
    pub predicates: usize,
    /// The text.
    pub expression: String,
    /// What a programmer would return in a function of C, if it is compared with that.
    pub c: Option<String>,
}

impl Subject {
    /// How it is called in tables.
    pub fn name(&self) -> String {
        match self.family {
            Family::And => format!("and, {}", self.predicates),
            Family::Or => format!("or, {}", self.predicates),
            Family::Hosts => format!("hosts, {}", self.predicates),
            Family::Large => format!("{} predicates", self.predicates),
        }
    }
}

/// The predicates of Figure 6, in its order, with their C. The paper does not say its addresses. The network holds the target: of
/// predicates that exclude each other a chain of `and` accepts nothing.
const CHAIN: [(&str, &str); 5] = [
    ("tcp", "tcp(p, n)"),
    ("src host 192.0.2.7", "src_host(p, n, 0xc0000207)"),
    ("dst host 198.51.100.9", "dst_host(p, n, 0xc6336409)"),
    ("port 80", "port(p, n, 80)"),
    ("net 198.51.0.0/16", "net(p, n, 0xc6330000, 0xffff0000)"),
];

/// The chains of Figures 6 and 8.
pub fn chains() -> Vec<Subject> {
    let chain = |family, predicates: usize, word, operator| {
        let (texts, codes): (Vec<&str>, Vec<&str>) = CHAIN[..predicates].iter().copied().unzip();
        Subject { family, predicates, expression: texts.join(word), c: Some(codes.join(operator)) }
    };
    let and = (1..=CHAIN.len()).map(|n| chain(Family::And, n, " and ", " && "));
    let or = (1..=CHAIN.len()).map(|n| chain(Family::Or, n, " or ", " || "));
    and.chain(or).collect()
}

/// Different hosts, the same ones for a seed.
pub fn hosts(count: usize, seed: u64) -> Vec<Ipv4Addr> {
    let mut rng = Rng::with_seed(seed);
    let mut all = std::collections::BTreeSet::new();
    let mut drawn = Vec::new();
    while drawn.len() < count {
        // What may be a host's: no network 0, no group.
        let address = Ipv4Addr::from_bits(rng.u32(0x0100_0000..0xe000_0000));
        if all.insert(address) {
            drawn.push(address);
        }
    }
    drawn
}

/// `ip src host A or ip src host B`, and so on.
pub fn any_source(hosts: &[Ipv4Addr]) -> String {
    hosts.iter().map(|host| format!("ip src host {host}")).collect::<Vec<_>>().join(" or ")
}

/// The filters of Figures 7 and 9: each has the hosts of the one before, too.
pub fn tcp_with_hosts(counts: &[usize], seed: u64) -> Vec<Subject> {
    let all = hosts(counts.iter().copied().max().unwrap_or(0), seed);
    let of = |count: &usize| {
        let mut c = "tcp(p, n) && (0".to_owned();
        for host in &all[..*count] {
            // Writing to a string does not fail.
            let _ = write!(c, "\n || ip_src_host(p, n, {:#x})", host.to_bits());
        }
        let expression = format!("tcp and ({})", any_source(&all[..*count]));
        Subject { family: Family::Hosts, predicates: *count, expression, c: Some(c + ")") }
    };
    counts.iter().map(of).collect()
}
