//! Whether two BTF types, one of each object, mean the same.
//!
//! The one idea: types form a graph, and two of them are the same if a walk over both at once finds nothing that
//! differs (a bisimulation): a pair already on the list is taken for equal, which is what makes cycles end. A walk
//! stops at the first difference and names the way to it; only what a walk without differences has seen is remembered.
//! Promise: numbers and order of types and strings play no role; a type that cannot be read is an error, never equal.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::btf::{
    ARRAY, Btf, CONST, DATASEC, DECL_TAG, ENUM, ENUM64, FLOAT, FUNC, FUNC_PROTO, FWD, INT, PTR, RESTRICT, STRUCT,
    TYPE_TAG, TYPEDEF, Type, UNION, VAR, VOLATILE, member_place,
};

/// How much the names of types count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Names {
    /// Names count: somebody looks the type up by its name, in the kernel's BTF or in this one.
    Count,
    /// Layout and the names of members count; those of types only where the kernel gives them a meaning
    /// (`bpf_spin_lock`, `bpf_timer` …: `btf_get_field_type` in `kernel/bpf/btf.c`) or behind pointers.
    OfMembers,
}

/// What a walk over two types says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// They mean the same.
    Same,
    /// What differs, with the way to it.
    Different(String),
    /// What cannot be read.
    Unreadable(String),
}

/// The types of one object.
pub(super) struct Types<'a> {
    pub btf: Option<&'a Btf>,
    /// Tags by the type they are on: (component, or -1 for the whole; whether it is an attribute; text).
    tags: HashMap<u32, BTreeSet<(i32, bool, String)>>,
    structs: HashMap<String, Vec<u32>>,
    /// The first VAR or FUNC of each name.
    declared: HashMap<String, u32>,
}

/// One type, apart from the types it refers to.
#[derive(PartialEq, Eq)]
struct Node {
    kind: u32,
    name: String,
    /// Sizes, encodings, linkage …: what they are, and their values.
    facts: Vec<(String, i64)>,
    /// Types it refers to, and as what.
    children: Vec<(String, u32)>,
}

impl<'a> Types<'a> {
    pub fn of(btf: Option<&'a Btf>) -> Self {
        let mut this = Types { btf, tags: HashMap::new(), structs: HashMap::new(), declared: HashMap::new() };
        let Some(btf) = btf else { return this };
        for id in btf.ids() {
            let Some(t) = btf.get(id) else { continue };
            let name = btf.string(t.name).unwrap_or_default();
            if t.kind == DECL_TAG {
                let component = btf.word(t, 0).unwrap_or(0) as i32;
                this.tags.entry(t.size_or_type).or_default().insert((component, t.kflag, name));
            } else if t.kind == STRUCT {
                this.structs.entry(name).or_default().push(id);
            } else if t.kind == VAR || t.kind == FUNC {
                this.declared.entry(name).or_insert(id);
            }
        }
        this
    }

    /// The DATASEC types by section name; several of one name are kept in file order.
    pub fn data_sections(&self) -> BTreeMap<String, Vec<Type>> {
        let mut found: BTreeMap<String, Vec<Type>> = BTreeMap::new();
        let Some(btf) = self.btf else { return found };
        for t in btf.ids().filter_map(|id| btf.get(id)).filter(|t| t.kind == DATASEC) {
            found.entry(btf.string(t.name).unwrap_or_default()).or_default().push(t);
        }
        found
    }

    /// The first type of a name, of whatever kind (libbpf: `btf__find_by_name`).
    pub fn first_of_name(&self, name: &str) -> Option<Type> {
        let btf = self.btf?;
        btf.ids().filter_map(|id| btf.get(id)).find(|t| btf.string(t.name).as_deref() == Some(name))
    }

    pub fn get(&self, id: u32) -> Option<Type> {
        self.btf?.get(id)
    }

    pub fn name(&self, t: Type) -> Option<String> {
        self.btf?.string(t.name)
    }

    /// The tags on a type: (component, or -1 for the whole; whether it is an attribute; text).
    pub fn tags_of(&self, id: u32) -> BTreeSet<(i32, bool, String)> {
        self.tags.get(&id).cloned().unwrap_or_default()
    }

    /// The type that libbpf takes for an external symbol: the first variable or function of its name
    /// (`find_extern_btf_id` in `tools/lib/bpf/libbpf.c`).
    pub fn external(&self, name: &str) -> Option<u32> {
        self.declared.get(name).copied()
    }

    /// A type that cannot be read or refers to one that is not there, used or not: the kernel refuses them all
    /// (`btf_check_all_metas` and `btf_resolve` in `kernel/bpf/btf.c`).
    pub fn broken(&self) -> Option<String> {
        let btf = self.btf?;
        let exists = |id: u32| id == 0 || btf.get(id).is_some();
        let sound = |id: u32| {
            let t = btf.get(id).filter(|t| reserved(*t) == 0)?;
            match t.kind {
                DATASEC => btf.section_variables(t).iter().all(|v| exists(v.id)).then_some(()),
                DECL_TAG => exists(t.size_or_type).then_some(()),
                _ => self.node(id)?.children.iter().all(|(_, id)| exists(*id)).then_some(()),
            }
        };
        btf.ids().find(|id| sound(*id).is_none()).map(|id| format!("type {id} is broken"))
    }

    /// A type in a few words, for messages.
    pub fn describe(&self, id: u32) -> String {
        let Some(t) = self.get(id) else { return if id == 0 { "void".into() } else { format!("type {id}") } };
        let name = self.name(t).unwrap_or_default();
        match t.kind {
            PTR => format!("pointer to {}", self.named(t.size_or_type)),
            ARRAY => "an array".into(),
            kind if name.is_empty() => format!("an unnamed {}", kind_name(kind)),
            kind => format!("{} {name}", kind_name(kind)),
        }
    }

    fn named(&self, id: u32) -> String {
        let name = self.get(id).and_then(|t| Some(format!("{} {}", kind_name(t.kind), self.name(t)?)));
        name.unwrap_or_else(|| "void".into())
    }

    fn node(&self, id: u32) -> Option<Node> {
        if id == 0 {
            return Some(Node { kind: 0, name: "void".into(), facts: vec![], children: vec![] });
        }
        let (btf, t) = (self.btf?, self.get(id)?);
        let mut node = Node { kind: t.kind, name: self.name(t)?, facts: vec![], children: vec![] };
        let number = |what: &str, value: u32| (what.to_owned(), i64::from(value));
        node.facts.push(number("reserved bits", reserved(t)));
        let to = |what: &str, id: u32| (what.to_owned(), id);
        match t.kind {
            INT => {
                let encoding = btf.word(t, 0)?;
                node.facts.push(number("size in bytes", t.size_or_type));
                node.facts.push(number("bits", encoding & 0xff));
                node.facts.push(number("bit offset", encoding >> 16 & 0xff));
                node.facts.push(number("encoding", encoding >> 24));
            }
            FLOAT => node.facts.push(number("size in bytes", t.size_or_type)),
            PTR => node.children.push(to("pointee", t.size_or_type)),
            TYPEDEF | VOLATILE | CONST | RESTRICT => node.children.push(to("type", t.size_or_type)),
            TYPE_TAG => {
                node.facts.push(number("attribute", u32::from(t.kflag)));
                node.children.push(to("type", t.size_or_type));
            }
            ARRAY => {
                node.facts.push(number("number of elements", btf.word(t, 2)?));
                node.children.push(to("element", btf.word(t, 0)?));
            }
            STRUCT | UNION => {
                node.facts.push(number("size in bytes", t.size_or_type));
                for i in 0..t.vlen {
                    let name = btf.string(btf.word(t, i * 3)?)?;
                    let (offset, bits) = member_place(t, btf.word(t, i * 3 + 2)?);
                    node.facts.push((format!("bit offset of member `{name}`"), i64::from(offset)));
                    node.facts.push((format!("bit-field width of member `{name}`"), i64::from(bits)));
                    node.children.push((format!("member `{name}`"), btf.word(t, i * 3 + 1)?));
                }
            }
            ENUM | ENUM64 => {
                node.facts.push(number("size in bytes", t.size_or_type));
                node.facts.push(number("signed", u32::from(t.kflag)));
                for i in 0..t.vlen {
                    let (name, value) = enumerator(btf, t, i)?;
                    node.facts.push((format!("value `{name}`"), value));
                }
            }
            FWD => node.facts.push(number("union", u32::from(t.kflag))),
            FUNC => {
                node.facts.push(number("linkage", t.vlen as u32));
                node.children.push(to("signature", t.size_or_type));
            }
            FUNC_PROTO => {
                node.children.push(to("return type", t.size_or_type));
                // The last parameter of type void means `...`.
                for i in 0..t.vlen {
                    node.children.push((format!("parameter {}", i + 1), btf.word(t, i * 2 + 1)?));
                }
            }
            VAR => {
                node.facts.push(number("linkage", btf.word(t, 0)?));
                node.children.push(to("type", t.size_or_type));
            }
            DECL_TAG => {
                node.facts.push(number("attribute", u32::from(t.kflag)));
                node.facts.push(number("component", btf.word(t, 0)?));
                node.children.push(to("type", t.size_or_type));
            }
            _ => return None,
        }
        Some(node)
    }

    /// The struct of this name, if there is exactly one.
    fn structure(&self, name: &str) -> Option<u32> {
        match self.structs.get(name)?.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }
}

/// The bits of a type's header that have no meaning for its kind; the kernel refuses a type that has any.
fn reserved(t: Type) -> u32 {
    // Bits 16 to 23, 29 and 30 are unused by all kinds (`struct btf_type`).
    let counts = matches!(t.kind, STRUCT | UNION | ENUM | ENUM64 | FUNC | FUNC_PROTO | DATASEC);
    t.info & if counts { 0x60ff_0000 } else { 0x60ff_ffff }
}

/// Name and value of an enumerator.
pub(super) fn enumerator(btf: &Btf, t: Type, i: usize) -> Option<(String, i64)> {
    let words = if t.kind == ENUM64 { 3 } else { 2 };
    let (name, low) = (btf.string(btf.word(t, i * words)?)?, btf.word(t, i * words + 1)?);
    let value = match t.kind {
        ENUM64 => (i64::from(btf.word(t, i * 3 + 2)?) << 32) | i64::from(low),
        _ if t.kflag => i64::from(low as i32),
        _ => i64::from(low),
    };
    Some((name, value))
}

pub(super) fn kind_name(kind: u32) -> &'static str {
    match kind {
        0 => "void",
        INT => "integer",
        PTR => "pointer",
        ARRAY => "array",
        STRUCT => "struct",
        UNION => "union",
        ENUM | ENUM64 => "enum",
        FWD => "forward declaration",
        TYPEDEF => "typedef",
        VOLATILE => "volatile",
        CONST => "const",
        RESTRICT => "restrict",
        FUNC => "function",
        FUNC_PROTO => "signature",
        VAR => "variable",
        DATASEC => "data section",
        FLOAT => "float",
        DECL_TAG => "declaration tag",
        TYPE_TAG => "type tag",
        _ => "type of unknown kind",
    }
}

/// Compares types of two objects; remembers what is the same, and which names differ without effect.
pub(super) struct TypeComparison<'a> {
    pub a: Types<'a>,
    pub b: Types<'a>,
    /// Whether both sections are the same bytes: then equal numbers mean equal types.
    identical: bool,
    same: HashSet<Pair>,
    /// Types that have another name in the second object, where nobody asks for it.
    pub renamed: BTreeSet<(String, String)>,
}

/// A type of the first object, one of the second, and how they are to be compared.
type Pair = (u32, u32, Names);

/// A pair to look at, and the step that led to it.
struct Step {
    pair: Pair,
    from: Option<usize>,
    label: String,
}

impl<'a> TypeComparison<'a> {
    pub fn of(a: Option<&'a Btf>, b: Option<&'a Btf>) -> Self {
        let identical = match (a, b) {
            (Some(a), Some(b)) => a.bytes() == b.bytes(),
            _ => false,
        };
        Self { a: Types::of(a), b: Types::of(b), identical, same: HashSet::new(), renamed: BTreeSet::new() }
    }

    pub fn identical(&self) -> bool {
        self.identical
    }

    /// Compares type `a` of the first object with type `b` of the second.
    pub fn compare(&mut self, a: u32, b: u32, names: Names) -> Outcome {
        let mut steps = vec![Step { pair: (a, b, names), from: None, label: String::new() }];
        let mut seen = HashSet::from([(a, b, names)]);
        let mut renamed = Vec::new();
        let mut at = 0;
        while at < steps.len() {
            let Some(&Step { pair, .. }) = steps.get(at) else { break };
            let known = self.same.contains(&pair) || (self.identical && pair.0 == pair.1);
            if !known {
                match self.step(pair, &mut renamed) {
                    Ok(next) => {
                        for (label, pair) in next {
                            if seen.insert(pair) {
                                steps.push(Step { pair, from: Some(at), label });
                            }
                        }
                    }
                    Err(Outcome::Different(what)) => return Outcome::Different(way(&steps, at) + &what),
                    Err(Outcome::Unreadable(what)) => return Outcome::Unreadable(way(&steps, at) + &what),
                    Err(Outcome::Same) => {}
                }
            }
            at += 1;
        }
        self.same.extend(seen);
        self.renamed.extend(renamed);
        Outcome::Same
    }

    /// Compares what two types say themselves; the pairs that must be the same, too.
    fn step(&self, (a, b, names): Pair, renamed: &mut Vec<(String, String)>) -> Result<Vec<(String, Pair)>, Outcome> {
        let unreadable = |which: &str, id: u32| Outcome::Unreadable(format!("type {id} of the {which} object"));
        let x = self.a.node(a).ok_or_else(|| unreadable("first", a))?;
        let y = self.b.node(b).ok_or_else(|| unreadable("second", b))?;
        let different = |what: String| Err(Outcome::Different(what));
        if x.kind != y.kind {
            return different(format!("{} became {}", self.a.describe(a), self.b.describe(b)));
        }
        if x.name != y.name {
            let free = names == Names::OfMembers
                && matches!(x.kind, INT | STRUCT | UNION | ENUM | ENUM64 | TYPEDEF | FLOAT | FWD)
                && !x.name.starts_with("bpf_")
                && !y.name.starts_with("bpf_");
            if !free {
                return different(format!("{} `{}` became `{}`", kind_name(x.kind), x.name, y.name));
            }
            renamed.push((self.a.describe(a), self.b.describe(b)));
        }
        if x.facts != y.facts {
            let pair = x.facts.iter().zip(&y.facts).find(|(p, q)| p != q);
            return different(match pair {
                Some((p, q)) if p.0 == q.0 => format!("{}: {} was {}, is {}", self.a.describe(a), p.0, p.1, q.1),
                Some((p, q)) => format!("{}: {} became {}", self.a.describe(a), p.0, q.0),
                None => format!("{}: it has other members", self.a.describe(a)),
            });
        }
        if x.children.len() != y.children.len() {
            return different(format!(
                "{}: {} parts became {}",
                self.a.describe(a),
                x.children.len(),
                y.children.len()
            ));
        }
        let no_tags = BTreeSet::new();
        let (tags_a, tags_b) = (self.a.tags.get(&a).unwrap_or(&no_tags), self.b.tags.get(&b).unwrap_or(&no_tags));
        if let Some((component, _, tag)) = tags_a.symmetric_difference(tags_b).next() {
            let which = if tags_a.iter().any(|t| t.2 == *tag) { "first" } else { "second" };
            let on = if *component < 0 { String::new() } else { format!(" on part {}", component + 1) };
            return different(format!("{}: only the {which} has tag `{tag}`{on}", self.a.describe(a)));
        }
        let names = if x.kind == PTR || x.kind == TYPE_TAG { Names::Count } else { names };
        let mut next = Vec::with_capacity(x.children.len());
        for ((what, p), (other, q)) in x.children.into_iter().zip(y.children) {
            if what != other {
                return different(format!("{}: {what} became {other}", self.a.describe(a)));
            }
            next.push((what, (p, q, names)));
        }
        // `contains:node_data:node` names the struct that a list or tree holds (`btf_find_graph_root`).
        for name in tags_a.iter().filter_map(|t| t.2.strip_prefix("contains:")?.split(':').next()) {
            match (self.a.structure(name), self.b.structure(name)) {
                (Some(p), Some(q)) => next.push((format!("struct {name} of tag `contains`"), (p, q, Names::Count))),
                (None, None) => {}
                _ => return different(format!("struct `{name}`, which tag `contains` names, is in one object only")),
            }
        }
        Ok(next)
    }
}

/// The labels on the way to a step, ready to be followed by what is there.
fn way(steps: &[Step], mut at: usize) -> String {
    let mut labels = Vec::new();
    while let Some(step) = steps.get(at) {
        if !step.label.is_empty() {
            labels.push(step.label.as_str());
        }
        match step.from {
            Some(from) => at = from,
            None => break,
        }
    }
    labels.reverse();
    let shown = labels.len().saturating_sub(6);
    let mut text = String::new();
    if shown > 0 {
        text.push_str("…, ");
    }
    for label in labels.into_iter().skip(shown) {
        text.push_str(label);
        text.push_str(", ");
    }
    match text.strip_suffix(", ") {
        Some(text) => format!("{text}: "),
        None => text,
    }
}
