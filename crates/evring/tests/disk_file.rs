//! A file with known contents that can leave the page cache.
#![allow(dead_code, reason = "not every test uses all of it")]

#[path = "../../shared-ring/tests/page_cache/mod.rs"]
pub(crate) mod page_cache;

/// A file on a disk, which can leave the page cache. One in memory could not.
pub(crate) struct DiskFile {
    pub(crate) root: tempfile::TempDir,
    file: std::fs::File,
}

impl DiskFile {
    pub(crate) fn new(len: u64) -> Self {
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, contents(len)).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        DiskFile { root, file }
    }

    /// Returns whether the file system tells what is cached.
    pub(crate) fn tells_what_is_cached(&self) -> bool {
        page_cache::tells(&self.file)
    }

    /// Removes it from the page cache. Returns whether nothing of it is cached.
    pub(crate) fn evict(&self) -> bool {
        page_cache::evict(&self.file)
    }
}

/// Returns the contents of a file of `len` bytes.
pub(crate) fn contents(len: u64) -> Vec<u8> {
    let period: Vec<u8> = (0..251).collect();
    let mut bytes = period.repeat(len as usize / period.len() + 1);
    bytes.truncate(len as usize);
    bytes
}
