//! Very many files: their metadata, and the content of small ones.

use std::cell::Cell;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread;
use std::time::Instant;

use flexsc_rt::operations::{close, open, read_at, stat};
use flexsc_rt::{Config, EventLoop};
use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::pread;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::spawn_blocking;

use super::system_call::failed;
use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::OtherPrograms;
use crate::outcome::{self, Outcome, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "flexsc-files",
    title: "metadata of 100,000 files and content of 10,000 small ones: std, tokio::fs, posted calls",
    source: "goal of this project: programs that make very many calls on files and cannot wait for each",
    own_network: false,
    run,
};

/// Numbers of files, and of those that are read.
const FULL: (usize, usize) = (100_000, 10_000);
const QUICK: (usize, usize) = (2_000, 500);
const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 3;
/// Rounds with cold caches.
const COLD_ROUNDS: usize = 5;
const FILES_PER_DIRECTORY: usize = 1_000;
/// Files are of different sizes, up to this.
const MAX_BYTES: usize = 4_096;
/// Calls in flight, of tokio and of posted calls.
const IN_FLIGHT: usize = 256;

const CONTESTANTS: [&str; 5] =
    ["std", "std, all cores", "tokio::fs", "tokio::fs, a thread per core", "flexsc"];
const STD: usize = 0;
const TOKIO: usize = 2;
const TOKIO_CORES: usize = 3;
const FLEXSC: usize = 4;
/// Threads of tokio's pool by default.
const TOKIO_THREADS: usize = 512;

const NOTES: [&str; 2] = [
    "`std` asks for one file after the other on one core, `std, all cores` with a thread for each core. `tokio::fs` \
     has 256 tasks at a time on one thread, and its pool of up to 512 blocking threads, which is tokio's default and its documented advice, or of one \
     for each core; `flexsc` 256 calls at a \
     time on one thread, by callbacks, and its syscall threads. Both are on all cores, so `..._std_over_flexsc` and `stat_over_std` \
     compare all cores with one. Reads open each file, read it by one call into 4 KiB, and close it. \
     A time is that of all files, over their number; CPU time is that of all threads of the program.",
    "Each round runs all in a shuffled order; ratios are taken within a round. With cold caches, \
     /proc/sys/vm/drop_caches is written before each.",
];

/// The files, in directories; removed at the end.
struct Files {
    root: PathBuf,
    paths: Vec<PathBuf>,
    names: Vec<CString>,
}

impl Files {
    fn new(count: usize) -> Result<Self, Failure> {
        let root = outcome::directory()?.join(format!("files-{}", std::process::id()));
        let mut files = Files { root, paths: Vec::new(), names: Vec::new() };
        for number in 0..count {
            let directory = files.root.join((number / FILES_PER_DIRECTORY).to_string());
            if number % FILES_PER_DIRECTORY == 0 {
                fs::create_dir_all(&directory)?;
            }
            let path = directory.join(number.to_string());
            fs::write(&path, vec![b'x'; size(number)])?;
            files.names.extend(CString::new(path.as_os_str().as_bytes()));
            files.paths.push(path);
        }
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Returns the size of a file.
fn size(number: usize) -> usize {
    number * 997 % MAX_BYTES
}

/// The operation on each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileTask {
    Stat,
    Read,
}

impl FileTask {
    fn name(self) -> &'static str {
        match self {
            FileTask::Stat => "stat",
            FileTask::Read => "read",
        }
    }
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let (all, small) = if cx.quick { QUICK } else { FULL };
    cx.progress.set_message("creates files");
    let files = Files::new(all)?;
    let others = OtherPrograms::watch()?;
    let rounds = if cx.quick { QUICK_ROUNDS } else { ROUNDS };
    cx.progress.set_length((rounds * 2) as u64);
    for (task, count) in [(FileTask::Stat, all), (FileTask::Read, small)] {
        let times = measure(cx, &files, task, count, rounds, || Ok(()))?;
        report(task, "warm", &times, &mut outcome);
        if task == FileTask::Stat {
            let over = |at: usize| ratios(&times.elapsed[at], &times.elapsed[FLEXSC]);
            outcome.ratio("stat_over_tokio_fs", "flexsc", over(TOKIO));
            outcome.ratio("stat_over_std", "flexsc", over(STD));
        }
        if cx.quick {
            continue;
        }
        match drop_caches() {
            Ok(()) => {
                let times = measure(cx, &files, task, count, COLD_ROUNDS, drop_caches)?;
                report(task, "cold", &times, &mut outcome);
            }
            Err(error) => outcome.notes.push(format!("cannot drop caches: {error}")),
        }
    }
    findings(&mut outcome);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn drop_caches() -> io::Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")
}

/// For each contestant the time of a file in nanoseconds, one value per round.
#[derive(Default)]
struct Times {
    elapsed: [Vec<f64>; CONTESTANTS.len()],
    /// CPU time of all threads.
    cpu: [Vec<f64>; CONTESTANTS.len()],
}

/// Returns the CPU time of this process, in nanoseconds, with that of threads that have ended.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn measure(
    cx: &Context,
    files: &Files,
    task: FileTask,
    count: usize,
    rounds: usize,
    prepare: impl Fn() -> io::Result<()>,
) -> Result<Times, Failure> {
    let expected = (0..count).map(|number| size(number) as u64).sum::<u64>();
    let cores = thread::available_parallelism()?.get();
    let mut times = Times::default();
    for mut round in cx.rounds(rounds) {
        for contestant in round.order(CONTESTANTS.len()) {
            cx.progress.set_message(format!("{}: {}", task.name(), CONTESTANTS[contestant]));
            prepare()?;
            let (begin, cpu) = (Instant::now(), cpu_ns());
            let bytes = match contestant {
                STD => by_std(&files.paths[..count], task)?,
                TOKIO => by_tokio(&files.paths[..count], task, TOKIO_THREADS)?,
                TOKIO_CORES => by_tokio(&files.paths[..count], task, cores)?,
                FLEXSC => by_flexsc(&files.names[..count], task)?,
                _ => on_all_cores(&files.paths[..count], task)?,
            };
            times.elapsed[contestant].push(begin.elapsed().as_nanos() as f64 / count as f64);
            times.cpu[contestant].push((cpu_ns() - cpu) / count as f64);
            if bytes != expected {
                let name = CONTESTANTS[contestant];
                return Err(Failure::Run(format!("{name}: {bytes} bytes of {expected}")));
            }
        }
        cx.progress.inc(1);
    }
    Ok(times)
}

fn by_std(paths: &[PathBuf], task: FileTask) -> io::Result<u64> {
    let bytes = |path: &PathBuf| match task {
        FileTask::Stat => fs::metadata(path).map(|found| found.len()),
        FileTask::Read => read_by_std(path),
    };
    paths.iter().map(bytes).sum()
}

fn read_by_std(path: &Path) -> io::Result<u64> {
    let mut content: Vec<u8> = Vec::with_capacity(MAX_BYTES);
    Ok(pread(File::open(path)?, spare_capacity(&mut content), 0)? as u64)
}

fn on_all_cores(paths: &[PathBuf], task: FileTask) -> io::Result<u64> {
    let cores = thread::available_parallelism()?.get();
    thread::scope(|scope| {
        let parts = paths.chunks(paths.len().div_ceil(cores));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || by_std(part, task))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    })
}

fn by_tokio(paths: &[PathBuf], task: FileTask, threads: usize) -> io::Result<u64> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(threads).build()?;
    runtime.block_on(async {
        let mut bytes = 0;
        for part in paths.chunks(IN_FLIGHT) {
            let tasks = part.iter().map(|path: &PathBuf| {
                let path = path.clone();
                tokio::spawn(async move {
                    match task {
                        FileTask::Stat => tokio::fs::metadata(path).await.map(|found| found.len()),
                        // As the functions of tokio::fs do.
                        FileTask::Read => spawn_blocking(move || read_by_std(&path)).await?,
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                bytes += task.await.map_err(io::Error::other)??;
            }
        }
        Ok(bytes)
    })
}

fn by_flexsc(names: &[CString], task: FileTask) -> Result<u64, Failure> {
    let mut events = EventLoop::new(&Config::default()).map_err(failed)?;
    let bytes = Rc::new(Cell::new(0));
    for part in names.chunks(IN_FLIGHT) {
        for name in part {
            let bytes = Rc::clone(&bytes);
            let refused = match task {
                FileTask::Stat => {
                    let note = move |_: &mut EventLoop, found: io::Result<libc::statx>| {
                        bytes.set(bytes.get() + found.map_or(0, |found| found.stx_size));
                    };
                    events.post(stat(name.as_c_str(), AtFlags::empty()), note).is_err()
                }
                FileTask::Read => {
                    let opened = open(name.as_c_str(), OFlags::RDONLY, Mode::empty());
                    let read = move |events: &mut EventLoop, file| read(events, file, bytes);
                    events.post(opened, read).is_err()
                }
            };
            assert!(!refused, "there are more entries than calls");
        }
        events.run().map_err(failed)?;
    }
    Ok(bytes.get())
}

/// Reads a file that was opened, and closes it. A file that cannot be read adds no bytes.
fn read(events: &mut EventLoop, file: io::Result<flexsc_rt::Descriptor>, bytes: Rc<Cell<u64>>) {
    let Ok(file) = file else { return };
    let content = read_at(&file, 0, Vec::with_capacity(MAX_BYTES));
    let _ = events.post_or_delay(content, move |events, (_, content)| {
        bytes.set(bytes.get() + content.len() as u64);
        let _ = events.post_silently(close(file));
    });
}

fn report(task: FileTask, caches: &str, times: &Times, outcome: &mut Outcome) {
    for (kind, times) in [("Time", &times.elapsed), ("CPU time", &times.cpu)] {
        let figure = format!("{kind} of a file, {}, {caches}", task.name());
        for (name, times) in CONTESTANTS.iter().zip(times) {
            if let Some(y) = spread(times) {
                outcome.point(&figure, "ns", name, X::Name((*name).to_owned()), y);
            }
        }
    }
    for (name, at) in [("tokio_fs", TOKIO), ("tokio_fs_cores", TOKIO_CORES), ("std", STD)] {
        let ratio = format!("{}_{caches}_{name}_over_flexsc", task.name());
        outcome.ratio(ratio, "flexsc", ratios(&times.elapsed[at], &times.elapsed[FLEXSC]));
    }
}

fn findings(outcome: &mut Outcome) {
    if let (Some(tokio), Some(std)) =
        (outcome.median("stat_over_tokio_fs"), outcome.median("stat_over_std"))
    {
        outcome.shows.push(format!(
            "Metadata of cached files: posted calls, on all cores, are {tokio:.2} times as fast as tokio::fs, and \
             {std:.2} times as fast as std on one core."
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contestants_find_the_same_bytes() {
        let files = Files::new(700).unwrap();
        let expected = (0..700).map(|number| size(number) as u64).sum::<u64>();
        for task in [FileTask::Stat, FileTask::Read] {
            assert_eq!(by_std(&files.paths, task).unwrap(), expected);
            assert_eq!(on_all_cores(&files.paths, task).unwrap(), expected);
            assert_eq!(by_tokio(&files.paths, task, 2).unwrap(), expected);
            assert_eq!(by_flexsc(&files.names, task).unwrap(), expected);
        }
        let root = files.root.clone();
        drop(files);
        assert!(!root.exists());
    }
}
