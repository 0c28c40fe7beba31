//! The modules of a crate, and the files that its names come from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{self, PathBuf};

use crate::graph::Uses;
use crate::module::{Module, Path};

/// The sources of a crate.
#[derive(Debug)]
pub struct CrateSource {
    /// Modules by path, each with its file.
    modules: BTreeMap<Path, (String, Module)>,
}

impl CrateSource {
    /// Reads the crate whose root is this file.
    ///
    /// # Panics
    /// Panics if a file cannot be read.
    pub fn read(root: &path::Path) -> CrateSource {
        let mut source = CrateSource { modules: BTreeMap::new() };
        let directory = root.parent().expect("a file in a directory");
        source.read_file(directory, root, directory.to_owned(), &Vec::new());
        source
    }

    /// Reads a file and those of its modules, which are in `inner`.
    fn read_file(&mut self, top: &path::Path, file: &path::Path, inner: PathBuf, module: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let code = text.parse().unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let name = file.strip_prefix(top).unwrap_or(file).display().to_string();
        self.insert(top, &name, inner, module, Module::read(code));
    }

    fn insert(
        &mut self,
        top: &path::Path,
        file: &str,
        directory: PathBuf,
        path: &Path,
        mut module: Module,
    ) {
        for (name, value) in &module.files {
            let inner = directory.join(name);
            let named = value.as_ref().map(|value| top.join(file).with_file_name(value));
            // Modules of a file with an attribute lie beside it.
            let beside = named.as_ref().and_then(|file| file.parent()).map(path::Path::to_owned);
            let files = match named {
                Some(named) => vec![named],
                None => vec![directory.join(format!("{name}.rs")), inner.join("mod.rs")],
            };
            let inner = beside.unwrap_or(inner);
            let found = files.iter().find(|file| file.exists());
            let found = found.unwrap_or_else(|| panic!("{file}: no file for the module {name}"));
            self.read_file(top, found, inner, &joined(path, name));
        }
        for (name, module) in std::mem::take(&mut module.inner) {
            self.insert(top, file, directory.join(&name), &joined(path, &name), module);
        }
        drop(self.modules.insert(path.clone(), (file.to_owned(), module)));
    }

    /// Returns which file uses which others.
    pub fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (path, (file, module)) in &self.modules {
            let used = uses.entry(file.clone()).or_default();
            let is_named = |name: &String| module.paths.iter().any(|path| path[0] == *name);
            let imports = module
                .imports
                .iter()
                .filter(|(name, import)| !self.is_inside(path, import) || is_named(name))
                .map(|(_, import)| import);
            let globs = module.globs.iter().filter(|glob| {
                let items = self.absolute(path, glob).and_then(|glob| self.modules.get(&glob));
                !self.is_inside(path, glob)
                    || items.is_some_and(|(_, module)| module.items.iter().any(is_named))
            });
            let paths = module.paths.iter().filter(|path| path.len() > 1);
            for named in imports.chain(globs).chain(paths) {
                let Some(other) = self.absolute(path, named).and_then(|named| self.file(&named, 0))
                else {
                    continue;
                };
                if other != file {
                    used.entry(other.to_owned()).or_insert_with(|| named.join("::"));
                }
            }
        }
        uses
    }

    /// Returns whether an import is of a module below the one that imports it.
    fn is_inside(&self, module: &Path, import: &Path) -> bool {
        self.absolute(module, import).is_some_and(|import| {
            let next = import.get(..=module.len());
            import.starts_with(module) && next.is_some_and(|next| self.modules.contains_key(next))
        })
    }

    /// Returns a path from the root of the crate, unless it begins with a name that the module does not have.
    fn absolute(&self, module: &Path, path: &Path) -> Option<Path> {
        let mut base = module.clone();
        let mut names = &path[..];
        match path[0].as_str() {
            "crate" => {
                base.clear();
                names = &names[1..];
            }
            "self" | "super" => {
                while let Some(name @ ("self" | "super")) = names.first().map(String::as_str) {
                    if name == "super" {
                        base.pop();
                    }
                    names = &names[1..];
                }
            }
            name => {
                let (_, here) = &self.modules[module];
                let is_module = self.modules.contains_key(&joined(module, name));
                if !is_module && !here.imports.contains_key(name) && !here.items.contains(name) {
                    return None;
                }
                // `use name;` of another crate.
                if here.imports.get(name).is_some_and(|import| import[0] == name) {
                    return None;
                }
            }
        }
        base.extend_from_slice(names);
        Some(base)
    }

    /// Returns the file that defines what an absolute path names.
    fn file(&self, path: &Path, depth: u32) -> Option<&str> {
        let length = (0..=path.len()).rev().find(|end| self.modules.contains_key(&path[..*end]))?;
        let (file, module) = &self.modules[&path[..length]];
        let Some(name) = path.get(length) else { return Some(file) };
        if depth > 8 || module.items.contains(name) {
            return Some(file);
        }
        let here = path[..length].to_vec();
        if let Some(import) = module.imports.get(name) {
            let import = self.absolute(&here, import)?;
            return self.file(&[import, path[length + 1..].to_vec()].concat(), depth + 1);
        }
        let in_glob = module.globs.iter().find_map(|glob| {
            let glob = joined(&self.absolute(&here, glob)?, name);
            let (_, module) = self.modules.get(&glob[..glob.len() - 1])?;
            let has = module.items.contains(name) || module.imports.contains_key(name);
            has.then(|| self.file(&glob, depth + 1))
        });
        in_glob.unwrap_or(Some(file))
    }
}

fn joined(path: &Path, name: &str) -> Path {
    path.iter().cloned().chain([name.to_owned()]).collect()
}
