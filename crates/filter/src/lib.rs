//! Compiles the filter language of tcpdump, pcap-filter(7).
//!
//! A filter is text. It becomes a tree (`language`), then a predicate graph: what is tested, in the order of the text, with the
//! meaning that libpcap's code has before its optimizer (`lower`, `graph`). The optimizer walks that graph with what is known on
//! the way, so that each question is asked once and each field is known to be there once (`optimize`, `decision`). What comes
//! out becomes a program of operations over registers (`emit`, `program`), which the interpreter runs and the back ends
//! translate; for x86-64 to machine code (`jit`), once a verifier has taken it (`safety`).

mod allocate;
mod classic;
mod decision;
mod dot;
mod ebpf;
mod emit;
mod emit_plain;
mod error;
mod filter;
mod graph;
mod intervals;
mod jit;
mod language;
mod link;
mod listing;
mod lower;
mod name_files;
mod names;
mod need;
mod optimize;
mod options;
mod order;
mod passes;
mod post_order;
mod profile;
mod program;
mod proof;
mod question;
mod range;
mod ranges;
mod reorder;
mod safety;
mod sample;
mod simplify;
mod steps;
mod suited;
mod tables;
mod tree;
mod tuples;
mod updatable;
mod value;

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

pub use classic::{Classic, ClassicError, MOST_INSTRUCTIONS, has_loop};
pub use ebpf::{Actions, EbpfError, EbpfForm, FURTHEST, FunctionName, Hook, Takes};
pub use error::Error;
pub use filter::{ClassicGoal, Filter, Form};
pub use jit::{Jit, JitError};
pub use link::LinkType;
pub use name_files::NameFiles;
pub use names::{set_of_file, text_of_file};
pub use options::{Dialect, Lookup, MOST_ACCEPTED, Options, Source};
pub use passes::{Pass, Passes};
pub use profile::Profile;
pub use program::{Beside, Packet, Run};
pub use proof::Unproven;
pub use safety::{Fault, Unsafe};
pub use suited::Gain;
pub use updatable::{Field, KeyKind, SetMap, Updatable};
pub use value::Ancillary;

use filter::{Forms, with_large_stack};
use language::Id;
use optimize::Limits;

/// Compiles a filter.
///
/// # Errors
/// If the text is no filter, or asks for what the link type does not have.
pub fn compile(text: &str, options: &Options) -> Result<Filter, Error> {
    let result = with_large_stack(|| compiled(text, options));
    result.unwrap_or_else(|| Err(Error::new(0..text.len(), "no memory to compile this filter")))
}

/// The tree of a filter's text: one node a line, with the qualifiers that an id inherits.
///
/// # Errors
/// If the text is no filter. Whether the link type has what it asks for is not looked at.
pub fn tree(text: &str, options: &Options) -> Result<String, Error> {
    let result = with_large_stack(|| Ok(tree::text(&parsed(text, options)?)));
    result.unwrap_or_else(|| Err(Error::new(0..text.len(), "no memory to read this filter")))
}

/// Whether a set may be called so: whether a filter can write `$NAME`.
pub fn is_set_name(name: &str) -> bool {
    language::is_set_name(name)
}

/// The sets that a filter's text names.
///
/// # Errors
/// If the text is no filter.
pub fn sets_of(text: &str, options: &Options) -> Result<HashSet<String>, Error> {
    let result = with_large_stack(|| Ok(parsed(text, options)?.sets().map(str::to_owned).collect()));
    result.unwrap_or_else(|| Err(Error::new(0..text.len(), "no memory to read this filter")))
}

fn parsed(text: &str, options: &Options) -> Result<language::Ast, Error> {
    let names: HashSet<String> = options.sets.keys().cloned().collect();
    language::parse(text, &names, options.dialect)
}

fn compiled(text: &str, options: &Options) -> Result<Filter, Error> {
    let ast = parsed(text, options)?;
    let mut sets: HashMap<String, Vec<Id>> = HashMap::new();
    for (name, entries) in &options.sets {
        let parsed = |entry: &String| {
            let named = |e| Error::new(0..text.len(), format!("{entry:?} in the set {name:?}: {e}"));
            if entry.starts_with('$') {
                return Err(named(Error::new(0..0, "a set holds no other set, but addresses, networks or ports")));
            }
            language::parse_id(entry).map_err(named)
        };
        let ids = entries.iter().map(parsed).collect::<Result<Vec<Id>, Error>>()?;
        sets.insert(name.clone(), ids);
    }
    if let Some(profile) = options.profile.as_ref().filter(|profile| profile.link_type() != options.link_type) {
        let (theirs, ours) = (profile.link_type(), options.link_type);
        return Err(Error::new(0..text.len(), format!("a profile of {theirs} packets for a filter of {ours} packets")));
    }
    let graph = lower::lower(&ast, options, &sets)?;
    let plain = emit_plain::emit_plainly(&graph);
    let forms = if options.runs_optimizer() { optimized(graph.clone(), options) } else { None };
    let mut filter = Filter::new(graph, plain, forms, options.accepted_length);
    if options.report {
        filter.predicates = tree::predicates(&ast);
    }
    Ok(filter)
}

/// What the optimizer makes of a graph, with much copying and with little; `None`: all take too long.
fn optimized(graph: graph::Graph, options: &Options) -> Option<Forms> {
    /// Blocks walked, where much may be copied, and where little may.
    const WALKS: [usize; 2] = [40_000, 4_000_000];
    /// Blocks with what their variables may hold: so many, or so many times those of the filter, for long lists. Tunnels in tunnels have four
    /// times as many with each.
    const MOST_BLOCKS: (usize, usize) = (20_000, 8);
    let most_blocks = MOST_BLOCKS.0.max(graph.blocks.len().saturating_mul(MOST_BLOCKS.1));
    let mut graph = if graph.variables == 0 { graph } else { optimize::without_variables(&graph, most_blocks)? };
    let all_copies: &[(usize, usize)] = match options.passes.has(Pass::Copies) {
        true => &[(64, 512), (8, 64), (1, 8), (0, 8), (0, 0)],
        false => &[(0, 0)],
    };
    let mut ways = Vec::new();
    for &(copies, kinds) in all_copies {
        let walks = WALKS[usize::from(copies <= 1)];
        ways.extend(optimize::optimize(&mut graph, Limits { copies, kinds, walks }, options.passes));
    }
    (!ways.is_empty()).then_some(Forms {
        values: graph.values,
        maps: graph.maps.into(),
        predicates: graph.predicates,
        ways,
        lookup: options.lookup,
        passes: options.passes,
        profile: options.profile.clone(),
        suited: OnceLock::new(),
    })
}
