//! Names of files: a filter with a name is the filter with what libpcap and glibc find under it.

use std::path::{Path, PathBuf};

use bpf_filter::{ClassicGoal, LinkType, NameFiles, Options, compile};

use crate::common::options;

const NETWORKS: &[u8] =
    b"foo 10 # in Latin-1: \xe4\nbar 10.1 bars\nbaz 192.168.1\nsmall 0.10\nhex 0x0a\nbroken 08\nnone 0\n";
const SERVICES: &[u8] =
    b"hexp 0x10/tcp\noctal 010/tcp\nlarge 65537/tcp\nslash 5//tcp\nspace 5 /tcp\nother 7/sctp\nminus -5/tcp\n";
const PROTOCOLS: &[u8] = b"hexq 0x10\noctq 010\nplus +5\n";
const ETHERS: &[u8] =
    b"02-00-00-00-00-03 dash\n02:00:00:00:00:04 colon\n002:0:0:0:0x0:5 short\n2:0:0:0:0:0:8 seven\n1ff:0:0:0:0:1 over\n";

fn file(name: &str, text: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("names");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(name);
    std::fs::write(&path, text).expect("room for a file");
    path
}

fn with_files() -> Options {
    let names = NameFiles {
        networks: file("networks", NETWORKS),
        services: file("services", SERVICES),
        protocols: file("protocols", PROTOCOLS),
        ethers: file("ethers", ETHERS),
        ..NameFiles::default()
    };
    Options { names, ..options(LinkType::EN10MB) }
}

/// What stands to the right is what libpcap 1.10.3 makes of the left side over these files.
#[test]
fn names_stand_for_what_libpcap_finds() {
    let options = with_files();
    let listing = |text: &str| {
        let filter = compile(text, &options).unwrap_or_else(|e| panic!("{}", e.render(text)));
        filter.classic(ClassicGoal::Size).expect("a classic form").to_vec()
    };
    for (named, spelled) in [
        ("src net foo", "src net 10.0.0.0/32"),
        ("src net bar", "src net 10.1.0.0/32"),
        ("src net BARS", "src net 10.1.0.0/32"),
        ("dst net foo or bar", "dst net 10.0.0.0/32 or 10.1.0.0/32"),
        ("net baz", "net 192.168.1.0/32"),
        ("net small", "net 10.0.0.0/24"),
        ("net hex", "net 10.0.0.0/32"),
        ("net broken", "net 255.255.255.255/32"),
        ("port hexp", "tcp port 16"),
        ("port octal", "tcp port 8"),
        ("port large", "tcp port 1"),
        ("port slash", "tcp port 5"),
        ("ip proto octq", "ip proto 10"),
        ("ip proto plus", "ip proto 5"),
        ("ether host colon", "ether host 02:00:00:00:00:04"),
        ("ether host SHORT", "ether host 02:00:00:00:00:05"),
    ] {
        assert_eq!(listing(named), listing(spelled), "{named}");
    }
    for unknown in [
        "net none",
        "net fo",
        "port space",
        "port other",
        "port minus",
        "ip proto hexq",
        "ether host dash",
        "ether host seven",
        "ether host over",
    ] {
        let said = compile(unknown, &options).map(|_| unknown).expect_err(unknown);
        assert!(said.message.starts_with("unknown "), "{unknown}: {}", said.message);
    }
}
