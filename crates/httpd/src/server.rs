//! A site on a mechanism, in as many threads as wanted. Each thread has a mechanism of its own, and
//! shares nothing with the others but its handlers.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evring::{AnyMechanism, Config, KernelError, RemoteHandle, Root, StartError, Stats};
use tracing::info;

use crate::files::FileOptions;
use crate::handler::Handler;
use crate::log::{AccessLog, LogSender, LogWriter};
use crate::metrics::Metrics;
use crate::routes::Routes;
use crate::{Limits, Site};

/// What a server is made from; [`Server::builder`] begins one.
///
/// ```no_run
/// use evring_httpd::{Request, Server};
///
/// fn main() -> Result<(), evring_httpd::Error> {
///     Server::builder().route("/", |_: Request| "Hello, World!\n").run()
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Builder {
    listen: Vec<io::Result<Vec<SocketAddr>>>,
    backend: String,
    workers: u16,
    routes: Routes,
    limits: Limits,
    file_options: FileOptions,
    status: Option<bool>,
    log: Option<AccessLog>,
    config: Config,
}

impl Builder {
    /// Where to listen, such as `"localhost:8080"`; may be called again for
    /// another address. Port 0 takes any free one. Without a call it is `127.0.0.1:8080`.
    pub fn listen(mut self, at: impl ToSocketAddrs) -> Self {
        self.listen.push(at.to_socket_addrs().map(Iterator::collect));
        self
    }

    /// Which mechanism to run on, by its name; `auto`, the default, takes the fastest that can run
    /// here.
    pub fn backend(self, name: &str) -> Self {
        Builder { backend: name.to_owned(), ..self }
    }

    /// How many threads serve; 1 by default.
    pub fn workers(self, n: u16) -> Self {
        Builder { workers: n.max(1), ..self }
    }

    /// Serves the files below a directory, which must be there when the server starts. Where its
    /// links may lead is said by [`Config::symlinks`].
    pub fn files(mut self, root: impl Into<PathBuf>) -> Self {
        self.config.roots = vec![root.into()];
        self
    }

    /// Has a handler answer all requests for a path or, if it ends in a slash, for everything
    /// beneath: `/` takes all, also what would be a file. The longest path that fits counts. See
    /// [`Site::route`].
    pub fn route(mut self, path: &str, handler: impl Handler) -> Self {
        self.routes.add(path, Arc::new(handler));
        self
    }

    /// See [`Site::limits`].
    pub fn limits(self, limits: Limits) -> Self {
        Builder { limits, ..self }
    }

    /// See [`Site::precompressed`].
    pub fn precompressed(self, on: bool) -> Self {
        Builder { file_options: FileOptions { precompressed: on, ..self.file_options }, ..self }
    }

    /// See [`Site::listing`].
    pub fn listing(self, on: bool) -> Self {
        Builder { file_options: FileOptions { listing: on, ..self.file_options }, ..self }
    }

    /// See [`Site::max_age`].
    pub fn max_age(self, seconds: Option<u32>) -> Self {
        Builder { file_options: FileOptions { max_age: seconds, ..self.file_options }, ..self }
    }

    /// See [`Site::status`].
    pub fn status(self, on: bool) -> Self {
        Builder { status: Some(on), ..self }
    }

    /// Writes a line for each reply, in the combined format.
    pub fn access_log(self, to: AccessLog) -> Self {
        Builder { log: Some(to), ..self }
    }

    /// Sets up the mechanism otherwise than by default. Its addresses come before those of
    /// [`Builder::listen`]; its roots don't count, nor do its `stall` and `min_rate`, which are
    /// those of the limits.
    pub fn config(self, config: Config) -> Self {
        Builder { config: Config { roots: self.config.roots, ..config }, ..self }
    }

    /// The most memory, in bytes, that the server holds when all its bounds are reached at once; said at
    /// the start at `info`.
    ///
    /// Not counted are the program itself, the sockets' own buffers, which are the kernel's, what handlers
    /// hold and the bytes that they share in their replies, lists of directories, and what the allocator
    /// loses between its pieces.
    pub fn memory_at_full_load(&self) -> usize {
        let Builder { config, limits, .. } = self;
        let log = if self.log.is_some() { LogWriter::BUFFER_BYTES } else { 0 };
        let mechanism = config.memory_at_full_load::<Site>();
        let site = limits.memory(config.max_connections);
        mechanism.saturating_add(site).saturating_add(log).saturating_mul(self.workers.into())
    }

    /// Says how much memory the server may take, and for what.
    fn tell_memory(&self) {
        let Builder { config, limits, workers, .. } = self;
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        info!(
            "at full load this server holds at most {} MiB, beside the program itself: {workers} workers \
             with {} connections, {} MiB received or to be sent, {} MiB of bodies and {} MiB of files \
             each",
            mib(self.memory_at_full_load()),
            config.max_connections,
            mib(config.max_buffered_bytes),
            mib(limits.max_body_memory),
            mib(limits.cache_bytes),
        );
    }

    /// Starts the server. From then on connections are served.
    ///
    /// # Errors
    /// Says what is missing or in the way.
    pub fn start(mut self) -> Result<Server, Error> {
        if self.listen.is_empty() && self.config.listen.is_empty() {
            self = self.listen(SocketAddr::from(([127, 0, 0, 1], 8080)));
        }
        for addresses in std::mem::take(&mut self.listen) {
            self.config.listen.extend(addresses.map_err(Error::Address)?);
        }
        self.config.reuse_port = self.workers > 1;
        // One rule for replies, whether their connection goes on or not.
        self.config.progress_interval = self.limits.progress_interval;
        self.config.min_rate = self.limits.min_rate;
        if self.config.reuse_port {
            let is_free = |at| retry_while_in_use(|| is_free(at)).map_err(Error::Start);
            self.config.listen.iter().try_for_each(is_free)?;
        }
        self.tell_memory();
        let stop = Handle::default();
        let metrics = Metrics::new(self.workers.into());
        metrics.begin(Instant::now());
        let (writer, lines) = match self.log.take() {
            None => (None, Vec::new()),
            Some(to) => {
                let path = to.path.clone().unwrap_or_default();
                let (writer, lines) =
                    LogWriter::start(to, self.workers.into(), metrics.of_writer())
                        .map_err(|error| Error::Log(path, error))?;
                (Some(writer), lines)
            }
        };
        let mut lines = lines.into_iter();
        let mut workers: Vec<Worker> = Vec::new();
        for n in 0..self.workers.into() {
            let worker = self.start_worker(stop.clone(), metrics.of(n), lines.next())?;
            // With port 0, the first found a port for all.
            self.config.listen.clone_from(&worker.addresses);
            workers.push(worker);
        }
        let remotes = workers.iter().map(|worker| worker.remote.clone()).collect();
        let _ = stop.0.set(remotes);
        for worker in &workers {
            // A worker that has failed meanwhile says so at the end.
            let _ = worker.go.send(());
        }
        Ok(Server { workers, stop, writer })
    }

    /// Starts the server and waits until it ends. Signals are left to the program: one that wants to
    /// end in order on SIGTERM calls [`Handle::stop`] then.
    ///
    /// # Errors
    /// Those of [`Builder::start`] and [`Server::wait`].
    pub fn run(self) -> Result<(), Error> {
        self.start()?.wait().map(drop)
    }

    /// Starts a worker and returns when it listens. Mechanisms don't move between threads, so it
    /// is made in its own.
    fn start_worker(
        &self,
        stop: Handle,
        metrics: Metrics,
        log: Option<LogSender>,
    ) -> Result<Worker, Error> {
        let (backend, config, routes) =
            (self.backend.clone(), self.config.clone(), self.routes.clone());
        let (limits, file_options) = (self.limits.clone(), self.file_options);
        let status = self.status;
        let (go, may_go) = channel();
        let (tell, told) = channel();
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(move || {
            let mechanism = retry_while_in_use(|| AnyMechanism::new(&backend, &config))
                .map_err(Error::Start)?;
            let addresses = mechanism.addresses().to_vec();
            let _ = tell.send((addresses, mechanism.name(), mechanism.remote()));
            let _bell = StopOnDrop(stop);
            let root = (!config.roots.is_empty()).then_some(Root(0));
            let mut site = Site::new(root).backend(mechanism.name()).limits(limits);
            (site.routes, site.metrics, site.log) = (routes, metrics, log);
            site.file_options = file_options;
            site.status = status;
            serve(mechanism, site, &may_go)
        });
        let thread = thread.map_err(Error::Thread)?;
        match told.recv() {
            Ok((addresses, backend, remote)) => {
                Ok(Worker { addresses, backend, remote, go, thread })
            }
            Err(_) => {
                Err(thread.join().map_or(Error::Panic, |end| end.err().unwrap_or(Error::Panic)))
            }
        }
    }
}

/// Serves once it may; without leave, as another worker could not start, it ends.
fn serve(mechanism: AnyMechanism, site: Site, may_go: &Receiver<()>) -> Result<Stats, Error> {
    match may_go.recv() {
        Ok(()) => mechanism.run(site).map_err(Error::Kernel),
        Err(_) => Ok(Stats::default()),
    }
}

/// Whether nobody else listens at an address: workers share theirs, and would share it with
/// strangers too.
fn is_free(at: &SocketAddr) -> Result<(), StartError> {
    TcpListener::bind(at).map(drop).map_err(|error| StartError::Listen(*at, error))
}

/// Tries for a while, as a server that was killed leaves its address only when the kernel has taken
/// its ring apart.
fn retry_while_in_use<T>(start: impl Fn() -> Result<T, StartError>) -> Result<T, StartError> {
    const TRIES: u32 = 40;
    for _ in 1..TRIES {
        match start() {
            Err(StartError::Listen(_, error)) if error.kind() == io::ErrorKind::AddrInUse => {
                thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
    start()
}

/// A running server. Dropping it stops it and waits for its end.
#[derive(Debug)]
pub struct Server {
    workers: Vec<Worker>,
    stop: Handle,
    /// Ends after the workers.
    writer: Option<LogWriter>,
}

/// A thread that serves.
#[derive(Debug)]
struct Worker {
    addresses: Vec<SocketAddr>,
    backend: &'static str,
    remote: RemoteHandle,
    /// Has it serve; dropped unsent, it ends.
    go: Sender<()>,
    thread: JoinHandle<Result<Stats, Error>>,
}

/// Stops a server from anywhere.
///
/// ```no_run
/// use evring_httpd::Server;
///
/// fn main() -> Result<(), evring_httpd::Error> {
///     let server = Server::builder().files("public").start()?;
///     let handle = server.handle();
///     std::thread::spawn(move || {
///         // When it is time:
///         handle.stop();
///     });
///     server.wait()?; // returns when all connections have ended
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Handle(Arc<OnceLock<Vec<RemoteHandle>>>);

impl Handle {
    /// Stops the server: listeners close, idle connections close, the others may go on for
    /// [`Config::drain_timeout`]. May be called again.
    pub fn stop(&self) {
        self.0.get().into_iter().flatten().for_each(RemoteHandle::stop);
    }
}

/// Has the other workers end when one ends, even by a panic.
struct StopOnDrop(Handle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Server {
    /// Begins a server.
    pub fn builder() -> Builder {
        Builder {
            listen: Vec::new(),
            backend: "auto".to_owned(),
            workers: 1,
            routes: Routes::default(),
            limits: Limits::default(),
            file_options: FileOptions::default(),
            status: None,
            log: None,
            config: Config::default(),
        }
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.workers.first().map_or(&[], |worker| &worker.addresses)
    }

    /// The mechanism it runs on.
    pub fn backend(&self) -> &'static str {
        self.workers.first().map_or("", |worker| worker.backend)
    }

    /// What stops it.
    pub fn handle(&self) -> Handle {
        self.stop.clone()
    }

    /// Waits until it was stopped and all its connections have ended; returns what each worker did.
    ///
    /// # Errors
    /// When a worker failed; the others are stopped then.
    pub fn wait(mut self) -> Result<Vec<Stats>, Error> {
        self.join()
    }

    fn join(&mut self) -> Result<Vec<Stats>, Error> {
        let ends: Vec<_> = self.workers.drain(..).map(|worker| worker.thread.join()).collect();
        drop(self.writer.take());
        ends.into_iter().map(|end| end.unwrap_or(Err(Error::Panic))).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stop();
        let _ = self.join();
    }
}

/// Why a server did not start, or ended otherwise than it was told to.
pub enum Error {
    /// An address is none, or its name is not known.
    Address(io::Error),
    /// The access log can't be opened.
    Log(PathBuf, io::Error),
    /// A worker did not start.
    Start(StartError),
    /// A worker's kernel can't be used any more.
    Kernel(KernelError),
    /// A worker panicked.
    Panic,
    /// The system refused a thread.
    Thread(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Address(error) => write!(f, "can't tell where to listen: {error}"),
            Error::Log(path, error) => {
                write!(f, "can't open the access log {}: {error}", path.display())
            }
            Error::Start(error) => error.fmt(f),
            Error::Kernel(fault) => fault.fmt(f),
            Error::Panic => f.write_str("a worker panicked"),
            Error::Thread(error) => write!(f, "the system refused a thread: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// The sentence, so that a `main` which returns the error shows it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
