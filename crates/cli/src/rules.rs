//! `bpf-opt rules`: what the searches of earlier runs have learnt, as text one can read, prove and share.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use bpf_prove::{Limits, Verdict};
use bpf_search::general::General;
use bpf_search::rules::{Entry, Rule, parse_all};
use bpf_search::shipped;
use bpf_search::store::Store;

use crate::args::{RulesArgs, RulesCommand, default_cache};
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::rules_page;

/// Runs the command.
pub fn run(args: &RulesArgs) -> Result<u8, Failure> {
    let from = match (args.shipped, args.cache.clone().or_else(default_cache)) {
        (true, _) => Source::Shipped,
        (false, Some(path)) => Source::Kept(path),
        (false, None) => {
            return Err(Failure::bad_input("no home directory to look for rules in").with_hint("give --cache PATH"));
        }
    };
    match &args.command {
        RulesCommand::List => {
            files::print(&text(&from.entries()?))?;
            Ok(exit::YES)
        }
        RulesCommand::Export { file, general } => {
            let kept = |e: &Entry| !general || matches!(e, Entry::General(_));
            let all: Vec<Entry> = from.entries()?.into_iter().filter(kept).collect();
            from.write(file, text(&all).as_bytes())
        }
        RulesCommand::Html { file } => {
            let name = from.name();
            from.write(file, rules_page::html(&name, &from.entries()?).as_bytes())
        }
        RulesCommand::Import { file } => match from {
            Source::Kept(path) => import(path, file),
            Source::Shipped => Err(Failure::bad_input("`rules import --shipped`: those are part of the program")
                .with_hint("give --cache PATH, or nothing for the rules of your runs")),
        },
        RulesCommand::Verify { file: Some(file) } => verify(&read(file)?),
        RulesCommand::Verify { file: None } => verify(&from.entries()?),
        RulesCommand::Stats => {
            files::print(&from.stats()?)?;
            Ok(exit::YES)
        }
    }
}

/// Where rules come from.
enum Source {
    /// They come with the program.
    Shipped,
    /// Earlier runs have left them in this file.
    Kept(PathBuf),
}

impl Source {
    /// For people.
    fn name(&self) -> String {
        match self {
            Source::Shipped => "shipped rules".to_owned(),
            Source::Kept(path) => path.display().to_string(),
        }
    }

    fn entries(&self) -> Result<Vec<Entry>, Failure> {
        match self {
            Source::Shipped => Ok(shipped::rules().into_iter().map(Entry::General).collect()),
            Source::Kept(path) => Ok(entries(&open(path.clone(), true)?)),
        }
    }

    /// Writes what was made of the rules, and never over them.
    fn write(&self, file: &Path, content: &[u8]) -> Result<u8, Failure> {
        let destination = Destination::or_stdout(file)?;
        if let Source::Kept(path) = self {
            destination.overwrites_none("the text", &[path], "name another file")?;
        }
        destination.write(content, None)?;
        Ok(exit::YES)
    }

    fn stats(&self) -> Result<String, Failure> {
        Ok(match self {
            Source::Shipped => stats("shipped rules", shipped::TEXT.len() as u64, &[], &shipped::rules()),
            Source::Kept(path) => {
                let store = open(path.clone(), true)?;
                let bytes = std::fs::metadata(path).map_or(0, |m| m.len());
                stats(&path.display().to_string(), bytes, &store.rules(), &store.general_rules())
            }
        })
    }
}

/// The store; a file that is not there is an error where it is all the command is about.
fn open(path: PathBuf, needed: bool) -> Result<Store, Failure> {
    if needed && !path.exists() {
        let failure = Failure::bad_input(format!("{}: there are no rules", path.display()));
        return Err(
            failure.with_hint("`bpf-opt opt` makes them; --cache names another file, --shipped those of the program")
        );
    }
    let store = if needed { Store::read_only(&path) } else { Store::open(&path) };
    if needed && store.is_empty() && !store.notes.is_empty() {
        return Err(Failure::bad_input(store.notes.join("\n")));
    }
    Ok(store)
}

/// All that a store holds: rules without parameters, then those with.
fn entries(store: &Store) -> Vec<Entry> {
    let general = store.general_rules().into_iter().map(Entry::General);
    store.rules().into_iter().map(Entry::Specific).chain(general).collect()
}

fn text(rules: &[Entry]) -> String {
    rules.iter().map(Entry::text).collect::<Vec<_>>().join("\n")
}

fn read(file: &Path) -> Result<Vec<Entry>, Failure> {
    let text = String::from_utf8(files::read(file)?)
        .map_err(|_| Failure::bad_input(format!("{}: is not a text of rules", file.display())))?;
    parse_all(&text).map_err(|e| Failure::bad_input(format!("{}: {e}", file.display())))
}

/// Takes what is in the text, and nothing else: no general rules are made of it.
fn import(path: PathBuf, file: &Path) -> Result<u8, Failure> {
    let rules = read(file)?;
    let all = rules.len();
    let mut store = open(path, false)?;
    let mut take = |rule| match rule {
        Entry::Specific(r) => store.record_only(&r.window, r.answer),
        Entry::General(g) => store.record_general(g),
    };
    let kept = rules.into_iter().map(&mut take).filter(|kept| *kept).count();
    if !store.flush() {
        return Err(Failure::bad_input(store.notes.join("\n")));
    }
    store.notes.iter().for_each(|n| files::complain(format!("bpf-opt: warning: {n}")));
    files::print(&format!("{kept} of {all} rules taken; the others were known as well or better\n"))?;
    Ok(exit::YES)
}

/// Proves every rule again from its text.
fn verify(rules: &[Entry]) -> Result<u8, Failure> {
    let options = bpf_prove::Options {
        limits: Limits { conflicts: 100_000, work: 50_000_000, ..Limits::default() },
        ..bpf_prove::Options::default()
    };
    let (mut proven, mut general, mut unsolved, mut failed, mut undecided) = (0, 0, 0, 0, 0);
    for rule in rules {
        let verdict = match rule {
            Entry::General(g) => g.prove(&options),
            Entry::Specific(Rule { window, answer }) => match &answer.with {
                Some(with) => window.prove(with, &options),
                None => {
                    unsolved += 1;
                    continue;
                }
            },
        };
        let why = match verdict {
            Verdict::Equal => {
                proven += 1;
                general += usize::from(matches!(rule, Entry::General(_)));
                continue;
            }
            Verdict::Different(_) => {
                failed += 1;
                "is WRONG: the two differ".to_owned()
            }
            Verdict::Unknown(why) => {
                undecided += 1;
                format!("is not proven: {why}")
            }
        };
        files::print(&format!("# this rule {why}\n{}\n", rule.text()))?;
    }
    files::print(&format!(
        "{proven} rule{} proven, {general} of them general, {failed} wrong, {undecided} not decided; \
         {unsolved} problem{} without a replacement\n",
        plural(proven),
        plural(unsolved)
    ))?;
    // A rule that is not shown to hold fails the command, whatever the reason.
    Ok(if failed + undecided == 0 { exit::YES } else { exit::NO })
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

fn stats(name: &str, bytes: u64, rules: &[Rule], general: &[General]) -> String {
    let slots = |ops: &[bpf_program::Op]| ops.iter().map(|o| o.insn.slots()).sum::<usize>();
    let solved: Vec<(usize, usize)> =
        rules.iter().filter_map(|r| Some((slots(&r.window.old), slots(r.answer.with.as_ref()?)))).collect();
    let optimal = rules.iter().filter(|r| match (&r.answer.with, r.answer.excluded) {
        (Some(w), Some(n)) => n as usize + 1 >= slots(w),
        (None, Some(n)) => n as usize + 1 >= slots(&r.window.old),
        (_, None) => false,
    });
    let mut by: Vec<(&str, usize)> = Vec::new();
    for r in rules.iter().filter(|r| r.answer.with.is_some()) {
        match by.iter_mut().find(|(name, _)| *name == r.answer.by) {
            Some((_, n)) => *n += 1,
            None => by.push((&r.answer.by, 1)),
        }
    }
    by.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
    let mut t = String::new();
    let _ = writeln!(t, "{name}: {bytes} bytes");
    let _ = writeln!(
        t,
        "{} problems, {} with a replacement, {} of them known to be shortest",
        rules.len(),
        solved.len(),
        optimal.count()
    );
    let (old, new) = solved.iter().fold((0, 0), |(a, b), (x, y)| (a + x, b + y));
    let _ = writeln!(t, "{old} slots become {new} where there is a replacement");
    let parameters: usize = general.iter().map(|g| g.conditions.len()).sum();
    let _ = writeln!(t, "{} general rules with {parameters} parameters", general.len());
    for (name, n) in by {
        let _ = writeln!(t, "found by {}: {n}", if name.is_empty() { "nobody" } else { name });
    }
    t
}
