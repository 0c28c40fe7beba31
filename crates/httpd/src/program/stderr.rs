//! Writes the log to standard error from a separate thread, so that workers never block on a slow
//! reader.

use std::io::{self, Write};
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use evring_httpd::Handle;
use tracing::error;
use tracing_subscriber::fmt::MakeWriter;

/// Queues lines for standard error.
#[derive(Clone, Debug)]
pub(crate) struct Stderr {
    queue: Sender<Message>,
    counts: Arc<Counts>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// The last message; acknowledged when all lines are written.
    End(SyncSender<()>),
}

#[derive(Debug, Default)]
struct Counts {
    /// Bytes of memory that queued lines hold.
    queued_bytes: AtomicUsize,
    /// Lines lost since the last report of lost lines.
    lost: AtomicUsize,
    /// The server whose metrics count lost lines, once it serves.
    server: OnceLock<Handle>,
}

impl Counts {
    fn count_lost(&self) {
        if let Some(server) = self.server.get() {
            server.count_lost_messages(1);
        }
    }
}

impl Stderr {
    /// Capacity for queued lines, in bytes; further lines are lost and counted.
    const BUFFER_BYTES: usize = 1 << 20;

    /// Approximate bytes of memory of a queued line in addition to its text.
    const OVERHEAD: usize = 64;

    /// Maximum time to write the remaining lines at the end.
    const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (queue, lines) = channel();
        let stderr = Stderr { queue, counts: Arc::default() };
        let counts = Arc::clone(&stderr.counts);
        thread::Builder::new().name("log".to_owned()).spawn(move || write(&lines, &counts))?;
        Ok(stderr)
    }

    /// Logs panics, with a backtrace if `RUST_BACKTRACE` is set.
    pub(crate) fn log_panics() {
        panic::set_hook(Box::new(|panic| {
            error!("{panic}\n{}", std::backtrace::Backtrace::capture());
        }));
    }

    /// Queues a line regardless of the capacity.
    pub(crate) fn print(&self, line: &str) {
        self.push(format!("{line}\n").into_bytes());
    }

    /// Has the metrics of a server count the lines that are lost from now on.
    pub(crate) fn count_at(&self, server: Handle) {
        let _ = self.counts.server.set(server);
    }

    /// Waits until all lines are written, up to `FLUSH_TIMEOUT`.
    pub(crate) fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        if self.queue.send(Message::End(done)).is_ok() {
            let _ = is_done.recv_timeout(Self::FLUSH_TIMEOUT);
        }
    }

    fn push(&self, line: Vec<u8>) {
        self.counts.queued_bytes.fetch_add(line.len() + Self::OVERHEAD, Ordering::Relaxed);
        // Sending cannot fail: the thread runs until the process ends.
        let _ = self.queue.send(Message::Line(line));
    }
}

/// Writes queued lines and reports lost ones.
fn write(lines: &Receiver<Message>, counts: &Counts) {
    let mut out = io::stderr();
    for message in lines {
        match message {
            Message::Line(line) => {
                if out.write_all(&line).is_err() {
                    counts.count_lost();
                }
                counts.queued_bytes.fetch_sub(line.len() + Stderr::OVERHEAD, Ordering::Relaxed);
            }
            Message::End(done) => drop(done.send(())),
        }
        let lost = counts.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ =
                writeln!(out, "{lost} log lines were lost: standard error was not read in time");
        }
    }
}

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.counts.queued_bytes.load(Ordering::Relaxed) < Self::BUFFER_BYTES {
            self.push(line.to_vec());
        } else {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
            self.counts.count_lost();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
