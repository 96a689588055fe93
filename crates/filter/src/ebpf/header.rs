//! The header that declares a filter that is a function.

use std::fmt::Write;

use super::form::{EbpfForm, Takes};
use crate::link::LinkType;

/// The header of a function; of a program there is none. `text` is the filter.
pub(crate) fn header(form: &EbpfForm, text: &str, link_type: LinkType) -> Option<String> {
    /// More of a filter is not quoted.
    const QUOTED: usize = 300;
    let EbpfForm::Function { name, takes } = form else { return None };
    let name = name.as_str();
    // Names that differ in case only are two.
    let guard = format!("BPF_OPT_FILTER_H_{name}");
    let mut quoted: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = quoted.char_indices().nth(QUOTED) {
        quoted.truncate(end);
        quoted.push_str(" ...");
    }
    // Neither the comment's end nor another one's beginning.
    let quoted = quoted.replace("*/", "* /").replace("/*", "/ *").replace('\\', " ");
    let mut out = String::new();
    let _ = writeln!(out, "/* Written by `bpf-opt filter`. The object that goes with it is linked by");
    let _ = writeln!(out, "   `bpftool gen object LINKED.o YOURS.o FILTER.o`. */");
    let _ = writeln!(out, "#ifndef {guard}\n#define {guard}\n");
    let _ = writeln!(out, "/* 1 if the packet matches, 0 if it does not. The filter:\n       {quoted}");
    let _ = writeln!(out, "   Packets begin as {link_type} does.");
    match takes {
        Takes::Data => {
            let _ = writeln!(
                out,
                "   `data` and `data_end` are those of the context, or `data` is further inside. The function is"
            );
            let _ = writeln!(out, "   verified with its caller, as a static one is. */");
            let _ =
                writeln!(out, "extern int {name}(void *data, void *data_end) __attribute__((visibility(\"hidden\")));");
        }
        Takes::Context(hook) => {
            let context = hook.context();
            if hook.pulls_data() {
                let _ = writeln!(out, "   It may move the packet: read `data` and `data_end` again behind a call.");
            }
            let _ = writeln!(out, "   The function is verified alone. */");
            let _ = writeln!(out, "struct {context};\nextern int {name}(struct {context} *ctx);");
        }
    }
    let _ = writeln!(out, "\n#endif");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::super::name::FunctionName;
    use super::*;

    #[test]
    fn filters_in_headers_do_not_end_the_comment() {
        let form = EbpfForm::Function { name: FunctionName::new("f").expect("a name"), takes: Takes::Data };
        let text = header(&form, "ip[0]*/*2*/3 = 1\nor tcp\\", LinkType::EN10MB).expect("a header");
        assert_eq!(text.matches("*/").count(), 2, "{text}");
        assert_eq!(text.matches("/*").count(), 2, "{text}");
        assert!(text.contains("= 1 or tcp "), "{text}");
    }
}
