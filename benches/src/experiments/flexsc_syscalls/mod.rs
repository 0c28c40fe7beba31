//! The cost of a system call, by executor and batch depth.

mod bare_ring;
mod cell;
mod completions;
mod works;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use flexsc_rt::{Config, Descriptor, Executor, Pages, Specialization};

use super::system_call::failed;
use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, raise_descriptors};
use crate::outcome::{self, Outcome, X};
use crate::statistics::{UNMEASURED, ratios, spread};

use bare_ring::BareRing;
use cell::{Cell, DIRECT, GETPPID, NULL, NULL_DEPTH, REPEATS, figure};
use completions::Completions;
use works::{MAX_DEPTH, Workload, Workloads};

pub(crate) use completions::complete;

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
/// The work that keeps a syscall thread busy.
const READS: &str = "4 KiB read, page cache";
/// The lowest depth for the best executor.
const BEST_FROM: usize = 8;
const ROUNDS: usize = 15;
const QUICK_ROUNDS: usize = 3;
/// Calls of a measurement, at least.
const CALLS: usize = 1_024;
const QUICK_CALLS: usize = 128;
/// Calls by which `adaptive` learns before it is measured: of each work at each depth.
const LEARNT: usize = 1 << 15;
const QUICK_LEARNT: usize = 1 << 13;
const NOTES: [&str; 8] = [
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
     each through a pair of local sockets and then receives them. Both count two calls for each. All calls are posted as \
     bounded ones, for which costs choose the executor; the typed operations `send` and `receive` are made in place, and \
     wait for their sockets.",
    "A completion is a null call that is posted, made and taken, while others wait: in place, by the ring and by syscall \
     threads, 64 at a time, or a wait for a pipe that is readable, in the epoll set. \
     `completion_10000_over_100` is of its time in place, `completion_ring_...`, `completion_threads_...` and \
     `completion_readiness_...` of the others, `completion_instructions_...` of its instructions \
     outside the kernel, those of syscall threads included: the difference of 24,576 and 4,096 completions under callgrind.",
    "`bare ring` is a ring of io_uring without flexsc-rt, with one io_uring_enter(2) for a batch: the same posix_fadvise(2) as \
     `null`, of the file and of the file registered with the ring, and IORING_OP_NOP, the ring's null operation, beside \
     getppid(2) directly. The ratios `..._over_bare_ring...` are of batches of 64.",
    "`null_direct_over_posted` is of a file that is not registered. `adaptive, registered file` posts the same call on the \
     same file, which is registered with the ring of its pages (`Pages::register_file`). They have learnt by as many null \
     calls, and are measured in turn with the others. `null_direct_over_posted_registered` is the ratio in batches of 64, \
     and has no goal of its own.",
];

/// A contestant, which makes the calls directly or posts them to pages.
struct Maker {
    name: &'static str,
    /// The pages to which they are posted, and the executor to which they are pinned.
    posted: Option<(Pages, Option<Executor>)>,
    /// The file of the null call, if it is registered with the ring of the pages. No other call is made then.
    registered: Option<Descriptor>,
    results: Vec<usize>,
    /// Which call of the batch an entry is.
    places: Vec<usize>,
}

const RING: usize = 2;
const THREADS: usize = 3;
const ADAPTIVE: usize = 4;
const OWN_CORE: usize = 5;
/// There is none without io_uring.
const REGISTERED: usize = 6;

/// Time in which busy threads leave the owner's core.
const LEAVE_WITHIN: Duration = Duration::from_millis(50);

/// Returns the executors of calls, in the order of the constants.
fn makers(works: &Workloads) -> Result<Vec<Maker>, Failure> {
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
        let (results, places) = (vec![0; MAX_DEPTH], vec![0; entries]);
        Maker { name, posted, registered: None, results, places }
    };
    let mut makers = vec![
        maker("direct", None),
        maker("in place", posted(Some(Executor::InPlace))?),
        maker("ring", posted(Some(Executor::Ring))?),
        maker("threads", posted_with(Some(Executor::Threads), any_core)?),
        maker("adaptive", posted(None)?),
        maker("threads, own core", posted_with(Some(Executor::Threads), own_core)?),
    ];
    let mut registered = maker("adaptive, registered file", posted(None)?);
    if let Some((pages, _)) = &mut registered.posted
        && pages.register_file(&works.null_file)
    {
        registered.registered = Some(works.null_file.clone());
        makers.push(registered);
    }
    Ok(makers)
}

impl Maker {
    /// Returns whether it makes the calls of a work.
    fn makes(&self, work: usize) -> bool {
        self.registered.is_none() || work == NULL
    }

    /// Returns whether its pages choose the executor.
    fn is_adaptive(&self) -> bool {
        matches!(self.posted, Some((_, None)))
    }

    /// Makes a batch.
    fn batch(&mut self, work: &Workload, depth: usize) -> Result<(), Failure> {
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
                let call = self.registered.as_ref().map_or(call, |file| call.about(file));
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
    fn time(&mut self, work: &Workload, depth: usize, calls: usize) -> Result<f64, Failure> {
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
    fn leave_core(&mut self, work: &Workload, depth: usize) -> Result<(), Failure> {
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

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    raise_descriptors();
    let directory = outcome::directory()?.join(format!("syscalls-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let measured = measure(cx, &directory, &mut outcome);
    fs::remove_dir_all(&directory)?;
    measured?;
    if let Err(failure) = completions::count_instructions(&mut outcome) {
        outcome.notes.push(format!("Instructions are not counted: {failure}."));
    }
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn measure(cx: &Context, directory: &Path, outcome: &mut Outcome) -> Result<(), Failure> {
    let others = OtherPrograms::watch()?;
    let (depths, calls, rounds) =
        if cx.quick { (&QUICK[..], QUICK_CALLS, QUICK_ROUNDS) } else { (&FULL[..], CALLS, ROUNDS) };
    let works = Workloads::new(directory)?;
    // Dropped before the files that their calls use.
    let mut makers = makers(&works)?;
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
        for maker in makers.iter_mut().filter(|maker| maker.is_adaptive() && maker.makes(*work)) {
            for _ in 0..learnt.div_ceil(*depth) {
                maker.batch(&works.all[*work], *depth)?;
            }
        }
    }
    let mut completions = Completions::default();
    let mut bare_ring = BareRing::new(depths);
    cx.progress.set_length((rounds * cells.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for i in round.order(cells.len()) {
            let cell = &mut cells[i];
            let work = &works.all[cell.work];
            cx.progress.set_message(format!("{}, {} at a time", work.name, cell.depth));
            for maker in round.order(makers.len()) {
                if !makers[maker].makes(cell.work) {
                    continue;
                }
                let refused = makers[maker].refused();
                if maker == OWN_CORE {
                    makers[maker].leave_core(work, cell.depth)?;
                }
                let (own, changes) = (makers[maker].has_own_core(), makers[maker].core_changes());
                // One batch before warms the caches.
                makers[maker].batch(work, cell.depth)?;
                let time = makers[maker].time(work, cell.depth, calls)?;
                let stayed = own && makers[maker].core_changes() == changes;
                let counts = makers[maker].refused() == refused && (stayed || maker != OWN_CORE);
                cell.times[maker].push(if counts { time } else { UNMEASURED });
            }
            cx.progress.inc(1);
        }
        completions.measure(&mut round)?;
        bare_ring.measure(&mut round, calls)?;
    }
    report(&works, &makers, &cells, outcome);
    completions.report(outcome);
    bare_ring.report(&cells, outcome);
    outcome.notes.extend(others.note()?);
    Ok(())
}

fn report(works: &Workloads, makers: &[Maker], cells: &[Cell], outcome: &mut Outcome) {
    for cell in cells {
        let figure = figure(works.all[cell.work].name);
        for (maker, times) in makers.iter().zip(&cell.times) {
            if let Some(y) = spread(times) {
                outcome.point(&figure, "ns", maker.name, X::Number(cell.depth as f64), y);
            }
        }
    }
    for (work, maker, name) in [
        (NULL, ADAPTIVE, "null_direct_over_posted"),
        (NULL, REGISTERED, "null_direct_over_posted_registered"),
        (GETPPID, ADAPTIVE, "getppid_direct_over_posted"),
    ] {
        let is_this = |cell: &&Cell| (cell.work, cell.depth) == (work, NULL_DEPTH);
        if let Some(cell) = cells.iter().find(is_this)
            && let Some(times) = cell.times.get(maker)
        {
            outcome.ratio(name, "flexsc", ratios(&cell.times[DIRECT], times));
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
}

/// Adds the ratio of the syscall thread that leaves the owner's core, for the deepest batches of reads. It counts the rounds
/// in which the thread left.
fn own_core(works: &Workloads, cells: &[Cell], outcome: &mut Outcome) {
    let reads = cells.iter().filter(|cell| works.all[cell.work].name == READS);
    let Some(cell) = reads.max_by_key(|cell| cell.depth) else { return };
    let each = ratios(&cell.times[THREADS], &cell.times[OWN_CORE]);
    let (left, rounds, depth) = (each.len(), cell.times[OWN_CORE].len(), cell.depth);
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
    works: &Workloads,
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
        let works = Workloads::new(&directory).unwrap();
        assert!(works.all.len() >= 9);
        for maker in &mut makers(&works).unwrap() {
            let made: Vec<_> = (0..works.all.len()).filter(|work| maker.makes(*work)).collect();
            for work in made.into_iter().map(|work| &works.all[work]) {
                for depth in [1, 64, MAX_DEPTH] {
                    maker.batch(work, depth).unwrap_or_else(|failure| {
                        panic!("{}, {}, {depth}: {failure}", work.name, maker.name)
                    });
                }
            }
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
