//! The access log. A separate thread writes it, so that a slow disk never blocks a worker.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::net::IpAddr;
#[cfg(feature = "user")]
use std::os::unix::fs::fchown;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant, SystemTime};

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat, fcntl_getfl, fcntl_setfl};
use tracing::{error, warn};

use crate::access_log::{AccessLog, LogFormat};
#[cfg(feature = "basic-auth")]
use crate::basic_auth::Credentials;
use crate::message::head_errors::start_of_line;
use crate::message::request::RequestHead;
use crate::response::head::put;
use crate::site::host_logs::{self, HostLogs, LogIndex};
use crate::site::metrics::Metrics;

/// A worker's end of the log: queues lines for the writer thread.
#[derive(Debug)]
pub(crate) struct LogSender {
    ring: Producer<u8>,
    /// The thread that writes them.
    writer: Thread,
    /// Whether the writer was woken since the ring became half full.
    woken: bool,
    /// Buffer for one line.
    line: Vec<u8>,
    /// The format of each log.
    formats: Vec<LogFormat>,
    /// The logs of virtual hosts, if there are several.
    hosts: Option<Arc<HostLogs>>,
}

pub(crate) struct LogEntry<'a> {
    pub(crate) peer: Option<IpAddr>,
    pub(crate) date: &'a [u8],
    /// Reads the clock, for the log that has milliseconds.
    pub(crate) now: fn() -> SystemTime,
    pub(crate) logged: LoggedRequest<'a>,
    pub(crate) status: u16,
    /// Bytes of the response's body.
    pub(crate) body: u64,
    /// Time from the request to its response.
    pub(crate) time: Option<Duration>,
}

#[derive(Clone, Copy)]
pub(crate) enum LoggedRequest<'a> {
    Request(&'a RequestHead<'a>),
    /// Bytes that are not a valid request; empty if there are none.
    Bytes(&'a [u8]),
}

impl<'a> LoggedRequest<'a> {
    /// Returns the request if there is one, else the bytes.
    pub(crate) fn new(request: Option<&'a RequestHead<'a>>, bytes: &'a [u8]) -> Self {
        request.map_or(LoggedRequest::Bytes(bytes), LoggedRequest::Request)
    }

    /// Returns the request, unless it is not valid.
    fn request(self) -> Option<&'a RequestHead<'a>> {
        match self {
            LoggedRequest::Request(request) => Some(request),
            LoggedRequest::Bytes(_) => None,
        }
    }
}

/// Maximum bytes logged of an invalid request line.
const MAX_INVALID_LINE_BYTES: usize = 256;

/// Returns what is logged of bytes that are no valid request: their first line. Fields and a body, which follow, may
/// have passwords.
fn invalid_line(bytes: &[u8]) -> &[u8] {
    let line = bytes[start_of_line(bytes)..]
        .split(|b| matches!(b, b'\r' | b'\n'))
        .next()
        .unwrap_or_default();
    &line[..line.len().min(MAX_INVALID_LINE_BYTES)]
}

impl LogSender {
    /// Queues a line. Returns false if the ring is full.
    pub(crate) fn write(&mut self, entry: &LogEntry<'_>) -> bool {
        self.line.clear();
        let mut log = LogIndex(0);
        if let Some(hosts) = &self.hosts {
            let Some(of_host) = hosts.of(entry.logged.request()) else { return true };
            log = of_host;
            host_logs::put_mark(&mut self.line, log);
        }
        entry.put_line(self.formats[usize::from(log.0)], &mut self.line);
        let Ok(mut chunk) = self.ring.write_chunk(self.line.len()) else { return false };
        let (first, second) = chunk.as_mut_slices();
        let (start, end) = self.line.split_at(first.len());
        first.copy_from_slice(start);
        second.copy_from_slice(end);
        chunk.commit_all();
        // The buffer half full wakes the writer once, as unpark may be a system call.
        let is_filling = self.ring.slots() < LogWriter::BUFFER_BYTES / 2;
        if is_filling && !self.woken {
            self.writer.unpark();
        }
        self.woken = is_filling;
        true
    }
}

impl LogEntry<'_> {
    /// Appends a line in a format.
    fn put_line(&self, format: LogFormat, out: &mut Vec<u8>) {
        match format {
            LogFormat::Combined => self.put_combined(out),
            LogFormat::Timed => {
                self.put_combined(out);
                match self.time {
                    Some(time) => put(out, format_args!(" {}", time.as_micros())),
                    None => out.extend_from_slice(b" -"),
                }
            }
            LogFormat::Json => self.put_json(out),
        }
        out.push(b'\n');
    }

    fn put_combined(&self, out: &mut Vec<u8>) {
        match self.peer {
            Some(peer) => put(out, format_args!("{peer}")),
            None => out.push(b'-'),
        }
        // From `Sun, 06 Nov 1994 08:49:37 GMT`.
        let date =
            |range: std::ops::Range<usize>| std::str::from_utf8(&self.date[range]).unwrap_or("-");
        let (day, month, year, time) = (date(5..7), date(8..11), date(12..16), date(17..25));
        out.extend_from_slice(b" - ");
        self.put_user(out);
        put(out, format_args!(" [{day}/{month}/{year}:{time} +0000] \""));
        match self.logged {
            LoggedRequest::Request(request) => {
                out.extend_from_slice(request.name);
                out.push(b' ');
                put_escaped(out, request.target);
                out.extend_from_slice(if request.is_http10 { b" HTTP/1.0" } else { b" HTTP/1.1" });
            }
            LoggedRequest::Bytes([]) => out.push(b'-'),
            LoggedRequest::Bytes(bytes) => put_escaped(out, invalid_line(bytes)),
        }
        put(out, format_args!("\" {} {}", self.status, self.body));
        let request =
            if let LoggedRequest::Request(request) = self.logged { Some(request) } else { None };
        for name in ["referer", "user-agent"] {
            out.extend_from_slice(b" \"");
            match request.and_then(|request| request.one(name)) {
                Some(value) => put_escaped(out, value),
                None => out.push(b'-'),
            }
            out.push(b'"');
        }
    }
}

impl LogEntry<'_> {
    /// Appends the name that the client gave for basic authentication; it is the user's unless the status is 401.
    #[cfg(feature = "basic-auth")]
    fn put_user(&self, out: &mut Vec<u8>) {
        let LoggedRequest::Request(request) = self.logged else { return out.push(b'-') };
        let credentials = Credentials::of(request);
        let user = credentials.as_ref().map_or(&b""[..], Credentials::user);
        if user.is_empty() {
            out.push(b'-');
        }
        for byte in user {
            match byte {
                b' ' => out.extend_from_slice(b"\\x20"),
                byte => put_escaped(out, &[*byte]),
            }
        }
    }

    #[cfg(not(feature = "basic-auth"))]
    fn put_user(&self, out: &mut Vec<u8>) {
        out.push(b'-');
    }

    /// Appends an object with the fields of the combined format and the time in microseconds.
    fn put_json(&self, out: &mut Vec<u8>) {
        let since = (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        put(out, format_args!("{{\"time\":{}.{:03}", since.as_secs(), since.subsec_millis()));
        if let Some(peer) = self.peer {
            put(out, format_args!(",\"client\":\"{peer}\""));
        }
        match self.logged {
            LoggedRequest::Request(request) => {
                #[cfg(feature = "basic-auth")]
                if let Some(credentials) = Credentials::of(request) {
                    put_json_text(out, "user", credentials.user());
                }
                put_json_text(out, "method", request.name);
                put_json_text(out, "target", request.target);
                for (name, field) in
                    [("host", "host"), ("referer", "referer"), ("user_agent", "user-agent")]
                {
                    if let Some(value) = request.one(field) {
                        put_json_text(out, name, value);
                    }
                }
            }
            LoggedRequest::Bytes([]) => {}
            LoggedRequest::Bytes(bytes) => put_json_text(out, "invalid", invalid_line(bytes)),
        }
        put(out, format_args!(",\"status\":{},\"bytes\":{}", self.status, self.body));
        if let Some(time) = self.time {
            put(out, format_args!(",\"microseconds\":{}", time.as_micros()));
        }
        out.push(b'}');
    }
}

/// Appends a member with bytes from a client. Bytes other than those of printable ASCII are escaped, as if each were
/// a character of Latin-1.
fn put_json_text(out: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    put(out, format_args!(",\"{name}\":\""));
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0x7f.. | ..b' ' => put(out, format_args!("\\u{byte:04x}")),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Writes bytes from a client, escaped so that they cannot forge fields or lines.
fn put_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0x7f.. | ..b' ' => put(out, format_args!("\\x{byte:02X}")),
            _ => out.push(byte),
        }
    }
}

/// The thread that writes the lines of all workers.
#[derive(Debug)]
pub(crate) struct LogWriter {
    thread: Option<JoinHandle<()>>,
    /// Set to reopen the files.
    reopens: Arc<AtomicBool>,
}

/// The error that prevented the logs from starting.
pub(crate) enum LogError {
    Open(PathBuf, io::Error),
    Thread(io::Error),
}

impl LogWriter {
    /// Capacity of each worker's buffer. Lines beyond it are lost and counted.
    pub(crate) const BUFFER_BYTES: usize = 1 << 20;

    /// Interval at which the lines are written.
    const WRITE_INTERVAL: Duration = Duration::from_millis(100);

    /// Maximum time to write the remaining lines at the end.
    const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

    /// Opens the logs and starts their thread. Each host has one of them if there are `hosts`.
    ///
    /// # Errors
    /// A file cannot be opened, or the thread cannot be started.
    pub(crate) fn start(
        to: &[AccessLog],
        hosts: Option<HostLogs>,
        workers: usize,
        metrics: &Metrics,
    ) -> Result<(Self, Vec<LogSender>), LogError> {
        let formats: Vec<_> = to.iter().map(|log| log.format).collect();
        let open = |to: &AccessLog| {
            let opened = LogTarget::open(to.clone(), metrics.clone());
            opened.map_err(|error| LogError::Open(to.path.clone().unwrap_or_default(), error))
        };
        let mut targets = to.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let hosts = hosts.map(Arc::new);
        let has_hosts = hosts.is_some();
        let reopens = Arc::new(AtomicBool::new(false));
        let reopen = Arc::clone(&reopens);
        let (producers, mut rings): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| RingBuffer::new(Self::BUFFER_BYTES)).unzip();
        let name = "access log".to_owned();
        let thread = thread::Builder::new().name(name).spawn(move || {
            loop {
                // Check first: lines written before the workers ended are still read below.
                let ended = rings.iter().all(Consumer::is_abandoned);
                if reopen.swap(false, Ordering::Relaxed) {
                    targets.iter_mut().for_each(LogTarget::reopen);
                }
                for ring in &mut rings {
                    write_all(ring, &mut targets, has_hosts);
                }
                if ended {
                    return;
                }
                thread::park_timeout(Self::WRITE_INTERVAL);
            }
        });
        let thread = thread.map_err(LogError::Thread)?;
        let lines = |ring| LogSender {
            ring,
            writer: thread.thread().clone(),
            woken: false,
            line: Vec::with_capacity(512),
            formats: formats.clone(),
            hosts: hosts.clone(),
        };
        let lines = producers.into_iter().map(lines).collect();
        Ok((LogWriter { thread: Some(thread), reopens }, lines))
    }

    /// Returns the maximum memory of the logs and their thread.
    pub(crate) fn memory(has_hosts: bool, workers: usize) -> usize {
        // What one buffer has is copied, and sorted by host.
        let copies = if has_hosts { 2 } else { 0 };
        (workers + copies) * Self::BUFFER_BYTES
    }

    /// Makes the thread open the file again, for example after log rotation.
    pub(crate) fn reopen(&self) {
        self.reopens.store(true, Ordering::Relaxed);
    }
}

impl Drop for LogWriter {
    /// Waits for the remaining lines to be written, up to `FLUSH_TIMEOUT`. The workers have ended.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        let until = Instant::now() + Self::FLUSH_TIMEOUT;
        while !thread.is_finished() {
            if Instant::now() > until {
                return error!(
                    "cannot flush the access log within {:?}; its last lines are lost",
                    Self::FLUSH_TIMEOUT
                );
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
    }
}

/// Writes the lines of a worker to their logs. Those of `has_hosts` are marked, and sorted first.
fn write_all(ring: &mut Consumer<u8>, targets: &mut [LogTarget], has_hosts: bool) {
    let Ok(chunk) = ring.read_chunk(ring.slots()) else { return };
    match (chunk.as_slices(), targets) {
        ((&[], _), _) => return,
        ((first, second), targets) if has_hosts => {
            // No line is divided, unless by the end of the ring.
            let sorted = host_logs::sort(&[first, second].concat(), targets.len());
            for (target, lines) in targets.iter_mut().zip(sorted) {
                target.write(&lines, b"");
            }
        }
        ((first, second), [target, ..]) => target.write(first, second),
        (_, []) => {}
    }
    chunk.commit_all();
}

struct LogTarget {
    to: AccessLog,
    file: Option<File>,
    metrics: Metrics,
    /// Lines lost since writing began to fail; `None` while it succeeds.
    lost: Option<u64>,
    /// The last line of the file is incomplete, as writing has failed.
    is_partial: bool,
}

impl LogTarget {
    fn open(to: AccessLog, metrics: Metrics) -> io::Result<Self> {
        let file = to.path.as_deref().map(append).transpose()?;
        Ok(LogTarget { to, file, metrics, lost: None, is_partial: false })
    }

    /// Returns the path for messages.
    fn name(&self) -> std::path::Display<'_> {
        self.to.path.as_deref().unwrap_or(Path::new("-")).display()
    }

    fn reopen(&mut self) {
        let Some(path) = &self.to.path else { return };
        match append(path) {
            Ok(file) => {
                let is_same = self.file.as_ref().is_some_and(|before| is_same(before, &file));
                self.is_partial &= is_same;
                self.file = Some(file);
            }
            Err(error) => {
                let path = path.display();
                error!(
                    "cannot reopen the access log {path}: {error}; lines are still written to the previous file"
                );
            }
        }
    }

    /// Writes lines. Those that cannot be written are lost and counted; the first failure and the recovery are
    /// logged.
    fn write(&mut self, first: &[u8], second: &[u8]) {
        // An empty write would succeed and hide the failure.
        if first.is_empty() && second.is_empty() {
            return;
        }
        let pieces = [if self.is_partial { &b"\n"[..] } else { b"" }, first, second];
        let (written, result) = match &mut self.file {
            Some(file) => write_pieces(file, pieces),
            None => write_pieces(&mut io::stdout().lock(), pieces),
        };
        let bytes = || pieces.into_iter().flatten();
        if written > 0 {
            self.is_partial = bytes().nth(written - 1) != Some(&b'\n');
        }
        match result {
            Err(error) => {
                // The end of the line that was cut is no line: that one is lost already.
                let skipped = written.max(pieces[0].len());
                let lines = bytes().skip(skipped).filter(|b| **b == b'\n').count() as u64;
                self.metrics.own().log_lines_lost.add(lines);
                if self.lost.is_none() {
                    let name = self.name();
                    error!("cannot write the access log {name}: {error}; lines are lost");
                }
                self.lost = Some(self.lost.unwrap_or(0) + lines);
            }
            Ok(()) => {
                if let Some(lines) = self.lost.take() {
                    let name = self.name();
                    warn!("the access log {name} is writable again; {lines} lines were lost");
                }
            }
        }
    }
}

/// Writes pieces by one call, if it takes all: a successor, or the workers of before, append to the same file, and the
/// pieces may divide a line. Returns the number of bytes that were written, also before an error.
fn write_pieces(to: &mut impl Write, pieces: [&[u8]; 3]) -> (usize, io::Result<()>) {
    let mut slices = pieces.map(IoSlice::new);
    let (mut rest, mut written) = (&mut slices[..], 0);
    // Empty pieces are left out, so that 0 is an error.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match to.write_vectored(rest) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                written += n;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, to.flush())
}

/// Returns whether two descriptors are of the same file.
fn is_same(a: &File, b: &File) -> bool {
    let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}

fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // The open of a pipe would wait for its reader.
    options.append(true).create(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(with_reason(path))?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Adds the reason to an error of opening what is no file.
fn with_reason(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| match error.raw_os_error() {
        Some(libc::ENXIO) if path.metadata().is_ok_and(|found| found.file_type().is_socket()) => {
            io::Error::new(
                error.kind(),
                "it is a socket, which cannot be opened; `-` is standard output",
            )
        }
        Some(libc::ENXIO) => {
            io::Error::new(error.kind(), "a pipe without a reader; start the reader first")
        }
        _ => error,
    }
}

/// Creates a file for a user, which can then open it. One that exists stays as it is: its directory may be that of the
/// user, which could have made a link to what belongs to others.
///
/// # Errors
/// If it cannot be given to the user.
#[cfg(feature = "user")]
pub(crate) fn create_for(path: &Path, uid: u32) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => fchown(&file, Some(uid), None),
        // To open it gives the reason, if it does not exist.
        Err(_) => Ok(()),
    }
}

/// Checks that a file can be opened for appending, without creating it.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    match path.metadata() {
        // The open of a pipe waits for its reader.
        Ok(found) if !found.is_file() && !found.is_dir() && !found.file_type().is_socket() => {
            Ok(())
        }
        Ok(_) => OpenOptions::new().append(true).open(path).map(drop).map_err(with_reason(path)),
        Err(_) => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            let needed = Access::WRITE_OK | Access::EXEC_OK;
            Ok(accessat(CWD, parent, needed, AtFlags::EACCESS)?)
        }
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
