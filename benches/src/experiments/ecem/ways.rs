//! Three ways of a file to a socket, by its size and the state of the page cache: sendfile(2), reads of the ring into memory,
//! and splice(2) through a pipe.

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Advice, fadvise, sendfile};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::time::{ClockId, clock_gettime};
use shared_ring::buffers::GatherList;
use shared_ring::files::{FileOp, FileOutcome};
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{Fd, Kernel, Op, OpKind, Outcome, Submit, Submitted, Token};

use super::super::Context;
use super::{Cache, SEND_BUFFER};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, SERVER_CORE, Site, pin};
use crate::outcome::{Outcome as Results, X};
use crate::statistics::spread;

/// Names and lengths of the files.
const SIZES: [(&str, usize); 6] = [
    ("4 KiB", 4 << 10),
    ("16 KiB", 16 << 10),
    ("64 KiB", 64 << 10),
    ("256 KiB", 256 << 10),
    ("1 MiB", 1 << 20),
    ("10 MiB", 10 << 20),
];
/// Bytes of all files of a length, and maximum number of these.
const BYTES: usize = 32 << 20;
const MAX_FILES: usize = 512;
const ROUNDS: usize = 5;
/// Bytes that a way moves at a time.
const PIECE: usize = 64 << 10;

/// A way of a file to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Sendfile,
    Ring,
    Pipe,
}

const WAYS: [Way; 3] = [Way::Sendfile, Way::Ring, Way::Pipe];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Sendfile => "sendfile(2)",
            Way::Ring => "reads of the ring",
            Way::Pipe => "splice(2) through a pipe",
        }
    }
}

/// CPU time and duration of sending all files of a length.
struct Sent {
    cpu: Duration,
    time: Duration,
}

/// A connection whose other end a thread receives.
struct Sender {
    socket: TcpStream,
    ring: UringKernel,
    pipe: (OwnedFd, OwnedFd),
    /// The number of bytes to receive, and the CPU time of the receiver, once it has them.
    expect: SyncSender<usize>,
    received: Receiver<Duration>,
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Receives the requested numbers of bytes, one after the other.
fn receive(mut from: TcpStream, expected: &Receiver<usize>, done: &SyncSender<Duration>) {
    let _ = pin(&[CLIENT_CORE]);
    let mut piece = vec![0; PIECE];
    while let Ok(mut left) = expected.recv() {
        while left > 0 {
            match from.read(&mut piece[..left.min(PIECE)]) {
                Ok(n @ 1..) => left -= n,
                _ => return,
            }
        }
        if done.send(cpu(ClockId::ThreadCPUTime)).is_err() {
            return;
        }
    }
}

impl Sender {
    fn new() -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let (other, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        set_socket_send_buffer_size(&socket, SEND_BUFFER).map_err(std::io::Error::from)?;
        socket.set_nonblocking(true)?;
        let config = UringConfig::new(Mode::Deferred, 8, 8, 4096);
        let ring = UringKernel::new(&config).map_err(|e| Failure::Run(e.to_string()))?;
        let pipe = pipe_with(PipeFlags::NONBLOCK).map_err(std::io::Error::from)?;
        fcntl_setpipe_size(&pipe.0, PIECE).map_err(std::io::Error::from)?;
        let ((expect, expected), (done, received)) = (sync_channel(1), sync_channel(1));
        thread::spawn(move || receive(other, &expected, &done));
        Ok(Sender { socket, ring, pipe, expect, received })
    }

    /// Sends all files.
    fn send_all(&mut self, way: Way, files: &[File], len: usize) -> Result<Sent, Failure> {
        // An empty expectation returns the receiver's CPU time before.
        let gone = |_| Failure::Run("the receiver has ended".to_owned());
        self.expect.send(0).map_err(|e| Failure::Run(e.to_string()))?;
        let receiver_before = self.received.recv().map_err(gone)?;
        let (before, begin) = (cpu(ClockId::ProcessCPUTime), Instant::now());
        self.expect.send(files.len() * len).map_err(|e| Failure::Run(e.to_string()))?;
        for file in files {
            match way {
                Way::Sendfile => self.by_sendfile(file, len),
                Way::Ring => self.by_ring(file, len),
                Way::Pipe => self.by_pipe(file, len),
            }?;
        }
        let receiver = self.received.recv().map_err(gone)? - receiver_before;
        let cpu = (cpu(ClockId::ProcessCPUTime) - before).saturating_sub(receiver);
        Ok(Sent { cpu, time: begin.elapsed() })
    }

    fn wait_for_room(&self) -> Result<(), Failure> {
        poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], None)
            .map_err(std::io::Error::from)?;
        Ok(())
    }

    fn by_sendfile(&self, file: &File, len: usize) -> Result<(), Failure> {
        let mut at = 0;
        while at < len as u64 {
            let left = len - at as usize;
            match sendfile(&self.socket, file, Some(&mut at), left) {
                Ok(_) => {}
                Err(Errno::AGAIN) => self.wait_for_room()?,
                Err(errno) => return Err(std::io::Error::from(errno).into()),
            }
        }
        Ok(())
    }

    fn by_pipe(&self, file: &File, len: usize) -> Result<(), Failure> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let (out, into) = &self.pipe;
        let mut at = 0;
        while at < len as u64 {
            let piece = PIECE.min(len - at as usize);
            let mut filled = splice(file, Some(&mut at), into, None, piece, SpliceFlags::MOVE)
                .map_err(std::io::Error::from)?;
            while filled > 0 {
                match splice(out, None, &self.socket, None, filled, flags) {
                    Ok(n) => filled -= n,
                    Err(Errno::AGAIN) => self.wait_for_room()?,
                    Err(errno) => return Err(std::io::Error::from(errno).into()),
                }
            }
        }
        Ok(())
    }

    /// Executes an operation of the ring.
    fn execute(ring: &mut UringKernel, kind: OpKind, op: Op) -> Result<Outcome, Failure> {
        match ring.submit(Token::new(kind, 0, 0), op) {
            Ok(Submitted::Done(outcome)) => return Ok(outcome),
            Ok(Submitted::InFlight) => {}
            Err(_) => return Err(Failure::Run("the ring is full".to_owned())),
        }
        loop {
            ring.turn(None).map_err(|e| Failure::Run(e.to_string()))?;
            while let Some(completion) = ring.next() {
                if completion.token.kind() == kind {
                    return Ok(completion.outcome);
                }
            }
        }
    }

    fn by_ring(&mut self, file: &File, len: usize) -> Result<(), Failure> {
        let file = shared_ring::files::File::from(OwnedFd::from(file.try_clone()?));
        // SAFETY: the socket is open as long as `self`, which waits for each operation.
        let fd = unsafe { Fd::lent(self.socket.as_fd()) };
        let mut at = 0;
        while at < len as u64 {
            let read =
                Op::File(FileOp::Read(file.clone(), at..len.min(at as usize + PIECE) as u64));
            let bytes = match Self::execute(&mut self.ring, OpKind::File, read)? {
                Outcome::File(FileOutcome::Read(bytes)) if !bytes.is_empty() => bytes,
                other => return Err(Failure::Run(format!("a read ended with {other:?}"))),
            };
            at += bytes.len() as u64;
            let mut data = Box::<GatherList>::default();
            data.received(bytes);
            while !data.is_empty() {
                let send = Op::Send { fd, data };
                data = match Self::execute(&mut self.ring, OpKind::Send, send)? {
                    Outcome::Sent(data, _) => data,
                    other => return Err(Failure::Run(format!("a send ended with {other:?}"))),
                };
            }
        }
        Ok(())
    }
}

/// Measures all ways, in a thread of its own.
pub(super) fn run(cx: &Context, site: &Site, outcome: &mut Results) -> Result<(), Failure> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| measure(cx, site, outcome));
        thread.join().unwrap_or_else(|_| Err(Failure::Run("the sender panicked".to_owned())))
    })
}

fn measure(cx: &Context, site: &Site, outcome: &mut Results) -> Result<(), Failure> {
    pin(&[SERVER_CORE])?;
    let mut sender = Sender::new()?;
    for (name, len) in SIZES {
        let number = (BYTES / len).clamp(1, MAX_FILES);
        let open = |i| -> Result<File, Failure> {
            let name = format!("way-{len}-{i}.bin");
            site.add_cold(&name, len)?;
            Ok(File::open(site.root().join(name))?)
        };
        let files = (0..number).map(open).collect::<Result<Vec<_>, _>>()?;
        let megabytes = (number * len) as f64 / 1e6;
        for cache in [Cache::Cached, Cache::Cold] {
            let mut sent = WAYS.map(|_| (Vec::new(), Vec::new()));
            for mut round in cx.rounds(if cx.quick { 2 } else { ROUNDS }) {
                for i in round.order(WAYS.len()) {
                    if cache == Cache::Cold {
                        for file in &files {
                            fadvise(file, 0, None, Advice::DontNeed)
                                .map_err(std::io::Error::from)?;
                        }
                    }
                    cx.progress.set_message(format!("{}: {name}", WAYS[i].name()));
                    let Sent { cpu, time } = sender.send_all(WAYS[i], &files, len)?;
                    sent[i].0.push(cpu.as_secs_f64() * 1e6 / megabytes);
                    sent[i].1.push(megabytes / time.as_secs_f64());
                }
            }
            let suffix = if cache == Cache::Cold { ", files not cached" } else { "" };
            for (way, (cpu, rate)) in WAYS.iter().zip(sent) {
                for (figure, unit, values) in
                    [("CPU time", "us per MB", cpu), ("Rate", "MB/s", rate)]
                {
                    if let Some(y) = spread(&values) {
                        let figure = format!("{figure} of one sender{suffix}");
                        outcome.point(&figure, unit, way.name(), X::Name(name.to_owned()), y);
                    }
                }
            }
        }
    }
    outcome.notes.push(format!(
        "One sender: one thread on core 0 sends the files of a length, 32 MiB or {MAX_FILES} files, one after the other on one \
         connection, 64 KiB at a time; a thread on core 1 receives. CPU time is that of the sender's process without the \
         receiver's. Nothing else happens meanwhile, so a wait for the disk costs no CPU time here."
    ));
    Ok(())
}
