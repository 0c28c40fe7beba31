//! Downloads by many clients: event pairs of disk and network.

mod beside;
pub(super) mod ded;
pub(super) mod dns;
pub(super) mod policies;
mod results;
mod unsent;
mod ways;

use std::fmt;
use std::ops::RangeInclusive;

use super::Context;
use crate::failure::Failure;
use crate::measure::{Conditions, OtherPrograms, Peer, Perf, Site, Trial, Trials};
use crate::outcome::Outcome;
use results::{Downloads, Run};

/// Numbers of concurrent downloads besides [`COMPARED`], that with which the paper ends and whose ratios have goals.
const NUMBERS: [u32; 5] = [10, 30, 60, 1_000, 5_000];
const COMPARED: u32 = 120;
/// Those of them at which system calls are counted.
const COUNTED: [u32; 2] = [10, 1_000];
const ROUNDS: usize = 6;

/// Length of each file of a download.
const FILE_BYTES: usize = 10 << 20;
/// The files, and how many of them are not cached: as many as 120 clients begin to download in a run at 3.4 GB per second.
const FILES: Files = Files { name: "10m", bytes: FILE_BYTES, cold: 448 };
const QUICK_FILES: Files = Files { cold: 128, ..FILES };
/// A file for requests beside the downloads.
const SMALL: (&str, usize) = ("/1k.txt", 1 << 10);

/// Send buffer of every server's sockets, in bytes; the kernel doubles it.
const SEND_BUFFER: usize = 64 * 1024;
/// Receive buffer of fast clients, in bytes; the kernel doubles it.
const RECEIVE_BUFFER: u32 = 128 * 1024;
/// Processes of `plain` besides one for each client: for the small requests, and for clients that connect again.
const SPARE_PROCESSES: u32 = 16;

/// Bytes per second of a client with a limited rate, and of all of them.
const LIMIT: u32 = 400_000;
const LIMIT_OF_ALL: u32 = 48_000_000;
/// How much clients with a limited rate receive in a valid run, over what they are to receive.
const VALID: RangeInclusive<f64> = 0.85..=1.15;

const NOTES: [&str; 10] = [
    "A closed loop: each client downloads a file of 10 MB again and again. The server runs on core 0, the load \
     generator on core 1. Rates are those of the bytes that arrive in the measurement period, also of downloads that \
     end later. The cases of the ratios have six rounds, the others one, which is shorter.",
    "The mean response time of up to 120 fast clients is measured: it is that of all downloads that begin in the measurement \
     period, with the connection if it is new. The load continues until they have ended. There is no time of a run in \
     which fewer downloads than clients began.",
    "The mean response time of 1,000 and 5,000 clients, whose downloads last longer than the measurement, is \
     calculated: the number of clients times the length of the file, over the rate (Little's law). That of clients with a limited \
     rate is the length over their rate, and has no figure.",
    "`SO_SNDBUF` is 64 KiB (the kernel doubles it) for all servers, as a larger buffer has fewer context \
     switches.",
    "The receive buffer of fast clients is 128 KiB (the kernel doubles it). One that the kernel adjusts grows to 32 MB here, \
     and where the clients' core is the limit, the queues leave its cache and stay long: a server then has one of two rates, \
     by chance.",
    "`process` is `plain` in the ratios, the paper's baseline: a blocking process for each connection, forked before the \
     first one; an idle process takes the next connection. Context switches and CPU time are those of all threads of \
     all processes of a server.",
    "Files that are not cached: 448 files leave the page cache before each run. Up to 120 clients download another file \
     each time; of 1,000 or 5,000 clients, 3 or 12 begin with the same one, which the first of them reads from the \
     disk. The host of a virtual machine may have them in its memory.",
    "Clients with a limited rate receive 400 KB per second (all together at most 48 MB), in pieces of 4 KiB at most, with \
     a receive buffer of 4 KiB; they begin within half a second. A run in which they received less than 85 % or more than \
     115 % of that counts as failed.",
    "Memory is the growth of the resident memory of all processes of a server to its peak, without the pages of programs and \
     libraries, over the number of clients. Of `process` it is that of pages that they do not share, after the run; an idle \
     process does not count.",
    "System calls are those that begin in the period. A blocking call that began before it, and sends a large part of a \
     file to a client, is missing: with 1,000 clients, nearly all calls of `process` by sendfile(2) are.",
];

/// Where the files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    Cached,
    Cold,
}

/// How fast the clients receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speed {
    Fast,
    Limited,
}

/// The downloads of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    clients: u32,
    cache: Cache,
    speed: Speed,
}

impl Case {
    const fn new(clients: u32, cache: Cache, speed: Speed) -> Self {
        Case { clients, cache, speed }
    }

    /// Returns the bytes per second of each client, if it is limited.
    fn limit(self) -> Option<u32> {
        (self.speed == Speed::Limited).then(|| LIMIT.min(LIMIT_OF_ALL / self.clients))
    }

    /// Returns whether its downloads are short enough to be measured from their beginning to their end.
    fn measures_responses(self) -> bool {
        self.speed == Speed::Fast && self.clients <= COMPARED
    }

    /// Returns why a run does not count whose clients received this many megabytes per second.
    fn invalid(self, received: f64) -> Option<String> {
        let limit = f64::from(self.limit()?) * f64::from(self.clients) / 1e6;
        (!VALID.contains(&(received / limit))).then(|| {
            format!("invalid: the clients received {received:.1} of {limit:.1} MB per second")
        })
    }

    /// Returns the words that distinguish its figures from those of fast clients and cached files.
    fn suffix(self) -> &'static str {
        match (self.cache, self.speed) {
            (Cache::Cached, Speed::Fast) => "",
            (Cache::Cold, Speed::Fast) => ", files not cached",
            (Cache::Cached, Speed::Limited) => ", clients with a limited rate",
            (Cache::Cold, Speed::Limited) => ", files not cached, clients with a limited rate",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} downloads{}", self.clients, self.suffix())
    }
}

/// A case, and the servers that are measured with it.
struct Entry {
    case: Case,
    peers: Vec<Peer>,
}

impl Entry {
    fn new(clients: u32, cache: Cache, speed: Speed, peers: &[Peer]) -> Self {
        Entry { case: Case::new(clients, cache, speed), peers: peers.to_vec() }
    }
}

/// The entries of an experiment.
struct Setting {
    id: &'static str,
    /// Those whose ratios have goals, measured in every round.
    compared: Vec<Entry>,
    /// The others, measured once.
    more: Vec<Entry>,
    /// Those whose system calls are counted besides `compared`.
    counted: Vec<Entry>,
}

/// Files of one length: one that is cached, and those that leave the page cache before each run.
#[derive(Clone, Copy)]
struct Files {
    name: &'static str,
    bytes: usize,
    /// Number of files that are not cached.
    cold: usize,
}

impl Files {
    /// Creates the files, and session files for the load.
    fn create(&self, site: &Site) -> Result<(), Failure> {
        site.add(&self.cached()[1..], self.bytes)?;
        let cold: Vec<_> = (0..self.cold).map(|i| format!("{}-{i}.bin", self.name)).collect();
        cold.iter().try_for_each(|name| site.add_cold(name, self.bytes))?;
        // A session for each file, so that each client begins with another one.
        let sessions = cold.iter().map(|name| format!("/{name}\n\n")).collect::<String>();
        site.write(&self.sessions(Cache::Cold), sessions)?;
        site.write(&self.sessions(Cache::Cached), self.cached() + "\n")
    }

    fn cached(&self) -> String {
        format!("/{}.bin", self.name)
    }

    /// Returns the name of the session file.
    fn sessions(&self, cache: Cache) -> String {
        match cache {
            Cache::Cached => format!("{}-cached.sessions", self.name),
            Cache::Cold => format!("{}-cold.sessions", self.name),
        }
    }
}

/// Runs downloads under load.
struct Runner<'a> {
    site: &'a Site,
    files: Files,
    trials: Trials<'a>,
    /// Send buffer of the server's sockets, in bytes.
    send_buffer: usize,
    quick: bool,
    /// Whether a run has no goal and is measured for a shorter time.
    brief: bool,
    seed: u64,
}

impl<'a> Runner<'a> {
    fn new(cx: &Context, site: &'a Site) -> Self {
        let trials = Trials::new(site, if cx.quick { 1 } else { 2 });
        Runner {
            site,
            files: FILES,
            trials,
            send_buffer: SEND_BUFFER,
            quick: cx.quick,
            brief: false,
            seed: 1,
        }
    }

    /// Returns the lengths of the warm-up and of the measurement, in seconds.
    fn period(&self, case: Case) -> (&'static str, &'static str) {
        match (case.cache, case.speed) {
            // The files of a longer run would not suffice.
            (Cache::Cold, Speed::Fast) if self.quick => ("0", "0.4"),
            (Cache::Cold, Speed::Fast) if case.measures_responses() => ("0", "0.8"),
            (Cache::Cold, Speed::Fast) => ("0", "1.6"),
            (_, Speed::Limited) if self.quick => ("1.2", "0.6"),
            (_, Speed::Limited) if self.brief && case.clients <= COMPARED => ("1.2", "0.6"),
            (_, Speed::Limited) => ("2", "1.2"),
            (Cache::Cached, Speed::Fast) if self.quick => ("0.3", "0.5"),
            (Cache::Cached, Speed::Fast) if !case.measures_responses() => ("1", "2"),
            (Cache::Cached, Speed::Fast) if self.brief => ("0.3", "1"),
            (Cache::Cached, Speed::Fast) => ("0.5", "1.2"),
        }
    }

    /// Returns the path of the load with its length, and the options of the load.
    fn load(&self, case: Case) -> ((String, usize), Vec<String>) {
        let Case { clients, cache, speed } = case;
        let mut args: Vec<String> = ["--timeout", "60"].map(str::to_owned).into();
        if !case.measures_responses() {
            args.push("--no-drain".to_owned());
        }
        let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
        let sessions = self.site.root().join(self.files.sessions(cache)).display().to_string();
        let (warm_up, seconds) = self.period(case);
        add("--warm-up", warm_up.to_owned());
        add("--duration", seconds.to_owned());
        if speed == Speed::Fast {
            add("--receive-buffer", RECEIVE_BUFFER.to_string());
        }
        let path = match (speed, cache) {
            (Speed::Fast, Cache::Cached) => {
                add("--connections", clients.to_string());
                (self.files.cached(), self.files.bytes)
            }
            (Speed::Fast, Cache::Cold) => {
                add("--connections", clients.to_string());
                add("--sessions", sessions);
                (SMALL.0.to_owned(), SMALL.1)
            }
            (Speed::Limited, _) => {
                add("--rate", "10".to_owned());
                add("--slow-readers", clients.to_string());
                add("--slow-rate", case.limit().unwrap_or(LIMIT).to_string());
                add("--slow-sessions", sessions);
                add("--slow-spread", "0.5".to_owned());
                (SMALL.0.to_owned(), SMALL.1)
            }
        };
        (path, args)
    }

    fn conditions(&self, case: Case) -> Conditions<'static> {
        Conditions {
            send_buffer: Some(self.send_buffer),
            processes: Some(case.clients + SPARE_PROCESSES),
            evict: case.cache == Cache::Cold,
            ..Conditions::default()
        }
    }

    fn run(&mut self, peer: Peer, case: Case) -> Result<Trial, Failure> {
        let ((path, bytes), args) = self.load(case);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        self.trials.set_seed(self.seed);
        let conditions = self.conditions(case);
        let trial = self.trials.run(peer, &conditions, (&path, bytes), &args)?;
        match case.invalid(trial.received_megabytes()) {
            Some(why) => Err(Failure::Run(why)),
            None => Ok(trial),
        }
    }

    /// Counts the system calls for each megabyte.
    fn system_calls(&mut self, perf: &Perf, peer: Peer, case: Case) -> Result<f64, Failure> {
        let ((path, bytes), args) = self.load(case);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let conditions = self.conditions(case);
        self.trials.system_calls(perf, peer, &conditions, (&path, bytes), &args)
    }
}

/// Returns a site with the files.
fn site(quick: bool) -> Result<Site, Failure> {
    let site = Site::bare(b"")?;
    if quick { QUICK_FILES } else { FILES }.create(&site)?;
    Ok(site)
}

/// Runs all entries.
fn run(
    cx: &Context,
    site: &Site,
    setting: &Setting,
    outcome: Outcome,
) -> Result<Downloads, Failure> {
    let mut runner = Runner::new(cx, site);
    let others = OtherPrograms::watch()?;
    let rounds = if cx.quick { 1 } else { ROUNDS };
    let mut downloads = Downloads { runs: Vec::new(), rounds, outcome };
    let count = |entries: &[Entry]| entries.iter().map(|e| e.peers.len()).sum::<usize>();
    cx.progress.set_length((rounds * count(&setting.compared) + count(&setting.more)) as u64);
    for mut round in cx.rounds(rounds) {
        runner.seed = round.load_seed;
        for entry in &setting.compared {
            let order = round.order(entry.peers.len());
            run_entry(cx, setting.id, &mut runner, entry, (round.number, &order), &mut downloads);
        }
    }
    runner.brief = true;
    if !cx.quick {
        let counted = setting.compared.iter().chain(&setting.counted);
        count_system_calls(cx, &mut runner, counted, &mut downloads);
    }
    for entry in &setting.more {
        let order: Vec<_> = (0..entry.peers.len()).collect();
        run_entry(cx, setting.id, &mut runner, entry, (rounds, &order), &mut downloads);
    }
    downloads.figures();
    downloads.outcome.notes.extend(others.note()?);
    runner.trials.report(&mut downloads.outcome);
    downloads.outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(downloads)
}

fn run_entry(
    cx: &Context,
    id: &str,
    runner: &mut Runner<'_>,
    entry: &Entry,
    (round, order): (usize, &[usize]),
    downloads: &mut Downloads,
) {
    for i in order {
        let (peer, case) = (entry.peers[*i], entry.case);
        cx.progress.inc(1);
        // The first round is never skipped.
        if round > 0 && cx.is_late() {
            runner.trials.note_skipped();
            continue;
        }
        cx.progress.set_message(format!("{peer}: {case}"));
        match runner.run(peer, case) {
            Ok(trial) => downloads.runs.push(Run { peer, round, case, trial }),
            Err(failure) => {
                let what = format!("{id}: {peer}, {case}, failed: {failure}.");
                downloads.outcome.notes.push(what);
            }
        }
    }
}

/// Counts the system calls of each server, where perf is installed.
fn count_system_calls<'a>(
    cx: &Context,
    runner: &mut Runner<'_>,
    entries: impl Iterator<Item = &'a Entry>,
    downloads: &mut Downloads,
) {
    let perf = match Perf::find() {
        Ok(perf) => perf,
        Err(failure) => return downloads.outcome.notes.push(format!("{failure}.")),
    };
    for Entry { case, peers } in entries {
        for peer in peers {
            if cx.is_late() {
                runner.trials.note_skipped();
                continue;
            }
            cx.progress.set_message(format!("system calls of {peer}: {case}"));
            match runner.system_calls(&perf, *peer, *case) {
                Ok(calls) => downloads.add_system_calls(*peer, *case, calls),
                Err(failure) => {
                    let what = format!("System calls of {peer}, {case}: {failure}.");
                    downloads.outcome.notes.push(what);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_delivered_a_tenth_of_the_load_counted() {
        let case = |clients, speed| Case::new(clients, Cache::Cached, speed);
        let limited = case(5_000, Speed::Limited);
        assert_eq!(limited.limit(), Some(9_600));
        let why = limited.invalid(2.6).unwrap();
        assert_eq!(why, "invalid: the clients received 2.6 of 48.0 MB per second");
        assert!(limited.invalid(121.1).is_some());
        assert_eq!(limited.invalid(46.7), None);
        assert_eq!(case(10, Speed::Limited).invalid(4.1), None);
        assert_eq!(case(10, Speed::Fast).invalid(2.6), None);
    }

    #[test]
    fn note_had_a_gap_in_a_sentence() {
        for note in NOTES {
            assert!(!note.contains("  "), "{note}");
        }
    }

    #[test]
    fn response_times_were_calculated_from_the_rate() {
        let site = Site::bare(b"").unwrap();
        let runner = Runner {
            site: &site,
            files: FILES,
            trials: Trials::new(&site, 1),
            send_buffer: SEND_BUFFER,
            quick: false,
            brief: false,
            seed: 1,
        };
        // A load that ends with the period loses the downloads that last longer.
        let ends_early = |case| runner.load(case).1.contains(&"--no-drain".to_owned());
        for clients in [10, 30, 60, COMPARED] {
            for cache in [Cache::Cached, Cache::Cold] {
                assert!(!ends_early(Case::new(clients, cache, Speed::Fast)));
                assert!(ends_early(Case::new(clients, cache, Speed::Limited)));
            }
        }
        assert!(ends_early(Case::new(1_000, Cache::Cached, Speed::Fast)));
    }
}
