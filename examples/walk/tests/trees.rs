//! Trees with what makes them difficult, compared with du(1) and find(1), and the bounds of a walk.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use walk::{Error, Found, Options, Totals, walk};

/// A user without privileges, if the tests run as root.
const NOBODY: u32 = 65_534;

fn run(command: &mut Command) -> Output {
    let output = command.env("LC_ALL", "C").output().expect("it is installed");
    assert!(output.status.code().is_some(), "{output:?}");
    output
}

fn walk_program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_walk"))
}

/// Whether du(1) leaves out the sizes of directories, as it does from version 9.2 on.
fn du_counts_files_only() -> bool {
    let empty = tempfile::tempdir().unwrap();
    let output = run(Command::new("du").arg("-sb").arg(empty.path()));
    output.stdout.starts_with(b"0\t") && fs::metadata(empty.path()).unwrap().len() > 0
}

fn sorted(output: &Output) -> BTreeSet<Vec<u8>> {
    output.stdout.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Compares the programs on a tree.
fn assert_agrees(root: &Path) {
    let ours = run(walk_program().args(["--list", "--"]).arg(root));
    let find = run(Command::new("find").arg(root).args(["-printf", "%y %i %n %s %p\\n"]));
    assert_eq!(sorted(&ours), sorted(&find));
    assert!(ours.status.success() && find.status.success());
    let mut ours = walk_program();
    if du_counts_files_only() {
        ours.arg("--files-only");
    }
    let (ours, du) = (run(ours.arg(root)), run(Command::new("du").arg("-sb").arg(root)));
    assert_eq!((ours.stdout, ours.status), (du.stdout, du.status));
}

fn sums(root: &Path, options: &Options) -> Result<Totals, Error> {
    walk(root, options, |_| ControlFlow::Continue(()))
}

#[test]
fn hard_links_symbolic_links_and_special_files() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("a/file"), [1; 12_345]).unwrap();
    fs::write(at("a/b/none"), "").unwrap();
    File::create(at("sparse")).unwrap().set_len(1 << 30).unwrap();
    for name in ["link", "a/link", "a/b/c/link"] {
        fs::hard_link(at("a/file"), at(name)).unwrap();
    }
    symlink("a", at("to a directory")).unwrap();
    symlink("..", at("a/upwards")).unwrap();
    symlink("nothing", at("dangling")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    run(Command::new("mkfifo").arg(at("a/pipe")));
    fs::write(at("spaces, \u{fc} and \u{1} in a name"), "x").unwrap();
    assert_agrees(root.path());
    // A root that is no directory.
    assert_agrees(&at("a/file"));
    assert_agrees(&at("to a directory"));
    let totals = sums(root.path(), &Options::default()).unwrap();
    let links = 1 + 2 + 7;
    assert_eq!(totals.file_bytes, 12_345 + (1 << 30) + links + 1);
}

#[test]
fn root_that_is_not_utf8_was_printed_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join(OsStr::from_bytes(b"b\xff d"));
    fs::create_dir(&root).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"\xfe")), "file").unwrap();
    assert_agrees(&root);
}

/// In memory, as a file system on a disk refuses such sizes.
#[test]
fn sizes_of_more_than_64_bits_were_summed_modulo_2_64() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    for name in ["a", "b", "c"] {
        let file = File::create(root.path().join(name)).unwrap();
        if let Err(error) = file.set_len(i64::MAX as u64) {
            return println!("not tested: {error}");
        }
    }
    assert_eq!(sums(root.path(), &Options::default()).unwrap().file_bytes, u64::MAX);
    assert_agrees(root.path());
}

#[test]
fn many_files_and_directories() {
    let root = tempfile::tempdir().unwrap();
    for directory in 0..100 {
        let directory = root.path().join(format!("directory {directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..30 {
            File::create(directory.join(file.to_string())).unwrap().set_len(file).unwrap();
        }
    }
    // More than one buffer of entries.
    for file in 0..3_000 {
        File::create(root.path().join(format!("{file:0100}"))).unwrap();
    }
    assert_agrees(root.path());
    let totals = sums(root.path(), &Options::default()).unwrap();
    assert_eq!((totals.entries, totals.unreadable), (1 + 100 + 100 * 30 + 3_000, 0));
    assert_eq!(totals.file_bytes, 100 * (0..30).sum::<u64>());
}

/// Makes directories in one another, by names of 200 bytes. Each holds an empty file.
fn deep(root: &Path, depth: usize) {
    let name = "d".repeat(200);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut directory = open(root, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&directory, &*name, Mode::RWXU).unwrap();
        directory = openat(&directory, &*name, flags, Mode::empty()).unwrap();
        openat(&directory, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
    }
}

/// A path of 60,000 bytes, much longer than the kernel takes. An anchor is closed when nothing below
/// it waits.
#[test]
fn deep_tree() {
    let root = tempfile::tempdir().unwrap();
    deep(root.path(), 300);
    assert_agrees(root.path());
    let mut options = Options::default();
    options.anchors = 2;
    assert_eq!(sums(root.path(), &options).unwrap().unreadable, 0);
}

#[test]
fn anchors_are_bounded() {
    let root = tempfile::tempdir().unwrap();
    deep(root.path(), 100);
    let mut options = Options::default();
    options.anchors = 0;
    let mut refused = Vec::new();
    let totals = walk(root.path(), &options, |found| {
        if let Found::Unreadable(path, error) = found {
            refused.push((path.as_os_str().len(), error.to_string()));
        }
        ControlFlow::Continue(())
    });
    assert_eq!(totals.unwrap().unreadable, 1);
    let [(len, error)] = &refused[..] else { panic!("{refused:?}") };
    assert!((2_048..2_500).contains(len), "{len}");
    assert_eq!(error, "the path is too long; walk it from a directory further down");
}

#[test]
fn descriptors_are_bounded() {
    let root = tempfile::tempdir().unwrap();
    for directory in 0..200 {
        fs::create_dir_all(root.path().join(format!("{directory}/a/b"))).unwrap();
    }
    deep(root.path(), 100);
    // 16 directories, an anchor for each 2 KiB of the longest path, and a few of the program.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 48 && exec \"$0\" --list \"$1\"", env!("CARGO_BIN_EXE_walk")]);
    let output = run(limited.arg(root.path()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout.split(|byte| *byte == b'\n').count(), 1 + 600 + 200 + 1);
}

#[test]
fn unreadable_directory_is_reported_and_counted() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let secret = root.path().join("secret");
    fs::create_dir_all(secret.join("inside")).unwrap();
    fs::write(root.path().join("file"), "12345").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o0)).unwrap();
    let as_nobody = |command: &mut Command| {
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY);
        }
        run(command)
    };
    // Copied to where anyone may execute it.
    let program = root.path().join("walk");
    // By another process: a child of this one could have it open for writing when it is executed.
    run(Command::new("cp").arg(env!("CARGO_BIN_EXE_walk")).arg(&program));
    let mut ours = Command::new(&program);
    if du_counts_files_only() {
        ours.arg("--files-only");
    }
    let ours = as_nobody(ours.arg(root.path()));
    let du = as_nobody(Command::new("du").arg("-sb").arg(root.path()));
    assert_eq!((&ours.stdout, ours.status), (&du.stdout, du.status));
    assert_eq!(ours.status.code(), Some(1));
    let message = String::from_utf8(ours.stderr).unwrap();
    let expected = format!("walk: cannot read {}: Permission denied", secret.display());
    assert!(message.starts_with(&expected), "{message}");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn directory_removed_while_it_was_read_was_unreadable() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("directory");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), "12345").unwrap();
    let totals = walk(root.path(), &Options::default(), |found| {
        // The directory is open, and was not read to its end.
        if let Found::Entry(entry) = found
            && entry.letter == 'f'
        {
            fs::remove_dir_all(&directory).unwrap();
        }
        ControlFlow::Continue(())
    });
    let totals = totals.unwrap();
    assert_eq!((totals.entries, totals.file_bytes, totals.unreadable), (3, 5, 0));
}

#[test]
fn directory_that_is_mounted_inside_itself_was_counted_again() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::create_dir_all(at("other/inside")).unwrap();
    fs::write(at("a/file"), [1; 1000]).unwrap();
    let mount = "mount --bind . a/b/c && mount --bind a other/inside";
    let ours = env!("CARGO_BIN_EXE_walk").to_owned();
    let ours = if du_counts_files_only() { ours + " --files-only" } else { ours };
    // Of the mounts, the second one is elsewhere, and counted again.
    let script = format!("cd {:?} && {mount} || exit 3; {ours} . && du -sb .", root.path());
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    let is_permitted = ["true", mount].map(|line| {
        let script = format!("cd {:?} && {line}", root.path());
        let arguments = ["--user", "--map-root-user", "--mount", "sh", "-c", &script];
        run(Command::new("unshare").args(arguments)).status.success()
    });
    if is_permitted != [true; 2] {
        println!("not tested: mounts, which this user may not make");
        return;
    }
    let output = run(&mut command);
    let sums = String::from_utf8(output.stdout).unwrap();
    let [of_walk, of_du] = sums.lines().collect::<Vec<_>>()[..] else { panic!("{sums}") };
    assert_eq!(of_walk, of_du);
}

#[test]
fn missing_root_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    let error = sums(&missing, &Options::default()).unwrap_err();
    assert!(matches!(&error, Error::Root(error) if error.kind() == io::ErrorKind::NotFound));
    let output = run(walk_program().arg(&missing));
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("missing: No such file or directory"), "{message}");
}

#[test]
fn directories_that_wait_and_remembered_links_are_bounded() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..200 {
        let directory = root.path().join(number.to_string());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), "").unwrap();
        fs::hard_link(directory.join("file"), directory.join("link")).unwrap();
    }
    let mut options = Options::default();
    options.pending_bytes = 8 << 10;
    assert!(matches!(sums(root.path(), &options), Err(Error::TooManyDirectories)));
    let mut options = Options::default();
    options.links = 100;
    assert!(matches!(sums(root.path(), &options), Err(Error::TooManyLinks)));
    options.links = 200;
    assert_eq!(sums(root.path(), &options).unwrap().entries, 1 + 3 * 200);
}

#[test]
fn link_in_the_place_of_an_ancestor_was_followed() {
    let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("a/inside")).unwrap();
    fs::create_dir_all(elsewhere.path().join("inside/secret")).unwrap();
    let mut options = Options::default();
    options.directories = 1;
    let (mut found_entries, mut unreadable) = (BTreeSet::new(), Vec::new());
    let totals = walk(root.path(), &options, |found| {
        match found {
            Found::Entry(entry) => {
                if entry.path == at("a/inside") {
                    // It is found, and not open.
                    fs::rename(at("a"), at("b")).unwrap();
                    symlink(elsewhere.path(), at("a")).unwrap();
                }
                found_entries.insert(entry.path.to_owned());
            }
            Found::Unreadable(path, error) => unreadable.push((path.to_owned(), error)),
        }
        ControlFlow::Continue(())
    });
    assert_eq!(found_entries, BTreeSet::from([at(""), at("a"), at("a/inside")]));
    let [(path, error)] = &unreadable[..] else { panic!("{unreadable:?}") };
    assert_eq!((path, error.raw_os_error()), (&at("a/inside"), Some(libc::ELOOP)));
    assert_eq!(totals.unwrap().unreadable, 1);
}

#[test]
fn list_went_through_the_whole_tree_after_a_write_had_failed() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..300 {
        let directory = root.path().join(format!("{number:0100}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), "x").unwrap();
    }
    for stops_after in [1, 2, 250, 400] {
        let mut found = 0;
        let totals = walk(root.path(), &Options::default(), |_| {
            found += 1;
            if found == stops_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((found, totals.unwrap().entries), (stops_after, stops_after));
    }
    let (reads, writes) = io::pipe().unwrap();
    drop(reads);
    let mut ours = walk_program();
    let output = ours.arg("--list").arg(root.path()).stdout(writes).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), message.lines().count()), (Some(1), 1), "{message}");
    assert!(message.starts_with("walk: cannot write: "), "{message}");
}

/// A link on the way to the root is the caller's, and no part of the tree.
#[test]
fn path_of_the_root_may_have_links() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("real/root/a/b")).unwrap();
    symlink("real", directory.path().join("link")).unwrap();
    assert_agrees(&directory.path().join("link/root"));
    assert_agrees(&directory.path().join("link/"));
}

/// All at once over few entries: directories and calls wait for their turn.
#[test]
fn few_entries_suffice() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..50 {
        fs::create_dir_all(root.path().join(format!("{number}/{number}"))).unwrap();
    }
    let mut options = Options::default();
    options.pages.entries = 1;
    options.directories = 50;
    assert_eq!(sums(root.path(), &options).unwrap().entries, 101);
    // None at a time is one.
    (options.directories, options.batch) = (0, 0);
    assert_eq!(sums(root.path(), &options).unwrap().entries, 101);
}

#[test]
fn terminal_shows_how_much_was_found() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..2_000 {
        fs::write(root.path().join(number.to_string()), "x").unwrap();
    }
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(OsStr::from_bytes(name.as_bytes()));
    let terminal = terminal.unwrap();
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    let mut command = walk_program();
    command.arg(root.path()).env("TERM", "xterm").stdout(Stdio::null()).stderr(terminal);
    let mut walk = command.spawn().unwrap();
    // The last descriptor of the terminal but that of the program: reads end with the program.
    drop(command);
    let mut shown = Vec::new();
    let _ = File::from(master).read_to_end(&mut shown);
    assert!(walk.wait().unwrap().success());
    let shown = String::from_utf8_lossy(&shown);
    for message in ["1,000 objects, ", "2,000 objects, "] {
        assert!(shown.contains(message), "{shown:?}");
    }
    // Nothing is left of the line.
    assert!(shown.ends_with("\u{1b}[2K"), "{shown:?}");
}
