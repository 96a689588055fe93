//! A table of costs as text: a subset of TOML, a line for each class.
//!
//! ```text
//! format = 1
//! arch = "x86_64"
//! cpu = "AMD EPYC"
//! kernel = "6.18"
//! date = "2026-11-27"
//! source = "measured by bpf-opt profile"
//!
//! # Picoseconds an operation: in a chain, and beside others.
//! [costs]
//! "alu.64" = [250, 60]
//! ```

use std::fmt::Write;

use thiserror::Error;

use super::class::Class;
use super::table::{Cost, Costs, Origin};

/// What is wrong with a table.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CostsError {
    /// A line says nothing that a table can say.
    #[error("line {line}: {problem}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A class is missing.
    #[error("no line for the class `{0}`")]
    Missing(&'static str),
    /// It is no such table.
    #[error("no table of costs: it has no line `format = 1`")]
    Format,
}

/// More than anything takes: a tenth of a millisecond.
const MOST: u32 = 100_000_000;

impl Costs {
    /// Reads a table.
    ///
    /// # Errors
    /// What is wrong with it, by line and class.
    pub fn parse(text: &str) -> Result<Costs, CostsError> {
        let mut origin = Origin::default();
        let mut costs: [Option<Cost>; Class::COUNT] = [None; Class::COUNT];
        let (mut has_format, mut in_costs) = (false, false);
        for (number, line) in text.lines().enumerate() {
            let wrong = |problem: String| CostsError::Line { line: number + 1, problem };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line == "[costs]" {
                in_costs = true;
                continue;
            }
            let (key, value) = line.split_once('=').ok_or_else(|| wrong(format!("`{line}` is no `name = value`")))?;
            let (key, value) = (key.trim(), value.trim());
            if in_costs {
                let name = key.trim_matches('"');
                let class = Class::named(name).ok_or_else(|| wrong(format!("no class `{name}`")))?;
                let cost = pair(value).map_err(|e| wrong(format!("class `{name}`: {e}")))?;
                if costs[class as usize].replace(cost).is_some() {
                    return Err(wrong(format!("class `{name}`: a second line for it")));
                }
            } else if key == "format" {
                has_format = value == "1";
                if !has_format {
                    return Err(wrong(format!("format {value} is not known here; format 1 is")));
                }
            } else {
                let field = match key {
                    "arch" => &mut origin.arch,
                    "cpu" => &mut origin.cpu,
                    "kernel" => &mut origin.kernel,
                    "date" => &mut origin.date,
                    "source" => &mut origin.source,
                    _ => return Err(wrong(format!("`{key}` says nothing here"))),
                };
                let text = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
                *field = text.ok_or_else(|| wrong(format!("`{key}`: a text in quotes is expected")))?.to_owned();
            }
        }
        if !has_format {
            return Err(CostsError::Format);
        }
        if let Some(class) = Class::ALL.iter().find(|c| costs[**c as usize].is_none()) {
            return Err(CostsError::Missing(class.name()));
        }
        Ok(Costs::new(origin, |class| costs[class as usize].unwrap_or_default()))
    }

    /// The table as text, with these remarks behind the lines of classes.
    pub fn to_text(&self, remark: impl Fn(Class) -> Option<String>) -> String {
        let Origin { arch, cpu, kernel, date, source } = &self.origin;
        let mut out =
            "# Costs of classes of operations, for `bpf-opt opt --costs FILE` (docs/profile.md).\n".to_owned();
        out.push_str("format = 1\n");
        for (name, text) in [("arch", arch), ("cpu", cpu), ("kernel", kernel), ("date", date), ("source", source)] {
            let clean: String = text.chars().filter(|c| *c != '"' && !c.is_control()).collect();
            let _ = writeln!(out, "{name} = \"{clean}\"");
        }
        out.push_str("\n# Picoseconds an operation: in a chain of such, and beside others that do not wait for it.\n");
        out.push_str("[costs]\n");
        for class in Class::ALL {
            let Cost { dependent, independent } = self.of(*class);
            let _ = write!(out, "\"{}\" = [{dependent}, {independent}]", class.name());
            if let Some(remark) = remark(*class) {
                let _ = write!(out, " # {remark}");
            }
            out.push('\n');
        }
        out
    }
}

/// `[dependent, independent]`, and a remark perhaps.
fn pair(value: &str) -> Result<Cost, String> {
    let value = value.split_once('#').map_or(value, |(before, _)| before).trim();
    let inside = value.strip_prefix('[').and_then(|v| v.strip_suffix(']'));
    let (dependent, independent) =
        inside.and_then(|v| v.split_once(',')).ok_or_else(|| format!("`{value}` is not `[dependent, independent]`"))?;
    let number = |text: &str| match text.trim().parse::<u32>() {
        Ok(n) if n <= MOST => Ok(n),
        _ => Err(format!("`{}` is no number of picoseconds from 0 to {MOST}", text.trim())),
    };
    Ok(Cost { dependent: number(dependent)?, independent: number(independent)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Costs {
        let origin = Origin { cpu: "a \"quick\" one".to_owned(), ..Origin::default() };
        Costs::new(origin, |class| Cost { dependent: class as u32 + 7, independent: class as u32 + 1 })
    }

    #[test]
    fn a_table_comes_back_from_its_text() {
        let text = table().to_text(|_| Some("a remark".to_owned()));
        let read = Costs::parse(&text).expect("a table");
        assert_eq!(read, table());
        assert_eq!(read.of(Class::Div32), table().of(Class::Div32));
        assert_eq!(read.origin.cpu, "a quick one");
    }

    #[test]
    fn a_bad_table_is_refused_with_line_and_class() {
        let good = table().to_text(|_| None);
        let line = good.lines().position(|l| l.starts_with("\"mul.32\"")).expect("a line") + 1;
        let mul = format!("\"mul.32\" = [{}, {}]", Class::Mul32 as u32 + 7, Class::Mul32 as u32 + 1);
        let with = |new: &str| Costs::parse(&good.replace(&mul, new)).expect_err("refused").to_string();
        assert_eq!(with("\"mul.33\" = [1, 1]"), format!("line {line}: no class `mul.33`"));
        let no_pair = with("\"mul.32\" = 1");
        assert_eq!(no_pair, format!("line {line}: class `mul.32`: `1` is not `[dependent, independent]`"));
        let number = with("\"mul.32\" = [-1, 1]");
        let expected = format!("line {line}: class `mul.32`: `-1` is no number of picoseconds");
        assert!(number.starts_with(&expected), "{number}");
        assert!(with("\"mul.32\" = [9999999999, 1]").contains("class `mul.32`"));
        let twice = with(&format!("{mul}\n{mul}"));
        assert_eq!(twice, format!("line {}: class `mul.32`: a second line for it", line + 1));
        assert_eq!(with("mul"), format!("line {line}: `mul` is no `name = value`"));
        assert_eq!(with(""), "no line for the class `mul.32`");
        let refused = |text: &str| Costs::parse(text).expect_err("refused").to_string();
        assert_eq!(refused(""), CostsError::Format.to_string());
        assert_eq!(refused("format = 2"), "line 1: format 2 is not known here; format 1 is");
        assert_eq!(refused("format = 1\ncpu = 3"), "line 2: `cpu`: a text in quotes is expected");
    }
}
