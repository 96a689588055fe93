//! From text to tokens.
//!
//! As in libpcap's `scanner.l` the longest match counts, and of equally long ones the first of this order: keywords, MAC
//! addresses, numbers, IPv4 and IPv6 addresses, names.

use std::collections::HashSet;
use std::ops::Range;

use super::ast::Protocol;
use crate::error::Error;

/// A token and its place.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) span: Range<usize>,
}

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind<'a> {
    Keyword(Keyword),
    Protocol(Protocol),
    Number(u32),
    /// A name; a leading backslash has gone.
    Name(&'a str),
    /// Two to four numbers with dots.
    Ipv4(&'a str),
    Ipv6(&'a str),
    Mac([u8; 6]),
    /// `$` and one or two hexadecimal digits.
    Arcnet(u8),
    /// `$` and the name of a set.
    Set(&'a str),
    /// An operator or bracket: `( ) [ ] : ! = > < >= <= != + - * / % & | ^ << >>`.
    Operator(Operator),
}

/// Operators and brackets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(super) enum Operator {
    Open,
    Close,
    OpenIndex,
    CloseIndex,
    Colon,
    Equal,
    Greater,
    Less,
    GreaterEqual,
    LessEqual,
    NotEqual,
    Plus,
    Minus,
    Times,
    Divide,
    Modulo,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

macro_rules! keywords {
    ($($name:ident: $($text:literal)|+;)*) => {
        /// Words with a meaning of their own.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Keyword {
            $($name),*
        }

        fn keyword(word: &str) -> Option<Keyword> {
            Some(match word {
                $($($text)|+ => Keyword::$name,)*
                _ => return None,
            })
        }
    };
}

keywords! {
    Dst: "dst";
    Src: "src";
    Host: "host";
    Net: "net";
    Mask: "mask";
    Port: "port";
    PortRange: "portrange";
    Proto: "proto";
    ProtoChain: "protochain";
    Gateway: "gateway";
    Type: "type";
    Subtype: "subtype";
    Dir: "direction" | "dir";
    Addr1: "address1" | "addr1";
    Addr2: "address2" | "addr2";
    Addr3: "address3" | "addr3";
    Addr4: "address4" | "addr4";
    Ra: "ra";
    Ta: "ta";
    Less: "less";
    Greater: "greater";
    Byte: "byte";
    Broadcast: "broadcast";
    Multicast: "multicast";
    And: "and" | "&&";
    Or: "or" | "||";
    Not: "not" | "!";
    Len: "len" | "length";
    Inbound: "inbound";
    Outbound: "outbound";
    IfIndex: "ifindex";
    Vlan: "vlan";
    Mpls: "mpls";
    Pppoed: "pppoed";
    Pppoes: "pppoes";
    Geneve: "geneve";
    Vxlan: "vxlan";
    Lane: "lane";
    Llc: "llc";
    Metac: "metac";
    Bcc: "bcc";
    Oam: "oam";
    OamF4: "oamf4";
    OamF4Ec: "oamf4ec";
    OamF4Sc: "oamf4sc";
    Sc: "sc";
    Ilmic: "ilmic";
    Vpi: "vpi";
    Vci: "vci";
    ConnectMsg: "connectmsg";
    MetaConnect: "metaconnect";
    IfName: "on" | "ifname";
    RuleSet: "rset" | "ruleset";
    RuleNumber: "rnr" | "rulenum";
    SubRuleNumber: "srnr" | "subrulenum";
    Reason: "reason";
    Action: "action";
    Fisu: "fisu";
    Lssu: "lssu" | "lsu";
    Msu: "msu";
    HFisu: "hfisu";
    HLssu: "hlssu";
    HMsu: "hmsu";
    Sio: "sio";
    Opc: "opc";
    Dpc: "dpc";
    Sls: "sls";
    HSio: "hsio";
    HOpc: "hopc";
    HDpc: "hdpc";
    HSls: "hsls";
}

/// Names that stand for numbers: offsets of fields, types of ICMP, flags of TCP.
fn named_number(word: &str) -> Option<u32> {
    Some(match word {
        "icmptype" | "icmp6type" | "icmp-echoreply" => 0,
        "icmpcode" | "icmp6code" | "tcp-fin" | "icmp6-destinationunreach" => 1,
        "icmp6-packettoobig" | "tcp-syn" => 2,
        "icmp-unreach" | "icmp6-timeexceeded" => 3,
        "icmp-sourcequench" | "icmp6-parameterproblem" | "tcp-rst" => 4,
        "icmp-redirect" => 5,
        "icmp-echo" | "tcp-push" => 8,
        "icmp-routeradvert" => 9,
        "icmp-routersolicit" => 10,
        "icmp-timxceed" => 11,
        "icmp-paramprob" => 12,
        "icmp-tstamp" | "tcpflags" => 13,
        "icmp-tstampreply" => 14,
        "icmp-ireq" => 15,
        "icmp-ireqreply" | "tcp-ack" => 16,
        "icmp-maskreq" => 17,
        "icmp-maskreply" => 18,
        "tcp-urg" => 0x20,
        "tcp-ece" => 0x40,
        "tcp-cwr" => 0x80,
        "icmp6-echo" => 128,
        "icmp6-echoreply" => 129,
        "icmp6-multicastlistenerquery" => 130,
        "icmp6-multicastlistenerreportv1" => 131,
        "icmp6-multicastlistenerdone" => 132,
        "icmp6-routersolicit" => 133,
        "icmp6-routeradvert" => 134,
        "icmp6-neighborsolicit" => 135,
        "icmp6-neighboradvert" => 136,
        "icmp6-redirect" => 137,
        "icmp6-routerrenum" => 138,
        "icmp6-nodeinformationquery" => 139,
        "icmp6-nodeinformationresponse" => 140,
        "icmp6-ineighbordiscoverysolicit" => 141,
        "icmp6-ineighbordiscoveryadvert" => 142,
        "icmp6-multicastlistenerreportv2" => 143,
        "icmp6-homeagentdiscoveryrequest" => 144,
        "icmp6-homeagentdiscoveryreply" => 145,
        "icmp6-mobileprefixsolicit" => 146,
        "icmp6-mobileprefixadvert" => 147,
        "icmp6-certpathsolicit" => 148,
        "icmp6-certpathadvert" => 149,
        "icmp6-multicastrouteradvert" => 151,
        "icmp6-multicastroutersolicit" => 152,
        "icmp6-multicastrouterterm" => 153,
        _ => return None,
    })
}

/// All tokens of a text. `sets` are the names that may follow a `$`.
pub(super) fn tokens<'a>(text: &'a str, sets: &HashSet<String>) -> Result<Vec<Token<'a>>, Error> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if matches!(text.as_bytes()[at], b' ' | b'\t' | b'\r' | b'\n') {
            at += 1;
            continue;
        }
        let (kind, length) = token(&text[at..], at, sets)?;
        all.push(Token { kind, span: at..at + length });
        at += length;
    }
    Ok(all)
}

/// The token at the start of `rest`, which stands at `at`, and its length.
fn token<'a>(rest: &'a str, at: usize, sets: &HashSet<String>) -> Result<(Kind<'a>, usize), Error> {
    if let Some((kind, length)) = operator(rest) {
        return Ok((kind, length));
    }
    if let Some(name) = rest.strip_prefix('\\') {
        let length = name.find([' ', '!', '(', ')', '\n', '\t']).unwrap_or(name.len());
        if length > 0 {
            return Ok((Kind::Name(&name[..length]), length + 1));
        }
    }
    if let Some(after) = rest.strip_prefix('$') {
        return dollar(after, at, sets);
    }
    let word = word_length(rest);
    // A name may hold no colon, so that addresses with one are longer than any name in them.
    let ip6 = ipv6_length(rest);
    let (mac, mac_length) = mac(rest).map_or((None, 0), |(mac, n)| (Some(mac), n));
    let bogus = bogus_mac_length(rest);
    let longest = word.max(ip6).max(mac_length).max(bogus);
    if longest == 0 {
        let c = rest.chars().next().unwrap_or(' ');
        return Err(Error::new(at..at + c.len_utf8(), format!("there is no meaning to {c:?} in a filter")));
    }
    let span = at..at + longest;
    if let Some(mac) = mac
        && mac_length == longest
    {
        return Ok((Kind::Mac(mac), longest));
    }
    let text = &rest[..longest];
    if word == longest
        && let Some(kind) = word_kind(text, &span)?
    {
        return Ok((kind, longest));
    }
    if ip6 == longest {
        if text.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(Error::new(span, format!("bogus IPv6 address {text}")));
        }
        return Ok((Kind::Ipv6(text), longest));
    }
    if bogus == longest {
        return Err(Error::new(span, format!("bogus Ethernet address {text}"))
            .help("an Ethernet address has six parts, as in 02:00:00:00:00:01"));
    }
    Ok((Kind::Name(text), longest))
}

/// What a word is that is neither an address with colons nor just a name.
fn word_kind<'a>(text: &'a str, span: &Range<usize>) -> Result<Option<Kind<'a>>, Error> {
    if let Some(k) = keyword(text) {
        return Ok(Some(Kind::Keyword(k)));
    }
    if let Some(p) = Protocol::of_word(text) {
        return Ok(Some(Kind::Protocol(p)));
    }
    if is_number(text) {
        return number(text, span).map(|n| Some(Kind::Number(n)));
    }
    let parts = text.split('.');
    if (2..=4).contains(&parts.clone().count()) && parts.clone().all(is_number) {
        return Ok(Some(Kind::Ipv4(text)));
    }
    Ok(named_number(text).map(Kind::Number))
}

fn operator(rest: &str) -> Option<(Kind<'static>, usize)> {
    use Operator::*;
    for (text, k) in [("&&", Keyword::And), ("||", Keyword::Or)] {
        if rest.starts_with(text) {
            return Some((Kind::Keyword(k), 2));
        }
    }
    let two = [
        (">=", GreaterEqual),
        ("<=", LessEqual),
        ("!=", NotEqual),
        ("==", Equal),
        ("<<", ShiftLeft),
        (">>", ShiftRight),
    ];
    if let Some((_, operator)) = two.iter().find(|(text, _)| rest.starts_with(text)) {
        return Some((Kind::Operator(*operator), 2));
    }
    let one = match rest.as_bytes().first()? {
        b'!' => return Some((Kind::Keyword(Keyword::Not), 1)),
        b'(' => Open,
        b')' => Close,
        b'[' => OpenIndex,
        b']' => CloseIndex,
        b':' if !rest.starts_with("::") => Colon,
        b'=' => Equal,
        b'>' => Greater,
        b'<' => Less,
        b'+' => Plus,
        b'-' => Minus,
        b'*' => Times,
        b'/' => Divide,
        b'%' => Modulo,
        b'&' => And,
        b'|' => Or,
        b'^' => Xor,
        _ => return None,
    };
    Some((Kind::Operator(one), 1))
}

/// What follows a `$`: the name of a set, or an ARCnet address.
fn dollar<'a>(after: &'a str, at: usize, sets: &HashSet<String>) -> Result<(Kind<'a>, usize), Error> {
    let length = word_length(after);
    let name = &after[..length];
    if sets.contains(name) {
        return Ok((Kind::Set(name), length + 1));
    }
    let digits = after.bytes().take(2).take_while(u8::is_ascii_hexdigit).count();
    if digits > 0 && (length <= 2 || digits == length) {
        let value = u8::from_str_radix(&after[..digits], 16).unwrap_or_default();
        return Ok((Kind::Arcnet(value), digits + 1));
    }
    if length == 0 {
        let text = "'$' stands before the name of a set, which begins with a letter or a digit";
        return Err(Error::new(at..at + 1, text).help("--set NAME=FILE gives a name to the lines of a file"));
    }
    Err(Error::new(at..at + 1 + length, format!("there is no set called {name:?}"))
        .help("--set NAME=FILE gives a name to the lines of a file"))
}

/// Whether a filter can write `$NAME`.
pub(crate) fn is_set_name(name: &str) -> bool {
    !name.is_empty() && word_length(name) == name.len()
}

/// The length of the name at the start: letters, digits, and in its middle `-`, `_` and `.`, which may also end it if a dot.
fn word_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    if !bytes.first().is_some_and(u8::is_ascii_alphanumeric) {
        return 0;
    }
    let run = bytes.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')).count();
    let kept = bytes[..run].iter().rev().take_while(|b| matches!(b, b'-' | b'_')).count();
    run - kept
}

fn is_number(text: &str) -> bool {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    match hex {
        Some(digits) => !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()),
    }
}

/// A number as in C: decimal, octal behind a 0, hexadecimal behind 0x.
fn number(text: &str, span: &Range<usize>) -> Result<u32, Error> {
    let (radix, digits, kind) = match (text.strip_prefix("0x").or(text.strip_prefix("0X")), text.strip_prefix('0')) {
        (Some(hex), _) => (16, hex, "hexadecimal"),
        (None, Some(octal)) if !octal.is_empty() => (8, octal, "octal"),
        _ => (10, text, "decimal"),
    };
    let mut value: u64 = 0;
    for digit in digits.chars() {
        let Some(digit) = digit.to_digit(radix) else {
            return Err(Error::new(span.clone(), format!("number {text} contains non-octal digit")));
        };
        value = value * u64::from(radix) + u64::from(digit);
        if value > u64::from(u32::MAX) {
            return Err(Error::new(span.clone(), format!("{kind} number {text} overflows 32 bits")));
        }
    }
    Ok(value as u32)
}

/// A MAC address at the start, and its length: six parts with one kind of `: - .` between them, three of four digits with dots,
/// or twelve digits.
fn mac(rest: &str) -> Option<([u8; 6], usize)> {
    let bytes = rest.as_bytes();
    let hex = |from: usize, most: usize| {
        bytes.get(from..).unwrap_or_default().iter().take(most).take_while(|b| b.is_ascii_hexdigit()).count()
    };
    let value = |from: usize, n: usize| u32::from_str_radix(&rest[from..from + n], 16).unwrap_or_default();
    let mut best = None;
    let mut take = |mac: [u8; 6], length: usize| {
        if best.is_none_or(|(_, n)| n < length) {
            best = Some((mac, length));
        }
    };
    for separator in [b':', b'-', b'.'] {
        let (mut at, mut mac) = (0, [0; 6]);
        let whole = (0..6).all(|i| {
            if i > 0 {
                if bytes.get(at) != Some(&separator) {
                    return false;
                }
                at += 1;
            }
            let n = hex(at, 2);
            if n > 0 {
                mac[i] = value(at, n) as u8;
                at += n;
            }
            n > 0
        });
        if whole {
            take(mac, at);
        }
    }
    for gap in [1, 0] {
        let parts: Vec<usize> = (0..3).map(|i| i * (4 + gap)).collect();
        let dots = gap == 0 || (bytes.get(4) == Some(&b'.') && bytes.get(9) == Some(&b'.'));
        if dots && parts.iter().all(|p| hex(*p, 4) == 4) {
            let mut mac = [0; 6];
            for (i, p) in parts.iter().enumerate() {
                let v = value(*p, 4);
                (mac[2 * i], mac[2 * i + 1]) = ((v >> 8) as u8, v as u8);
            }
            take(mac, parts[2] + 4);
        }
    }
    best
}

/// The length of what looks like the start of an Ethernet address and is none: two or more parts with colons behind them.
fn bogus_mac_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut at, mut parts) = (0, 0);
    loop {
        let digits = bytes[at..].iter().take(2).take_while(|b| b.is_ascii_hexdigit()).count();
        let colons = bytes[at + digits..].iter().take_while(|b| **b == b':').count();
        if digits == 0 || colons == 0 {
            break;
        }
        at += digits + colons;
        parts += 1;
    }
    if parts >= 2 { at } else { 0 }
}

/// The length of the longest IPv6 address at the start, by its form alone.
fn ipv6_length(rest: &str) -> usize {
    let run =
        rest.bytes().take(64).take_while(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.' | b'x' | b'X')).count();
    if !rest[..run].contains(':') {
        return 0;
    }
    (2..=run).rev().find(|n| is_ipv6_form(&rest[..*n])).unwrap_or(0)
}

fn is_ipv6_form(text: &str) -> bool {
    /// How many of the eight groups a part between or beside `::` has.
    fn groups(part: &str) -> Option<usize> {
        if part.is_empty() {
            return Some(0);
        }
        let mut n = 0;
        let mut fields = part.split(':').peekable();
        while let Some(field) = fields.next() {
            if field.contains('.') {
                let numbers = field.split('.');
                if fields.peek().is_some() || numbers.clone().count() != 4 || !numbers.clone().all(is_number) {
                    return None;
                }
                n += 2;
            } else if (1..=4).contains(&field.len()) && field.bytes().all(|b| b.is_ascii_hexdigit()) {
                n += 1;
            } else {
                return None;
            }
        }
        Some(n)
    }
    match text.split_once("::") {
        None => groups(text) == Some(8),
        Some((left, right)) => {
            !left.contains('.')
                && match (groups(left), groups(right)) {
                    (Some(l), Some(r)) => l + r <= 7,
                    _ => false,
                }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind<'_>> {
        tokens(text, &HashSet::new()).unwrap().into_iter().map(|t| t.kind).collect()
    }

    #[test]
    fn the_longest_match_counts() {
        assert_eq!(kinds("25-53"), [Kind::Name("25-53")]);
        assert_eq!(kinds("10.0.0.0/8"), [Kind::Ipv4("10.0.0.0"), Kind::Operator(Operator::Divide), Kind::Number(8)]);
        assert_eq!(kinds("123456789012"), [Kind::Mac([0x12, 0x34, 0x56, 0x78, 0x90, 0x12])]);
        assert_eq!(kinds("0:1:2:3:4:5"), [Kind::Mac([0, 1, 2, 3, 4, 5])]);
        assert_eq!(kinds("fe80::1"), [Kind::Ipv6("fe80::1")]);
        assert_eq!(kinds("::1.2.3.4"), [Kind::Ipv6("::1.2.3.4")]);
        assert_eq!(kinds("a.b-c."), [Kind::Name("a.b-c.")]);
        assert_eq!(kinds("\\tcp"), [Kind::Name("tcp")]);
        assert_eq!(kinds("$c0"), [Kind::Arcnet(0xc0)]);
        assert_eq!(kinds("017 0x1F"), [Kind::Number(15), Kind::Number(31)]);
    }

    #[test]
    fn numbers_out_of_range_are_errors() {
        for text in ["4294967296", "0x100000000", "08", "0040000000000", "\u{e9}"] {
            assert!(tokens(text, &HashSet::new()).is_err(), "{text}");
        }
    }
}
