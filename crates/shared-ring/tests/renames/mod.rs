//! Renames of files of other directories, beside which the path of a link is resolved.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The link.
pub(crate) const LINK: &str = "near";

/// Its steps back. With more of them a resolution meets a rename more often; with 60 nearly each one does.
const STEPS_BACK: usize = 15;

/// Resolutions that the kernel refuses, and resolutions at most: a busy machine may run the threads in turn.
const REFUSED: u32 = 200;
const MAX_ROUNDS: u32 = 5_000;

/// Adds a link to `file`, beside which there is a directory `inner`, and calls `resolve`, which resolves it, until
/// the kernel has refused to do so many times.
pub(crate) fn resolve_beside_renames(directory: &Path, mut resolve: impl FnMut()) {
    symlink("inner/../".repeat(STEPS_BACK) + "file", directory.join(LINK)).unwrap();
    let root = File::open(directory).unwrap();
    let _renames = Renames::begin();
    let mut refused = 0;
    for _ in 0..MAX_ROUNDS {
        resolve();
        let opened = openat2(&root, LINK, OFlags::CLOEXEC, Mode::empty(), ResolveFlags::BENEATH);
        refused += u32::from(matches!(opened, Err(Errno::AGAIN)));
        if refused == REFUSED {
            break;
        }
    }
    println!("{refused} resolutions were refused");
}

/// Threads that rename until this is dropped, on two cores, so that one renames while the other core resolves.
struct Renames {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Renames {
    fn begin() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let cores = sched_getaffinity(None).unwrap();
        let cores = (0..CpuSet::MAX_CPU).filter(|core| cores.is_set(*core)).take(2);
        let begin = |core| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || rename_on(core, &is_over))
        };
        Renames { threads: cores.map(begin).collect(), is_over }
    }
}

fn rename_on(core: usize, is_over: &AtomicBool) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
    std::fs::write(&a, "").unwrap();
    while !is_over.load(Ordering::Relaxed) {
        std::fs::rename(&a, &b).unwrap();
        std::fs::rename(&b, &a).unwrap();
    }
}

impl Drop for Renames {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok());
        }
    }
}
