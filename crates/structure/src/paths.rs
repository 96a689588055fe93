//! The paths that an item mentions.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, Macro, Meta, Path};

/// A path in pieces: `crate::a::B` is `["crate", "a", "B"]`.
pub(crate) type Segments = Vec<String>;

/// Adds the paths of two and more segments that an item mentions outside tests.
pub(crate) fn of_item(item: &Item, paths: &mut BTreeSet<Segments>) {
    Collector { paths }.visit_item(item);
}

struct Collector<'a> {
    paths: &'a mut BTreeSet<Segments>,
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let hidden = matches!(item, ImplItem::Fn(f) if is_for_tests(&f.attrs));
        if !hidden {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // Inside functions; `a::{B, C}` counts as what its prefix names.
        let mut segments = Vec::new();
        let mut tree = &item.tree;
        while let syn::UseTree::Path(p) = tree {
            segments.push(p.ident.to_string());
            tree = &p.tree;
        }
        if let syn::UseTree::Name(n) = tree {
            segments.push(n.ident.to_string());
        }
        self.add(segments);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        self.add(path.segments.iter().map(|s| s.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, m: &'ast Macro) {
        self.tokens(m.tokens.clone());
        visit::visit_macro(self, m);
    }
}

impl Collector<'_> {
    fn add(&mut self, segments: Segments) {
        if segments.len() > 1 {
            self.paths.insert(segments);
        }
    }

    /// Names with `::` between them, as macros are given them.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(p) if p.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.add(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.add(path);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// Whether attributes say that something is only compiled for tests.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("test")
            || a.path().is_ident("cfg") && matches!(&a.meta, Meta::List(list) if list.tokens.to_string() == "test")
    })
}
