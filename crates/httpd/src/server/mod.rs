//! Running a site with any number of worker threads. Each worker has its own mechanism; workers
//! share only handlers and metrics.

pub(crate) mod addresses;
pub(crate) mod error;
mod generation;
mod lab;
#[cfg(feature = "sandbox")]
mod modules;
#[cfg(feature = "metrics")]
mod monitor;
pub(crate) mod options;
pub(crate) mod running;
#[cfg(feature = "signals")]
mod signals;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "user")]
pub(crate) mod user;

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use evring::{
    AnyMechanism, Config, KernelError, ListenOptions, ListeningSocket, Root, StartError, Stats,
};
use tracing::info;

#[cfg(feature = "basic-auth")]
use crate::basic_auth::BasicAuth;
#[cfg(feature = "compression")]
use crate::compression::Compression;
use crate::decision::options::HostIndex;
use crate::error_page::{ErrorPage, LoadedPage};
use crate::file_options::FileOptions;
use crate::host_options::HostOptions;
use crate::limits::Limits;
use crate::server::error::Error;
use crate::server::generation::{Generation, Worker};
#[cfg(feature = "sandbox")]
use crate::server::options::HandlerModule;
use crate::server::options::Options;
#[cfg(feature = "metrics")]
use crate::server::running::Monitor;
use crate::server::running::{Handle, Server};
#[cfg(feature = "tls")]
use crate::server::tls::{LoadedTls, TlsOptions};
#[cfg(feature = "user")]
use crate::server::user::User;
use crate::site::Site;
#[cfg(feature = "compression")]
use crate::site::compressor::{Compressor, CompressorThreads};
use crate::site::handler::Request;
use crate::site::hosts::FileHost;
#[cfg(feature = "tls")]
use crate::site::https_redirect::HttpsRedirect;
use crate::site::into_handler::IntoHandler;
use crate::site::into_response::IntoResponse;
use crate::site::log::{self, AccessLog, LogSender, LogWriter};
#[cfg(feature = "basic-auth")]
use crate::site::login::{LoginThreads, Logins, Realms};
use crate::site::metrics::Metrics;
use crate::site::middleware::{Around, Next};
use crate::site::request_body::RequestBody;
use crate::site::routes::Routes;
#[cfg(feature = "sandbox")]
use crate::site::sandbox::{Sandbox, SandboxedHandler};

/// Configures a server; created by [`Server::builder`].
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
    #[cfg(feature = "basic-auth")]
    basic_auth: Vec<BasicAuth>,
    /// What verifies passwords, once the server starts.
    #[cfg(feature = "basic-auth")]
    login_threads: Option<LoginThreads>,
    #[cfg(feature = "user")]
    user: Option<User>,
    routes: Routes,
    limits: Limits,
    file_options: FileOptions,
    /// The virtual hosts other than the first.
    hosts: Vec<HostOptions>,
    /// The pages of errors by host, once the server starts.
    loaded_error_pages: Vec<(HostIndex, LoadedPage)>,
    status: Option<bool>,
    log: Option<AccessLog>,
    #[cfg(feature = "metrics")]
    metrics_listen: Option<Vec<SocketAddr>>,
    config: Config,
    #[cfg(feature = "tls")]
    tls: TlsOptions,
    /// What TLS needs, once the server starts.
    #[cfg(feature = "tls")]
    loaded_tls: Option<LoadedTls>,
    /// Functions around all handlers, innermost first.
    around: Vec<Around>,
    /// The first setting that contradicts another one.
    conflict: Option<&'static str>,
    /// What compresses files, once the server starts.
    #[cfg(feature = "compression")]
    compressor_threads: Option<CompressorThreads>,
    #[cfg(feature = "sandbox")]
    sandbox: Vec<SandboxedHandler>,
    #[cfg(feature = "sandbox")]
    modules: Vec<HandlerModule>,
    #[cfg(feature = "sandbox")]
    handler_cache: Option<PathBuf>,
}

impl From<Options> for Builder {
    fn from(options: Options) -> Self {
        let config = Config::from(&options);
        let Options { listen, backend, workers, files, limits, .. } = options;
        let builder = Builder {
            listen: listen.iter().map(|addresses| Ok(addresses.as_slice().to_vec())).collect(),
            backend,
            workers: workers.max(1),
            #[cfg(feature = "basic-auth")]
            basic_auth: options.basic_auth,
            #[cfg(feature = "basic-auth")]
            login_threads: None,
            #[cfg(feature = "user")]
            user: options.user,
            routes: Routes::default(),
            limits,
            file_options: files,
            hosts: options.hosts,
            loaded_error_pages: Vec::new(),
            status: options.status.then_some(true),
            log: options.access_log.map(|to| AccessLog { format: options.log_format, ..to.into() }),
            #[cfg(feature = "metrics")]
            metrics_listen: options.metrics_listen.map(|at| at.as_slice().to_vec()),
            config,
            #[cfg(feature = "tls")]
            tls: options.tls,
            #[cfg(feature = "tls")]
            loaded_tls: None,
            around: Vec::new(),
            conflict: None,
            #[cfg(feature = "compression")]
            compressor_threads: None,
            #[cfg(feature = "sandbox")]
            sandbox: Vec::new(),
            #[cfg(feature = "sandbox")]
            modules: options.handlers,
            #[cfg(feature = "sandbox")]
            handler_cache: options.handler_cache,
        };
        if options.lab_routes { builder.lab_routes() } else { builder }
    }
}

impl Builder {
    /// Adds an address to listen on, such as `"localhost:8080"`; can be called repeatedly. Port 0
    /// selects a free port. The default is `127.0.0.1:8080`.
    pub fn listen(mut self, at: impl ToSocketAddrs) -> Self {
        self.listen.push(at.to_socket_addrs().map(Iterator::collect));
        self
    }

    /// Selects the mechanism by name. The default, `auto`, selects the fastest available one.
    pub fn backend(self, name: &str) -> Self {
        Builder { backend: name.to_owned(), ..self }
    }

    /// Sets the number of worker threads; the default is 1.
    pub fn workers(self, n: u16) -> Self {
        Builder { workers: n.max(1), ..self }
    }

    /// Asks clients for a name and a password, see [`BasicAuth`]; can be called repeatedly. This is also for virtual
    /// hosts that have no setting of their own.
    ///
    /// ```no_run
    /// use evring_httpd::Server;
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let auth = "/etc/httpd.users,path=/private".parse()?;
    ///     Ok(Server::builder().files("public").basic_auth(auth).run()?)
    /// }
    /// ```
    #[cfg(feature = "basic-auth")]
    pub fn basic_auth(mut self, auth: BasicAuth) -> Self {
        self.basic_auth.push(auth);
        self
    }

    /// Returns the settings of basic authentication of each host.
    #[cfg(feature = "basic-auth")]
    fn basic_auths(&self) -> impl Iterator<Item = &[BasicAuth]> {
        let others = self.hosts.iter().map(|host| host.basic_auth.as_ref());
        let all = [None].into_iter().chain(others);
        all.map(move |of_host| of_host.unwrap_or(&self.basic_auth).as_slice())
    }

    /// Reads the files of users.
    #[cfg(feature = "basic-auth")]
    fn load_realms(&self) -> Result<Realms, Error> {
        Realms::load(self.basic_auths()).map_err(|(file, error)| Error::Users(file, error))
    }

    /// Sets the user that the process runs as once the server listens, has read the certificates and opened the
    /// access log. Also other threads of the process become this user's.
    #[cfg(feature = "user")]
    pub fn user(self, user: User) -> Self {
        Builder { user: Some(user), ..self }
    }

    /// Serves the files below a directory, which must exist when the server starts.
    /// [`Config::symlinks`] determines which symbolic links are followed.
    pub fn files(mut self, root: impl Into<PathBuf>) -> Self {
        self.add_roots(vec![root.into()]);
        self
    }

    /// Adds a virtual host, for requests that name it. Other requests get the files of [`Builder::files`]. Handlers
    /// are the same for all hosts.
    ///
    /// ```no_run
    /// use evring_httpd::{HostOptions, Server};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let docs = HostOptions::new("docs.example.org".parse()?, "docs");
    ///     Ok(Server::builder().files("public").host(docs).run()?)
    /// }
    /// ```
    pub fn host(mut self, host: HostOptions) -> Self {
        self.hosts.push(host);
        self
    }

    /// Adds roots. The site serves one.
    fn add_roots(&mut self, roots: Vec<PathBuf>) {
        for root in roots {
            if !self.config.roots.contains(&root) {
                self.config.roots.push(root);
            }
        }
        if self.config.roots.len() > 1 {
            self.conflict = Some(
                "a server has one root: call `Builder::files` once, or set `Config::roots` to it",
            );
        }
    }

    /// Routes all requests for a path to a handler. A path that ends in a slash also matches everything
    /// below; `/` matches every request, including those for files. The longest match wins. See
    /// [`Site::route`].
    pub fn route<K>(mut self, path: &str, handler: impl IntoHandler<K>) -> Self {
        self.routes.add(path, Arc::new(handler.into_handler()));
        self
    }

    /// Puts a function around all handlers, also those that are added later; see [`wrap`](crate::wrap).
    /// Files have no handlers. Of several functions, the last one is outermost.
    ///
    /// ```
    /// use evring_httpd::{Next, Request, RequestBody, Server};
    ///
    /// let server = Server::builder().wrap(async |request: Request<RequestBody>, next: Next| {
    ///     let line = format!("{} {}", request.method(), request.uri());
    ///     let response = next.run(request).await;
    ///     println!("{line} {}", response.status());
    ///     response
    /// });
    /// ```
    pub fn wrap<R: IntoResponse, T: Future<Output = R> + 'static>(
        mut self,
        function: impl Fn(Request<RequestBody>, Next) -> T + Send + Sync + 'static,
    ) -> Self {
        self.around.push(Around::new(function));
        self
    }

    /// Adds a handler in a sandbox, which sees requests before the site and may answer them: an
    /// application-specific safe handler. Of several handlers, the first that answers does. Each worker
    /// has an instance with a memory of its own. Events that handlers post are dropped.
    #[cfg(feature = "sandbox")]
    pub fn sandbox(mut self, handler: SandboxedHandler) -> Self {
        self.sandbox.push(handler);
        self
    }

    /// See [`Site::limits`].
    pub fn limits(self, limits: Limits) -> Self {
        Builder { limits, ..self }
    }

    /// See [`Site::precompressed`].
    pub fn precompressed(self, on: bool) -> Self {
        Builder { file_options: FileOptions { no_precompressed: !on, ..self.file_options }, ..self }
    }

    /// See [`Site::listing`].
    pub fn listing(self, on: bool) -> Self {
        Builder { file_options: FileOptions { listing: on, ..self.file_options }, ..self }
    }

    /// See [`Site::max_age`].
    pub fn max_age(self, seconds: Option<u32>) -> Self {
        Builder { file_options: FileOptions { max_age: seconds, ..self.file_options }, ..self }
    }

    /// Sets all settings of files.
    ///
    /// ```no_run
    /// use evring_httpd::{FileOptions, Server};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut options = FileOptions::default();
    ///     options.fallback = Some("index.html".parse()?);
    ///     options.mime_types.push("gltf=model/gltf+json".parse()?);
    ///     Ok(Server::builder().files("public").file_options(options).run()?)
    /// }
    /// ```
    pub fn file_options(self, file_options: FileOptions) -> Self {
        Builder { file_options, ..self }
    }

    /// Compresses files on the fly, see [`Compression`]. The default is not to. A virtual host has settings of its own.
    #[cfg(feature = "compression")]
    pub fn compression(self, compression: Compression) -> Self {
        Builder { file_options: FileOptions { compression, ..self.file_options }, ..self }
    }

    /// Enables TLS.
    ///
    /// ```no_run
    /// use evring_httpd::{Server, TlsOptions};
    ///
    /// fn main() -> Result<(), evring_httpd::Error> {
    ///     Server::builder().files("public").tls(TlsOptions::files("cert.pem", "key.pem")).run()
    /// }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: TlsOptions) -> Self {
        Builder { tls, ..self }
    }

    /// See [`Site::status`].
    pub fn status(self, on: bool) -> Self {
        Builder { status: Some(on), ..self }
    }

    /// Enables the access log in the combined format, one line per response.
    pub fn access_log(self, to: AccessLog) -> Self {
        Builder { log: Some(to), ..self }
    }

    /// Serves `/metrics` in the text format of OpenMetrics, `/healthz` and `/readyz` at an address of their own,
    /// without TLS. `/readyz` answers with 503 after [`Handle::drain`].
    #[cfg(feature = "metrics")]
    pub fn metrics_listen(self, at: SocketAddr) -> Self {
        Builder { metrics_listen: Some(vec![at]), ..self }
    }

    /// Sets sockets that listen already: of a service manager, or of the process before. The server uses them at
    /// their addresses, and listens there if it has no other address.
    pub fn inherit(mut self, sockets: Vec<ListeningSocket>) -> Self {
        self.config.inherited = sockets;
        self
    }

    /// Sets the configuration of the mechanism. Its addresses come before those of
    /// [`Builder::listen`]. It may have a root instead of [`Builder::files`]. A `progress_interval` or
    /// `min_rate` other than the default is that of the limits, too.
    pub fn config(mut self, config: Config) -> Self {
        let (default, roots) = (Config::default(), config.roots.clone());
        if config.progress_interval != default.progress_interval {
            self.limits.progress_interval = config.progress_interval;
        }
        if config.min_rate != default.min_rate {
            self.limits.min_rate = config.min_rate;
        }
        self.config = config.with(|c| {
            c.roots = self.config.roots;
            c.inherited.extend(self.config.inherited);
        });
        self.add_roots(roots);
        self
    }

    /// Returns the maximum bytes of memory that the server holds when all limits are reached at once.
    /// The server logs it at `info` when it starts.
    ///
    /// Not included: the program itself, the kernel's socket buffers, memory of handlers and of bytes that
    /// they share in responses, and fragmentation in the allocator.
    pub fn memory_at_full_load(&self) -> usize {
        let Builder { config, limits, .. } = self;
        let log = if self.log.is_some() { LogWriter::BUFFER_BYTES } else { 0 };
        #[cfg(feature = "compression")]
        let compressed = match self.max_compressed_file() {
            Some(max_bytes) => CompressorThreads::memory(max_bytes, self.workers.into())
                .saturating_add(limits.max_compressed_memory),
            None => 0,
        };
        #[cfg(not(feature = "compression"))]
        let compressed = 0;
        #[cfg(feature = "basic-auth")]
        let realms = self.basic_auths().flatten().collect::<HashSet<_>>().len();
        #[cfg(feature = "basic-auth")]
        let logins = LoginThreads::memory(realms, self.workers.into());
        #[cfg(not(feature = "basic-auth"))]
        let logins = 0;
        let mechanism = config.memory_at_full_load::<Site>();
        let site = limits.memory(config.max_connections);
        #[cfg(feature = "tls")]
        let sessions = if self.has_tls() { config.max_connections as usize } else { 0 };
        #[cfg(feature = "tls")]
        let site =
            site.saturating_add(sessions.saturating_mul(evring_tls::ServerSession::MAX_BYTES));
        mechanism
            .saturating_add(site)
            .saturating_add(log)
            .saturating_mul(self.workers.into())
            .saturating_add(compressed)
            .saturating_add(logins)
            .saturating_add(
                self.pages().map(|(_, files)| files.error_pages.len()).sum::<usize>()
                    * ErrorPage::MAX_BYTES,
            )
    }

    /// Returns the maximum bytes of a file that is compressed at any host, if one compresses files.
    #[cfg(feature = "compression")]
    fn max_compressed_file(&self) -> Option<usize> {
        let all = self.pages().map(|(_, files)| files.compression);
        all.filter(Compression::is_enabled).map(|enabled| enabled.max_bytes as usize).max()
    }

    /// Logs the maximum memory and its parts.
    fn log_memory(&self) {
        let Builder { config, limits, workers, .. } = self;
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        info!(
            "memory at full load: at most {} MiB in addition to the program itself; workers: {workers}, each with \
             {} connections, {} MiB buffered, {} MiB of bodies and {} MiB of cached files",
            mib(self.memory_at_full_load()),
            config.max_connections,
            mib(config.max_buffered_bytes),
            mib(limits.max_body_memory),
            mib(limits.cache_bytes),
        );
    }

    /// Starts the server. When this returns, it accepts connections.
    ///
    /// # Errors
    /// If an address, the mechanism, the access log or a thread cannot be set up.
    pub fn start(self) -> Result<Server, Error> {
        let handle = Handle::default();
        handle.0.metrics.set_started(Instant::now());
        self.start_generation(&handle)?;
        let server = Server::new(handle);
        #[cfg(feature = "tls")]
        if let Some(certificates) = server.certificates() {
            tls::warn_of_invalid(&certificates);
        }
        Ok(server)
    }

    /// Starts workers that serve in the place of those before.
    fn start_generation(mut self, handle: &Handle) -> Result<(), Error> {
        let _one = handle.0.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(conflict) = self.conflict() {
            return Err(Error::Conflict(conflict));
        }
        self.check_pages()?;
        self.loaded_error_pages = self.load_error_pages()?;
        for function in &self.around {
            self.routes.map(|handler| Arc::new(function.wrap(handler)));
        }
        if self.listen.is_empty() && self.config.listen.is_empty() {
            self.config.listen =
                self.config.inherited.iter().map(ListeningSocket::address).collect();
            self.config.listen.sort();
            self.config.listen.dedup();
            #[cfg(feature = "tls")]
            self.config
                .listen
                .retain(|at| !self.tls.redirecting_addresses().any(|other| other == *at));
        }
        if self.listen.is_empty() && self.config.listen.is_empty() {
            self.listen = Builder::from(Options::default()).listen;
        }
        for addresses in std::mem::take(&mut self.listen) {
            self.config.listen.extend(addresses.map_err(Error::Address)?);
        }
        #[cfg(feature = "tls")]
        {
            self.loaded_tls = self.load_tls()?;
            self.config.listen.extend(self.tls.redirecting_addresses());
        }
        let shares_addresses = self.config.reuse_port;
        self.config.reuse_port |= self.workers > 1;
        // The same progress rule for open and closing connections.
        self.config.progress_interval = self.limits.progress_interval;
        self.config.min_rate = self.limits.min_rate;
        let inherited = std::mem::take(&mut self.config.inherited);
        let given = sockets_for(&self.config.listen, &inherited);
        if self.config.reuse_port && !shares_addresses {
            let new = given.iter().zip(&self.config.listen).filter(|(given, _)| given.is_empty());
            let is_free = |at| retry_while_in_use(|| is_free(at)).map_err(Error::Start);
            new.map(|(_, at)| at).try_for_each(is_free)?;
        }
        self.log_memory();
        #[cfg(feature = "sandbox")]
        self.sandbox.extend(modules::load(&self.modules, self.handler_cache.as_deref())?);
        let metrics = &handle.0.metrics;
        let (writer, senders) = match self.log.take() {
            None => (None, Vec::new()),
            Some(to) => {
                let path = to.path.clone().unwrap_or_default();
                let (writer, senders) =
                    LogWriter::start(to, self.workers.into(), metrics.another())
                        .map_err(|error| Error::Log(path, error))?;
                (Some(writer), senders)
            }
        };
        #[cfg(feature = "compression")]
        if self.max_compressed_file().is_some() {
            let max_memory = self.limits.max_compressed_memory;
            let threads = CompressorThreads::start(max_memory, self.workers.into());
            self.compressor_threads = Some(threads.map_err(Error::Thread)?);
        }
        #[cfg(feature = "basic-auth")]
        {
            let realms = self.load_realms()?;
            if !realms.is_empty() {
                let threads = LoginThreads::start(realms, self.workers.into());
                self.login_threads = Some(threads.map_err(Error::Thread)?);
            }
        }
        let mut senders = senders.into_iter();
        let mut generation = Generation {
            workers: Vec::new(),
            addresses: Vec::new(),
            is_current: Arc::default(),
            sockets: Vec::new(),
            writer,
            #[cfg(feature = "tls")]
            tls: self.loaded_tls.clone(),
        };
        let mut sockets = Vec::new();
        for n in 0..self.workers.into() {
            let of_worker = self.listening_sockets(&given, n)?;
            // For port 0, all workers use the port of the first one.
            self.config.listen = of_worker.iter().map(|same| same[0].address()).collect();
            sockets.push(of_worker);
        }
        #[cfg(feature = "metrics")]
        let keeps_monitor = handle.0.has_monitor(self.metrics_listen.as_deref());
        #[cfg(feature = "metrics")]
        let monitor = if keeps_monitor { None } else { self.start_monitor(handle, inherited)? };
        #[cfg(feature = "user")]
        if let Some(user) = &self.user {
            user.assume().map_err(|error| Error::User(user.clone(), error))?;
        }
        for sockets in sockets {
            generation.sockets.extend(sockets.iter().flatten().cloned());
            let stop = StopOnDrop {
                handle: handle.clone(),
                is_current: Arc::clone(&generation.is_current),
            };
            let worker = self.start_worker(sockets, stop, metrics.another(), senders.next())?;
            generation.workers.push(worker);
        }
        generation.addresses = std::mem::take(&mut self.config.listen);
        metrics.set_workers(self.workers.into());
        handle.0.replace(generation)?;
        #[cfg(feature = "metrics")]
        if !keeps_monitor {
            handle.0.set_monitor(monitor);
        }
        Ok(())
    }

    /// Starts the server of the metrics, if there is one.
    #[cfg(feature = "metrics")]
    fn start_monitor(
        &self,
        handle: &Handle,
        given: Vec<ListeningSocket>,
    ) -> Result<Option<Monitor>, Error> {
        let Some(listen) = self.metrics_listen.clone() else { return Ok(None) };
        let backend = if evring::NAMES.contains(&"epoll") { "epoll" } else { "auto" };
        let mut config = Config::default().with(|c| c.listen = listen.clone());
        config.max_connections = 64;
        let server = Server::builder()
            .backend(backend)
            .inherit(given)
            .config(config)
            .status(false)
            .route("/metrics", monitor::metrics(handle.0.metrics.clone()))
            .route("/healthz", |_: Request| "alive\n")
            .route("/readyz", monitor::readiness(Arc::clone(&handle.0.drains)));
        Ok(Some(Monitor { listen, server: server.start()? }))
    }

    /// Returns the sockets of a worker for each address: those that were given, or a new one. If there are more
    /// than workers, a worker has several.
    fn listening_sockets(
        &self,
        given: &[Vec<ListeningSocket>],
        worker: usize,
    ) -> Result<Vec<Vec<ListeningSocket>>, Error> {
        let mut options = ListenOptions::new(self.config.backlog);
        options.reuse_port = self.config.reuse_port;
        options.buffers = self.config.socket_buffers;
        let sockets = |(at, given): (&SocketAddr, &Vec<ListeningSocket>)| {
            if !given.is_empty() {
                let first = worker % given.len();
                return Ok(given
                    .iter()
                    .skip(first)
                    .step_by(self.workers.into())
                    .cloned()
                    .collect());
            }
            let bind = || {
                ListeningSocket::bind(*at, &options).map_err(|error| StartError::Listen(*at, error))
            };
            retry_while_in_use(bind).map(|socket| vec![socket]).map_err(Error::Start)
        };
        self.config.listen.iter().zip(given).map(sockets).collect()
    }

    /// Returns why the settings exclude each other, if they do.
    fn conflict(&self) -> Option<&'static str> {
        // The cache is read before the server changes its user, and again at a reload.
        #[cfg(all(feature = "sandbox", feature = "user"))]
        if self.user.is_some() && self.handler_cache.is_some() {
            return Some("compiled handlers are kept for one user; use no other user, or no cache");
        }
        self.conflict
    }

    /// Checks the settings, and the files that they name, without starting the server. Warns of certificates that
    /// have expired.
    ///
    /// # Errors
    /// Those of [`Builder::start`] that do not depend on the mechanism and the addresses.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(conflict) = self.conflict() {
            return Err(Error::Conflict(conflict));
        }
        for root in self.pages().filter_map(|(root, _)| root) {
            std::fs::read_dir(root).map_err(|error| Error::Root(root.to_owned(), error))?;
        }
        #[cfg(feature = "basic-auth")]
        self.load_realms()?;
        self.check_pages()?;
        #[cfg(feature = "sandbox")]
        modules::load(&self.modules, None)?;
        if let Some(path) = self.log.as_ref().and_then(|log| log.path.as_ref()) {
            log::check(path).map_err(|error| Error::Log(path.clone(), error))?;
        }
        if let Some(Err(error)) = self.listen.iter().find(|addresses| addresses.is_err()) {
            return Err(Error::Address(io::Error::new(error.kind(), error.to_string())));
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = self.load_tls()? {
            tls::warn_of_invalid(&tls.certificates);
        }
        Ok(())
    }

    /// Returns whether the server serves with TLS.
    #[cfg(feature = "tls")]
    fn has_tls(&self) -> bool {
        self.tls.is_enabled() || self.hosts.iter().any(|host| host.certificate.is_some())
    }

    /// Reads the certificates of all hosts.
    #[cfg(feature = "tls")]
    fn load_tls(&self) -> Result<Option<LoadedTls>, Error> {
        let mut tls = self.tls.clone();
        for (certificate, key) in self.hosts.iter().filter_map(|host| host.certificate.clone()) {
            tls.certificates.push(certificate);
            tls.keys.push(key);
        }
        tls.load(self.config.listen.len())
    }

    /// Checks that the hosts have names of their own, and that the pages below their roots can be read.
    fn check_pages(&self) -> Result<(), Error> {
        let mut names = HashSet::new();
        for host in &self.hosts {
            if host.names.is_empty() || !host.names.iter().all(|name| names.insert(name)) {
                return Err(Error::Conflict("each virtual host needs names of its own"));
            }
        }
        if self.hosts.iter().any(|host| host.root.is_none() && host.files.redirects.is_empty()) {
            return Err(Error::Conflict("each virtual host needs a directory, or redirects"));
        }
        if self.hosts.len() >= usize::from(u16::MAX) {
            return Err(Error::Conflict("a server has fewer than 65535 virtual hosts"));
        }
        self.load_error_pages()?;
        for (root, files) in self.pages() {
            let FileOptions { fallback, redirects, .. } = files;
            let Some(page) = fallback else { continue };
            if redirects.iter().any(|redirect| redirect.matches(page.canonical())) {
                let reason = "the fallback page is redirected; exclude it or move it";
                return Err(Error::Conflict(reason));
            }
            let path = root.ok_or(NO_ROOT)?.join(page.path());
            std::fs::File::open(&path).map_err(|error| Error::Page(path, error))?;
        }
        Ok(())
    }

    /// Returns the root and the settings of each host, which contain the pages that it sends by itself.
    fn pages(&self) -> impl Iterator<Item = (Option<&Path>, &FileOptions)> {
        let first = self.config.roots.first().map(PathBuf::as_path);
        let others = self.hosts.iter().map(|host| (host.root.as_deref(), &host.files));
        [(first, &self.file_options)].into_iter().chain(others)
    }

    /// Reads the pages of errors.
    fn load_error_pages(&self) -> Result<Vec<(HostIndex, LoadedPage)>, Error> {
        let mut all = Vec::new();
        for (index, (root, files)) in self.pages().enumerate() {
            for error_page in &files.error_pages {
                let root = root.ok_or(NO_ROOT)?;
                let page = error_page.load(root, &files.mime_types);
                let page =
                    page.map_err(|error| Error::Page(root.join(error_page.page.path()), error))?;
                all.push((HostIndex(index as u16), page));
            }
        }
        Ok(all)
    }

    /// Starts the server and waits until it ends. It handles no signals, unlike
    /// `Builder::run_until_signal` with the feature `signals`.
    ///
    /// # Errors
    /// Those of [`Builder::start`] and [`Server::wait`].
    pub fn run(self) -> Result<(), Error> {
        self.start()?.wait().map(drop)
    }

    /// Starts a worker, with its sockets for each address, and returns when it listens. Mechanisms cannot move
    /// between threads, so the worker creates its own.
    fn start_worker(
        &self,
        sockets: Vec<Vec<ListeningSocket>>,
        stop: StopOnDrop,
        metrics: Metrics,
        log: Option<LogSender>,
    ) -> Result<Worker, Error> {
        #[cfg(feature = "tls")]
        let redirect =
            self.loaded_tls.as_ref().map(|tls| redirect(&sockets, tls.first_redirecting));
        let (backend, mut config, routes) =
            (self.backend.clone(), self.config.clone(), self.routes.clone());
        config.inherited = sockets.into_iter().flatten().collect();
        config.listen = config.inherited.iter().map(ListeningSocket::address).collect();
        let (limits, file_options) = (self.limits.clone(), self.file_options.clone());
        let hosts = self.hosts.clone();
        let first_root = config.roots.len() as u16;
        config.roots.extend(hosts.iter().filter_map(|host| host.root.clone()));
        #[cfg(feature = "basic-auth")]
        let login_threads = self.login_threads.clone();
        #[cfg(feature = "compression")]
        let compressor_threads = self.compressor_threads.clone();
        #[cfg(feature = "tls")]
        let tls = self.loaded_tls.clone();
        let (status, error_pages) = (self.status, self.loaded_error_pages.clone());
        #[cfg(feature = "metrics")]
        let measures = self.metrics_listen.is_some();
        #[cfg(not(feature = "metrics"))]
        let measures = false;
        #[cfg(feature = "sandbox")]
        let handlers = self.sandbox.clone();
        let (start, may_start) = channel();
        let (ready, is_ready) = channel();
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(move || {
            #[cfg(feature = "sandbox")]
            let sandbox = Sandbox::new(&handlers)
                .map_err(|(name, rejection)| Error::Handler(name, rejection))?;
            let mechanism = AnyMechanism::new(&backend, &config).map_err(Error::Start)?;
            // Its clones of the sockets would keep them open.
            drop(config);
            let _ = ready.send((mechanism.name(), mechanism.remote()));
            let _stop = stop;
            let root = (first_root > 0).then_some(Root(0));
            let site = Site::new(root).backend(mechanism.name()).limits(limits);
            let mut site = site.remote(&mechanism.remote());
            #[cfg(feature = "compression")]
            {
                site.files.compressor =
                    compressor_threads.map(|threads| Compressor::new(threads, &mechanism.remote()));
            }
            #[cfg(feature = "basic-auth")]
            {
                site.logins =
                    login_threads.map(|threads| Logins::new(threads, &mechanism.remote()));
            }
            site.context.measures = measures || log.is_some();
            site.files.hosts.first_mut().options = file_options;
            let mut roots = (first_root..).map(Root);
            for host in hosts {
                let root = host.root.and_then(|_| roots.next());
                site.files.hosts.add(&host.names, FileHost { root, options: host.files });
            }
            site.context.responder.with_fallback = site.files.hosts.with_fallback();
            site.context.responder.fields = site.files.hosts.fields_of_errors();
            site.handlers.routes = routes;
            (site.context.metrics, site.context.log) = (metrics, log);
            site.status = status;
            site.context.responder.error_pages = error_pages;
            #[cfg(feature = "sandbox")]
            {
                site.sandbox = sandbox;
            }
            #[cfg(feature = "tls")]
            {
                site.redirect = redirect;
                serve(|| tls::run(mechanism, site, tls.map(|tls| tls.config)), &may_start)
            }
            #[cfg(not(feature = "tls"))]
            serve(|| mechanism.run(site), &may_start)
        });
        let thread = thread.map_err(Error::Thread)?;
        match is_ready.recv() {
            Ok((backend, remote)) => Ok(Worker { backend, remote, start, thread: Some(thread) }),
            Err(_) => {
                Err(thread.join().map_or(Error::Panic, |end| end.err().unwrap_or(Error::Panic)))
            }
        }
    }
}

/// The error of pages of a host without files.
const NO_ROOT: Error = Error::Conflict("fallback and error pages need a directory of files");

/// Serves when started; if another worker could not start, the channel is closed and it ends.
fn serve(
    run: impl FnOnce() -> Result<Stats, KernelError>,
    may_start: &Receiver<()>,
) -> Result<Stats, Error> {
    match may_start.recv() {
        Ok(()) => run().map_err(Error::Kernel),
        Err(_) => Ok(Stats::default()),
    }
}

/// Returns the given sockets for each address, each once. Port 0 is any port for which there are sockets.
fn sockets_for(listen: &[SocketAddr], given: &[ListeningSocket]) -> Vec<Vec<ListeningSocket>> {
    let mut groups: Vec<(SocketAddr, Vec<ListeningSocket>)> = Vec::new();
    for socket in given {
        let at = socket.address();
        let same = match groups.iter_mut().find(|group| group.0 == at) {
            Some((_, same)) => same,
            None => {
                groups.push((at, vec![socket.clone()]));
                continue;
            }
        };
        if !same.iter().any(|other| other.as_fd().as_raw_fd() == socket.as_fd().as_raw_fd()) {
            same.push(socket.clone());
        }
    }
    let mut take = |at: &SocketAddr| {
        let found = groups.iter().position(|(other, _)| {
            other == at || at.port() == 0 && other.ip() == at.ip() && !listen.contains(other)
        });
        found.map_or(Vec::new(), |n| groups.remove(n).1)
    };
    listen.iter().map(&mut take).collect()
}

/// Returns what a site needs to redirect to https, from its listeners at the addresses from number `first`.
#[cfg(feature = "tls")]
fn redirect(sockets: &[Vec<ListeningSocket>], first: usize) -> HttpsRedirect {
    let count = |sockets: &[Vec<ListeningSocket>]| sockets.iter().flatten().count() as u16;
    let listeners = count(&sockets[..first])..count(sockets);
    HttpsRedirect { listeners, port: sockets[0][0].address().port() }
}

/// Checks that no other process listens on an address. With SO_REUSEPORT, workers would share it
/// with that process.
fn is_free(at: &SocketAddr) -> Result<(), StartError> {
    TcpListener::bind(at).map(drop).map_err(|error| StartError::Listen(*at, error))
}

/// Retries for 400 ms: after a server is killed, its address stays in use until the kernel has
/// destroyed its ring.
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

/// Stops a server when one of its current workers ends, also by a panic.
struct StopOnDrop {
    handle: Handle,
    is_current: Arc<AtomicBool>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if self.is_current.load(Ordering::Relaxed) {
            self.handle.stop();
        }
    }
}

impl Server {
    /// Creates a builder with default settings.
    pub fn builder() -> Builder {
        Builder { listen: Vec::new(), ..Builder::from(Options::default()) }
    }
}

impl Handle {
    /// Replaces the settings of the server. New workers take its listening sockets, when those before them have stopped
    /// accepting. These end when their last connections have closed, which keep the old settings and end with their
    /// next response. No connection is lost. Until all have ended, the server needs memory for both; of more than
    /// four generations of workers, the oldest is stopped.
    ///
    /// A builder without addresses keeps those of the server.
    ///
    /// # Errors
    /// Those of [`Builder::start`], and if the server ends; then its settings stay.
    pub fn reload(&self, builder: Builder) -> Result<(), Error> {
        builder.inherit(self.0.sockets()).start_generation(self)
    }
}
