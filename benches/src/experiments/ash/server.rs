//! A server of remote increments, and its client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{self, Handler, Rejection, Sandboxer};
use ash_sandbox::upcall::{self, Channel, Peer, Upcall};
use evring::hooks::{Hooked, Landing, ReceiveHook, Upcalls};
use evring::mailbox::Mailbox;
use evring::{
    AnyMechanism, Application, Chunk, Commands, Config, ConnId, Cx, Listener, Others, RemoteHandle,
    Rx,
};

use super::super::DEFAULT;
use super::client::{self, BYTES, TIMEOUT};
use super::page::{self, is_request};
use super::request::{Request, Returning, Stamps, Times};
use super::scheduling::Policy;
use super::{INCREMENT, computing_handler, handler, policy, text_of};
use crate::command;
use crate::failure::Failure;
use crate::measure::{SERVER_CORE, pin, program};

/// Number and size of the receive buffers in the memory of the handler.
const BUFFERS: (u16, u32) = (64, 2048);

/// The message for the endless handler, of one byte.
const RUNAWAY: [u8; 1] = [b'!'];

/// The place where the server increments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// An unsafe handler: native code in the place of one in the sandbox.
    Unsafe,
    /// A handler in the sandbox, where the message arrives.
    Ash,
    /// An upcall in process: native code, where the message arrives.
    Upcall,
    /// An upcall across a protection boundary: another process.
    UpcallProcess,
    /// The application: another thread, which sleeps until the server wakes it.
    User,
}

/// How a server increments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) placement: Placement,
    /// The policy of the server's thread, and of the process for upcalls.
    pub(super) server: Policy,
    /// The policy of the application's thread.
    pub(super) application: Policy,
    /// The application looks for messages all the time, instead of sleeping.
    pub(super) polls: bool,
    /// The handler computes, as its messages say.
    pub(super) computes: bool,
    /// The time for which the server looks for more messages after one that the handler has handled.
    pub(super) busy_poll: Duration,
}

impl Setup {
    /// A server with this policy, before an application that is normal.
    pub(super) fn new(placement: Placement, server: Policy, polls: bool) -> Self {
        let (application, busy_poll) = (Policy::Normal, Duration::ZERO);
        Setup { placement, server, application, polls, computes: false, busy_poll }
    }
}

/// A server on the server core, with one client.
pub(super) struct Server {
    remote: RemoteHandle,
    address: SocketAddr,
    stream: TcpStream,
    /// To the server: endless handlers of another tenant.
    endless: mpsc::Sender<Handler>,
    /// The longest time in which an endless handler was stopped since it was read, in ns.
    stopped_ns: Arc<AtomicU64>,
    stamps: Arc<Stamps>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Server {
    /// Starts a server whose threads have this policy.
    pub(super) fn start(placement: Placement, policy: Policy) -> Result<Self, Failure> {
        Server::with(Setup { application: policy, ..Setup::new(placement, policy, false) })
    }

    /// Starts a server.
    pub(super) fn with(setup: Setup) -> Result<Self, Failure> {
        let (started, address) = mpsc::channel();
        let (endless, fresh) = mpsc::channel();
        let stopped_ns = Arc::new(AtomicU64::new(0));
        let stamps = Arc::new(Stamps::default());
        let shared = (fresh, Arc::clone(&stopped_ns), Arc::clone(&stamps));
        let thread = thread::spawn(move || serve(setup, &started, shared));
        let Ok((address, remote)) = address.recv() else {
            let result = thread.join();
            let panicked = || Err(Failure::Run("the server panicked".to_owned()));
            result.unwrap_or_else(|_| panicked())?;
            return Err(Failure::Run("the server ended before it listened".to_owned()));
        };
        let stream = connect(address)?;
        Ok(Server { remote, address, stream, endless, stopped_ns, stamps, thread: Some(thread) })
    }

    /// Returns the time of a round trip in us.
    pub(super) fn round_trip(&mut self) -> Result<f64, Failure> {
        let (time, _) = client::exchange(&self.stream, Request::default())?;
        Ok(time.as_nanos() as f64 / 1e3)
    }

    /// Returns the times of a number of round trips in us, sorted, with gaps between them.
    pub(super) fn round_trips(&mut self, count: usize, gap: Duration) -> Result<Vec<f64>, Failure> {
        self.computations(0, count, gap)
    }

    /// The same, with a computation before the increment.
    pub(super) fn computations(
        &mut self,
        steps: u32,
        count: usize,
        gap: Duration,
    ) -> Result<Vec<f64>, Failure> {
        let request = Request { steps, ..Request::default() };
        client::round_trips(&self.stream, request, count, gap)
    }

    /// Returns the times of a message in a server whose process for upcalls or application increments.
    pub(super) fn times(&mut self) -> Result<Times, Failure> {
        self.stamps.clear();
        let request = Request { is_timed: true, ..Request::default() };
        let (_, started) = client::exchange(&self.stream, request)?;
        let start = Instant::now();
        let (arrived, returned) = loop {
            match self.stamps.get() {
                Some(times) => break times,
                None if start.elapsed() < TIMEOUT => std::hint::spin_loop(),
                None => return Err(Failure::Run("the server has noted no times".to_owned())),
            }
        };
        let us = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
        Ok(Times { in_us: us(arrived, started), out_us: us(started, returned) })
    }

    /// Opens a connection of another tenant, whose handlers never end.
    pub(super) fn runaway(&self) -> Result<Runaway, Failure> {
        Ok(Runaway { stream: connect(self.address)?, handlers: self.endless.clone() })
    }

    /// Returns the longest time in which an endless handler was stopped since the last call.
    pub(super) fn stopped(&self) -> Duration {
        Duration::from_nanos(self.stopped_ns.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remote.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A tenant whose handlers never end, and its client.
pub(super) struct Runaway {
    stream: TcpStream,
    handlers: mpsc::Sender<Handler>,
}

impl Runaway {
    /// Hands a handler over to the server, and sends it a message.
    pub(super) fn start(&mut self, handler: Handler) -> Result<(), Failure> {
        let ended = |_| Failure::Run("the server has ended".to_owned());
        self.handlers.send(handler).map_err(ended)?;
        Ok(self.stream.write_all(&RUNAWAY)?)
    }

    /// Waits until the server has stopped the handler.
    pub(super) fn wait(&mut self) -> Result<(), Failure> {
        Ok(self.stream.read_exact(&mut [0; RUNAWAY.len()])?)
    }
}

/// Loads handlers that never end.
pub(super) struct Endless {
    /// As long as it lives, the server's thread does not free a handler when it drops it.
    sandboxer: Sandboxer,
    wasm: Vec<u8>,
}

impl Endless {
    pub(super) fn new() -> Result<Self, Failure> {
        let wasm = wat::parse_str(text_of("(loop $again (br $again))"));
        let wasm = wasm.map_err(|e| Failure::new("the module of a handler", e))?;
        let sandboxer = Sandboxer::new(policy()).map_err(Self::failed)?;
        Ok(Endless { sandboxer, wasm })
    }

    fn failed(error: Rejection) -> Failure {
        Failure::new("cannot load an endless handler", error)
    }

    /// Returns handlers, each of a module of its own.
    pub(super) fn load(&self, count: usize) -> Result<Vec<Handler>, Failure> {
        let fresh = || self.sandboxer.load(&self.wasm).and_then(|ash| ash.instantiate(1));
        (0..count).map(|_| fresh().map_err(Self::failed)).collect()
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

type Started = mpsc::Sender<(SocketAddr, RemoteHandle)>;

fn serve(
    setup: Setup,
    started: &Started,
    (endless, stopped_ns, stamps): (mpsc::Receiver<Handler>, Arc<AtomicU64>, Arc<Stamps>),
) -> Result<(), Failure> {
    let Setup { placement, server: policy, application, polls, computes, busy_poll } = setup;
    pin(&[SERVER_CORE])?;
    policy.apply()?;
    let config = Config::default().with(|c| {
        c.listen = vec![([127, 0, 0, 1], 0).into()];
        // Under overload, handlers would be off.
        c.admission = None;
    });
    let mut server = AnyMechanism::new(DEFAULT, &config).map_err(|e| Failure::new(DEFAULT, e))?;
    let (mailbox, replies) = Mailbox::new(&server.remote(), 1, 16);
    let (messages, waiting) = mpsc::sync_channel::<(ConnId, Request)>(16);
    let application = (placement == Placement::User || polls).then(|| {
        thread::spawn(move || {
            // It inherits the core. Without the policy, only its own figures are worse.
            let _ = application.apply();
            let mut count = 0u64;
            while let Some((id, request)) = next(&waiting, polls) {
                if replies.send((id, request.answer(&mut count))).is_err() {
                    return;
                }
            }
        })
    });
    let mut landing = Landing::new().busy_polling(busy_poll);
    let landed = match placement {
        Placement::Unsafe => Some(unsafe_increment()?),
        Placement::Ash if computes => Some(computing_handler()?),
        Placement::Ash => Some(handler(INCREMENT)?),
        Placement::Upcall | Placement::UpcallProcess | Placement::User => None,
    };
    if let Some(handler) = landed {
        let (count, size) = BUFFERS;
        let tenant = landing.bind(handler, count, size, |buffers| server.add_buffers(buffers));
        let tenant = tenant.map_err(|e| Failure::new("cannot bind a handler", e))?;
        let group = server.set_listener_group(Listener(0), tenant.group());
        group.map_err(|e| Failure::new("cannot bind a handler", e))?;
    }
    let process = (placement == Placement::UpcallProcess)
        .then(|| UpcallProcess::start(&server.remote(), policy, None));
    let (mut process, upcalls) = process.transpose()?.unzip();
    let native = (placement == Placement::Upcall).then_some(0);
    let returned = Arc::clone(&stamps);
    let upcalls = Returning(upcalls, move || returned.note_return());
    let hook = Hook { native, endless, stopped_ns, stamps: Arc::clone(&stamps) };
    let _ = started.send((server.addresses()[0], server.remote()));
    let increment = Increment { messages, mailbox, stamps };
    let result = server.run(Hooked::new(increment, (hook, (landing, upcalls))));
    if let Some(application) = application {
        let _ = application.join();
    }
    drop(process.take());
    result.map(drop).map_err(|e| Failure::new(DEFAULT, e))
}

/// Returns the next message of the application, which sleeps or polls until there is one.
fn next(waiting: &mpsc::Receiver<(ConnId, Request)>, polls: bool) -> Option<(ConnId, Request)> {
    if !polls {
        return waiting.recv().ok();
    }
    loop {
        match waiting.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

/// The process for upcalls: this program, as another process with the core and the policy of the server.
pub(super) struct UpcallProcess(Child);

impl UpcallProcess {
    /// Starts the process with the core of this thread and a policy, to count messages or to answer with a page.
    pub(super) fn start(
        remote: &RemoteHandle,
        policy: Policy,
        page_bytes: Option<usize>,
    ) -> Result<(Self, Upcalls), Failure> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(program()?);
        command.arg("upcalls").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        // A new process of a real-time thread is normal.
        if policy == Policy::RealTime {
            command.arg("--real-time");
        }
        if let Some(bytes) = page_bytes {
            command.arg("--page-bytes").arg(bytes.to_string());
        }
        let process = UpcallProcess(command.spawn()?);
        // There is no application that would get messages that are late.
        let policy = upcall::Policy::default().with(|p| p.timeout = TIMEOUT);
        let channel = Channel::new(ours, policy).map_err(|e| Failure::new("upcalls", e))?;
        let (upcalls, _) = Upcalls::new(channel, remote, 2, 0)?;
        Ok((process, upcalls))
    }
}

impl Drop for UpcallProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers the upcalls of a server until it ends.
pub(crate) fn answer_upcalls(options: &command::Upcalls) -> Result<(), Failure> {
    let failed = |e| Failure::new("upcalls", e);
    if options.real_time {
        Policy::RealTime.apply()?;
    }
    let peer = Peer::from_stdin().map_err(failed)?;
    if let Some(bytes) = options.page_bytes {
        let reply = page::reply(bytes);
        let page =
            |call: &mut Upcall<'_>| i32::from(is_request(call.message()) && call.send(&reply));
        return peer.serve(page).map_err(failed);
    }
    let mut count = 0u64;
    let increment = |call: &mut Upcall<'_>| {
        let reply = Request::of(call.message()).answer(&mut count);
        i32::from(call.send(&reply.to_le_bytes()))
    };
    peer.serve(increment).map_err(failed)
}

/// Returns an unsafe handler that does what [`INCREMENT`] does.
fn unsafe_increment() -> Result<Handler, Failure> {
    const COUNT: usize = 64;
    let sandboxer = Sandboxer::new(sandbox::Policy::default());
    let handler = sandboxer.and_then(|sandboxer| {
        sandboxer.trust(1, 2 << 16, |calls| {
            let (_, memory) = calls.memory();
            let mut count = [0; BYTES];
            count.copy_from_slice(&memory[COUNT..COUNT + BYTES]);
            let count = u64::from_le_bytes(count).wrapping_add(1);
            memory[COUNT..COUNT + BYTES].copy_from_slice(&count.to_le_bytes());
            i32::from(calls.send(COUNT as u32, BYTES as u32) == 0)
        })
    });
    handler.map_err(|e| Failure::new("cannot create an unsafe handler", e))
}

/// Native code, and the endless handlers of another tenant.
struct Hook {
    /// The count of the upcall in process.
    native: Option<u64>,
    endless: mpsc::Receiver<Handler>,
    stopped_ns: Arc<AtomicU64>,
    stamps: Arc<Stamps>,
}

impl ReceiveHook for Hook {
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        if rx.bytes() == RUNAWAY {
            if let Ok(mut endless) = self.endless.try_recv() {
                let start = Instant::now();
                endless.handle_copy(rx.bytes(), 0, start);
                self.stopped_ns.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
            rx.consume(RUNAWAY.len());
            io.send(id, Chunk::Static(&RUNAWAY));
            return;
        }
        let request = Request::of(rx.bytes());
        if request.is_timed {
            self.stamps.arrive();
        }
        if let Some(count) = self.native.as_mut().filter(|_| rx.bytes().len() >= BYTES) {
            io.send(id, Chunk::Copy(&request.answer(count).to_le_bytes()));
            rx.consume(BYTES);
        }
    }
}

/// Passes messages to the application's thread, and sends its replies.
struct Increment {
    messages: mpsc::SyncSender<(ConnId, Request)>,
    mailbox: Mailbox<(ConnId, u64)>,
    stamps: Arc<Stamps>,
}

impl Application for Increment {
    type State = ();
    const MAX_UNCONSUMED: usize = BYTES;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes().len() >= BYTES {
            let request = Request::of(rx.bytes());
            rx.consume(BYTES);
            // A client has one message in flight.
            let _ = self.messages.try_send((x.id, request));
        }
        if rx.eof() {
            x.io.close(x.id, evring::Close::Flush);
        }
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, ()>, _: u64) {
        for (id, count) in self.mailbox.drain() {
            io.send(id, Chunk::Copy(&count.to_le_bytes()));
            self.stamps.note_return();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_increments_and_an_endless_handler_is_stopped() {
        let every = [
            Placement::Unsafe,
            Placement::Ash,
            Placement::Upcall,
            Placement::UpcallProcess,
            Placement::User,
        ];
        for (placement, polls) in every.map(|placement| (placement, placement == Placement::User)) {
            let setup = Setup { computes: true, ..Setup::new(placement, Policy::Normal, polls) };
            let mut server = Server::with(setup).unwrap();
            for count in 1..=3u64 {
                let request = Request { steps: 10, ..Request::default() };
                server.stream.write_all(&request.bytes()).unwrap();
                let mut reply = [0; BYTES];
                server.stream.read_exact(&mut reply).unwrap();
                assert_eq!(u64::from_le_bytes(reply), count, "{placement:?}");
            }
            let mut runaway = server.runaway().unwrap();
            for handler in Endless::new().unwrap().load(5).unwrap() {
                runaway.start(handler).unwrap();
                assert!(server.round_trip().unwrap() > 0.0);
                runaway.wait().unwrap();
            }
            assert!(server.stopped() > Duration::ZERO);
            assert_eq!(server.round_trips(3, Duration::ZERO).unwrap().len(), 3);
        }
    }

    #[test]
    fn times_of_a_message_fit_into_its_round_trip() {
        for (placement, polls) in
            [(Placement::UpcallProcess, false), (Placement::User, false), (Placement::User, true)]
        {
            let mut server = Server::with(Setup::new(placement, Policy::Normal, polls)).unwrap();
            let start = Instant::now();
            let times: Vec<_> = (0..3).map(|_| server.times().unwrap()).collect();
            let all_us = start.elapsed().as_nanos() as f64 / 1e3;
            assert!(times.iter().all(|times| times.in_us > 0.0 && times.out_us > 0.0), "{times:?}");
            let sum: f64 = times.iter().map(|times| times.in_us + times.out_us).sum();
            assert!(sum < all_us, "{times:?} in {all_us} us");
        }
    }
}
