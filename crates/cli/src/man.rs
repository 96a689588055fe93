//! `bpf-opt man`: the manual, a page for each command, made from the declarations of the command line.
//!
//! The one idea: `--help` is the only text there is. Names, options and summaries are set by `clap_mangen`; what stands
//! behind the options in `--help` becomes sections: its examples, its exit codes, and the rest.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::args::{Cli, ManArgs};
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};

/// Runs the command.
pub fn run(args: &ManArgs) -> Result<u8, Failure> {
    let root = built();
    match &args.dir {
        Some(folder) => write_all(&root, folder)?,
        None => files::print(&String::from_utf8_lossy(&page(chosen(&root, &args.command)?)?))?,
    }
    Ok(exit::YES)
}

/// The command line, with all that is made of its declarations.
fn built() -> Command {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    root
}

/// The command of this name; none: the program.
fn chosen<'a>(root: &'a Command, names: &[String]) -> Result<&'a Command, Failure> {
    names.iter().try_fold(root, |command, name| {
        command.find_subcommand(name).ok_or_else(|| {
            let known: Vec<&str> = shown(command).map(Command::get_name).collect();
            let what =
                if known.is_empty() { "it has none".to_owned() } else { format!("there is: {}", known.join(", ")) };
            Failure::bad_input(format!("no command `{name}` of {}; {what}", title(command)))
        })
    })
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set())
}

/// What the page is called: `bpf-opt-kernels-load`.
fn title(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Writes the page of a command and those of all commands below it.
fn write_all(command: &Command, folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|e| Failure::io("make this folder", folder, &e))?;
    let path = folder.join(format!("{}.1", title(command)));
    Destination::of(&path)?.write(&page(command)?, None)?;
    shown(command).try_for_each(|below| write_all(below, folder))
}

/// The page of a command.
fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    set(command).map_err(|e| Failure::internal(format!("the page of {}: {e}", title(command))))
}

fn set(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let rest = command.get_after_long_help().or_else(|| command.get_after_help());
    let rest = rest.map(ToString::to_string).unwrap_or_default();
    let (description, sections) = blocks(&rest);
    let mut page = Vec::new();
    // Without a date, so that a version has one manual. (`Man::render_title` leaves an empty one out.)
    let (title, version) = (title(command), env!("CARGO_PKG_VERSION"));
    writeln!(page, ".TH {} 1 \"\" \"bpf-opt {version}\" \"bpf-opt manual\"", title.to_uppercase())?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    paragraphs(&description, true).to_writer(&mut page)?;
    if command.get_arguments().any(|a| !a.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    for (heading, blocks) in sections {
        let mut roff = Roff::new();
        roff.control("SH", [heading]);
        roff.extend([paragraphs(&blocks, false)]);
        roff.to_writer(&mut page)?;
    }
    if title != "bpf-opt" {
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman("bpf-opt(1)")]);
        roff.to_writer(&mut page)?;
    }
    Ok(page)
}

/// What stands behind the options in `--help`, block by block; an empty line ends a block. Those before the first that has a
/// heading belong to the description, the others to sections.
fn blocks(text: &str) -> (Vec<&str>, Vec<(&'static str, Vec<&str>)>) {
    const HEADINGS: [(&str, &str); 3] =
        [("Examples:", "EXAMPLES"), ("Exit codes:", "EXIT STATUS"), ("Environment:", "ENVIRONMENT")];
    let (mut description, mut sections): (Vec<&str>, Vec<(&str, Vec<&str>)>) = (Vec::new(), Vec::new());
    for block in text.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let heading = HEADINGS.iter().find_map(|(word, heading)| Some((block.strip_prefix(word)?, *heading)));
        match (heading, sections.last_mut()) {
            (Some((rest, heading)), _) => sections.push((heading, vec![rest])),
            (None, None) => description.push(block),
            (None, Some(("NOTES", blocks))) => blocks.push(block),
            (None, Some(_)) => sections.push(("NOTES", vec![block])),
        }
    }
    (description, sections)
}

/// Blocks, each a paragraph; indented lines keep their form. `behind`: something stands before the first.
fn paragraphs(blocks: &[&str], behind: bool) -> Roff {
    let mut roff = Roff::new();
    for (i, block) in blocks.iter().enumerate() {
        if behind || i > 0 {
            roff.control("PP", []);
        }
        let mut as_it_is = false;
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            if line.starts_with("  ") != as_it_is {
                as_it_is = !as_it_is;
                roff.control(if as_it_is { "nf" } else { "fi" }, []);
            }
            roff.text([roman(if as_it_is { line } else { line.trim_start() })]);
        }
        if as_it_is {
            roff.control("fi", []);
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_help_become_paragraphs_and_sections() {
        let text =
            "What it does,\nin words.\n\nMore.\n\nExamples:\n  a -b\n  c\n\nA note.\n\nExit codes: 0 yes;\n1 no.";
        let (description, sections) = blocks(text);
        assert_eq!(description, ["What it does,\nin words.", "More."]);
        let headings: Vec<&str> = sections.iter().map(|(heading, _)| *heading).collect();
        assert_eq!(headings, ["EXAMPLES", "NOTES", "EXIT STATUS"]);
        let set = |blocks: &[&str], behind| paragraphs(blocks, behind).to_roff();
        assert_eq!(set(&description, true), ".PP\nWhat it does,\nin words.\n.PP\nMore.\n");
        assert_eq!(set(&sections[0].1, false), ".nf\n  a \\-b\n  c\n.fi\n");
    }

    #[test]
    fn hidden_commands_have_no_page() {
        let root = built();
        assert!(shown(&root).all(|c| c.get_name() != "guest"));
        assert!(chosen(&root, &["kernels".to_owned(), "load".to_owned()]).is_ok());
        assert!(chosen(&root, &["nothing".to_owned()]).is_err());
    }
}
