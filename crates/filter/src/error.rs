//! Errors that point at a place in the text of a filter.

use std::ops::Range;

/// Why a filter was not compiled: what is wrong, where in the text, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What is wrong, as one sentence without a full stop.
    pub message: String,
    /// The bytes of the text that are to blame.
    pub span: Range<usize>,
    /// What would be right.
    pub help: Option<String>,
}

impl Error {
    /// An error about a part of the text.
    pub(crate) fn new(span: Range<usize>, message: impl Into<String>) -> Error {
        Error { message: shortened(message.into()), span, help: None }
    }

    /// The same with a hint.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Error {
        self.help = Some(shortened(help.into()));
        self
    }

    /// The error with the line of `text` that it is about, and carets below the place.
    pub fn render(&self, text: &str) -> String {
        const WIDTH: usize = 100;
        let start = self.span.start.min(text.len());
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
        let line = &text[line_start..line_end];
        let column = text[line_start..start].chars().count();
        let end = self.span.end.clamp(start, line_end);
        let carets = text[start..end].chars().count().max(1);
        // Long lines are cut around the place.
        let skipped = column.saturating_sub(WIDTH / 2);
        let shown: String =
            line.chars().skip(skipped).take(WIDTH).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let (before, after) =
            (if skipped > 0 { "…" } else { "" }, if line.chars().count() > skipped + WIDTH { "…" } else { "" });
        let indent = column - skipped + before.chars().count();
        let number = text[..start].matches('\n').count() + 1;
        let place = if text.contains('\n') { format!("line {number}, column {}: ", column + 1) } else { String::new() };
        let mut out = format!(
            "{place}{}\n  {before}{shown}{after}\n  {}{}",
            self.message,
            " ".repeat(indent),
            "^".repeat(carets.min(WIDTH))
        );
        if let Some(help) = &self.help {
            out.push_str(&format!("\n  help: {help}"));
        }
        out
    }
}

/// A message that quotes what may be very long: of long words the beginning and the end.
fn shortened(message: String) -> String {
    const LONG: usize = 100;
    const SHOWN: usize = 40;
    if message.len() <= LONG {
        return message;
    }
    let word = |word: &str| {
        let count = word.chars().count();
        if count <= LONG {
            return word.to_owned();
        }
        let (first, last): (String, String) =
            (word.chars().take(SHOWN).collect(), word.chars().skip(count - SHOWN).collect());
        format!("{first}…{last}")
    };
    message.split(' ').map(word).collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_are_shortened() {
        let long = format!("unknown port '{}', which is none", "9".repeat(1_000_000));
        let message = Error::new(0..1, long).message;
        assert!(message.starts_with("unknown port '999") && message.ends_with("999', which is none"), "{message}");
        assert!(message.len() < 150);
        let many = vec!["word"; 1000].join(" ");
        assert_eq!(Error::new(0..1, many.clone()).message, many);
    }
}
