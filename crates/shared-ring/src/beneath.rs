//! Opens paths beneath a directory.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::descriptor::borrow;
use crate::{Access, Blocking, Fd, PathAt, SymlinkPolicy};

/// Flags of every open. Opening a pipe does not wait for its other end. For a file on a disk, Linux 6.1 to 6.4 may refuse
/// `NONBLOCK` in a ring: see `UringKernel::refused_by_ring`.
const OPEN_FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Maximum tries of an open. The kernel resolves no `..` of a link (`EAGAIN`) if anything on the machine is renamed or mounted
/// meanwhile: openat2(2), `RESOLVE_BENEATH`.
const MAX_TRIES: u32 = 64;

/// Flags of an open for metadata only.
pub(crate) const STAT_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

impl Access {
    /// Every kind of access, in the order of its number.
    pub(crate) const ALL: [Access; 4] =
        [Access::Read, Access::Write, Access::Create, Access::Replace];

    /// Returns the flags of an open.
    pub(crate) const fn flags(self) -> OFlags {
        OPEN_FLAGS.union(match self {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
            Access::Create => OFlags::RDWR.union(OFlags::CREATE),
            Access::Replace => OFlags::RDWR.union(OFlags::CREATE).union(OFlags::TRUNC),
        })
    }
}

/// Returns the permissions of a file that an open with these flags creates. For other flags, openat2(2)
/// accepts none.
pub(crate) const fn mode(flags: OFlags) -> Mode {
    if flags.contains(OFlags::CREATE) { CREATE_MODE } else { Mode::empty() }
}

const CREATE_MODE: Mode = Mode::from_raw_mode(0o666);

impl SymlinkPolicy {
    pub(crate) const fn resolve(self) -> ResolveFlags {
        match self {
            SymlinkPolicy::Beneath => ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS),
            SymlinkPolicy::Anywhere => ResolveFlags::NO_MAGICLINKS,
        }
    }

    fn resolve_with(self, disk: Blocking) -> ResolveFlags {
        match disk {
            Blocking::MayBlock => self.resolve(),
            Blocking::NoBlock => self.resolve() | ResolveFlags::CACHED,
        }
    }
}

impl<D, P> PathAt<D, P> {
    /// Returns flags, mode and resolve flags of the openat2(2) that opens the path; without `access`, for
    /// metadata only.
    pub fn open_how(&self, access: Option<Access>, disk: Blocking) -> [u64; 3] {
        let flags = access.map_or(STAT_FLAGS, Access::flags);
        let resolve = self.symlinks.resolve_with(disk);
        [flags.bits().into(), mode(flags).bits().into(), resolve.bits()]
    }
}

/// Opens a path.
///
/// # Errors
/// Those of openat2(2).
pub(crate) fn open(at: PathAt<Fd, &CStr>, flags: OFlags, disk: Blocking) -> Result<OwnedFd, Errno> {
    let PathAt { root, path, symlinks } = at;
    let how = symlinks.resolve_with(disk);
    let open = || retry_on_intr(|| fs::openat2(borrow(&root), path, flags, mode(flags), how));
    let mut opened = open();
    if disk == Blocking::MayBlock {
        let mut tries = 1;
        while tries < MAX_TRIES && matches!(opened, Err(Errno::AGAIN)) {
            opened = open();
            tries += 1;
        }
    }
    if matches!(opened, Err(Errno::PERM)) && is_filtered(borrow(&root)) {
        opened = Err(Errno::NOSYS);
    }
    match opened {
        Err(Errno::NOSYS) if disk == Blocking::NoBlock => Err(Errno::AGAIN),
        Err(Errno::NOSYS) if symlinks == SymlinkPolicy::Anywhere => {
            fs::openat(borrow(&root), path, flags, mode(flags))
        }
        Err(Errno::NOSYS) => open_by_component(borrow(&root), path, flags),
        opened => opened,
    }
}

/// Returns whether a filter of system calls forbids openat2(2), as that of systemd 247 does. Without a filter, opening a
/// directory for its path alone does not fail with this error.
#[cold]
fn is_filtered(root: BorrowedFd<'_>) -> bool {
    let flags = STAT_FLAGS | OFlags::DIRECTORY;
    let opened = fs::openat2(root, c".", flags, Mode::empty(), ResolveFlags::empty());
    matches!(opened, Err(Errno::PERM))
}

/// Returns whether a path is absolute or has a `..`.
pub(crate) fn may_leave_root(path: &CStr) -> bool {
    let path = path.to_bytes();
    path.starts_with(b"/") || path.split(|b| *b == b'/').any(|step| step == b"..")
}

/// Opens a path without openat2(2), which some sandboxes lack. It follows no link at all, since
/// it cannot check where one leads.
fn open_by_component(root: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    if may_leave_root(path) {
        return Err(Errno::XDEV);
    }
    let path = path.to_bytes();
    let mut at = fs::openat(root, ".", STAT_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
    let (directories, last) = match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&path[..0], path),
    };
    for step in directories.split(|b| *b == b'/').filter(|step| !step.is_empty()) {
        at = open_component(at.as_fd(), step, STAT_FLAGS | OFlags::DIRECTORY)?;
    }
    if last.is_empty() {
        return open_component(at.as_fd(), b".", flags | OFlags::DIRECTORY);
    }
    let file = open_component(at.as_fd(), last, flags)?;
    match FileType::from_raw_mode(fs::fstat(&file)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(file),
    }
}

fn open_component(at: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| fs::openat(at, name, flags | OFlags::NOFOLLOW, mode(flags)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::symlink;

    #[test]
    fn open_by_component_stays_beneath_root_and_follows_no_link() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        std::fs::write(root.path().join("a/b/file"), "x").unwrap();
        symlink("a/b/file", root.path().join("link")).unwrap();
        symlink("a", root.path().join("way")).unwrap();
        let at = fs::open(root.path(), STAT_FLAGS | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let kind = |path: &str, flags| {
            let path = CString::new(path).unwrap();
            let file = open_by_component(at.as_fd(), &path, flags)?;
            Ok(FileType::from_raw_mode(fs::fstat(&file)?.st_mode))
        };
        for flags in [Access::Read.flags(), STAT_FLAGS] {
            for path in ["a/b/file", "./a//b/./file"] {
                assert_eq!(kind(path, flags), Ok(FileType::RegularFile), "{path}");
            }
            for path in [".", "a", "a/", "a/b/."] {
                assert_eq!(kind(path, flags), Ok(FileType::Directory), "{path}");
            }
            for path in ["..", "a/../..", "/", "/etc/passwd", "a/../a/b/file"] {
                assert_eq!(kind(path, flags), Err(Errno::XDEV), "{path}");
            }
            assert_eq!(kind("link", flags), Err(Errno::LOOP));
            for path in ["way/b/file", "a/b/file/", "a/b/file/x"] {
                assert_eq!(kind(path, flags), Err(Errno::NOTDIR), "{path}");
            }
            for path in ["", "a/none"] {
                assert_eq!(kind(path, flags), Err(Errno::NOENT), "{path}");
            }
        }
    }
}
