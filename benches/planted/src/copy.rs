//! A copy of this repository's sources with every bug in it, each behind a condition.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{BUGS, VARIABLE};

/// What a build needs of this repository.
const SOURCES: [&str; 5] = ["Cargo.toml", "Cargo.lock", "crates", "benches", "examples"];

/// Where the conditions are.
const SWITCH: &str = "crates/shared-ring/src/lib.rs";

/// Brings the copy of `root` in `to` up to date, and puts the bugs into it. A file that is the same
/// is left alone, so that cargo does not build it again.
///
/// # Errors
/// Names the bugs whose piece of text is not there any more, or is there more than once; or what
/// cannot be read or written.
pub fn copy_with_bugs(root: &Path, to: &Path) -> Result<(), String> {
    let wrong = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path}: {error}")
    };
    let mut files = BTreeMap::new();
    for source in SOURCES {
        read(root, Path::new(source), &mut files).map_err(wrong(&root.join(source)))?;
    }
    plant(&mut files)?;
    for source in SOURCES {
        let mut old = BTreeMap::new();
        if to.join(source).exists() {
            read(to, Path::new(source), &mut old).map_err(wrong(&to.join(source)))?;
        }
        for path in old.keys().filter(|path| !files.contains_key(*path)) {
            fs::remove_file(to.join(path)).map_err(wrong(path))?;
        }
    }
    for (path, bytes) in files {
        let path = to.join(path);
        if fs::read(&path).is_ok_and(|old| old == bytes) {
            continue;
        }
        let folder = path.parent().expect("a file lies in a directory");
        fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes)).map_err(wrong(&path))?;
    }
    Ok(())
}

/// Reads all files at `path`, but not what builds have left.
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
    let mut wrong = String::new();
    for (number, bug) in BUGS.iter().enumerate() {
        for edit in bug.edits {
            let text = files.get(Path::new(edit.file)).map(|bytes| String::from_utf8_lossy(bytes));
            let times = text.as_ref().map_or(0, |text| text.matches(edit.find).count());
            let Some(text) = text.filter(|_| times == 1) else {
                wrong += &format!(
                    "the bug {} ({}) replaces a piece of {} that has to be there once and is there \
                     {times} times; if the code has changed, change the piece in \
                     benches/planted/src/bugs.rs with it:\n{}\n",
                    bug.name, bug.what, edit.file, edit.find
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
/// Whether this bug is planted in this process.
pub fn is_planted(bug: usize) -> bool {{
    static PLANTED: std::sync::LazyLock<Option<usize>> = std::sync::LazyLock::new(|| {{
        std::env::var({VARIABLE:?}).ok().and_then(|number| number.parse().ok())
    }});
    *PLANTED == Some(bug)
}}
"
    );
    switch.extend(text.into_bytes());
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}
