//! No files of a crate use each other in a circle, and those of the web server use none of a higher layer.

use std::fs;
use std::path::{Path, PathBuf};

use circles::{CrateSource, circles};

/// The number of files that may use each other. Two are often one idea in two parts.
const MAX_FILES: usize = 2;

/// A crate without circles: its files are in layers.
const WITH_LAYERS: &str = "crates/httpd/src/lib.rs";

/// Its layers, lowest first: files or directories. The root and what fuzz targets call are above them.
const LAYERS: [&str; 20] = [
    "flags",
    "regular_file",
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
    "fuzzing",
    "lib",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the layer of a file by its position in `LAYERS`.
fn layer(file: &str) -> usize {
    let name = file.split('/').next().unwrap().trim_end_matches(".rs");
    let found = LAYERS.iter().position(|layer| *layer == name);
    found.unwrap_or_else(|| panic!("{file} has no layer"))
}

/// Finds the packages below a directory.
fn packages(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name == "Cargo.toml" {
            found.push(directory.to_owned());
        } else if entry.path().is_dir() && name != "target" && !name.starts_with('.') {
            packages(&entry.path(), found);
        }
    }
}

/// Returns the roots of a package's crates: its library and its programs.
fn roots(package: &Path) -> Vec<PathBuf> {
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \""));
    let paths =
        paths.map(|path| path.trim_end_matches('"')).filter(|path| path.starts_with("src/"));
    let mut roots: Vec<_> = ["src/lib.rs", "src/main.rs"].into_iter().chain(paths).collect();
    roots.sort_unstable();
    roots.dedup();
    roots.into_iter().map(|root| package.join(root)).filter(|root| root.exists()).collect()
}

#[test]
fn no_files_of_a_crate_use_each_other_in_a_circle() {
    let mut found = Vec::new();
    packages(&workspace(), &mut found);
    let roots: Vec<_> = found.iter().flat_map(|package| roots(package)).collect();
    assert!(roots.len() > 20 && roots.iter().any(|root| root.ends_with(WITH_LAYERS)), "{roots:?}");
    let mut report = String::new();
    for root in &roots {
        let uses = CrateSource::read(root).uses();
        let max = if root.ends_with(WITH_LAYERS) { 0 } else { MAX_FILES };
        for circle in circles(&uses).iter().filter(|circle| circle.len() > max) {
            report += &format!("\n{} files of {}:\n", circle.len(), root.display());
            for file in circle {
                let used = uses[file].iter().filter(|(other, _)| circle.contains(*other));
                let used: Vec<_> = used.map(|(other, path)| format!("{other} ({path})")).collect();
                report += &format!("  {file} uses {}\n", used.join(", "));
            }
        }
    }
    assert!(report.is_empty(), "{report}");
}

#[test]
fn no_file_of_the_web_server_uses_a_higher_layer() {
    let uses = CrateSource::read(&workspace().join(WITH_LAYERS)).uses();
    assert!(uses.len() > 20 && uses["site/cache.rs"].contains_key("limits.rs"), "{uses:?}");
    for (file, used) in &uses {
        for (other, path) in used {
            assert!(layer(other) <= layer(file), "{file} uses {other} ({path})");
        }
    }
}
