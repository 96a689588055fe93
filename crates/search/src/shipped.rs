//! Rules that come with the program, so that a first run begins with what earlier searches have found.
//!
//! They are general rules, mined from the benchmark and the examples by `make mine-rules`, kept as the text that
//! `bpf-opt rules list --shipped` prints. A test proves each of them, as `bpf-opt rules verify --shipped` does. Nothing
//! is trusted all the same: an instance is proven where it is applied, like that of any other rule.

use std::sync::OnceLock;

use crate::general::{General, Index};
use crate::rules::{Entry, RuleError, parse_all};

/// All of them.
pub const TEXT: &str = include_str!("../shipped.rules");

/// All of them, in the order of the text; none if the text is broken, which a test excludes.
pub fn rules() -> Vec<General> {
    parse(TEXT).unwrap_or_default()
}

/// The rules of a text in which only general ones may stand.
fn parse(text: &str) -> Result<Vec<General>, RuleError> {
    let general = |e| match e {
        Entry::General(g) => Some(g),
        Entry::Specific(_) => None,
    };
    Ok(parse_all(text)?.into_iter().filter_map(general).collect())
}

/// An index of them, made once.
pub(crate) fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| {
        let mut index = Index::default();
        rules().into_iter().for_each(|g| {
            index.insert(g);
        });
        index
    })
}

#[cfg(test)]
mod tests {
    use bpf_prove::Options;

    use super::*;

    #[test]
    fn the_text_holds_general_rules_alone_and_is_what_it_prints() {
        let all = parse_all(TEXT).expect("the text is one of rules");
        let rules = rules();
        assert_eq!(rules.len(), all.len(), "only general rules are shipped");
        assert!(!rules.is_empty());
        assert_eq!(index().rules().len(), rules.len(), "no two rules are about the same windows");
        let printed: Vec<String> = rules.iter().map(General::text).collect();
        let body: Vec<&str> = TEXT.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(body.join("\n").trim(), printed.join("\n").trim());
    }

    #[test]
    fn each_is_proven() {
        for rule in rules() {
            assert!(rule.prove(&Options::default()).is_equal(), "not proven:\n{}", rule.text());
        }
    }
}
