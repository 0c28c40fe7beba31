//! Reads of files by `ded`: the next part of a file that is not cached is read while the one before is being sent.

use crate::cold_files::By;
use crate::disk_file::{DiskFile, contents};
use crate::downloader::{Downloader, Pace, config, machine};
use crate::sends_file::sends_whole_file;
use crate::server::{Server, listening, one_by_one};

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evring::files::{Access, FileOp, FileOutcome, FilePath};
use evring::send_policy::{SendPolicy, SendResult, SendState, SendStep};
use evring::{
    Application, Chunk, Close, Commands, Config, ConnId, Cx, FileDelivery, Root, Rx, Stats,
};

const PARTS: u64 = 32;
const PART_BYTES: u64 = 64 * 1024;
const FILE_BYTES: u64 = PARTS * PART_BYTES;

/// Time of a read from the disk. The client takes a part in about as long.
const DISK_TIME: Duration = Duration::from_millis(10);

/// Size of the buffers of a socket, and number of bytes that the client takes at a time.
const ROOM: usize = 4096;
const STEP_TIME: Duration = Duration::from_micros(625);

/// The results of a download.
struct Download {
    time: Duration,
    /// Maximum number of bytes in memory, and of those with the part that is being read.
    queued: usize,
    with_read: usize,
    stats: Stats,
}

/// Has a slow client download a file by `ded`, from the page cache or from the disk.
fn download(by: By, is_cached: bool, max_buffered_bytes: usize) -> Download {
    downloads(by, is_cached, (1, ROOM), |c| c.max_buffered_bytes = max_buffered_bytes)
}

/// Has slow clients download a file by `ded`. Their sockets have `room`.
fn downloads(
    by: By,
    is_cached: bool,
    (clients, room): (usize, usize),
    change: impl FnOnce(&mut Config),
) -> Download {
    let machine = machine(FILE_BYTES, |p| p.room = Some(room));
    machine.read_nothing_ahead();
    machine.set_disk_time(DISK_TIME);
    if !is_cached {
        machine.evict("site/file", false);
    }
    let config = config(|c| {
        c.send_policy = FileDelivery::Ded.send_policy();
        change(c);
    });
    let pace = Pace { bytes: ROOM, interval: STEP_TIME, until: FILE_BYTES as usize };
    let add = |_| Downloader::add(&machine, FILE_BYTES, Some(pace));
    let ends: Vec<_> = (0..clients).map(add).collect();
    let (mut queued, mut with_read) = (0, 0);
    let app = sends_whole_file(FILE_BYTES, |_| {});
    let stats = by.serve(&machine, &config, app, |usage| {
        queued = queued.max(usage.queued);
        with_read = with_read.max(usage.queued + usage.read_ahead_bytes);
        assert!(usage.read_ahead_bytes <= config.max_buffered_bytes / 2);
    });
    assert_eq!(machine.verdict().failure, None, "{by:?}");
    let ends: Vec<_> = ends.iter().map(|end| end.get().unwrap()).collect();
    assert!(ends.iter().all(|end| end.bytes == FILE_BYTES), "{by:?}");
    let time = ends.iter().map(|end| end.ended_at).max().unwrap();
    Download { time, queued, with_read, stats: stats.unwrap() }
}

#[test]
fn client_waited_for_the_disk_at_each_part() {
    for by in By::ALL {
        let max = Config::default().max_buffered_bytes;
        let (cached, cold) = (download(by, true, max), download(by, false, max));
        let disk = DISK_TIME * PARTS as u32;
        // The client takes the file in about the time of all reads. The first one has nothing to overlap with.
        assert!(cached.time > disk / 2, "{by:?}: {:?}", cached.time);
        let longest = cached.time.max(disk) + 4 * DISK_TIME;
        assert!(cold.time < longest, "{by:?}: {:?}, {:?} if cached", cold.time, cached.time);
        assert_eq!(cold.stats.read_ahead, PARTS, "{by:?}");
        assert!(cold.with_read as u64 <= 2 * PART_BYTES, "{by:?}: {} bytes", cold.with_read);
    }
}

#[test]
fn cached_file_is_in_memory_one_part_at_a_time() {
    for by in By::ALL {
        let cached = download(by, true, Config::default().max_buffered_bytes);
        assert_eq!(cached.stats.read_ahead, PARTS, "{by:?}");
        assert!(cached.queued as u64 <= PART_BYTES, "{by:?}: {} bytes", cached.queued);
        assert!(cached.with_read as u64 <= PART_BYTES, "{by:?}: {} bytes", cached.with_read);
        assert_eq!(cached.stats.kernel.offloaded_file_ops, 0, "{by:?}");
    }
}

/// Half of the maximum has room for one part, not for another beside it.
#[test]
fn part_is_not_read_early_beyond_the_bound_of_all_connections() {
    for by in By::ALL {
        let cold = download(by, false, 3 * PART_BYTES as usize);
        assert!(cold.with_read as u64 <= PART_BYTES, "{by:?}: {} bytes", cold.with_read);
    }
}

#[test]
fn file_was_read_from_the_disk_16_kib_at_a_time_as_memory_was_short() {
    for by in By::ALL {
        let is_short = |c: &mut Config| c.max_buffered_bytes = PART_BYTES as usize;
        let Download { stats, .. } = downloads(by, false, (1, 32 * ROOM), is_short);
        let disk_reads = stats.kernel.cold_file_reads;
        assert!(stats.file_sends > 0 && stats.read_ahead == 0, "{by:?}");
        assert!(disk_reads < 2 * PARTS, "{by:?}: {disk_reads} reads from the disk");
    }
}

#[test]
fn part_is_sent_from_the_page_cache_while_the_file_operations_are_at_their_maximum() {
    for by in By::ALL {
        let is_short = |c: &mut Config| c.max_file_ops = 1;
        let Download { stats, .. } = downloads(by, false, (4, ROOM), is_short);
        let (reads, sends) = (stats.read_ahead, stats.file_sends);
        assert!(reads > 0 && sends > 0, "{by:?}: {reads} reads, {sends} sends");
    }
}

thread_local! {
    /// Number of questions to [`ReadsAtEachStep`].
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// Reads at each step, or at each at which that is possible.
struct ReadsAtEachStep {
    if_possible: bool,
}

impl SendPolicy for ReadsAtEachStep {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        ASKED.set(ASKED.get() + 1);
        match self.if_possible && !state.can_read() {
            true => SendStep::Send { max_file_bytes: 1 },
            false => SendStep::Read { max_bytes: PART_BYTES as u32 },
        }
    }
}

/// Returns the results of a download by such a policy, and how often it was asked.
fn download_at_each_step(by: By, is_cached: bool, if_possible: bool) -> (Download, u64) {
    ASKED.set(0);
    let download = downloads(by, is_cached, (1, ROOM), |c| {
        c.send_policy = match if_possible {
            true => Some(|| Box::new(ReadsAtEachStep { if_possible: true })),
            false => Some(|| Box::new(ReadsAtEachStep { if_possible: false })),
        };
    });
    (download, ASKED.get())
}

#[test]
fn policy_that_reads_whenever_it_can_held_the_whole_file_of_a_slow_client() {
    for (by, is_cached) in By::ALL.into_iter().flat_map(|by| [(by, true), (by, false)]) {
        let (Download { queued, .. }, _) = download_at_each_step(by, is_cached, true);
        assert!(queued as u64 <= 2 * PART_BYTES, "{by:?}, {is_cached}: {queued} bytes");
    }
}

/// A step that is not possible sends.
#[test]
fn policy_that_always_reads_was_asked_without_end() {
    for (by, is_cached) in By::ALL.into_iter().flat_map(|by| [(by, true), (by, false)]) {
        let (Download { queued, .. }, asked) = download_at_each_step(by, is_cached, false);
        assert!(queued as u64 <= 2 * PART_BYTES, "{by:?}, {is_cached}: {queued} bytes");
        // The client takes as many bytes at a time as the socket has room for.
        let sends = FILE_BYTES / ROOM as u64;
        assert!(asked <= 16 * sends, "{by:?}, {is_cached}: {asked} questions for {sends} sends");
    }
}

/// Maximum number of file operations of an application per connection.
const OPS_PER_CONNECTION: u32 = 16;

/// Sends a file and begins all its file operations while a part of it is being read. Counts those that failed.
struct UsesAllFileOps<'a> {
    ended: u32,
    failed: &'a Cell<u32>,
}

impl Application for UsesAllFileOps<'_> {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if !rx.take().is_empty() {
            x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read));
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, tag: u32, done: io::Result<FileOutcome>) {
        let stat = || FileOp::Stat((Root(0), FilePath::new("file")));
        match (tag, done) {
            (0, Ok(FileOutcome::Opened(opened))) => {
                x.io.send(x.id, Chunk::File(opened.0, 0..FILE_BYTES));
                // The read begins after this call, and takes longer.
                x.io.file_op(x.id, 1, stat());
            }
            (1, Ok(_)) => (0..OPS_PER_CONNECTION).for_each(|n| x.io.file_op(x.id, 2 + n, stat())),
            (0 | 1, done) => panic!("{tag}: {done:?}"),
            (_, done) => {
                self.failed.update(|n| n + u32::from(done.is_err()));
                self.ended += 1;
                if self.ended == OPS_PER_CONNECTION {
                    x.io.close(x.id, Close::Flush);
                }
            }
        }
    }
}

#[test]
fn read_of_the_send_queue_took_the_place_of_a_file_operation_of_the_application() {
    for by in By::ALL {
        let machine = machine(FILE_BYTES, |p| p.room = Some(ROOM));
        machine.read_nothing_ahead();
        machine.set_disk_time(DISK_TIME);
        machine.evict("site/file", false);
        let config = config(|c| c.send_policy = FileDelivery::Ded.send_policy());
        let end = Downloader::add(&machine, FILE_BYTES, None);
        let (failed, mut together) = (Cell::new(0), 0);
        let app = UsesAllFileOps { ended: 0, failed: &failed };
        by.serve(&machine, &config, app, |usage| {
            if usage.read_ahead_bytes > 0 {
                together = together.max(usage.file_ops_per_connection);
            }
        })
        .unwrap();
        assert_eq!(machine.verdict().failure, None, "{by:?}");
        assert_eq!(end.get().unwrap().bytes, FILE_BYTES, "{by:?}");
        assert_eq!(failed.get(), 0, "{by:?}");
        assert_eq!(together, OPS_PER_CONNECTION as usize, "{by:?}: while a part was being read");
    }
}

/// Number of reads by [`CountsReads`], and of those that waited for the disk.
static READS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Reads each part when all before it is sent.
struct CountsReads;

impl SendPolicy for CountsReads {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        match state.file_bytes {
            Some(_) if state.can_read() => SendStep::Read { max_bytes: PART_BYTES as u32 },
            _ => SendStep::Send { max_file_bytes: 1 },
        }
    }

    fn completed(&mut self, _id: ConnId, result: SendResult) {
        if let SendResult::Read { was_cold, .. } = result {
            READS[0].fetch_add(1, Ordering::Relaxed);
            READS[1].fetch_add(was_cold.into(), Ordering::Relaxed);
        }
    }
}

/// Returns the number of reads of a download, and of those that waited for the disk.
fn reads_of_download(server: &Server) -> [u64; 2] {
    READS.iter().for_each(|number| number.store(0, Ordering::Relaxed));
    let mut client = server.connect();
    client.write_all(b"x").unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert!(got == contents(FILE_BYTES));
    READS.each_ref().map(|number| number.load(Ordering::Relaxed))
}

#[test]
fn policy_did_not_know_whether_a_read_waited_for_the_disk() {
    let file = DiskFile::new(FILE_BYTES);
    if !file.tells_what_is_cached() {
        return;
    }
    let config = |root: &Path| {
        listening(1).with(|c| {
            c.roots = vec![root.to_owned()];
            c.send_policy = Some(|| Box::new(CountsReads));
        })
    };
    one_by_one(|name| {
        let server =
            Server::start(name, config(file.root.path()), || sends_whole_file(FILE_BYTES, |_| {}));
        reads_of_download(&server);
        assert_eq!(reads_of_download(&server), [PARTS, 0], "{name}: the file is cached");
        if file.evict() {
            let [reads, cold] = reads_of_download(&server);
            assert!(reads == PARTS && cold > 0, "{name}: {cold} of {reads} reads waited");
        }
        server.stop();
    });
}
