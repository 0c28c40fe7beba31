//! Files in memory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use rustix::io::Errno;
use shared_ring::files::{Access, FileKind, Listing, Metadata, WriteAt};

use crate::rng::SimRng;
use crate::versions::byte_of;

#[derive(Debug)]
enum Node {
    File {
        bytes: Vec<u8>,
        /// Initial content, from which that of later versions is derived.
        original: Vec<u8>,
        version: u32,
        modified: Duration,
    },
    Directory(BTreeMap<Vec<u8>, u32>),
}

/// A tree of files that may [change](FileTree::change) while a server runs.
#[derive(Debug)]
pub(super) struct FileTree {
    nodes: Vec<Node>,
}

/// A file of this length does not grow further.
const MAX_FILE_BYTES: usize = 4_000_000;

/// A program's writes do not make a file longer than this.
const MAX_WRITTEN_BYTES: usize = 16 << 20;

/// Resolution of file modification times.
const TICK: Duration = Duration::from_millis(4);

/// Returns the time of the last tick.
fn tick(wall: Duration) -> Duration {
    wall - Duration::from_nanos(wall.as_nanos() as u64 % TICK.as_nanos() as u64)
}

/// The root directory.
pub(super) const ROOT: u32 = 0;

impl FileTree {
    pub(super) fn new() -> Self {
        FileTree { nodes: vec![Node::Directory(BTreeMap::new())] }
    }

    /// Adds a file and its parent directories.
    pub(super) fn add(&mut self, path: &str, bytes: Vec<u8>) {
        let mut at = ROOT;
        let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
        for directory in directories.split('/').filter(|part| !part.is_empty()) {
            at = self.insert(at, directory.as_bytes(), Node::Directory(BTreeMap::new()));
        }
        self.insert_bytes(at, name.as_bytes(), bytes);
    }

    fn insert_bytes(&mut self, at: u32, name: &[u8], bytes: Vec<u8>) -> u32 {
        let (original, modified) = (bytes.clone(), Duration::from_secs(1_000_000_000));
        self.insert(at, name, Node::File { bytes, original, version: 0, modified })
    }

    fn insert(&mut self, at: u32, name: &[u8], new: Node) -> u32 {
        let next = self.nodes.len() as u32;
        let Node::Directory(entries) = &mut self.nodes[at as usize] else {
            panic!("the parent of `{}` is a file", name.escape_ascii());
        };
        let node = *entries.entry(name.into()).or_insert(next);
        if node == next {
            self.nodes.push(new);
        }
        node
    }

    /// Resolves a path relative to the directory `root`.
    pub(super) fn find(&self, root: u32, path: &[u8]) -> Result<u32, Errno> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path.starts_with(b"/") {
            return Err(Errno::XDEV);
        }
        let mut parents = vec![root];
        for part in path.split(|byte| *byte == b'/') {
            let at = *parents.last().ok_or(Errno::XDEV)?;
            let Node::Directory(entries) = &self.nodes[at as usize] else {
                return Err(Errno::NOTDIR);
            };
            match part {
                b"" | b"." => {}
                b".." => drop(parents.pop()),
                name => parents.push(*entries.get(name).ok_or(Errno::NOENT)?),
            }
        }
        parents.last().copied().ok_or(Errno::XDEV)
    }

    /// Resolves a path as open(2) does.
    pub(super) fn open(&mut self, root: u32, path: &[u8], access: Access) -> Result<u32, Errno> {
        let node = match self.find(root, path) {
            Err(Errno::NOENT) if matches!(access, Access::Create | Access::Replace) => {
                let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
                    Some(slash) => (self.find(root, &path[..slash])?, &path[slash + 1..]),
                    None => (root, path),
                };
                // The parent may be missing.
                if name.is_empty() {
                    return Err(Errno::NOENT);
                }
                return Ok(self.insert_bytes(directory, name, Vec::new()));
            }
            found => found?,
        };
        match &mut self.nodes[node as usize] {
            Node::Directory(_) if access != Access::Read => Err(Errno::ISDIR),
            Node::File { bytes, .. } if access == Access::Replace => {
                bytes.clear();
                Ok(node)
            }
            _ => Ok(node),
        }
    }

    /// Writes to a file; `wall` is the time of day.
    pub(super) fn write(
        &mut self,
        node: u32,
        at: WriteAt,
        new: &[u8],
        wall: Duration,
    ) -> Result<(), Errno> {
        let Node::File { bytes, modified, .. } = &mut self.nodes[node as usize] else {
            return Err(Errno::ISDIR);
        };
        let start = match at {
            WriteAt::End => bytes.len(),
            WriteAt::Offset(offset) => i64::try_from(offset).map_err(|_| Errno::INVAL)? as usize,
        };
        let end = start.saturating_add(new.len());
        if end > MAX_WRITTEN_BYTES {
            return Err(Errno::FBIG);
        }
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(new);
        *modified = tick(wall);
        Ok(())
    }

    pub(super) fn meta(&self, node: u32) -> Metadata {
        let (kind, len, modified) = match &self.nodes[node as usize] {
            Node::File { bytes, modified, .. } => {
                (FileKind::Regular, bytes.len() as u64, *modified)
            }
            Node::Directory(_) => (FileKind::Directory, 0, Duration::from_secs(1_000_000_000)),
        };
        let modified_ns = modified.as_nanos() as i64;
        Metadata { kind, len, modified_ns, changed_ns: modified_ns, inode: node.into() }
    }

    /// Returns the part of a file within a range.
    pub(super) fn read(&self, node: u32, offset: u64, len: u32) -> Result<&[u8], Errno> {
        let Node::File { bytes, .. } = &self.nodes[node as usize] else { return Err(Errno::ISDIR) };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = start.saturating_add(len as usize).min(bytes.len());
        Ok(&bytes[start..end])
    }

    /// Truncates a file, extends it, sets only its mtime, as a write in progress does, or overwrites all of it, with more bytes
    /// or as many; `wall` is the time of day. New contents are those of a [version](crate::FileVersions), one for each time at which the file was overwritten.
    pub(super) fn change(&mut self, node: u32, wall: Duration, rng: &mut SimRng) {
        let Node::File { bytes, original, version, modified } = &mut self.nodes[node as usize]
        else {
            return;
        };
        let before = bytes.len();
        let longer = before + 1 + rng.below(5_000);
        let len = match rng.below(6) {
            0 => 0,
            1 => rng.below(before + 1),
            2 if before < MAX_FILE_BYTES => longer,
            3 => before,
            // Nothing shows that a file was overwritten twice within a tick.
            _ if tick(wall) == *modified => return,
            kind => {
                *version += 1;
                bytes.clear();
                if kind == 4 && before < MAX_FILE_BYTES { longer } else { before }
            }
        };
        bytes.truncate(len);
        bytes.extend((bytes.len()..len).map(|at| byte_of(*version, original, at)));
        *modified = tick(wall);
    }

    pub(super) fn list(&self, node: u32) -> Result<Listing, Errno> {
        let Node::Directory(entries) = &self.nodes[node as usize] else {
            return Err(Errno::NOTDIR);
        };
        let entry =
            |(name, node): (&Vec<u8>, &u32)| (OsString::from_vec(name.clone()), self.meta(*node));
        let is_complete = entries.len() <= Listing::MAX_ENTRIES;
        Ok(Listing {
            entries: entries.iter().map(entry).take(Listing::MAX_ENTRIES).collect(),
            is_complete,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_resolve_within_the_root() {
        let mut disk = FileTree::new();
        disk.add("a/b/file", b"0123456789".to_vec());
        disk.add("a/other", Vec::new());
        let file = disk.find(ROOT, b"a/./b/../b/file").unwrap();
        assert_eq!(disk.read(file, 4, 3), Ok(&b"456"[..]));
        assert_eq!(disk.read(file, 8, 30), Ok(&b"89"[..]));
        assert_eq!(disk.read(file, 80, 3), Ok(&b""[..]));
        assert_eq!(disk.meta(file).len, 10);
        assert_eq!(disk.find(ROOT, b"a/none"), Err(Errno::NOENT));
        assert_eq!(disk.find(ROOT, b"a/other/x"), Err(Errno::NOTDIR));
        assert_eq!(disk.find(ROOT, b"a/../.."), Err(Errno::XDEV));
        let directory = disk.find(ROOT, b"a").unwrap();
        assert_eq!(disk.list(directory).unwrap().entries.len(), 2);
        assert_eq!(disk.list(file), Err(Errno::NOTDIR));
    }

    #[test]
    fn files_are_created_replaced_and_extended() {
        let mut disk = FileTree::new();
        disk.add("a/file", b"0123456789".to_vec());
        assert_eq!(disk.open(ROOT, b"a/new", Access::Write), Err(Errno::NOENT));
        assert_eq!(disk.open(ROOT, b"none/new", Access::Create), Err(Errno::NOENT));
        assert_eq!(disk.open(ROOT, b"a", Access::Write), Err(Errno::ISDIR));
        let new = disk.open(ROOT, b"a/new", Access::Create).unwrap();
        disk.write(new, WriteAt::End, b"ab", Duration::ZERO).unwrap();
        disk.write(new, WriteAt::End, b"cd", Duration::ZERO).unwrap();
        disk.write(new, WriteAt::Offset(1), b"x", Duration::ZERO).unwrap();
        disk.write(new, WriteAt::Offset(6), b"y", Duration::ZERO).unwrap();
        assert_eq!(disk.read(new, 0, 10), Ok(&b"axcd\0\0y"[..]));
        for (far, errno) in [(i64::MAX as u64, Errno::FBIG), (u64::MAX, Errno::INVAL)] {
            let far = WriteAt::Offset(far);
            assert_eq!(disk.write(new, far, b"z", Duration::ZERO), Err(errno));
        }
        assert_eq!(disk.open(ROOT, b"a/new", Access::Create), Ok(new));
        let file = disk.open(ROOT, b"a/file", Access::Replace).unwrap();
        assert_eq!(disk.meta(file).len, 0);
    }
}
