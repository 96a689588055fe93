//! The filter and how it is compiled, as the arguments say.

use std::collections::HashMap;
use std::path::Path;

use bpf_filter::{Filter, Form, Hook, LinkType, MOST_ACCEPTED, NameFiles, Options, Source};

use super::args::{FilterArgs, FunctionArg, HookArg};
use crate::failure::Failure;
use crate::files;

pub(super) fn text(args: &FilterArgs) -> Result<String, Failure> {
    match &args.file {
        Some(path) => std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e)),
        None => Ok(args.expression.join(" ")),
    }
}

/// Compiles a filter; says so if it is not optimized and was to be.
pub(super) fn compile(text: &str, options: &Options) -> Result<Filter, Failure> {
    let filter = bpf_filter::compile(text, options).map_err(|e| Failure::bad_input(e.render(text)))?;
    if options.optimize && !filter.is_optimized() {
        files::complain("bpf-opt: warning: the filter stays as it stands: there are too many ways through it");
    }
    Ok(filter)
}

/// Says so where a filter stays as it stands.
pub(super) fn warn_if_unproven(filter: &Filter, form: Form) {
    if let Some(why) = filter.unproven(form) {
        files::complain(format!("bpf-opt: warning: the filter stays as it stands: not proven equal: {why}"));
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
        let file = Path::new(file);
        let entries = bpf_filter::set_of_file(file).map_err(|e| Failure::io("read", file, &e))?;
        if sets.insert(name.to_owned(), entries).is_some() {
            return Err(Failure::bad_input(format!("--set {set}: there are two sets {name}")));
        }
    }
    let names = NameFiles::default();
    let or = |path: &Option<std::path::PathBuf>, default| path.clone().unwrap_or(default);
    Ok(Options {
        link_type,
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
        accepted_length: accepted_length(args),
        optimize: !args.no_optimize,
        ..Options::default()
    })
}

/// A function of data and data_end knows of a packet what a driver does.
fn source(args: &FilterArgs) -> Source {
    match (args.function, args.hook) {
        (Some(FunctionArg::Data), _) => Source::Xdp,
        (_, Some(hook)) => Hook::from(hook).source(),
        (_, None) => Source::File,
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
