//! The client of `floors` and other experiments: a minimal closed loop over several connections.
//!
//! Each iteration receives all replies that have arrived, then sends the next requests, so the
//! server finds several at once.

use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::{ClockId, clock_gettime};

use crate::cache;
use crate::command::{Client as Options, Workload};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, Window, pin};

/// Maximum time without a reply on any connection.
const REPLY_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Maximum duration of one batch of requests.
const MAX_DURATION: Duration = Duration::from_secs(120);

/// Reads numbers of requests from standard input, one per line, and makes them.
pub(crate) fn client(options: &Options) -> Result<(), Failure> {
    pin(&[CLIENT_CORE])?;
    let mut client = Client::connect(options)?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        let count = line?
            .trim()
            .parse()
            .map_err(|e| Failure::new("cannot parse the number of requests", e))?;
        let window = client.requests(count)?;
        let json = serde_json::to_string(&window)
            .map_err(|e| Failure::new("cannot serialize the result", e))?;
        println!("{json}");
        io::stdout().flush()?;
    }
    Ok(())
}

struct Client {
    queue: OwnedFd,
    to: SocketAddr,
    connections: Vec<Connection>,
    /// The batches of requests, which are sent in turn.
    batches: Vec<Batch>,
    next_batch: usize,
    /// Requests in a batch.
    batch_len: u64,
    /// Whether each batch has its own connection.
    close: bool,
    buffer: Vec<u8>,
}

/// Requests that are sent at once.
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    /// The length of the reply.
    pub(crate) reply_bytes: usize,
}

impl Batch {
    /// Returns the batches of a workload.
    fn all(options: &Options) -> Vec<Batch> {
        let Options { path, reply_bytes, .. } = options;
        let field = if options.close { "Connection: close\r\n" } else { "" };
        let same = |request: &[u8]| {
            vec![Batch { bytes: request.repeat(options.batch), reply_bytes: *reply_bytes }]
        };
        match options.work {
            Workload::Echo => same(&Workload::ECHO),
            Workload::File => {
                same(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{field}\r\n").as_bytes())
            }
            Workload::Kv => cache::mixed(),
            Workload::KvGets => cache::gets(options.batch),
            Workload::KvMultiget => cache::multigets(options.batch),
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// Bytes of the reply that have not arrived yet.
    remaining: usize,
}

impl Client {
    fn connect(options: &Options) -> Result<Self, Failure> {
        let queue = epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let mut connections = Vec::with_capacity(options.connections);
        for i in 0..options.connections {
            connections.push(connect(options.connect, &queue, i)?);
        }
        if matches!(options.work, Workload::Kv | Workload::KvGets | Workload::KvMultiget) {
            cache::fill(options.connect)?;
        }
        Ok(Client {
            queue,
            to: options.connect,
            connections,
            batches: Batch::all(options),
            next_batch: 0,
            batch_len: options.batch as u64,
            close: options.close,
            buffer: vec![0; 64 * 1024],
        })
    }

    /// Makes `count` requests in whole batches, spread over the connections, and waits for their
    /// replies.
    fn requests(&mut self, count: u64) -> Result<Window, Failure> {
        let (start, cpu) = (Instant::now(), cpu_ns());
        let mut events = Vec::with_capacity(self.connections.len());
        let mut idle: Vec<usize> = (0..self.connections.len()).rev().collect();
        let (mut sent, mut answered) = (0, 0);
        while answered < count {
            while sent < count
                && let Some(i) = idle.pop()
            {
                self.send_request(i)?;
                sent += self.batch_len;
            }
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.queue, room, Some(&REPLY_TIMEOUT)) {
                Ok(0) => return Err(Failure::Run("no reply from the server for 10 s".to_owned())),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            for event in &events {
                let i = { event.data }.u64() as usize;
                if self.receive(i)? {
                    answered += self.batch_len;
                    idle.push(i);
                }
            }
            if start.elapsed() > MAX_DURATION {
                return Err(Failure::Run(format!("{count} requests took more than 120 s")));
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Window { requests: answered, seconds, cpu_ns: cpu_ns() - cpu })
    }

    fn send_request(&mut self, i: usize) -> Result<(), Failure> {
        let connection = &mut self.connections[i];
        let batch = &self.batches[self.next_batch];
        self.next_batch = (self.next_batch + 1) % self.batches.len();
        connection.remaining = if self.close { usize::MAX } else { batch.reply_bytes };
        match send(&connection.stream, &batch.bytes, SendFlags::NOSIGNAL) {
            Ok(n) if n == batch.bytes.len() => Ok(()),
            Ok(_) => Err(Failure::Run("a request was sent only partly".to_owned())),
            Err(error) => Err(Failure::new("cannot send a request", error)),
        }
    }

    /// Receives available bytes. Returns whether the reply is complete.
    fn receive(&mut self, i: usize) -> Result<bool, Failure> {
        let connection = &mut self.connections[i];
        let n = match recv(&connection.stream, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) if self.close => {
                self.connections[i] = connect(self.to, &self.queue, i)?;
                return Ok(true);
            }
            Ok((0, _)) => return Err(Failure::Run("the server closed a connection".to_owned())),
            Ok((n, _)) => n,
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(Failure::new("cannot receive a reply", error)),
        };
        match connection.remaining.checked_sub(n) {
            Some(remaining) => connection.remaining = remaining,
            None => {
                return Err(Failure::Run("the server sent more bytes than one reply".to_owned()));
            }
        }
        Ok(connection.remaining == 0)
    }
}

/// Opens connection `i`.
fn connect(to: SocketAddr, queue: &OwnedFd, i: usize) -> Result<Connection, Failure> {
    let timeout = Duration::from_secs(REPLY_TIMEOUT.tv_sec as u64);
    let stream = TcpStream::connect_timeout(&to, timeout)
        .map_err(|e| Failure::new(format_args!("cannot connect to {to}"), e))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    // A reset leaves no TIME_WAIT, which would exhaust the ports.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))
        .and_then(|()| epoll::add(queue, &stream, EventData::new_u64(i as u64), EventFlags::IN))
        .map_err(io::Error::from)?;
    Ok(Connection { stream, remaining: 0 })
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
