//! The tree of a C program: functions, and statements with those inside them.

/// The hook of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// XDP.
    Xdp,
    /// A classifier.
    Tc,
    /// A raw tracepoint: two numbers, no packet.
    RawTracepoint,
}

impl Hook {
    pub(super) const ALL: [Hook; 3] = [Hook::Xdp, Hook::Tc, Hook::RawTracepoint];

    pub(super) fn section(self) -> &'static str {
        match self {
            Hook::Xdp => "xdp",
            Hook::Tc => "tc",
            Hook::RawTracepoint => "raw_tp/generated",
        }
    }

    /// The type of what r1 points to.
    pub(super) fn context(self) -> &'static str {
        match self {
            Hook::Xdp => "struct xdp_md",
            Hook::Tc => "struct __sk_buff",
            Hook::RawTracepoint => "u64",
        }
    }
}

/// A statement with those inside it.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    pub(super) number: usize,
    pub(super) head: String,
    pub(super) body: Vec<Statement>,
    pub(super) tail: String,
}

/// A function: its head with the declarations, its statements, its end.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) head: String,
    pub(super) body: Vec<Statement>,
    pub(super) tail: String,
}

/// The text of a function with the statements that are kept.
pub(super) fn text(f: &Function, keep: &[bool]) -> String {
    let mut text = f.head.clone();
    for s in &f.body {
        write(s, keep, 1, &mut text);
    }
    text + &f.tail
}

fn write(s: &Statement, keep: &[bool], depth: usize, text: &mut String) {
    if !keep[s.number] {
        return;
    }
    let line = |text: &mut String, lines: &str| {
        for l in lines.lines() {
            *text += &format!("{}{l}\n", "\t".repeat(depth));
        }
    };
    line(text, &s.head);
    for inner in &s.body {
        write(inner, keep, depth + 1, text);
    }
    line(text, &s.tail);
}
