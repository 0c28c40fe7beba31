//! File operations.

use std::os::unix::fs::symlink;

use shared_ring::files::{FileKind, PathAt, WriteAt};

use crate::renames::{LINK, resolve_beside_renames};
use crate::*;

pub(super) fn folder(kernel: &mut impl Kernel, far: &impl Far) -> File {
    far.add_file("file", b"0123456789");
    far.add_file("inner/other", b"");
    kernel.host_mut().open_directory(&far.root()).unwrap()
}

pub(super) fn at(root: &File, name: &str, symlinks: SymlinkPolicy) -> PathAt {
    PathAt { root: root.clone(), path: path(name), symlinks }
}

pub(super) fn open(kernel: &mut impl Kernel, root: &File, name: &str) -> Outcome {
    kernel
        .submit(FILE, Op::File(FileOp::Open(at(root, name, SymlinkPolicy::Beneath), Access::Read)))
        .unwrap();
    let done = next(kernel, &mut Batch::new(), FILE);
    assert!(done.is_last);
    done.outcome
}

pub(crate) fn files_are_opened_queried_and_read(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let Outcome::File(FileOutcome::Opened(opened)) = open(&mut kernel, &root, "file") else {
        panic!()
    };
    let (file, meta) = *opened;
    assert_eq!((meta.kind, meta.len), (FileKind::Regular, 10));
    if far.has_symlinks() {
        let expected = std::fs::metadata(far.root().join("file")).unwrap().modified().unwrap();
        assert_eq!(meta.modified(), expected);
    }
    let mut batch = Batch::new();
    for (range, expected) in
        [(0..10, "0123456789"), (3..7, "3456"), (8..108, "89"), (10..11, ""), (99..100, "")]
    {
        kernel.submit(FILE, Op::File(FileOp::Read(file.clone(), range))).unwrap();
        let done = next(&mut kernel, &mut batch, FILE).outcome;
        let Outcome::File(FileOutcome::Read(bytes)) = done else { panic!("{done:?}") };
        assert_eq!(&*bytes, expected.as_bytes());
    }
    for (name, expected) in [("file", meta.kind), ("inner", FileKind::Directory)] {
        let stat = FileOp::Stat(at(&root, name, SymlinkPolicy::Beneath));
        kernel.submit(FILE, Op::File(stat)).unwrap();
        let done = next(&mut kernel, &mut batch, FILE).outcome;
        let Outcome::File(FileOutcome::Stat(meta)) = done else { panic!("{done:?}") };
        assert_eq!(meta.kind, expected);
    }
    let Outcome::Failed(errno, None) = open(&mut kernel, &root, "absent") else { panic!() };
    assert_eq!(errno, Errno::NOENT);
}

/// procfs does not support RWF_NOWAIT.
pub(crate) fn read_counted_as_cold_where_that_is_unknown(mut kernel: impl Kernel, far: &impl Far) {
    if !far.has_symlinks() {
        return;
    }
    let file = std::fs::File::open("/proc/version").unwrap();
    let read = FileOp::Read(File::from(std::os::fd::OwnedFd::from(file)), 0..10);
    kernel.submit(FILE, Op::File(read)).unwrap();
    let done = next(&mut kernel, &mut Batch::new(), FILE);
    let Outcome::File(FileOutcome::Read(bytes)) = done.outcome else { panic!("{done:?}") };
    assert_eq!((&*bytes, done.was_cold), (&b"Linux vers"[..], false));
}

/// Submits a file operation and returns its result.
pub(super) fn run(kernel: &mut impl Kernel, op: FileOp) -> Result<FileOutcome, Errno> {
    let outcome = match kernel.submit(FILE, Op::File(op)).unwrap() {
        Submitted::Done(outcome) => outcome,
        Submitted::InFlight => {
            let done = next(kernel, &mut Batch::new(), FILE);
            assert!(done.is_last);
            done.outcome
        }
    };
    match outcome {
        Outcome::File(done) => Ok(done),
        Outcome::Failed(errno, None) => Err(errno),
        other => panic!("{other:?}"),
    }
}

pub(super) fn opened(done: Result<FileOutcome, Errno>) -> File {
    let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
    opened.0
}

fn content(kernel: &mut impl Kernel, file: &File) -> Vec<u8> {
    let done = run(kernel, FileOp::Read(file.clone(), 0..1 << 20));
    let Ok(FileOutcome::Read(bytes)) = done else { panic!("{done:?}") };
    bytes.to_vec()
}

pub(crate) fn files_are_created_and_written(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let path = |name: &str| at(&root, name, SymlinkPolicy::Beneath);
    let absent = run(&mut kernel, FileOp::Open(path("new"), Access::Write));
    assert_eq!(absent.unwrap_err(), Errno::NOENT);
    let file = opened(run(&mut kernel, FileOp::Open(path("inner/new"), Access::Create)));
    let big: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    let mut expected = b"start, ".to_vec();
    expected.extend_from_slice(&big);
    for bytes in [b"start, ".to_vec(), big] {
        let done = run(&mut kernel, FileOp::write(file.clone(), WriteAt::End, bytes));
        assert!(matches!(done, Ok(FileOutcome::Written)), "{done:?}");
    }
    for (offset, bytes) in [(1, "TART"), (expected.len() as u64 + 3, "end"), (5, "")] {
        let write = FileOp::write(file.clone(), WriteAt::Offset(offset), bytes);
        assert!(matches!(run(&mut kernel, write), Ok(FileOutcome::Written)));
    }
    expected[1..5].copy_from_slice(b"TART");
    expected.extend_from_slice(b"\0\0\0end");
    assert!(content(&mut kernel, &file) == expected);
    let again = opened(run(&mut kernel, FileOp::Open(path("inner/new"), Access::Write)));
    assert!(content(&mut kernel, &again) == expected, "it is not truncated");
    let empty = opened(run(&mut kernel, FileOp::Open(path("inner/new"), Access::Replace)));
    assert!(content(&mut kernel, &empty).is_empty());
    for access in [Access::Write, Access::Create, Access::Replace] {
        let directory = run(&mut kernel, FileOp::Open(path("inner"), access));
        assert_eq!(directory.unwrap_err(), Errno::ISDIR);
        let outside = run(&mut kernel, FileOp::Open(path("../new"), access));
        assert_eq!(outside.unwrap_err(), Errno::XDEV);
    }
}

pub(crate) fn file_opened_for_reading_cannot_be_written(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let path = at(&root, "file", SymlinkPolicy::Beneath);
    let file = opened(run(&mut kernel, FileOp::Open(path, Access::Read)));
    for at in [WriteAt::End, WriteAt::Offset(0)] {
        let written = run(&mut kernel, FileOp::write(file.clone(), at, "x"));
        assert_eq!(written.unwrap_err(), Errno::BADF);
    }
    assert_eq!(content(&mut kernel, &file), b"0123456789");
}

pub(crate) fn write_far_behind_the_end_replaced_the_start(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let path = at(&root, "file", SymlinkPolicy::Beneath);
    let file = opened(run(&mut kernel, FileOp::Open(path, Access::Write)));
    for offset in [u64::MAX, i64::MAX as u64 + 1] {
        for bytes in ["x", ""] {
            let write = FileOp::write(file.clone(), WriteAt::Offset(offset), bytes);
            assert_eq!(run(&mut kernel, write).unwrap_err(), Errno::INVAL);
        }
    }
    let write = FileOp::write(file.clone(), WriteAt::Offset(i64::MAX as u64), "x");
    assert!(run(&mut kernel, write).is_err(), "no file is so long");
    assert_eq!(content(&mut kernel, &file), b"0123456789");
}

pub(crate) fn write_in_flight_is_cancelled_or_done(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let path = at(&root, "file", SymlinkPolicy::Beneath);
    let file = opened(run(&mut kernel, FileOp::Open(path, Access::Write)));
    let shared = Bytes::from(vec![b'x'; 100_000]);
    let write = FileOp::write(file.clone(), WriteAt::Offset(0), shared.clone());
    kernel.submit(FILE, Op::File(write)).unwrap();
    kernel.cancel(FILE);
    match next(&mut kernel, &mut Batch::new(), FILE).outcome {
        Outcome::File(FileOutcome::Written) | Outcome::Failed(Errno::CANCELED, None) => {}
        other => panic!("{other:?}"),
    }
    assert!(shared.is_unique(), "no thread uses the bytes any more");
    let written = content(&mut kernel, &file);
    assert!(written.iter().all(|byte| *byte == b'x' || byte.is_ascii_digit()));
}

pub(crate) fn no_path_leads_out_of_its_root(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let mut names = vec!["../file", "/etc/hostname", "inner/../../file"];
    if far.has_symlinks() {
        symlink("/etc/hostname", far.root().join("far")).unwrap();
        symlink("../inner/../file", far.root().join("inner/near")).unwrap();
        names.push("far");
        let opened = open(&mut kernel, &root, "inner/near");
        assert!(matches!(opened, Outcome::File(FileOutcome::Opened(_))));
    }
    for name in names {
        match open(&mut kernel, &root, name) {
            Outcome::Failed(errno, None) => assert_eq!(errno, Errno::XDEV, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// With links to anywhere, a path that is not one of a link does not lead there either.
pub(crate) fn path_led_out_of_its_root_if_links_may(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    far.add_file("inner/..other", b"");
    for name in ["../file", "/etc/hostname", "inner/../file", "..", "inner/.."] {
        let path = || at(&root, name, SymlinkPolicy::Anywhere);
        for op in [
            FileOp::Open(path(), Access::Read),
            FileOp::Open(path(), Access::Create),
            FileOp::Stat(path()),
            FileOp::List(path()),
        ] {
            assert_eq!(run(&mut kernel, op).unwrap_err(), Errno::XDEV, "{name}");
        }
    }
    if far.has_symlinks() {
        symlink("/etc/hostname", far.root().join("far")).unwrap();
        symlink("../inner/../file", far.root().join("inner/near")).unwrap();
    }
    let links = if far.has_symlinks() { &["far", "inner/near"][..] } else { &[] };
    for name in ["file", "inner/./other", "inner/..other"].iter().chain(links) {
        let path = at(&root, name, SymlinkPolicy::Anywhere);
        match run(&mut kernel, FileOp::Open(path, Access::Read)) {
            Ok(FileOutcome::Opened(_)) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Files of other directories are renamed meanwhile.
pub(crate) fn path_of_a_link_was_not_resolved_beside_renames(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let root = folder(&mut kernel, far);
    if !far.has_symlinks() {
        return;
    }
    resolve_beside_renames(&far.root(), || {
        let path = || at(&root, LINK, SymlinkPolicy::Beneath);
        run(&mut kernel, FileOp::Open(path(), Access::Read)).unwrap();
        run(&mut kernel, FileOp::Stat(path())).unwrap();
    });
}

pub(crate) fn directories_are_listed(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    if far.has_symlinks() {
        symlink("/etc/hostname", far.root().join("far")).unwrap();
        symlink("../file", far.root().join("inner/near")).unwrap();
    }
    let mut names = |name: &str, symlinks| {
        let op = Op::File(FileOp::List(at(&root, name, symlinks)));
        kernel.submit(FILE, op).unwrap();
        match next(&mut kernel, &mut Batch::new(), FILE).outcome {
            Outcome::File(FileOutcome::Listed(listing)) => {
                assert!(listing.is_complete);
                let entries = listing.entries.into_iter();
                let mut names: Vec<_> =
                    entries.map(|(name, meta)| (name.into_string().unwrap(), meta.kind)).collect();
                names.sort_by(|a, b| a.0.cmp(&b.0));
                Ok(names)
            }
            Outcome::Failed(errno, None) => Err(errno),
            other => panic!("{other:?}"),
        }
    };
    let entry = |name: &str, kind| (name.to_owned(), kind);
    let (file, inner) = (entry("file", FileKind::Regular), entry("inner", FileKind::Directory));
    assert_eq!(names(".", SymlinkPolicy::Beneath), Ok(vec![file.clone(), inner.clone()]));
    let other = entry("other", FileKind::Regular);
    if far.has_symlinks() {
        let distant = entry("far", FileKind::Regular);
        assert_eq!(names(".", SymlinkPolicy::Anywhere), Ok(vec![distant, file, inner]));
        let near = entry("near", FileKind::Regular);
        assert_eq!(names("inner", SymlinkPolicy::Beneath), Ok(vec![near, other]));
    } else {
        assert_eq!(names("inner", SymlinkPolicy::Beneath), Ok(vec![other]));
    }
    assert_eq!(names("file", SymlinkPolicy::Beneath), Err(Errno::NOTDIR));
    assert_eq!(names("absent", SymlinkPolicy::Beneath), Err(Errno::NOENT));
    assert_eq!(names("..", SymlinkPolicy::Beneath), Err(Errno::XDEV));
}

pub(crate) fn listing_in_flight_is_cancelled_or_dropped(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let list = || Op::File(FileOp::List(at(&root, ".", SymlinkPolicy::Beneath)));
    kernel.submit(FILE, list()).unwrap();
    kernel.cancel(FILE);
    assert_eq!(failure(next(&mut kernel, &mut Batch::new(), FILE)), Errno::CANCELED);
    kernel.submit(FILE, list()).unwrap();
    // Dropped now.
}
