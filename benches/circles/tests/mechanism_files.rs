//! The files that a new mechanism takes, as CONTRIBUTING.md lists them, are those of an existing one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A mechanism with a poller of its own, which is simulated; no other code has its name.
const MECHANISM: &str = "devpoll";

/// Experiments choose mechanisms by what they compare.
const EXPERIMENTS: &str = "benches/src/experiments";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap()
}

/// Finds the sources and manifests below a directory that contain the name of the mechanism, however it is spelt.
fn files_with_the_name(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let relative = path.strip_prefix(workspace()).unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') && relative != EXPERIMENTS {
                files_with_the_name(&path, found);
            }
        } else if (name.ends_with(".rs") || name == "Cargo.toml")
            && name != "mechanism_files.rs"
            && fs::read_to_string(&path)
                .unwrap()
                .to_lowercase()
                .replace('_', "")
                .contains(MECHANISM)
        {
            found.insert(relative);
        }
    }
}

/// Returns the files that CONTRIBUTING.md lists for a need.
fn listed(need: &str) -> BTreeSet<String> {
    let page = read("CONTRIBUTING.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix(&format!("| {need} | `")));
    rows.map(|row| row.split('`').next().unwrap().replace("NAME", MECHANISM)).collect()
}

fn sources(files: &BTreeSet<String>) -> usize {
    files.iter().filter(|file| file.ends_with(".rs")).count()
}

#[test]
fn contributing_lists_the_files_of_a_mechanism() {
    let mut found = BTreeSet::new();
    files_with_the_name(&workspace(), &mut found);
    let mut files = listed("mechanism");
    assert_eq!(sources(&files), 2, "{files:?}");
    files.extend(listed("poller"));
    files.extend(listed("simulation"));
    assert_eq!(sources(&files), 5, "{files:?}");
    assert_eq!(found, files, "the files with the name, and those of CONTRIBUTING.md");
}

#[test]
fn manifests_and_readme_have_every_mechanism() {
    let rows = read("crates/evring/src/mechanisms/mod.rs");
    let names = rows.lines().filter_map(|line| line.strip_prefix("    \""));
    let names: Vec<_> = names.filter_map(|row| row.split_once("\" => ")).map(|row| row.0).collect();
    assert!(names.len() > 10 && names.contains(&MECHANISM), "{names:?}");
    for manifest in ["crates/evring/Cargo.toml", "crates/httpd/Cargo.toml"] {
        let text = read(manifest);
        let all = text.lines().find(|line| line.starts_with("mechanisms = [")).unwrap();
        for name in &names {
            assert!(all.contains(&format!("\"{name}\"")), "{manifest}: {name}");
        }
    }
    let page = read("README.md");
    for name in &names {
        let mut rows = page.lines().filter(|line| line.starts_with('|'));
        let is_first = |row: &str| row.split('|').nth(1).unwrap().contains(&format!("`{name}`"));
        assert!(rows.any(is_first), "README.md: {name}");
    }
}
