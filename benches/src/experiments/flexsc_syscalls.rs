//! The cost of a system call, by executor and batch depth.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use flexsc_rt::{Call, Config, Direction, Executor, Kind, Pages, Specialization, Waits};
use rustix::fs::{MemfdFlags, memfd_create};

use super::system_call::{SystemCall, failed};
use super::{Context, Experiment};
use crate::command::Complete;
use crate::failure::Failure;
use crate::measure::{Callgrind, OtherPrograms, raise_descriptors};
use crate::outcome::{self, Outcome, X};
use crate::statistics::{Spread, ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "flexsc-syscalls",
    title: "the time of a system call by batch depth: direct, in place, by the ring, by syscall threads, \
            and adaptive",
    source: "FlexSC, sections 3 and 6; goals of this project",
    own_network: false,
    run,
};

/// Batch depths.
const FULL: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const QUICK: [usize; 3] = [1, 8, 64];
const MAX_DEPTH: usize = 512;
/// The work that keeps a syscall thread busy.
const READS: &str = "4 KiB read, page cache";
/// The depth of the goal for a null call, and the lowest one for the best executor.
const NULL_DEPTH: usize = 64;
const BEST_FROM: usize = 8;
const ROUNDS: usize = 15;
const QUICK_ROUNDS: usize = 3;
/// Calls of a measurement, at least.
const CALLS: usize = 1_024;
const QUICK_CALLS: usize = 128;
/// Measurements of each maker in a round, of which the least counts.
const REPEATS: usize = 3;
/// Calls by which `adaptive` learns before it is measured: of each work at each depth.
const LEARNT: usize = 1 << 15;
const QUICK_LEARNT: usize = 1 << 13;
/// Calls outstanding while completions are measured, and those that complete.
const OUTSTANDING: [usize; 2] = [100, 10_000];
const COMPLETIONS: u32 = 20_000;

/// What completes the calls, how many of them at a time, and the ratio of their times.
const WAYS: [(Way, &str, u32, &str); 4] = [
    (Way::InPlace, "in place", 1, "completion_10000_over_100"),
    (Way::Ring, "ring", 64, "completion_ring_10000_over_100"),
    (Way::Threads, "threads", 64, "completion_threads_10000_over_100"),
    (Way::Readiness, "readiness", 1, "completion_readiness_10000_over_100"),
];

/// See [`WAYS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    InPlace,
    Ring,
    Threads,
    Readiness,
}

const OUTSTANDING_FIGURE: &str = "Time of a completion against calls outstanding";
const INSTRUCTIONS_FIGURE: &str = "Instructions of a completion against calls outstanding";

const NOTES: [&str; 6] = [
    "Times are elapsed times over the number of calls: a batch is posted, executed and taken. Nothing is \
     pinned to a core. `direct` makes one call after the other with syscall(2).",
    "`null` is posix_fadvise(2) of normal use of a file in memory, which does nothing, and for which the \
     ring has an operation. `getppid` is the shortest system call, for which it has none.",
    "Each time is the least of three in a round, as other programs make times larger. `adaptive` has \
     made 32,768 calls of each work at each depth before (8,192 in a quick run), and learns on. A ratio to the best \
     executor takes the best of `in place`, `ring` and `threads` in the same round. `..._worst` is the \
     ratio of the call and depth with the highest median, so noise makes it larger.",
    "`threads, own core` makes all calls by a syscall thread that has left the owner's core, which counters show before \
     and after; its heartbeat takes 100 us. Where it does not leave within 50 ms, as it is seldom busy, or returns, the round has no time. \
     Those of `threads` never leave. `threads_over_own_core` is of reads of 4 KiB from the page cache, most at a time, in the rounds in which it left.",
    "`open, close` opens a batch of files and then closes them; `send, receive` sends a batch of 64 bytes \
     each through a pair of local sockets and then receives them. Both count two calls for each.",
    "A completion is a null call that is posted, made and taken, while others wait: in place, by the ring and by syscall \
     threads, 64 at a time, or a wait for a pipe that is readable, in the epoll set. \
     `completion_10000_over_100` is of its time in place, `completion_ring_...`, `completion_threads_...` and \
     `completion_readiness_...` of the others, `completion_instructions_10000_over_100` of its instructions \
     outside the kernel: the difference of 24,000 and 4,000 completions under callgrind.",
];

/// One call, or two of which the second gets the result of the first.
struct Work {
    name: &'static str,
    stages: Vec<Stage>,
}

/// Makes a call from the result of the former stage.
type Stage = Box<dyn Fn(usize) -> SystemCall>;

impl Work {
    fn one(name: &'static str, call: SystemCall) -> Self {
        Work { name, stages: vec![Box::new(move |_| call)] }
    }
}

/// The works, and what they need.
struct Works {
    all: Vec<Work>,
    _files: Vec<OwnedFd>,
}

/// Memory that calls use. It is never freed, and read by nothing else.
fn memory(bytes: usize) -> usize {
    vec![0_u8; bytes].leak().as_mut_ptr() as usize
}

impl Works {
    fn new(on_disk: &Path) -> Result<Self, Failure> {
        let mut works = Works { all: vec![], _files: vec![] };
        let path = on_disk.join("file");
        let on_disk_file = File::options().read(true).write(true).create_new(true).open(path)?;
        let in_memory = memfd_create("lab", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let args = [in_memory.as_raw_fd() as usize, 0, 0, libc::POSIX_FADV_NORMAL as usize];
        // SAFETY: it has no pointer, and the file stays open as long as this.
        let null = unsafe { SystemCall::new(libc::SYS_fadvise64, args, Kind::Memory) };
        works.all.push(Work::one("null", null));
        works.all.push(Work::one("getppid", SystemCall::NULL));
        for (place, kind, file) in
            [("page cache", Kind::Disk, on_disk_file), ("tmpfs", Kind::Memory, in_memory.into())]
        {
            file.set_len(4096)?;
            works.transfers(place, kind, file.into());
        }
        let null = File::options().write(true).open("/dev/null")?;
        works.write("64 B write, /dev/null", Kind::Device, &null.into(), 64);
        works.paths(on_disk)?;
        works.sockets()?;
        Ok(works)
    }

    fn transfers(&mut self, place: &str, kind: Kind, file: OwnedFd) {
        for (size, bytes) in [("64 B", 64), ("4 KiB", 4096)] {
            let name = format!("{size} read, {place}").leak();
            let args = [file.as_raw_fd() as usize, memory(bytes), bytes, 0];
            // SAFETY: the memory is never freed, and the file stays open as long as this.
            let read = unsafe { SystemCall::new(libc::SYS_pread64, args, kind) };
            self.all.push(Work::one(name, read));
            self.write(format!("{size} write, {place}").leak(), kind, &file, bytes);
        }
        self._files.push(file);
    }

    fn write(&mut self, name: &'static str, kind: Kind, file: &OwnedFd, bytes: usize) {
        let file = file.try_clone().expect("a free descriptor");
        let args = [file.as_raw_fd() as usize, memory(bytes), bytes, 0];
        // SAFETY: the memory is never freed, and the file stays open as long as this.
        let write = unsafe { SystemCall::new(libc::SYS_pwrite64, args, kind) };
        self.all.push(Work::one(name, write));
        self._files.push(file);
    }

    fn paths(&mut self, directory: &Path) -> Result<(), Failure> {
        let path = directory.join("named");
        File::create(&path)?;
        let mut bytes = path.into_os_string().into_encoded_bytes();
        bytes.push(0);
        let path = bytes.leak().as_ptr() as usize;
        let at = libc::AT_FDCWD as usize;
        let basic = libc::STATX_BASIC_STATS as usize;
        let args = [at, path, 0, basic, memory(size_of::<libc::statx>())];
        // SAFETY: path and result are never freed.
        let stat = unsafe { SystemCall::new(libc::SYS_statx, args, Kind::Unknown) };
        self.all.push(Work::one("stat", stat));
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        // SAFETY: the path is never freed.
        let open =
            unsafe { SystemCall::new(libc::SYS_openat, [at, path, flags, 0], Kind::Unknown) };
        let close = |file| {
            // SAFETY: the file was opened by the stage before, and nothing else uses it.
            unsafe { SystemCall::new(libc::SYS_close, [file], Kind::Unknown) }
        };
        let stages: Vec<Stage> = vec![Box::new(move |_| open), Box::new(close)];
        self.all.push(Work { name: "open, close", stages });
        Ok(())
    }

    fn sockets(&mut self) -> Result<(), Failure> {
        let (from, to) = UnixStream::pair()?;
        // Room for the largest batch: the kernel counts more than the bytes of a message.
        rustix::net::sockopt::set_socket_send_buffer_size(&from, MAX_DEPTH * 1024)
            .map_err(io::Error::from)?;
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
        let args = |socket: &UnixStream| [socket.as_raw_fd() as usize, memory(64), 64, flags, 0, 0];
        // SAFETY: the memory is never freed, and the sockets stay open as long as this.
        let (send, receive) = unsafe {
            (
                SystemCall::new(libc::SYS_sendto, args(&from), Kind::Socket),
                SystemCall::new(libc::SYS_recvfrom, args(&to), Kind::Socket),
            )
        };
        let stages: Vec<Stage> = vec![Box::new(move |_| send), Box::new(move |_| receive)];
        self.all.push(Work { name: "send, receive", stages });
        self._files.extend([from.into(), to.into()]);
        Ok(())
    }
}

/// Who makes the calls.
struct Maker {
    name: &'static str,
    /// The pages to which they are posted, and the executor to which they are pinned.
    posted: Option<(Pages, Option<Executor>)>,
    results: Vec<usize>,
    /// Which call of the batch an entry is.
    places: Vec<usize>,
}

const DIRECT: usize = 0;
const RING: usize = 2;
const THREADS: usize = 3;
const ADAPTIVE: usize = 4;
const OWN_CORE: usize = 5;

/// Time in which busy threads leave the owner's core.
const LEAVE_WITHIN: Duration = Duration::from_millis(50);

/// Returns the executors of calls, in the order of the constants.
fn makers() -> Result<Vec<Maker>, Failure> {
    let posted_with = |executor, change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        let pages = Pages::register(&config).map_err(failed)?;
        Ok::<_, Failure>(Some((pages, executor)))
    };
    let posted = |executor| posted_with(executor, |_| ());
    let any_core = |config: &mut Config| config.specialization = Specialization::Off;
    let own_core = |config: &mut Config| {
        config.specialization = Specialization::WhileBusy;
        config.heartbeat = Duration::from_micros(100);
    };
    let maker = |name, posted: Option<(Pages, _)>| {
        let entries = posted.as_ref().map_or(0, |(pages, _)| pages.entries());
        Maker { name, posted, results: vec![0; MAX_DEPTH], places: vec![0; entries] }
    };
    Ok(vec![
        maker("direct", None),
        maker("in place", posted(Some(Executor::InPlace))?),
        maker("ring", posted(Some(Executor::Ring))?),
        maker("threads", posted_with(Some(Executor::Threads), any_core)?),
        maker("adaptive", posted(None)?),
        maker("threads, own core", posted_with(Some(Executor::Threads), own_core)?),
    ])
}

impl Maker {
    /// Makes a batch.
    fn batch(&mut self, work: &Work, depth: usize) -> Result<(), Failure> {
        for stage in &work.stages {
            let Some((pages, executor)) = &mut self.posted else {
                for result in &mut self.results[..depth] {
                    *result = stage(*result).make()?;
                }
                continue;
            };
            for (place, former) in self.results[..depth].iter().enumerate() {
                let call = stage(*former).posted();
                let call = executor.map_or(call, |executor| call.pinned(executor));
                // SAFETY: the memory of its arguments is never freed, and the files stay open.
                let id =
                    unsafe { pages.post(&call) }.map_err(|busy| Failure::new("flexsc", busy))?;
                self.places[id.index()] = place;
            }
            while pages.outstanding() > 0 {
                pages.wait(None).map_err(failed)?;
                while let Some(completion) = pages.next() {
                    self.results[self.places[completion.id.index()]] = completion.result?;
                }
            }
        }
        Ok(())
    }

    /// Returns the time of a call, in nanoseconds: the least of some measurements.
    fn time(&mut self, work: &Work, depth: usize, calls: usize) -> Result<f64, Failure> {
        let batches = calls.div_ceil(depth);
        let made = batches * depth * work.stages.len();
        let mut min = f64::MAX;
        for _ in 0..REPEATS {
            let begin = Instant::now();
            for _ in 0..batches {
                self.batch(work, depth)?;
            }
            min = min.min(begin.elapsed().as_nanos() as f64 / made as f64);
        }
        Ok(min)
    }

    /// Returns whether the syscall threads have left the owner's core.
    fn has_own_core(&self) -> bool {
        self.core_changes().is_some_and(|(given, taken_back)| given > taken_back)
    }

    /// How often the cores were given and taken back.
    fn core_changes(&self) -> Option<(u64, u64)> {
        let (pages, _) = self.posted.as_ref()?;
        let counters = pages.counters();
        Some((counters.cores_given, counters.cores_taken_back))
    }

    /// Keeps the syscall threads busy until they have left the owner's core, or do not.
    fn leave_core(&mut self, work: &Work, depth: usize) -> Result<(), Failure> {
        let begin = Instant::now();
        while !self.has_own_core() && begin.elapsed() < LEAVE_WITHIN {
            self.batch(work, depth)?;
        }
        Ok(())
    }

    /// Returns how many calls the ring could not make.
    fn refused(&self) -> u64 {
        self.posted.as_ref().map_or(0, |(pages, _)| pages.counters().ring_refused)
    }
}

/// The times of a work at a depth: of each maker, one value per round. None are measured of a ring
/// that cannot make the calls.
struct Cell {
    work: usize,
    depth: usize,
    times: Vec<Vec<f64>>,
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    raise_descriptors();
    let directory = outcome::directory()?.join(format!("syscalls-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let measured = measure(cx, &directory, &mut outcome);
    fs::remove_dir_all(&directory)?;
    measured?;
    if let Err(failure) = count_instructions(&mut outcome) {
        outcome.notes.push(format!("Instructions are not counted: {failure}."));
    }
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn measure(cx: &Context, directory: &Path, outcome: &mut Outcome) -> Result<(), Failure> {
    let others = OtherPrograms::watch()?;
    let (depths, calls, rounds) =
        if cx.quick { (&QUICK[..], QUICK_CALLS, QUICK_ROUNDS) } else { (&FULL[..], CALLS, ROUNDS) };
    let works = Works::new(directory)?;
    // Dropped before the files that their calls use.
    let mut makers = makers()?;
    if let Some(error) = makers[RING].posted.as_ref().and_then(|(pages, _)| pages.ring_error()) {
        outcome.notes.push(format!("There is no ring: {error}"));
    }
    let mut cells = Vec::new();
    for work in 0..works.all.len() {
        let times = || vec![Vec::new(); makers.len()];
        cells.extend(depths.iter().map(|&depth| Cell { work, depth, times: times() }));
    }
    cx.progress.set_message("learning");
    let learnt = if cx.quick { QUICK_LEARNT } else { LEARNT };
    for Cell { work, depth, .. } in &cells {
        for _ in 0..learnt.div_ceil(*depth) {
            makers[ADAPTIVE].batch(&works.all[*work], *depth)?;
        }
    }
    let mut completions: [[Vec<f64>; 2]; WAYS.len()] = Default::default();
    cx.progress.set_length((rounds * cells.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for i in round.order(cells.len()) {
            let cell = &mut cells[i];
            let work = &works.all[cell.work];
            cx.progress.set_message(format!("{}, {} at a time", work.name, cell.depth));
            for maker in round.order(makers.len()) {
                let refused = makers[maker].refused();
                if maker == OWN_CORE {
                    makers[maker].leave_core(work, cell.depth)?;
                }
                let (own, changes) = (makers[maker].has_own_core(), makers[maker].core_changes());
                // One batch before warms the caches.
                makers[maker].batch(work, cell.depth)?;
                let time = makers[maker].time(work, cell.depth, calls)?;
                if maker == OWN_CORE && !(own && makers[maker].core_changes() == changes) {
                    cell.times[maker].push(f64::INFINITY);
                } else if makers[maker].refused() == refused {
                    cell.times[maker].push(time);
                }
            }
            cx.progress.inc(1);
        }
        for way in round.order(WAYS.len()) {
            for at in round.order(OUTSTANDING.len()) {
                completions[way][at].extend(completion(way, OUTSTANDING[at])?);
            }
        }
    }
    report(&works, &makers, &cells, &completions, outcome);
    outcome.notes.extend(others.note()?);
    Ok(())
}

/// Returns the time of a posted null call while others wait, in nanoseconds; `None` without a ring that it needs.
fn completion(way: usize, outstanding: usize) -> Result<Option<f64>, Failure> {
    let (way, _, at_a_time, _) = WAYS[way];
    let time = completions(way, at_a_time, outstanding, COMPLETIONS / at_a_time)?;
    Ok(time.map(|time| time.as_nanos() as f64 / f64::from(COMPLETIONS / at_a_time * at_a_time)))
}

/// Makes a number of completions, for valgrind.
pub(crate) fn complete(options: &Complete) -> Result<(), Failure> {
    completions(Way::InPlace, 1, options.outstanding, options.count).map(drop)
}

/// Posts batches of null calls while others wait, and takes the completion of each. Returns the time; `None` without a
/// ring that it needs.
fn completions(
    way: Way,
    at_a_time: u32,
    outstanding: usize,
    batches: u32,
) -> Result<Option<Duration>, Failure> {
    let (reads, _writes) = std::io::pipe()?;
    let fd = reads.as_raw_fd();
    let args = [fd as usize, memory(1), 1, 0, 0, 0];
    let waits = Waits::ReadyThenBlocks(fd, Direction::Read);
    let config = Config::with_entries(outstanding as u32 + 200);
    // Dropped before the pipe.
    let mut pages = Pages::register(&config).map_err(failed)?;
    let busy = |busy| Failure::new("flexsc", busy);
    for _ in 0..outstanding {
        // SAFETY: the memory is never freed, and the pipe is closed after the pages.
        unsafe { pages.post(&Call::new(libc::SYS_read, args).waits(waits)) }.map_err(busy)?;
    }
    pages.wait(Some(Duration::ZERO)).map_err(failed)?;
    let in_memory = memfd_create("lab", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let (readable, mut writes) = std::io::pipe()?;
    writes.write_all(b"x")?;
    let call = match way {
        Way::InPlace => SystemCall::NULL.posted().pinned(Executor::InPlace),
        Way::Threads => SystemCall::NULL.posted().pinned(Executor::Threads),
        Way::Ring => {
            let args = [in_memory.as_raw_fd() as usize, 0, 0, libc::POSIX_FADV_NORMAL as usize];
            // SAFETY: it has no pointer, and the file stays open as long as the pages.
            let advice = unsafe { SystemCall::new(libc::SYS_fadvise64, args, Kind::Memory) };
            advice.posted().pinned(Executor::Ring)
        }
        Way::Readiness => Call::until_ready(readable.as_raw_fd(), Direction::Read),
    };
    let begin = Instant::now();
    for _ in 0..batches {
        for _ in 0..at_a_time {
            // SAFETY: it has no memory.
            unsafe { pages.post(&call) }.map_err(busy)?;
        }
        let mut ended = 0;
        while ended < at_a_time {
            pages.wait(None).map_err(failed)?;
            while let Some(completion) = pages.next() {
                if completion.result.is_err() {
                    return Err(Failure::Run("a null call has failed".to_owned()));
                }
                ended += 1;
            }
        }
    }
    let time = begin.elapsed();
    Ok((way != Way::Ring || pages.ring_error().is_none()).then_some(time))
}

/// Adds the instructions of a completion.
fn count_instructions(outcome: &mut Outcome) -> Result<(), Failure> {
    let callgrind = Callgrind::find()?;
    let mut counts = [0.0; 2];
    for (outstanding, count) in OUTSTANDING.into_iter().zip(&mut counts) {
        *count = callgrind.count_completions(outstanding)?;
        let y = Spread { median: *count, low: *count, high: *count };
        outcome.point(INSTRUCTIONS_FIGURE, "", "in place", X::Number(outstanding as f64), y);
    }
    let [few, many] = counts;
    outcome.count("completion_instructions_10000_over_100", "flexsc", many / few);
    Ok(())
}

fn report(
    works: &Works,
    makers: &[Maker],
    cells: &[Cell],
    completions: &[[Vec<f64>; 2]; WAYS.len()],
    outcome: &mut Outcome,
) {
    for cell in cells {
        let figure = format!("Time of a call against batch depth: {}", works.all[cell.work].name);
        for (maker, times) in makers.iter().zip(&cell.times) {
            // Rounds in which the syscall thread did not leave have no time.
            let times: Vec<f64> = times.iter().copied().filter(|time| time.is_finite()).collect();
            if let Some(y) = spread(&times) {
                outcome.point(&figure, "ns", maker.name, X::Number(cell.depth as f64), y);
            }
        }
    }
    for (work, name) in ["null", "getppid"].iter().enumerate() {
        let is_this = |cell: &&Cell| (cell.work, cell.depth) == (work, NULL_DEPTH);
        if let Some(cell) = cells.iter().find(is_this) {
            let each = ratios(&cell.times[DIRECT], &cell.times[ADAPTIVE]);
            outcome.ratio(format!("{name}_direct_over_posted"), "flexsc", each);
        }
    }
    own_core(works, cells, outcome);
    let over_direct = cells
        .iter()
        .filter(|cell| cell.depth == 1)
        .map(|cell| (cell, ratios(&cell.times[ADAPTIVE], &cell.times[DIRECT])));
    worst("adaptive_over_direct_worst", over_direct, works, outcome);
    let over_best = cells.iter().filter(|cell| cell.depth >= BEST_FROM).map(|cell| {
        let best: Vec<_> = (0..cell.times[ADAPTIVE].len())
            .map(|round| {
                let posted = &cell.times[DIRECT + 1..ADAPTIVE];
                posted.iter().filter_map(|times| times.get(round)).copied().fold(f64::MAX, f64::min)
            })
            .collect();
        (cell, ratios(&cell.times[ADAPTIVE], &best))
    });
    worst("adaptive_over_best_worst", over_best, works, outcome);
    for ((_, name, _, ratio), [few, many]) in WAYS.iter().zip(completions) {
        if !few.is_empty() {
            outcome.ratio(*ratio, "flexsc", ratios(many, few));
        }
        for (outstanding, times) in OUTSTANDING.iter().zip([few, many]) {
            if let Some(y) = spread(times) {
                outcome.point(OUTSTANDING_FIGURE, "ns", name, X::Number(*outstanding as f64), y);
            }
        }
    }
}

/// Adds the ratio of the syscall thread that leaves the owner's core, for the deepest batches of reads. It counts the rounds
/// in which the thread left.
fn own_core(works: &Works, cells: &[Cell], outcome: &mut Outcome) {
    let reads = cells.iter().filter(|cell| works.all[cell.work].name == READS);
    let Some(cell) = reads.max_by_key(|cell| cell.depth) else { return };
    let mut each = ratios(&cell.times[THREADS], &cell.times[OWN_CORE]);
    let rounds = each.len();
    each.retain(|ratio| *ratio > 0.0);
    let (left, depth) = (each.len(), cell.depth);
    outcome.shows.push(format!(
        "A syscall thread left the owner's core in {left} of {rounds} rounds, with {depth} reads at a time."
    ));
    if left > 0 {
        outcome.ratio("threads_over_own_core", "flexsc", each);
    }
}

/// Adds the ratios of the call and depth with the highest median.
fn worst<'a>(
    name: &str,
    each: impl Iterator<Item = (&'a Cell, Vec<f64>)>,
    works: &Works,
    outcome: &mut Outcome,
) {
    let medians = each.filter_map(|(cell, ratios)| Some((spread(&ratios)?.median, cell, ratios)));
    let Some((_, cell, ratios)) = medians.max_by(|a, b| a.0.total_cmp(&b.0)) else { return };
    outcome.ratio(name, "flexsc", ratios);
    let work = works.all[cell.work].name;
    outcome.shows.push(format!("`{name}` is that of {work}, {} at a time.", cell.depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_maker_makes_every_call() {
        let name = format!("syscalls-test-{}", std::process::id());
        let directory = outcome::directory().unwrap().join(name);
        fs::create_dir_all(&directory).unwrap();
        let works = Works::new(&directory).unwrap();
        assert!(works.all.len() >= 9);
        for maker in &mut makers().unwrap() {
            for work in &works.all {
                for depth in [1, 64, MAX_DEPTH] {
                    maker.batch(work, depth).unwrap_or_else(|failure| {
                        panic!("{}, {}, {depth}: {failure}", work.name, maker.name)
                    });
                }
            }
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn completions_are_timed_with_calls_outstanding() {
        for way in 0..WAYS.len() {
            let time = completion(way, 100).unwrap();
            assert!(time.is_none_or(|time| time > 0.0));
        }
    }
}
