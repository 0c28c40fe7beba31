//! The layers of the library: a file imports only from its own layer and lower ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The layers, lowest first, by the names of their modules.
const LAYERS: [&str; 17] = [
    "flags",
    "limits",
    "access_log",
    "message",
    "mime_type",
    "page_path",
    "header_rule",
    "redirect",
    "basic_auth",
    "decision",
    "error_page",
    "compression",
    "file_options",
    "host_options",
    "response",
    "site",
    "server",
];

/// Modules by name, such as `site::cache`, with the modules that they import.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Reads the modules below a directory. The program is a crate of its own.
fn sources(directory: &Path, module: &str, sources: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let inner = |name: &str| match module {
            "" => name.to_owned(),
            _ => format!("{module}::{name}"),
        };
        match name.strip_suffix(".rs") {
            None if path.is_dir() && name != "program" => {
                self::sources(&path, &inner(&name), sources)
            }
            Some("mod") => {
                drop(sources.insert(module.to_owned(), fs::read_to_string(path).unwrap()))
            }
            Some("lib" | "fuzzing") | None => {}
            Some(name) if name.ends_with("_tests") => {}
            Some(name) => drop(sources.insert(inner(name), fs::read_to_string(path).unwrap())),
        }
    }
}

/// Returns the paths after `crate::` in code, such as `site::cache::Cache`.
fn crate_paths(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap();
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let code: Vec<_> = code.collect();
    let code = code.join("\n");
    let after = code.split("crate::").skip(1);
    after.map(|text| text.split(|c| !is_path(c)).next().unwrap().to_owned()).collect()
}

fn imports() -> Imports {
    let mut all = BTreeMap::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut all);
    let module_of = |path: &str| {
        let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]);
        let found = ends.map(|end| &path[..end]).filter(|path| all.contains_key(*path)).max();
        found.unwrap_or_else(|| panic!("`crate::{path}` is not in a module of a layer")).to_owned()
    };
    let imports =
        |source: &String| crate_paths(source).iter().map(|path| module_of(path)).collect();
    all.iter().map(|(module, source)| (module.clone(), imports(source))).collect()
}

fn layer(module: &str) -> usize {
    let name = module.split("::").next().unwrap();
    LAYERS
        .iter()
        .position(|layer| *layer == name)
        .unwrap_or_else(|| panic!("{module} has no layer"))
}

#[test]
fn no_file_imports_a_higher_layer() {
    let imports = imports();
    assert!(imports.len() > 20 && imports["site::cache"].contains("limits"), "{imports:?}");
    for (module, imported) in &imports {
        for other in imported {
            assert!(layer(other) <= layer(module), "{module} imports {other}");
        }
    }
}

#[test]
fn no_file_reaches_others_without_their_path() {
    let mut all = BTreeMap::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut all);
    for (module, source) in all {
        let code = source.split("#[cfg(test)]").next().unwrap();
        assert!(!code.contains("super::"), "{module} imports from `super`");
    }
}
