//! Which files of a crate use which others, on small crates.

use std::fs;

use circles::{CrateSource, Uses, circles};

/// Writes a crate and returns which of its files use which.
fn uses(files: &[(&str, &str)]) -> Uses {
    let directory = tempfile::tempdir().unwrap();
    for (name, code) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, code).unwrap();
    }
    CrateSource::read(&directory.path().join("lib.rs")).uses()
}

/// Returns the files in each circle.
fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    circles(&uses(files)).into_iter().map(|circle| circle.into_iter().collect()).collect()
}

#[test]
fn a_circle_through_imports_paths_and_re_exports_is_found() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; pub use c::{C, Other as D};"),
        ("a.rs", "use crate::b::{self, B}; fn a(_: b::Y, _: B) {}"),
        ("b.rs", "pub struct B; pub struct Y; fn b() -> crate::D { todo!() }"),
        ("c/mod.rs", "pub struct C; pub struct Other; fn c() { super::a::a() }"),
    ];
    assert_eq!(found(&files), [["a.rs", "b.rs", "c/mod.rs"]]);
}

#[test]
fn modules_that_a_file_declares_and_re_exports_are_no_circle() {
    let files = [
        ("lib.rs", "mod a; pub use a::A;"),
        ("a/mod.rs", "mod b; pub use b::*; pub struct A; pub const MAX: u32 = 1;"),
        ("a/b.rs", "use super::A; pub struct B(A, [u8; super::MAX as usize]);"),
    ];
    assert!(found(&files).is_empty());
    // It uses one of them.
    let (parent, with_use) = (files[1].1, "fn a(_: B) {}");
    let files = [files[0], ("a/mod.rs", &format!("{parent} {with_use}")), files[2]];
    assert_eq!(found(&files), [["a/b.rs", "a/mod.rs"]]);
}

#[test]
fn comments_texts_lifetimes_and_tests_are_not_uses() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(&'static B);"),
        (
            "b.rs",
            "/// [`A`](crate::a::A)\npub struct B(&'static str); fn b() -> B { B(\"crate::a::A\") } \
             #[cfg(test)] mod tests { use crate::a::A; } #[cfg(all(test, unix))] fn c(_: crate::a::A) {}",
        ),
    ];
    assert!(found(&files).is_empty());
    assert_eq!(uses(&files)["a.rs"].keys().collect::<Vec<_>>(), ["b.rs"]);
}

#[test]
fn files_of_inner_modules_and_of_paths_are_read() {
    let files = [
        ("lib.rs", "mod a { pub mod b; } #[path = \"other.rs\"] mod c;"),
        ("a/b.rs", "pub fn b() { crate::c::c() }"),
        ("other.rs", "pub fn c() { crate::a::b::b() }"),
    ];
    assert_eq!(found(&files), [["a/b.rs", "other.rs"]]);
    // Modules of a file that an attribute names lie beside it.
    let files = [
        ("lib.rs", "#[path = \"x/mod.rs\"] mod a;"),
        ("x/mod.rs", "mod b; pub fn a() { b::b() }"),
        ("x/b.rs", "pub fn b() { super::a() }"),
    ];
    assert_eq!(found(&files), [["x/b.rs", "x/mod.rs"]]);
}

#[test]
fn items_of_other_crates_that_a_module_re_exports_are_of_no_file() {
    let files = [
        ("lib.rs", "mod a; pub mod both { pub use crate::a::A; pub use other::B; } use both::*;"),
        ("a.rs", "use crate::B; pub struct A(B);"),
    ];
    assert!(found(&files).is_empty());
}
