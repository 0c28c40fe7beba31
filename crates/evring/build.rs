//! Generates the list of mechanisms: one for each enabled feature that has a file in `src/mechanisms/`.
//!
//! The list itself is `[features]` in Cargo.toml, so a new mechanism takes one new file and one line there.
//! The output is a module for each file and one call of `mechanisms!` with their types.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let folder = Path::new(&root).join("src/mechanisms");
    println!("cargo::rerun-if-changed={}", folder.display());

    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("src/mechanisms can be read")
        .map(|entry| entry.expect("src/mechanisms can be listed").path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect();
    files.sort();

    let (mut modules, mut names) = (String::new(), String::new());
    for path in files {
        let module = path.file_stem().expect("a file has a name").to_string_lossy();
        if env::var_os(format!("CARGO_FEATURE_{}", module.to_uppercase())).is_none() {
            continue;
        }
        let name: String = module.split('_').map(capitalized).collect();
        writeln!(modules, "#[path = {path:?}]\nmod {module};\npub use {module}::{name};")
            .and_then(|()| write!(names, "{name}, "))
            .expect("writing to a string succeeds");
    }
    if names.is_empty() {
        println!(
            "cargo::error=no mechanism is enabled; enable at least one, such as with --features evring/epoll"
        );
    }
    let list = format!("{modules}mechanisms! {{ {names} }}\n");
    fs::write(Path::new(&out).join("mechanisms.rs"), list).expect("the output can be written");
}

fn capitalized(word: &str) -> String {
    let (first, remaining) = word.split_at(1);
    first.to_uppercase() + remaining
}
