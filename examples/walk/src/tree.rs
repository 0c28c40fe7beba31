//! The walk itself.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::{CString, OsStr};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use async_executor::LocalExecutor;
use flexsc_rt::operations::{PathAt, directory_entries, getdents, open, open_resolving, stat};
use flexsc_rt::{Descriptor, Runtime};
use foldhash::fast::RandomState;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};

use crate::batch::all;
use crate::queue::Queue;
use crate::{Entry, Error, Found, Options, Totals};

/// Length of a path, from its anchor, at which a directory becomes the anchor of those below. With a
/// name of 255 bytes it is less than PATH_MAX, 4,096.
const ANCHOR_BYTES: usize = 2048;
/// Bytes of directory entries that are read at a time.
const BUFFER_BYTES: usize = 32 << 10;
/// How directories are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

/// A directory that was found.
struct Directory {
    /// Its path from the root.
    path: Vec<u8>,
    /// The directory at which the kernel begins, and where its path from there begins. The root has none.
    anchor: Option<Rc<Anchor>>,
    from: usize,
}

/// A directory that is open for those below it.
struct Anchor {
    directory: Descriptor,
    open: Rc<Cell<usize>>,
}

impl Drop for Anchor {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}

/// Device and inode.
type Identity = (u32, u32, u64);

fn identity(stat: &libc::statx) -> Identity {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

struct Walk<'a, F> {
    runtime: Runtime,
    options: &'a Options,
    found: RefCell<F>,
    totals: Cell<Totals>,
    queue: Queue<Directory>,
    pending_bytes: Cell<usize>,
    anchors: Rc<Cell<usize>>,
    /// Files with several links.
    links: RefCell<HashSet<Identity, RandomState>>,
    /// Length of the path of the root.
    root_len: Cell<usize>,
    /// The kernel, or a sandbox, has no openat2(2).
    lacks_openat2: Cell<bool>,
    failed: RefCell<Option<Error>>,
    /// The walk has failed, or the caller has ended it.
    has_ended: Cell<bool>,
}

pub(crate) fn walk(
    root: &[u8],
    options: &Options,
    found: impl FnMut(Found<'_>) -> ControlFlow<()>,
) -> Result<Totals, Error> {
    Walk::new(options, found)?.run(root)
}

impl<'a, F: FnMut(Found<'_>) -> ControlFlow<()>> Walk<'a, F> {
    fn new(options: &'a Options, found: F) -> Result<Self, Error> {
        Ok(Walk {
            runtime: Runtime::new(&options.pages).map_err(Error::Pages)?,
            options,
            found: RefCell::new(found),
            totals: Cell::default(),
            queue: Queue::new(),
            pending_bytes: Cell::new(0),
            anchors: Rc::default(),
            links: RefCell::default(),
            root_len: Cell::new(0),
            lacks_openat2: Cell::new(false),
            failed: RefCell::default(),
            has_ended: Cell::new(false),
        })
    }

    fn run(&self, root: &[u8]) -> Result<Totals, Error> {
        let executor = LocalExecutor::new();
        futures_lite::future::block_on(executor.run(async {
            self.root(root).await?;
            let tasks = 0..self.options.directories.max(1);
            let tasks: Vec<_> = tasks.map(|_| executor.spawn(self.directories())).collect();
            for task in tasks {
                task.await;
            }
            Ok(())
        }))?;
        self.failed.take().map_or(Ok(self.totals.get()), Err)
    }

    async fn root(&self, root: &[u8]) -> Result<(), Error> {
        self.root_len.set(root.len());
        let path = CString::new(root).map_err(|error| Error::Root(error.into()))?;
        let asked = self.runtime.call(stat(path, AtFlags::SYMLINK_NOFOLLOW)).await;
        let asked = asked.map_err(Error::Root)?;
        if self.entry(root, &asked) {
            self.push(Directory { path: root.to_vec(), anchor: None, from: 0 });
        }
        Ok(())
    }

    /// Reads directories until there are none.
    async fn directories(&self) {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        while let Some(directory) = self.queue.take().await {
            let waited = self.pending_bytes.get() - directory.bytes();
            self.pending_bytes.set(waited);
            if let Err(error) = self.directory(&directory, &mut buffer).await {
                self.unreadable(&directory.path, error);
            }
            drop(directory);
            self.queue.done();
        }
    }

    async fn directory(&self, directory: &Directory, buffer: &mut Vec<u8>) -> io::Result<()> {
        let file = self.open(directory).await?;
        // The anchor of directories inside, made when the first is found.
        let mut anchor = None;
        loop {
            buffer.clear();
            let read = self.runtime.call(getdents(&file, std::mem::take(buffer))).await;
            *buffer = read.1;
            let is_end = match read.0 {
                Ok(len) => len == 0,
                // It was removed after it had been opened (getdents(2)).
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                Err(error) => return Err(error),
            };
            if is_end || self.has_ended() {
                return Ok(());
            }
            let names = directory_entries(buffer).map(|entry| entry.name);
            let names: Vec<_> = names.filter(|name| !matches!(*name, b"." | b"..")).collect();
            for names in names.chunks(self.options.batch.max(1)) {
                let asked = names.iter().map(|name| {
                    // The kernel's names have no zero byte.
                    let name = CString::new(*name).unwrap_or_default();
                    let path = PathAt::new(&file, name);
                    self.runtime.call(stat(path, AtFlags::SYMLINK_NOFOLLOW))
                });
                for (name, asked) in names.iter().zip(all(asked).await) {
                    let path = directory.path_of(name);
                    let inside = match asked {
                        Ok(stat) if self.is_inside_itself(directory, &stat).await => continue,
                        Ok(stat) if self.entry(&path, &stat) => {
                            self.inside(directory, &file, &mut anchor, name)
                        }
                        Ok(_) => continue,
                        Err(error) => Err(error),
                    };
                    match inside {
                        Ok(inside) => self.push(inside),
                        Err(error) => self.unreadable(&path, error),
                    }
                }
            }
        }
    }

    /// Opens a directory. Below the root it follows no link, as any directory on the way may have become one.
    async fn open(&self, directory: &Directory) -> io::Result<Descriptor> {
        let path = CString::new(&directory.path[directory.from..])?;
        let Some(anchor) = &directory.anchor else {
            return self.runtime.call(open(path, DIRECTORY, Mode::empty())).await;
        };
        if !self.lacks_openat2.get() {
            let path = PathAt::new(&anchor.directory, path.clone());
            let rules = ResolveFlags::NO_SYMLINKS;
            let open = open_resolving(path, DIRECTORY, Mode::empty(), rules);
            match self.runtime.call(open).await {
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOSYS) => self.lacks_openat2.set(true),
                    // Of the directory, or of a filter of system calls.
                    Some(libc::EPERM) => {}
                    _ => return Err(error),
                },
                opened => return opened,
            }
        }
        let mut file = anchor.directory.clone();
        for name in path.as_bytes().split(|byte| *byte == b'/') {
            let path = PathAt::new(&file, CString::new(name)?);
            file = self.runtime.call(open(path, DIRECTORY, Mode::empty())).await?;
        }
        Ok(file)
    }

    /// Reports an object, unless the walk has ended. Returns whether it is a directory.
    fn entry(&self, path: &[u8], stat: &libc::statx) -> bool {
        if self.has_ended() {
            return false;
        }
        let entry = Entry::new(path, stat);
        let mut totals = self.totals.get();
        totals.entries += 1;
        let is_directory = entry.letter == 'd';
        if is_directory {
            totals.directory_bytes = totals.directory_bytes.saturating_add(entry.size);
        } else if entry.links < 2 || self.is_first_link(stat) {
            totals.file_bytes = totals.file_bytes.saturating_add(entry.size);
        }
        self.totals.set(totals);
        self.report(Found::Entry(entry));
        is_directory
    }

    /// Returns whether what was found in a directory is this directory or one above it, mounted here: it is not counted again,
    /// nor by du(1).
    async fn is_inside_itself(&self, directory: &Directory, found: &libc::statx) -> bool {
        if found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 == 0 {
            return false;
        }
        for path in directory.with_those_above(self.root_len.get()) {
            // The path was found without one.
            let path = CString::new(path).unwrap_or_default();
            let above = self.runtime.call(stat(path, AtFlags::SYMLINK_NOFOLLOW)).await;
            if above.is_ok_and(|above| identity(&above) == identity(found)) {
                return true;
            }
        }
        false
    }

    fn report(&self, found: Found<'_>) {
        if (self.found.borrow_mut())(found).is_break() {
            self.end();
        }
    }

    fn is_first_link(&self, stat: &libc::statx) -> bool {
        let mut links = self.links.borrow_mut();
        let is_first = links.insert(identity(stat));
        if links.len() > self.options.links {
            self.fail(Error::TooManyLinks);
        }
        is_first
    }

    /// Returns a directory inside another one, which is open.
    fn inside(
        &self,
        directory: &Directory,
        file: &Descriptor,
        anchor: &mut Option<Rc<Anchor>>,
        name: &[u8],
    ) -> io::Result<Directory> {
        let path = directory.path_of(name);
        if directory.anchor.is_some() && path.len() - directory.from < ANCHOR_BYTES {
            let anchor = directory.anchor.clone();
            return Ok(Directory { path, anchor, from: directory.from });
        }
        let anchor = match anchor {
            Some(anchor) => Rc::clone(anchor),
            None => {
                let open = match directory.anchor {
                    // The root is not among those that are bounded.
                    None => Rc::default(),
                    Some(_) if self.anchors.get() >= self.options.anchors => {
                        return Err(io::Error::other(
                            "the path is too long; walk it from a directory further down",
                        ));
                    }
                    Some(_) => Rc::clone(&self.anchors),
                };
                open.set(open.get() + 1);
                let new = Rc::new(Anchor { directory: file.clone(), open });
                Rc::clone(anchor.insert(new))
            }
        };
        let from = path.len() - name.len();
        Ok(Directory { path, anchor: Some(anchor), from })
    }

    fn push(&self, directory: Directory) {
        if self.has_ended() {
            return;
        }
        let waiting = self.pending_bytes.get() + directory.bytes();
        if waiting > self.options.pending_bytes {
            self.fail(Error::TooManyDirectories);
        } else {
            self.pending_bytes.set(waiting);
            self.queue.push(directory);
        }
    }

    fn unreadable(&self, path: &[u8], error: io::Error) {
        if self.has_ended() {
            return;
        }
        let mut totals = self.totals.get();
        totals.unreadable += 1;
        self.totals.set(totals);
        self.report(Found::Unreadable(Path::new(OsStr::from_bytes(path)), error));
    }

    /// Ends the walk. The first error counts.
    fn fail(&self, error: Error) {
        self.failed.borrow_mut().get_or_insert(error);
        self.end();
    }

    fn end(&self) {
        self.has_ended.set(true);
        self.queue.clear();
    }

    fn has_ended(&self) -> bool {
        self.has_ended.get()
    }
}

impl Directory {
    /// Returns the path of something inside.
    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let slash = if self.path.ends_with(b"/") { &b""[..] } else { b"/" };
        [&self.path, slash, name].concat()
    }

    /// Returns its path, and those of the directories above it, up to the root.
    fn with_those_above(&self, root_len: usize) -> impl Iterator<Item = &[u8]> {
        let ends = (root_len + 1..self.path.len()).filter(|at| self.path[*at] == b'/');
        [root_len, self.path.len()].into_iter().chain(ends).map(|end| &self.path[..end])
    }

    /// The memory that it takes while it waits.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.path.len()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn without_openat2_no_link_is_followed_either() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("a/b/inside")).unwrap();
        fs::create_dir_all(elsewhere.path().join("b/inside/secret")).unwrap();
        let sums = |exchange: bool| {
            let options = Options { directories: 1, ..Options::default() };
            let walk = Walk::new(&options, |found: Found<'_>| {
                if let Found::Entry(entry) = found
                    && exchange
                    && entry.path == at("a/b/inside")
                {
                    // It is found, and not open.
                    fs::rename(at("a"), at("c")).unwrap();
                    symlink(elsewhere.path(), at("a")).unwrap();
                }
                ControlFlow::Continue(())
            });
            let walk = walk.unwrap();
            walk.lacks_openat2.set(true);
            let totals = walk.run(root.path().as_os_str().as_bytes()).unwrap();
            (totals.entries, totals.unreadable)
        };
        assert_eq!(sums(false), (4, 0));
        assert_eq!(sums(true), (4, 1));
    }
}
