//! A copy of this repository's sources with all bugs in it, each behind a condition.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{BUGS, VARIABLE};

/// The files that a build needs.
const SOURCES: [&str; 5] = ["Cargo.toml", "Cargo.lock", "crates", "benches", "examples"];

/// The file that gets the function for the conditions.
const SWITCH: &str = "crates/shared-ring/src/lib.rs";

/// Updates the copy of `root` in `to`, and plants the bugs. Unchanged files are not written, so
/// that cargo does not rebuild them.
///
/// # Errors
/// The bugs with a piece of text that does not occur exactly once, or the file that cannot be read
/// or written.
pub fn copy_with_bugs(root: &Path, to: &Path) -> Result<(), String> {
    let describe = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path}: {error}")
    };
    let mut files = BTreeMap::new();
    for source in SOURCES {
        read(root, Path::new(source), &mut files).map_err(describe(&root.join(source)))?;
    }
    plant(&mut files)?;
    for source in SOURCES {
        let mut old = BTreeMap::new();
        if to.join(source).exists() {
            read(to, Path::new(source), &mut old).map_err(describe(&to.join(source)))?;
        }
        for path in old.keys().filter(|path| !files.contains_key(*path)) {
            fs::remove_file(to.join(path)).map_err(describe(path))?;
        }
    }
    for (path, bytes) in files {
        let path = to.join(path);
        if fs::read(&path).is_ok_and(|old| old == bytes) {
            continue;
        }
        let directory = path.parent().expect("a file has a parent directory");
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&path, bytes))
            .map_err(describe(&path))?;
    }
    Ok(())
}

/// Reads all files at `path`, except build output.
fn read(root: &Path, path: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> io::Result<()> {
    let full = root.join(path);
    if !full.is_dir() {
        files.insert(path.to_owned(), fs::read(full)?);
        return Ok(());
    }
    for entry in fs::read_dir(full)? {
        let entry = entry?;
        if entry.file_name() != "target" {
            read(root, &path.join(entry.file_name()), files)?;
        }
    }
    Ok(())
}

fn plant(files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<(), String> {
    let mut errors = String::new();
    for (number, bug) in BUGS.iter().enumerate() {
        for edit in bug.edits {
            let text = files.get(Path::new(edit.file)).map(|bytes| String::from_utf8_lossy(bytes));
            let times = text.as_ref().map_or(0, |text| text.matches(edit.find).count());
            let Some(text) = text.filter(|_| times == 1) else {
                errors += &format!(
                    "the bug {} ({}) replaces a piece of {} that must occur once but occurs \
                     {times} times; if the code has changed, update the piece in \
                     benches/planted/src/bugs.rs:\n{}\n",
                    bug.name, bug.description, edit.file, edit.find
                );
                continue;
            };
            let ring = edit.file.starts_with("crates/shared-ring/");
            let condition =
                format!("{}::is_planted({number})", if ring { "crate" } else { "shared_ring" });
            let text = text.replacen(edit.find, &edit.plant.replace("PLANTED", &condition), 1);
            files.insert(edit.file.into(), text.into_bytes());
        }
    }
    let switch = files.get_mut(Path::new(SWITCH)).ok_or(format!("{SWITCH} is missing"))?;
    let text = format!(
        "
/// Returns whether this bug is planted in this process.
pub fn is_planted(bug: usize) -> bool {{
    static PLANTED: std::sync::LazyLock<Option<usize>> = std::sync::LazyLock::new(|| {{
        std::env::var({VARIABLE:?}).ok().and_then(|number| number.parse().ok())
    }});
    *PLANTED == Some(bug)
}}
"
    );
    switch.extend(text.into_bytes());
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
