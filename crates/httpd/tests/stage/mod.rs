//! A mechanism without a kernel: one connection, all of whose events the test controls.
#![allow(dead_code)]

pub(crate) mod bad;

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use evring_httpd::evring::buffers::{BufferError, BufferGroup, BufferPool, RxBuf};
use evring_httpd::evring::files::{
    Access, File, FileKind, FileOp, FileOutcome, Listing, MAX_READ_BYTES, Metadata,
};
use evring_httpd::{Site, State};
use evring_httpd::{
    evring::AcceptPolicy, evring::Application, evring::Chunk, evring::Close, evring::Commands,
    evring::ConnId, evring::Cx, evring::HIGH_WATER, evring::LOW_WATER, evring::Lateness,
    evring::Listener, evring::NoTimer, evring::Others, evring::Root, evring::Rx, evring::Stats,
};

pub(crate) const ID: ConnId = ConnId::new(0, 0);

/// The commands of the connection, and their effects.
pub(crate) struct Io {
    pub(crate) now: Instant,
    pub(crate) wall: SystemTime,
    /// The bytes that were queued to be sent.
    pub(crate) sent: Vec<u8>,
    /// The client does not read unless [`Stage::take`] is called.
    pub(crate) blocked: bool,
    /// The kernel takes all bytes at once, and holds them for the client.
    pub(crate) kernel_takes: bool,
    /// Bytes that the kernel holds.
    held: u64,
    pub(crate) deadline: Option<Instant>,
    /// When the timer of the site's own, the last one, expires.
    pub(crate) timer: Option<Instant>,
    pub(crate) max_timers: u32,
    pub(crate) close: Option<Close>,
    /// A layer around the site has closed the connection: sends have no effect.
    pub(crate) refuses: bool,
    pub(crate) stopping: bool,
    pub(crate) paused: bool,
    pub(crate) lateness: Lateness,
    /// The resolution of file times, in nanoseconds.
    pub(crate) tick_ns: i64,
    /// The client reads files so slowly that they stay open until the test clears `files`.
    pub(crate) slow: bool,
    pub(crate) files: Vec<File>,
    /// The disk hangs: file operations do not end.
    pub(crate) hangs: bool,
    /// Time that each stat takes.
    pub(crate) stat_time: Duration,
    /// So many further reads fail.
    pub(crate) failing_reads: u32,
    /// File operations so far, by kind: opens, stats and listings, reads.
    pub(crate) file_ops: (u32, u32, u32),
    root: PathBuf,
    path: PathBuf,
    /// The chunks that the client has not read completely.
    queue: VecDeque<Item>,
    high: bool,
    resumed: bool,
    waiting: VecDeque<(u32, FileOp)>,
}

/// The remaining bytes of a queued chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Memory(u64),
    File(u64),
}

/// A site, one connection, and its unconsumed bytes.
pub(crate) struct Stage {
    pub(crate) app: Site,
    pub(crate) io: Io,
    pub(crate) state: State,
    /// A part of a TLS record follows the unconsumed bytes.
    pub(crate) is_partial: bool,
    tail: Vec<u8>,
    eof: bool,
}

impl Stage {
    /// Creates a connection to a site with the files below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        Self::with(Site::new(Some(Root(0))), root)
    }

    pub(crate) fn with(app: Site, root: &Path) -> Self {
        let io = Io {
            now: Instant::now(),
            // An hour ahead, so no file has changed recently.
            wall: SystemTime::now() + Duration::from_secs(3600),
            sent: Vec::new(),
            blocked: false,
            kernel_takes: false,
            held: 0,
            deadline: None,
            timer: None,
            max_timers: 16,
            close: None,
            refuses: false,
            stopping: false,
            paused: false,
            lateness: Lateness::InTime,
            tick_ns: 1,
            slow: false,
            files: Vec::new(),
            hangs: false,
            stat_time: Duration::ZERO,
            failing_reads: 0,
            file_ops: (0, 0, 0),
            root: root.to_owned(),
            path: PathBuf::new(),
            queue: VecDeque::new(),
            high: false,
            resumed: false,
            waiting: VecDeque::new(),
        };
        let (state, tail) = (State::default(), Vec::new());
        let mut stage = Stage { app, io, state, is_partial: false, tail, eof: false };
        stage.connect();
        stage
    }

    /// Replaces the connection by a new one to the same site.
    pub(crate) fn connect(&mut self) {
        self.state = State::default();
        self.tail.clear();
        (self.is_partial, self.eof) = (false, false);
        self.io.sent.clear();
        self.io.waiting.clear();
        (self.io.close, self.io.paused, self.io.resumed, self.io.high) =
            (None, false, false, false);
        self.io.queue.clear();
        self.io.held = 0;
        let Stage { app, io, state, .. } = self;
        app.accepted(Cx { io, id: ID, state, others: Others::none() }, Listener(0));
    }

    /// The client sends bytes; processes all consequences.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.deliver();
        self.run();
    }

    /// The client shuts down its sending side.
    pub(crate) fn end(&mut self) {
        self.eof = true;
        self.deliver();
        self.run();
    }

    /// Sends bytes and returns the response.
    pub(crate) fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.feed(bytes);
        std::mem::take(&mut self.io.sent)
    }

    /// Lets time pass, from one deadline or timer to the next.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.io.now + time;
        self.io.wall += time;
        loop {
            let due = self.io.deadline.into_iter().chain(self.io.timer).min();
            let due = due.filter(|at| *at <= end);
            self.io.now = due.unwrap_or(end).max(self.io.now);
            if due.is_none() {
                return;
            }
            let Stage { app, io, state, .. } = self;
            if io.timer == due {
                io.timer = None;
                app.timer(io, Others::none(), io.max_timers - 1);
            } else {
                io.deadline = None;
                app.expired(Cx { io, id: ID, state, others: Others::none() });
            }
            self.run();
        }
    }

    /// The client reads everything.
    pub(crate) fn unblock(&mut self) {
        self.io.blocked = false;
        self.run();
    }

    /// The client reads `n` bytes.
    pub(crate) fn take(&mut self, n: u64) {
        self.io.take(n);
        self.run();
    }

    pub(crate) fn stop(&mut self) {
        self.io.stopping = true;
        let Stage { app, io, state, .. } = self;
        app.stopping(Cx { io, id: ID, state, others: Others::none() });
        self.run();
    }

    /// Delivers the received bytes, once.
    pub(crate) fn deliver(&mut self) {
        if self.io.paused || self.io.close.is_some() {
            return;
        }
        let Stage { app, io, state, is_partial, tail, eof } = self;
        let len = tail.len();
        let mut rx = Rx::borrowed(tail, *eof).partial(*is_partial);
        app.received(Cx { io, id: ID, state, others: Others::none() }, &mut rx);
        let remaining = rx.bytes().len();
        tail.drain(..len - remaining);
        let holds = io.paused || io.close.is_some() || remaining < Site::MAX_UNCONSUMED;
        assert!(holds, "{remaining} bytes left unconsumed");
    }

    /// Executes file operations, sends queued bytes and resumes receiving, until nothing is pending.
    fn run(&mut self) {
        loop {
            if self.io.kernel_takes {
                self.io.held += self.io.waiting_bytes();
            }
            if self.io.kernel_takes || !self.io.blocked {
                self.io.queue.clear();
            }
            if !self.io.blocked {
                self.io.held = 0;
            }
            if self.io.high && self.io.load() <= LOW_WATER {
                self.io.high = false;
                if self.io.close.is_none() {
                    let Stage { app, io, state, .. } = self;
                    app.drained(Cx { io, id: ID, state, others: Others::none() });
                }
            }
            let next = if self.io.hangs { None } else { self.io.waiting.pop_front() };
            if let Some((tag, op)) = next {
                let outcome = self.io.execute(op);
                if self.io.close.is_none() {
                    let Stage { app, io, state, .. } = self;
                    app.file(Cx { io, id: ID, state, others: Others::none() }, tag, outcome);
                }
            } else if std::mem::take(&mut self.io.resumed) {
                self.deliver();
            } else {
                return;
            }
        }
    }
}

impl Io {
    /// Returns the path of a file; allocates only when the path buffer grows.
    fn locate(&mut self, path: &Path) -> &Path {
        self.path.clear();
        self.path.push(&self.root);
        self.path.push(path);
        &self.path
    }

    fn take(&mut self, mut n: u64) {
        let held = n.min(self.held);
        (n, self.held) = (n - held, self.held - held);
        while n > 0 {
            let Some(Item::Memory(remaining) | Item::File(remaining)) = self.queue.front_mut()
            else {
                return;
            };
            let taken = n.min(*remaining);
            (n, *remaining) = (n - taken, *remaining - taken);
            if *remaining == 0 {
                self.queue.pop_front();
            }
        }
    }

    fn waiting_bytes(&self) -> u64 {
        self.queue.iter().map(|(Item::Memory(remaining) | Item::File(remaining))| remaining).sum()
    }

    fn load(&self) -> usize {
        let load = |item: &Item| match *item {
            Item::Memory(remaining) => remaining as usize,
            Item::File(_) => HIGH_WATER,
        };
        self.queue.iter().map(load).sum()
    }

    fn execute(&mut self, op: FileOp) -> io::Result<FileOutcome> {
        match op {
            FileOp::Open((_, path), Access::Read) => {
                self.file_ops.0 += 1;
                let tick_ns = self.tick_ns;
                let opened = open(self.locate(path.as_path()), tick_ns)?;
                Ok(FileOutcome::Opened(Box::new(opened)))
            }
            FileOp::Stat((_, path)) => {
                self.file_ops.1 += 1;
                self.wall += self.stat_time;
                let meta = fs::metadata(self.locate(path.as_path()))?;
                Ok(FileOutcome::Stat(describe(&meta, self.tick_ns)))
            }
            FileOp::List((_, path)) => {
                self.file_ops.1 += 1;
                list(self.locate(path.as_path())).map(FileOutcome::Listed)
            }
            FileOp::Read(file, range) => {
                self.file_ops.2 += 1;
                if self.failing_reads > 0 {
                    self.failing_reads -= 1;
                    return Err(io::Error::other("the read of the stage failed"));
                }
                let max = (range.end - range.start).min(MAX_READ_BYTES.into());
                Ok(FileOutcome::Read(RxBuf::from(read(&file, range.start, max)?)))
            }
            op => panic!("the site does not write: {op:?}"),
        }
    }
}

fn open(path: &Path, tick_ns: i64) -> io::Result<(File, Metadata)> {
    let file = fs::File::open(path)?;
    let meta = describe(&file.metadata()?, tick_ns);
    Ok((File::from(OwnedFd::from(file)), meta))
}

fn list(path: impl AsRef<Path>) -> io::Result<Listing> {
    let entry = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name(), describe(&entry.path().metadata()?, 1)))
    };
    let entries = fs::read_dir(path.as_ref())?.map(entry).collect::<io::Result<_>>()?;
    Ok(Listing { entries, is_complete: true })
}

fn describe(meta: &fs::Metadata, tick_ns: i64) -> Metadata {
    use std::os::unix::fs::MetadataExt;
    let kind = match meta.file_type() {
        kind if kind.is_file() => FileKind::Regular,
        kind if kind.is_dir() => FileKind::Directory,
        _ => FileKind::Other,
    };
    let ticks = |seconds: i64, ns: i64| seconds * 1_000_000_000 + ns - ns % tick_ns;
    let modified_ns = ticks(meta.mtime(), meta.mtime_nsec());
    let changed_ns = ticks(meta.ctime(), meta.ctime_nsec());
    Metadata { kind, len: meta.len(), modified_ns, changed_ns, inode: meta.ino() }
}

fn read(file: &File, start: u64, max: u64) -> io::Result<Vec<u8>> {
    let mut reopened = fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    reopened.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    reopened.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Commands for Io {
    fn now(&self) -> Instant {
        self.now
    }

    fn wall_time(&self) -> SystemTime {
        self.wall
    }

    fn random(&mut self) -> u64 {
        4
    }

    fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize {
        assert!(to == ID && self.close.is_none(), "send after close");
        if self.refuses {
            chunk.discard();
            return 0;
        }
        let before = self.sent.len();
        let is_file = matches!(chunk, Chunk::File(..));
        match chunk {
            Chunk::Copy(bytes) => self.sent.extend_from_slice(bytes),
            Chunk::Static(bytes) => self.sent.extend_from_slice(bytes),
            Chunk::Shared(bytes) => {
                self.sent.extend_from_slice(&bytes);
                Chunk::Shared(bytes).discard();
            }
            Chunk::Received(bytes) => self.sent.extend_from_slice(&bytes),
            Chunk::File(file, range) => {
                let bytes = read(&file, range.start, range.end - range.start).unwrap();
                self.sent.extend_from_slice(&bytes);
                if self.slow {
                    self.files.push(file);
                }
            }
        }
        match (self.sent.len() - before) as u64 {
            0 => {}
            n => self.queue.push_back(if is_file { Item::File(n) } else { Item::Memory(n) }),
        }
        let load = self.load();
        self.high |= load >= HIGH_WATER;
        load
    }

    fn reserve(&mut self, _: ConnId, n: usize) -> &mut [u8] {
        let start = self.sent.len();
        self.sent.resize(start + n, 0);
        &mut self.sent[start..]
    }

    fn connect(&mut self, _: SocketAddr) -> ConnId {
        unreachable!("a site opens no connections")
    }

    fn file_op(&mut self, _: ConnId, tag: u32, op: FileOp) {
        self.waiting.push_back((tag, op));
    }

    fn set_receiving(&mut self, _: ConnId, on: bool) {
        self.resumed |= on && self.paused;
        self.paused = !on;
    }

    fn hold(&mut self, _: ConnId, _: bool) {
        unreachable!("a site has no hook")
    }

    fn set_deadline(&mut self, _: ConnId, at: Option<Instant>) {
        self.deadline = at;
    }

    fn deadline(&self, _: ConnId) -> Option<Instant> {
        self.deadline
    }

    fn set_timer(&mut self, timer: u32, at: Option<Instant>) -> Result<(), NoTimer> {
        let max_timers = self.max_timers;
        if timer >= max_timers {
            return Err(NoTimer { timer, max_timers });
        }
        assert_eq!(timer, max_timers - 1, "a site has the last timer only");
        self.timer = at;
        Ok(())
    }

    fn busy_poll(&mut self, _: Duration) {
        unreachable!("a site does not poll")
    }

    fn close(&mut self, _: ConnId, how: Close) {
        let is_first = self.close.is_none();
        if is_first || how == Close::Reset {
            self.close = Some(how);
        }
    }

    fn unsent_bytes(&self, _: ConnId) -> u64 {
        self.held + self.waiting_bytes()
    }

    fn queued_bytes(&self, _: ConnId) -> u64 {
        self.waiting_bytes()
    }

    fn is_receiving(&self, id: ConnId) -> bool {
        self.is_open(id) && !self.paused
    }

    fn is_open(&self, id: ConnId) -> bool {
        id == ID
    }

    fn is_closing(&self, id: ConnId) -> bool {
        self.refuses || !self.is_open(id)
    }

    fn next_open(&self, slot: u32) -> Option<ConnId> {
        (slot == 0).then_some(ID)
    }

    fn peer_addr(&self, _: ConnId) -> Option<SocketAddr> {
        None
    }

    fn lateness(&self, _: ConnId) -> Lateness {
        self.lateness
    }

    fn set_accept_policy(&mut self, _: Listener, _: AcceptPolicy) {}

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn add_buffers(&mut self, _: BufferPool) -> Result<BufferGroup, BufferError> {
        unreachable!("the server adds no receive buffers")
    }

    fn set_receive_group(&mut self, _: ConnId, _: BufferGroup) -> Result<(), BufferError> {
        unreachable!("the server chooses no receive buffers")
    }

    fn receive_group(&self, _: ConnId) -> BufferGroup {
        BufferGroup::DEFAULT
    }

    fn is_stopping(&self) -> bool {
        self.stopping
    }
}

/// Parses the responses in `bytes`; all have a Content-Length.
pub(crate) fn responses(mut bytes: &[u8]) -> Vec<ParsedResponse> {
    let mut responses = Vec::new();
    while !bytes.is_empty() {
        let (response, rest) = response(bytes, true);
        responses.push(response);
        bytes = rest;
    }
    responses
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedResponse {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl ParsedResponse {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, value)| &value[..])
    }
}

/// Parses the first response. Returns it and the bytes after it.
pub(crate) fn response(bytes: &[u8], has_body: bool) -> (ParsedResponse, &[u8]) {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no response: {:?}", String::from_utf8_lossy(bytes)));
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap();
    let status = line.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap();
    let split = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_owned(), value.to_owned())
    };
    let mut response =
        ParsedResponse { status, fields: lines.map(split).collect(), body: Vec::new() };
    let len = || response.field("Content-Length").unwrap().parse().unwrap();
    let (body, rest) = bytes[end + 4..].split_at(if has_body { len() } else { 0 });
    response.body = body.to_vec();
    (response, rest)
}
