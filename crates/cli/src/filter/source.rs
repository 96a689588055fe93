//! The filter and how it is compiled, as the arguments say.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bpf_filter::{Filter, Form, Hook, KeyKind, LinkType, MOST_ACCEPTED, NameFiles, Options, Source, Updatable};

use super::args::{Emit, FilterArgs, FunctionArg, HookArg};
use crate::failure::Failure;
use crate::files;

pub(super) fn text(args: &FilterArgs) -> Result<String, Failure> {
    match &args.file {
        Some(path) => {
            // tcpdump takes comments there, too.
            bpf_filter::text_of_file(path).map_err(|e| Failure::io("read", path, &e))
        }
        None => Ok(args.expression.join(" ")),
    }
}

/// The files that the arguments name to be read.
pub(super) fn inputs(args: &FilterArgs) -> Vec<PathBuf> {
    let sets = args.set.iter().filter_map(|set| set.split_once('=')).map(|(_, file)| PathBuf::from(file));
    let files = [&args.file, &args.read, &args.profile].into_iter().flatten().cloned();
    let names = [&args.services, &args.protocols, &args.ethers, &args.networks, &args.hosts];
    files.chain(sets).chain(names.into_iter().flatten().cloned()).collect()
}

/// Compiles a filter; says so if it is not optimized and was to be.
pub(super) fn compile(text: &str, options: &Options) -> Result<Filter, Failure> {
    let filter = bpf_filter::compile(text, options).map_err(|e| Failure::bad_input(e.render(text)))?;
    if options.runs_optimizer() && !filter.is_optimized() {
        files::complain("bpf-opt: warning: the filter stays as it stands: there are too many ways through it");
    }
    Ok(filter)
}

/// Says so where a filter stays as it stands, or goes without tables.
pub(super) fn warn_if_unproven(filter: &Filter, form: Form) {
    if let Some(why) = filter.unproven(form) {
        let what = if filter.goes_without_tables(form) { "goes without tables" } else { "stays as it stands" };
        files::complain(format!("bpf-opt: warning: the filter {what}: not proven equal: {why}"));
    }
}

pub(super) fn options(args: &FilterArgs) -> Result<Options, Failure> {
    let link_type = match &args.link_type {
        Some(name) => {
            LinkType::of_name(name).ok_or_else(|| Failure::bad_input(format!("{name}: no link type is called so")))?
        }
        None if args.hook == Some(HookArg::CgroupSkb) => LinkType::RAW,
        None => LinkType::EN10MB,
    };
    if args.hook == Some(HookArg::CgroupSkb) && !link_type.is_network() {
        let text = format!("-y {link_type}: packets of control groups begin with the IP header");
        return Err(Failure::bad_input(text).with_hint("leave -y out, or say RAW, IPV4 or IPV6"));
    }
    let mut sets = HashMap::new();
    for set in &args.set {
        let Some((name, file)) = set.split_once('=') else {
            return Err(Failure::bad_input(format!("--set {set}: NAME=FILE is wanted")));
        };
        if !bpf_filter::is_set_name(name) {
            let text = format!("--set {set}: no filter can write ${name}");
            let hint = "names are of letters, digits and, in their middle, '-', '_' and '.'";
            return Err(Failure::bad_input(text).with_hint(hint));
        }
        let file = Path::new(file);
        let entries = bpf_filter::set_of_file(file).map_err(|e| Failure::io("read", file, &e))?;
        if sets.insert(name.to_owned(), entries).is_some() {
            return Err(Failure::bad_input(format!("--set {set}: there are two sets {name}")));
        }
    }
    let updatable = updatable(args, &sets)?;
    // What the system has may be missing; what the arguments name may not.
    for path in [&args.services, &args.protocols, &args.ethers, &args.networks, &args.hosts].into_iter().flatten() {
        std::fs::File::open(path).map_err(|e| Failure::io("read", path, &e))?;
    }
    let names = NameFiles::default();
    let or = |path: &Option<std::path::PathBuf>, default| path.clone().unwrap_or(default);
    Ok(Options {
        link_type,
        dialect: args.dialect.into(),
        source: source(args),
        netmask: args.netmask.map(u32::from),
        names: NameFiles {
            services: or(&args.services, names.services),
            protocols: or(&args.protocols, names.protocols),
            ethers: or(&args.ethers, names.ethers),
            networks: or(&args.networks, names.networks),
            hosts: or(&args.hosts, names.hosts),
            resolve: args.resolve,
        },
        sets,
        updatable,
        accepted_length: accepted_length(args),
        optimize: !args.no_optimize,
        passes: args.passes.unwrap_or_default(),
        report: args.report,
        ..Options::default()
    })
}

/// The sets that user space changes.
fn updatable(args: &FilterArgs, sets: &HashMap<String, Vec<String>>) -> Result<HashMap<String, Updatable>, Failure> {
    let mut all = HashMap::new();
    for text in &args.updatable {
        let wrong = |what: String| Err(Failure::bad_input(format!("--updatable {text}: {what}")));
        let (name, kinds) = text.split_once(':').unwrap_or((text, ""));
        if !sets.contains_key(name) {
            return wrong(format!("there is no set {name} (--set {name}=FILE)"));
        }
        let mut of = Updatable { kinds: Vec::new(), max_entries: args.max_entries };
        for kind in kinds.split(',').filter(|k| !k.is_empty()) {
            let Some(kind) = KeyKind::of_name(kind) else {
                return wrong(format!("{kind} is none of ipv4, ipv4-net, ipv6, ipv6-net, mac, port"));
            };
            if of.kinds.iter().any(|k| k.field == kind.field) {
                return wrong("one field twice".to_owned());
            }
            of.kinds.push(kind);
        }
        if all.insert(name.to_owned(), of).is_some() {
            return wrong("it is said twice".to_owned());
        }
    }
    Ok(all)
}

/// A function of data and data_end knows of a packet what a driver does. Without a hook the filter is for an interface, as that of
/// `tcpdump -d` is.
fn source(args: &FilterArgs) -> Source {
    match (args.function, args.hook) {
        _ if args.read.is_some() => Source::File,
        (Some(FunctionArg::Data), _) => Source::Xdp,
        (_, Some(hook)) => Hook::from(hook).source(),
        // The program of XDP is what is shown.
        (_, None) if args.emit == Some(Emit::Asm) => Source::Xdp,
        (_, None) => Source::Interface,
    }
}

/// What is accepted of a packet, if the arguments say so; 0 says nothing, as with tcpdump.
pub(super) fn snaplen(args: &FilterArgs) -> Option<u32> {
    args.snaplen.filter(|n| *n > 0)
}

/// What is accepted of a packet that comes from no capture.
pub(super) fn accepted_length(args: &FilterArgs) -> u32 {
    snaplen(args).unwrap_or(MOST_ACCEPTED)
}
