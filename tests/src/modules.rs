//! The graph of files: which file uses what another one defines, read from the sources by `syn`.
//!
//! An arrow `a -> b` stands for a name that is defined in `b` and used in `a`: in a `use`, or in a
//! path of the code. A file that only hands names on (`pub use`) has no arrow for that; a name is
//! followed to the file that defines it. Tests (`#[cfg(test)]`) and the arguments of macros are not
//! read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use petgraph::graphmap::DiGraphMap;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::sources::{Source, is_test, sources};

/// A use of one file's name by another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Arrow {
    /// The file that uses, relative to the folder of sources.
    pub from: PathBuf,
    /// The file that defines.
    pub to: PathBuf,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.from.display(), self.to.display())
    }
}

/// The files of a crate and what they use of each other.
pub struct Modules {
    /// Names of each arrow.
    pub arrows: BTreeMap<Arrow, BTreeSet<String>>,
    /// Names of other crates that each file uses, as paths.
    pub foreign: BTreeMap<PathBuf, BTreeSet<String>>,
}

/// A file, read.
struct Module {
    file: PathBuf,
    defines: BTreeSet<String>,
    /// What a name of a `use` stands for.
    names: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths that the file uses: of `use` that are not handed on, and of its code.
    paths: BTreeSet<Vec<String>>,
}

impl Module {
    fn of(source: &Source) -> Self {
        let mut module = Self {
            file: source.file.clone(),
            defines: BTreeSet::new(),
            names: BTreeMap::new(),
            globs: Vec::new(),
            paths: BTreeSet::new(),
        };
        for item in source.parsed.items.iter().filter(|item| !is_test(attributes(item))) {
            match item {
                Item::Mod(child) if child.content.is_none() => {}
                Item::Use(used) => module.note_use(used),
                item => {
                    module.defines.extend(defined(item));
                    Paths(&mut module.paths).visit_item(item);
                }
            }
        }
        module
    }

    fn note_use(&mut self, used: &syn::ItemUse) {
        let handed_on = !matches!(used.vis, Visibility::Inherited);
        flatten(&used.tree, Vec::new(), &mut |path, name| match name {
            Some(name) => {
                if !handed_on {
                    self.paths.insert(path.clone());
                }
                self.names.insert(name, path);
            }
            None => self.globs.push(path),
        });
    }
}

impl Modules {
    /// Reads the sources under a folder that holds `lib.rs` or `main.rs`.
    ///
    /// # Panics
    /// If a file cannot be read or is not Rust.
    pub fn read(folder: &Path) -> Self {
        let modules: BTreeMap<_, _> =
            sources(folder).into_iter().map(|source| (source.module.clone(), Module::of(&source))).collect();
        let mut arrows: BTreeMap<Arrow, BTreeSet<String>> = BTreeMap::new();
        let mut foreign: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
        for (at, module) in &modules {
            for path in &module.paths {
                match resolve(&modules, at, path, 0) {
                    Found::Defined(to) if modules[&to].file != module.file => {
                        let arrow = Arrow { from: module.file.clone(), to: modules[&to].file.clone() };
                        arrows.entry(arrow).or_default().insert(path.last().cloned().unwrap_or_default());
                    }
                    Found::Foreign(path) => {
                        foreign.entry(module.file.clone()).or_default().insert(path.join("::"));
                    }
                    Found::Defined(_) | Found::Module | Found::Unknown => {}
                }
            }
        }
        Self { arrows, foreign }
    }

    /// Sets of files that use each other in a loop.
    pub fn circles(&self) -> Vec<BTreeSet<PathBuf>> {
        circles(self.arrows.keys().map(|arrow| (arrow.from.clone(), arrow.to.clone())))
    }

    /// Sets of rooms that use each other in a loop: a room is a folder or a file beside the root.
    pub fn circles_of_rooms(&self) -> Vec<BTreeSet<PathBuf>> {
        let room = |file: &Path| PathBuf::from(file.iter().next().expect("a file")).with_extension("");
        circles(self.arrows.keys().map(|arrow| (room(&arrow.from), room(&arrow.to))).filter(|(from, to)| from != to))
    }

    /// The arrows within a set of files, with their names.
    pub fn within(&self, files: &BTreeSet<PathBuf>) -> Vec<String> {
        let inside = self.arrows.iter().filter(|(arrow, _)| files.contains(&arrow.from) && files.contains(&arrow.to));
        inside.map(|(arrow, names)| format!("{arrow}: {}", names.iter().cloned().collect::<Vec<_>>().join(", "))).collect()
    }
}

/// Sets of nodes that reach each other.
fn circles(arrows: impl Iterator<Item = (PathBuf, PathBuf)>) -> Vec<BTreeSet<PathBuf>> {
    let mut graph: DiGraphMap<usize, ()> = DiGraphMap::new();
    let arrows: Vec<(PathBuf, PathBuf)> = arrows.collect();
    let nodes: Vec<&PathBuf> = arrows.iter().flat_map(|(from, to)| [from, to]).collect::<BTreeSet<_>>().into_iter().collect();
    let number = |node: &PathBuf| nodes.binary_search(&node).expect("a node");
    for (from, to) in &arrows {
        graph.add_edge(number(from), number(to), ());
    }
    let found = petgraph::algo::tarjan_scc(&graph).into_iter().filter(|set| set.len() > 1);
    found.map(|set| set.into_iter().map(|n| nodes[n].clone()).collect()).collect()
}

enum Found {
    /// In the module of this path.
    Defined(Vec<String>),
    /// A module itself, of which other paths take names.
    Module,
    /// In another crate, by its path there.
    Foreign(Vec<String>),
    /// A name of the language, or one that the code binds.
    Unknown,
}

/// Where the name at the end of a path is defined, seen from a module.
fn resolve(modules: &BTreeMap<Vec<String>, Module>, from: &[String], path: &[String], depth: usize) -> Found {
    if depth > 16 {
        return Found::Unknown;
    }
    let (mut at, mut rest) = (from.to_vec(), path);
    let mut anchored = false;
    while let Some((first, others)) = rest.split_first() {
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            _ => break,
        }
        anchored = true;
        rest = others;
    }
    while let Some((name, others)) = rest.split_first() {
        let child: Vec<String> = at.iter().chain([name]).cloned().collect();
        let module = &modules[&at];
        if modules.contains_key(&child) {
            at = child;
            rest = others;
        } else if module.defines.contains(name) {
            return Found::Defined(at);
        } else if let Some(stands_for) = module.names.get(name).filter(|path| path.as_slice() != rest) {
            let longer: Vec<String> = stands_for.iter().chain(others).cloned().collect();
            return resolve(modules, &at, &longer, depth + 1);
        } else {
            for glob in &module.globs {
                let longer: Vec<String> = glob.iter().chain(rest).cloned().collect();
                if let found @ Found::Defined(_) = resolve(modules, &at, &longer, depth + 1) {
                    return found;
                }
            }
            return if anchored || at != from || !name.starts_with("flashtile") {
                Found::Unknown
            } else {
                Found::Foreign(rest.to_vec())
            };
        }
        anchored = true;
    }
    Found::Module
}

/// The paths that code uses.
struct Paths<'a>(&'a mut BTreeSet<Vec<String>>);

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, used: &'ast syn::ItemUse) {
        flatten(&used.tree, Vec::new(), &mut |path, _| {
            self.0.insert(path);
        });
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }
}

/// The paths of a `use`, each with the name that it gives; without one for `*`.
fn flatten(tree: &UseTree, mut before: Vec<String>, each: &mut dyn FnMut(Vec<String>, Option<String>)) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, each);
        }
        UseTree::Name(name) if name.ident == "self" => {
            let last = before.last().cloned();
            each(before, last);
        }
        UseTree::Name(name) => {
            before.push(name.ident.to_string());
            each(before, Some(name.ident.to_string()));
        }
        UseTree::Rename(renamed) => {
            before.push(renamed.ident.to_string());
            each(before, Some(renamed.rename.to_string()));
        }
        UseTree::Glob(_) => each(before, None),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before.clone(), each)),
    }
}

fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Mod(item) => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
