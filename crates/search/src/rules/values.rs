//! What is known of a register or a piece of the frame, as text.

use std::fmt::Write;
use std::sync::Arc;

use bpf_facts::{BaseId, Kind, Num, Region, Tnum, Value};
use bpf_program::BlockId;

pub(super) fn value_text(v: &Value) -> String {
    let mut t = match &v.kind {
        Kind::Unknown => "anything".to_owned(),
        Kind::Scalar => "number".to_owned(),
        Kind::Pointer { region, base, nullable } => {
            let region = match region {
                Region::Stack => "frame".to_owned(),
                Region::Ctx => "context".to_owned(),
                Region::Packet => "packet".to_owned(),
                Region::PacketMeta => "metadata".to_owned(),
                Region::PacketEnd => "packet_end".to_owned(),
                Region::MapValue { map } => format!("value of map {map}"),
                Region::AnyMapValue => "value of some map".to_owned(),
                Region::MapPtr { map } => format!("map {map}"),
                Region::Func { name } => format!("function {name}"),
                Region::Mem => "memory".to_owned(),
                Region::CallerFrame => "caller's frame".to_owned(),
                Region::Kernel => "kernel".to_owned(),
                Region::Data { section } => format!("data {section}"),
            };
            let base = match base {
                BaseId::Fixed => String::new(),
                BaseId::Unknown => " somewhere".to_owned(),
                BaseId::Site(_, n) => format!(" object {n}"),
                BaseId::Join(b) => format!(" join {}", b.0),
            };
            format!("pointer to {region}{base}{}, offset", if *nullable { " or null" } else { "" })
        }
    };
    let n = &v.num;
    let top = Num::top(n.bits);
    if let Some(k) = n.as_const() {
        let _ = write!(t, " = {k:#x}");
        if *n == Num::constant(n.bits, k) {
            return t;
        }
    }
    if n.tnum != top.tnum {
        let _ = write!(t, " bits {:#x}/{:#x}", n.tnum.value, n.tnum.mask);
    }
    if (n.umin, n.umax) != (top.umin, top.umax) {
        let _ = write!(t, " unsigned {:#x}..{:#x}", n.umin, n.umax);
    }
    if (n.smin, n.smax) != (top.smin, top.smax) {
        let _ = write!(t, " signed {}..{}", n.smin, n.smax);
    }
    t
}

pub(super) fn value_of(text: &str, bits: u32) -> Result<Value, String> {
    let (kind, rest) = if let Some(rest) = text.strip_prefix("anything") {
        (Kind::Unknown, rest)
    } else if let Some(rest) = text.strip_prefix("number") {
        (Kind::Scalar, rest)
    } else {
        let rest = text.strip_prefix("pointer to ").ok_or("expected `anything`, `number` or `pointer to`")?;
        let (what, rest) = rest.split_once(", offset").ok_or("expected `, offset`")?;
        (pointer(what)?, rest)
    };
    let mut n = Num::top(bits);
    let mut words = rest.split_whitespace();
    while let Some(key) = words.next() {
        let word = words.next().ok_or_else(|| format!("`{key}` of what?"))?;
        let pair = |at: &str| word.split_once(at).ok_or_else(|| format!("`{word}` is no pair"));
        match key {
            "=" => n = Num::constant(bits, int(word)?),
            "bits" => {
                let (value, mask) = pair("/")?;
                n.tnum = Tnum { value: int(value)?, mask: int(mask)? };
            }
            "unsigned" => {
                let (lo, hi) = pair("..")?;
                (n.umin, n.umax) = (int(lo)?, int(hi)?);
            }
            "signed" => {
                let (lo, hi) = pair("..")?;
                (n.smin, n.smax) = (int(lo)?, int(hi)?);
            }
            _ => return Err(format!("`{key}` is nothing one knows of a value")),
        }
    }
    let top = Num::top(bits);
    let inside =
        (n.tnum.value | n.tnum.mask) & !top.umax == 0 && n.umax <= top.umax && n.smin >= top.smin && n.smax <= top.smax;
    if n.tnum.value & n.tnum.mask != 0 || n.umin > n.umax || n.smin > n.smax || !inside {
        return Err("no such numbers".into());
    }
    if bits < 64 && kind != Kind::Scalar {
        return Err("less than eight bytes are a number".into());
    }
    Ok(Value { kind, num: n })
}

fn pointer(text: &str) -> Result<Kind, String> {
    let (text, nullable) = text.strip_suffix(" or null").map_or((text, false), |t| (t, true));
    let (text, base) = if let Some(t) = text.strip_suffix(" somewhere") {
        (t, BaseId::Unknown)
    } else if let Some((t, n)) = text.rsplit_once(" object ") {
        (t, BaseId::Site(BlockId(0), int(n)?))
    } else {
        (text, BaseId::Fixed)
    };
    let region = match text {
        "frame" => Region::Stack,
        "context" => Region::Ctx,
        "packet" => Region::Packet,
        "metadata" => Region::PacketMeta,
        "packet_end" => Region::PacketEnd,
        "value of some map" => Region::AnyMapValue,
        "memory" => Region::Mem,
        "caller's frame" => Region::CallerFrame,
        "kernel" => Region::Kernel,
        _ => {
            if let Some(n) = text.strip_prefix("value of map ") {
                Region::MapValue { map: int(n)? }
            } else if let Some(n) = text.strip_prefix("map ") {
                Region::MapPtr { map: int(n)? }
            } else if let Some(name) = text.strip_prefix("function ") {
                Region::Func { name: Arc::from(name) }
            } else if let Some(section) = text.strip_prefix("data ") {
                Region::Data { section: Arc::from(section) }
            } else {
                return Err(format!("`{text}` is nothing one points to"));
            }
        }
    };
    Ok(Kind::Pointer { region, base, nullable })
}

/// A number, decimal or hexadecimal.
pub(super) fn int<T: TryFrom<i128>>(text: &str) -> Result<T, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    number.and_then(|n| T::try_from(n).ok()).ok_or_else(|| format!("`{text}` is no number that fits"))
}
