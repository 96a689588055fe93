//! The modules of a crate, and what each imports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::{Attribute, Expr, Item, ItemUse, Lit, Meta, UseTree, Visibility};

use crate::paths::{self, Segments, is_for_tests};

/// Why the source of a crate could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not Rust.
    #[error("{}: {source}", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// What the parser says, with its position.
        source: syn::Error,
    },
    /// The file of a module is at none of the places where the compiler looks.
    #[error("{}: no file for module `{name}`", file.display())]
    NoModule {
        /// The file with the `mod` item.
        file: PathBuf,
        /// The module.
        name: String,
    },
}

/// One file takes something from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The file with the path.
    pub from: PathBuf,
    /// The file that the path leads to.
    pub to: PathBuf,
    /// The path as it was resolved, for messages: `crate::context::Limits`.
    pub path: String,
}

/// A module: a file, or a part of one.
#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    /// Names that `use` items bring into scope, and where they lead.
    names: BTreeMap<String, Segments>,
    /// Every path of it that counts, as written.
    paths: BTreeSet<Segments>,
    has_children: bool,
}

/// A crate as a tree of modules.
#[derive(Debug)]
pub struct Crate {
    /// By path from the crate's root, which is the empty one.
    modules: BTreeMap<Segments, Module>,
}

impl Crate {
    /// Reads a crate from its root file, `lib.rs` or `main.rs`.
    ///
    /// # Errors
    /// A file that is missing, cannot be read or is not Rust.
    pub fn read(root: &Path) -> Result<Self, Error> {
        let mut all = Self { modules: BTreeMap::new() };
        let folder = root.parent().unwrap_or(Path::new("")).to_path_buf();
        all.file(Vec::new(), root, &folder)?;
        Ok(all)
    }

    /// The number of files.
    pub fn files(&self) -> usize {
        self.modules.values().map(|m| &m.file).collect::<BTreeSet<_>>().len()
    }

    /// What each file imports from the others.
    pub fn imports(&self) -> BTreeSet<Import> {
        let mut imports = BTreeSet::new();
        for (at, module) in &self.modules {
            for path in &module.paths {
                let Some(full) = self.absolute(at, path) else { continue };
                let Some(to) = self.home(full.clone(), 0) else { continue };
                if to != module.file {
                    let path = format!("crate::{}", full.join("::"));
                    imports.insert(Import { from: module.file.clone(), to: to.to_path_buf(), path });
                }
            }
        }
        imports
    }

    /// A path of a module as one from the root; none if it leads out of the crate or is a local name.
    fn absolute(&self, at: &[String], path: &[String]) -> Option<Segments> {
        let mut here = at.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => here.clear(),
            "self" => {}
            "super" => {
                here.pop()?;
            }
            name => {
                let child: Segments = at.iter().cloned().chain([name.to_string()]).collect();
                if !self.modules.contains_key(&child) {
                    return None;
                }
                return Some(at.iter().chain(path).cloned().collect());
            }
        }
        rest = &rest[1..];
        while let Some((first, more)) = rest.split_first()
            && first == "super"
        {
            here.pop()?;
            rest = more;
        }
        here.extend_from_slice(rest);
        Some(here)
    }

    /// The file in which what a path from the root names stands; `depth` ends circles of re-exports.
    fn home(&self, path: Segments, depth: usize) -> Option<&Path> {
        let split = (0..=path.len()).rev().find(|n| self.modules.contains_key(&path[..*n]))?;
        let (at, rest) = path.split_at(split);
        let module = &self.modules[at];
        if let Some(name) = rest.first().filter(|_| depth < 16) {
            let through = module.names.get(name).and_then(|to| self.absolute(at, to));
            if let Some(mut full) = through.filter(|full| full.as_slice() != path.as_slice()) {
                full.extend_from_slice(&rest[1..]);
                return self.home(full, depth + 1);
            }
        }
        Some(&module.file)
    }

    fn file(&mut self, at: Segments, file: &Path, folder: &Path) -> Result<(), Error> {
        let text = std::fs::read_to_string(file).map_err(|source| Error::Read { file: file.into(), source })?;
        let parsed = syn::parse_file(&text).map_err(|source| Error::Parse { file: file.into(), source })?;
        if is_for_tests(&parsed.attrs) {
            return Ok(());
        }
        self.items(at, file, folder, &parsed.items)
    }

    fn items(&mut self, at: Segments, file: &Path, folder: &Path, items: &[Item]) -> Result<(), Error> {
        let mut module = Module { file: file.to_path_buf(), ..Module::default() };
        module.has_children = items.iter().any(|i| matches!(i, Item::Mod(m) if !is_for_tests(&m.attrs)));
        for item in items {
            match item {
                Item::Mod(m) => {
                    if is_for_tests(&m.attrs) {
                        continue;
                    }
                    let name = m.ident.to_string();
                    let below: Segments = at.iter().cloned().chain([name.clone()]).collect();
                    match &m.content {
                        Some(content) => self.items(below, file, &folder.join(&name), &content.1)?,
                        None => {
                            let (child, inside) = module_file(&m.attrs, file, folder, &name)?;
                            self.file(below, &child, &inside)?;
                        }
                    }
                }
                Item::Use(u) if !is_for_tests(&u.attrs) => module.imports(u),
                other => paths::of_item(other, &mut module.paths),
            }
        }
        self.modules.insert(at, module);
        Ok(())
    }
}

impl Module {
    fn imports(&mut self, item: &ItemUse) {
        let re_export = self.has_children && !matches!(item.vis, Visibility::Inherited);
        let mut leaves = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut leaves);
        for (path, name) in leaves {
            if let Some(name) = name {
                self.names.insert(name, path.clone());
            }
            if !re_export {
                self.paths.insert(path);
            }
        }
    }
}

/// The paths of a `use` item with the names that they get; none for `*`.
fn flatten(tree: &UseTree, prefix: &mut Segments, leaves: &mut Vec<(Segments, Option<String>)>) {
    match tree {
        UseTree::Path(p) => {
            prefix.push(p.ident.to_string());
            flatten(&p.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Name(n) if n.ident == "self" => leaves.push((prefix.clone(), prefix.last().cloned())),
        UseTree::Name(n) => {
            let name = n.ident.to_string();
            leaves.push((prefix.iter().cloned().chain([name.clone()]).collect(), Some(name)));
        }
        UseTree::Rename(r) => {
            let own = (r.ident != "self").then(|| r.ident.to_string());
            leaves.push((prefix.iter().cloned().chain(own).collect(), Some(r.rename.to_string())));
        }
        UseTree::Glob(_) => leaves.push((prefix.clone(), None)),
        UseTree::Group(g) => g.items.iter().for_each(|tree| flatten(tree, prefix, leaves)),
    }
}

/// The file of `mod name;`, and the folder of the modules below it.
fn module_file(attributes: &[Attribute], file: &Path, folder: &Path, name: &str) -> Result<(PathBuf, PathBuf), Error> {
    if let Some(path) = path_attribute(attributes) {
        let child = file.parent().unwrap_or(Path::new("")).join(path);
        let inside = child.parent().unwrap_or(Path::new("")).to_path_buf();
        return Ok((child, inside));
    }
    let inside = folder.join(name);
    let places = [folder.join(format!("{name}.rs")), inside.join("mod.rs")];
    let found = places.into_iter().find(|place| place.exists());
    found.map(|child| (child, inside)).ok_or_else(|| Error::NoModule { file: file.into(), name: name.into() })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|a| match &a.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}
