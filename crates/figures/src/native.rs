//! Filters as a programmer writes them in C: a function for each predicate, which looks for its fields itself; compiled by clang
//! for this machine, and called in this process.

use std::path::Path;

use bpf_testgen::c::Clang;
use libloading::{Library, Symbol};

/// What the predicates of [`crate::filters`] are in C. They see whole packets; verdicts are compared before anything is measured.
const PREDICATES: &str = "
typedef unsigned char u8;
typedef unsigned int u32;
static u32 half(const u8 *p) { return (u32)p[0] << 8 | p[1]; }
static u32 word(const u8 *p) { return half(p) << 16 | half(p + 2); }
static int ip(const u8 *p, u32 n) { return n >= 34 && half(p + 12) == 0x0800; }
static int ip6(const u8 *p, u32 n) { return n >= 54 && half(p + 12) == 0x86dd; }
static int arp(const u8 *p, u32 n) { return n >= 42 && (half(p + 12) == 0x0806 || half(p + 12) == 0x8035); }
static int transport(u32 protocol) { return protocol == 6 || protocol == 17 || protocol == 132; }
static int tcp(const u8 *p, u32 n)
{
    return (ip(p, n) && p[23] == 6) || (ip6(p, n) && (p[20] == 6 || (p[20] == 44 && n >= 55 && p[54] == 6)));
}
static int ip_src_host(const u8 *p, u32 n, u32 host) { return ip(p, n) && word(p + 26) == host; }
static int src_host(const u8 *p, u32 n, u32 host)
{
    return ip_src_host(p, n, host) || (arp(p, n) && word(p + 28) == host);
}
static int dst_host(const u8 *p, u32 n, u32 host)
{
    return (ip(p, n) && word(p + 30) == host) || (arp(p, n) && word(p + 38) == host);
}
static int net(const u8 *p, u32 n, u32 network, u32 mask)
{
    return (ip(p, n) && ((word(p + 26) & mask) == network || (word(p + 30) & mask) == network))
        || (arp(p, n) && ((word(p + 28) & mask) == network || (word(p + 38) & mask) == network));
}
static int ports(const u8 *p, u32 n, u32 at, u32 port)
{
    return n >= at + 4 && (half(p + at) == port || half(p + at + 2) == port);
}
static int port(const u8 *p, u32 n, u32 port)
{
    return (ip(p, n) && transport(p[23]) && !(half(p + 20) & 0x1fff) && ports(p, n, 14 + 4 * (p[14] & 15), port))
        || (ip6(p, n) && transport(p[20]) && ports(p, n, 54, port));
}
";

/// Compiled functions.
pub struct Native {
    library: Library,
}

type Function = unsafe extern "C" fn(*const u8, u32) -> i32;

/// One of them.
#[derive(Clone, Copy)]
pub struct NativeFilter<'a> {
    function: Function,
    /// The function is in memory as long as the library is.
    _of: std::marker::PhantomData<&'a Native>,
}

impl Native {
    /// Compiles what functions return: the first is number 0.
    ///
    /// # Errors
    /// What clang or the loader says.
    pub fn compile(clang: &Clang, bodies: &[&str], folder: &Path) -> Result<Native, String> {
        let function =
            |(i, body): (usize, &&str)| format!("int filter_{i}(const u8 *p, u32 n)\n{{\n    return {body};\n}}\n");
        let functions: String = bodies.iter().enumerate().map(function).collect();
        let path = folder.join("filters.so");
        clang.shared_object(&format!("{PREDICATES}{functions}"), &path)?;
        // SAFETY: the object is made of the text above, which has no initializers.
        let library = unsafe { Library::new(&path) }.map_err(|e| e.to_string())?;
        Ok(Native { library })
    }

    /// The function of this number.
    ///
    /// # Errors
    /// If there is none.
    pub fn filter(&self, number: usize) -> Result<NativeFilter<'_>, String> {
        // SAFETY: the type is that of the functions that `compile` writes.
        let symbol: Result<Symbol<'_, Function>, _> = unsafe { self.library.get(format!("filter_{number}")) };
        let function = *symbol.map_err(|e| e.to_string())?;
        Ok(NativeFilter { function, _of: std::marker::PhantomData })
    }
}

impl NativeFilter<'_> {
    /// Whether it accepts a packet.
    #[inline]
    pub fn accepts(self, packet: &[u8]) -> bool {
        // SAFETY: the function reads so many bytes at most: each predicate compares its fields' ends with `n`.
        unsafe { (self.function)(packet.as_ptr(), packet.len() as u32) != 0 }
    }
}
