//! What the program says on standard error. A thread of its own writes it, so that nobody waits for a
//! reader that does not read.

use std::io::{self, Write};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

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
    /// Nothing comes after it; answered when all is written.
    End(SyncSender<()>),
}

#[derive(Debug, Default)]
struct Counts {
    /// Bytes of memory that queued lines hold.
    queued_bytes: AtomicUsize,
    /// Lines that found no room since this was said last.
    lost: AtomicUsize,
}

impl Stderr {
    /// Bytes of lines that wait to be written; more lines are lost, and counted.
    const BUFFER_BYTES: usize = 1 << 20;

    /// What a queued line holds beside its text, roughly.
    const OVERHEAD: usize = 64;

    /// How long the last lines may take to be written.
    const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(crate) fn start() -> io::Result<Self> {
        let (queue, lines) = channel();
        let stderr = Stderr { queue, counts: Arc::default() };
        let counts = Arc::clone(&stderr.counts);
        thread::Builder::new().name("log".to_owned()).spawn(move || write(&lines, &counts))?;
        Ok(stderr)
    }

    /// Has panics said here too, with the backtrace that `RUST_BACKTRACE` asks for.
    pub(crate) fn take_panics() {
        panic::set_hook(Box::new(|panic| {
            error!("{panic}\n{}", std::backtrace::Backtrace::capture());
        }));
    }

    /// Says something that is not lost, however much is queued.
    pub(crate) fn say(&self, line: &str) {
        self.push(format!("{line}\n").into_bytes());
    }

    /// Waits until all is written, for a while.
    pub(crate) fn end(&self) {
        let (done, is_done) = sync_channel(1);
        if self.queue.send(Message::End(done)).is_ok() {
            let _ = is_done.recv_timeout(Self::FLUSH_TIMEOUT);
        }
    }

    fn push(&self, line: Vec<u8>) {
        self.counts.queued_bytes.fetch_add(line.len() + Self::OVERHEAD, Ordering::Relaxed);
        // The thread ends with the process only.
        let _ = self.queue.send(Message::Line(line));
    }
}

/// Writes what is queued, and how much was not.
fn write(lines: &Receiver<Message>, counts: &Counts) {
    let mut out = io::stderr();
    for message in lines {
        match message {
            Message::Line(line) => {
                let _ = out.write_all(&line);
                counts.queued_bytes.fetch_sub(line.len() + Stderr::OVERHEAD, Ordering::Relaxed);
            }
            Message::End(done) => drop(done.send(())),
        }
        let lost = counts.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ =
                writeln!(out, "{lost} lines of this log were lost, as they were not read in time");
        }
    }
}

/// One line for each call.
impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.counts.queued_bytes.load(Ordering::Relaxed) < Self::BUFFER_BYTES {
            self.push(line.to_vec());
        } else {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
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
