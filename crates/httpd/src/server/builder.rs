//! The settings of a server, one by one.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evring::Config;
use evring::sockets::ListeningSocket;

use crate::access_log::AccessLog;
#[cfg(feature = "basic-auth")]
use crate::basic_auth::BasicAuth;
#[cfg(feature = "compression")]
use crate::compression::Compression;
use crate::decision::options::HostIndex;
use crate::error_page::LoadedPage;
use crate::file_options::FileOptions;
use crate::host_options::HostOptions;
use crate::limits::Limits;
use crate::server::addresses::distinct;
#[cfg(feature = "sandbox")]
use crate::server::options::HandlerModule;
use crate::server::options::Options;
use crate::server::running::Server;
#[cfg(feature = "tls")]
use crate::server::tls::{LoadedTls, TlsOptions};
#[cfg(feature = "user")]
use crate::server::user::User;
#[cfg(feature = "compression")]
use crate::site::compressor::CompressorThreads;
use crate::site::handler::Request;
use crate::site::into_handler::IntoHandler;
use crate::site::into_response::IntoResponse;
#[cfg(feature = "basic-auth")]
use crate::site::login::LoginThreads;
use crate::site::middleware::{Around, Next};
use crate::site::pool::Pool;
use crate::site::request_body::RequestBody;
use crate::site::routes::Routes;
#[cfg(feature = "sandbox")]
use crate::site::sandbox::SandboxedHandler;

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
    /// Empty if the server chooses its addresses (`Builder::listeners`).
    pub(super) listen: Vec<NamedAddresses>,
    /// At a reload without addresses, the server takes the default ones, instead of those that it has.
    pub(super) returns_to_default: bool,
    /// Sockets of the process before, or of the workers before.
    pub(super) taken_over: Vec<ListeningSocket>,
    pub(super) backend: String,
    pub(super) workers: u16,
    #[cfg(feature = "basic-auth")]
    pub(super) basic_auth: Vec<BasicAuth>,
    /// The threads that verify passwords, once the server starts.
    #[cfg(feature = "basic-auth")]
    pub(super) login_threads: Option<LoginThreads>,
    #[cfg(feature = "user")]
    pub(super) user: Option<User>,
    pub(super) routes: Routes,
    pub(super) limits: Limits,
    pub(super) file_options: FileOptions,
    /// The virtual hosts other than the first.
    pub(super) hosts: Vec<HostOptions>,
    /// The pages of errors by host, once the server starts.
    pub(super) loaded_error_pages: Vec<(HostIndex, LoadedPage)>,
    pub(super) status: Option<bool>,
    /// The thread that waits for the metrics of the workers, once the server starts.
    pub(super) status_thread: Option<Pool>,
    pub(super) log: Option<AccessLog>,
    #[cfg(feature = "metrics")]
    pub(super) metrics_listen: Option<NamedAddresses>,
    pub(super) config: Config,
    pub(super) drain_delay: Duration,
    #[cfg(feature = "tls")]
    pub(super) tls: TlsOptions,
    /// The certificates and configuration of TLS, once the server starts.
    #[cfg(feature = "tls")]
    pub(super) loaded_tls: Option<LoadedTls>,
    /// The runtime whose timers and sockets handlers use.
    #[cfg(feature = "tokio")]
    pub(super) tokio: Option<tokio::runtime::Handle>,
    /// Functions around all handlers, innermost first.
    pub(super) around: Vec<Around>,
    /// The first setting that contradicts another one.
    pub(super) conflict: Option<&'static str>,
    /// The first path that is that of no route, and why.
    pub(super) wrong_route: Option<(String, &'static str)>,
    /// The threads that compress files, once the server starts.
    #[cfg(feature = "compression")]
    pub(super) compressor_threads: Option<CompressorThreads>,
    #[cfg(feature = "sandbox")]
    pub(super) sandbox: Vec<SandboxedHandler>,
    #[cfg(feature = "sandbox")]
    pub(super) modules: Vec<HandlerModule>,
    #[cfg(feature = "sandbox")]
    pub(super) handler_cache: Option<PathBuf>,
}

impl From<Options> for Builder {
    fn from(options: Options) -> Self {
        let config = Config::from(&options);
        let Options { listen, backend, workers, files, limits, .. } = options;
        let builder = Builder {
            listen: listen.iter().map(|addresses| Ok(addresses.as_slice().to_vec())).collect(),
            returns_to_default: true,
            taken_over: Vec::new(),
            backend,
            workers,
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
            status_thread: None,
            log: options
                .access_log
                .and_then(|path| AccessLog::from_setting(path, options.log_format)),
            #[cfg(feature = "metrics")]
            metrics_listen: options.metrics_listen.map(|at| Ok(at.as_slice().to_vec())),
            config,
            drain_delay: options.connections.drain_delay,
            #[cfg(feature = "tls")]
            tls: options.tls,
            #[cfg(feature = "tls")]
            loaded_tls: None,
            #[cfg(feature = "tokio")]
            tokio: None,
            around: Vec::new(),
            conflict: None,
            wrong_route: None,
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

/// The addresses that a text or value names; or its form for debugging and the error of its resolution.
pub(super) type NamedAddresses = Result<Vec<SocketAddr>, (String, io::Error)>;

fn resolve(at: impl ToSocketAddrs + fmt::Debug) -> NamedAddresses {
    let addresses = at.to_socket_addrs().map(distinct);
    addresses.map_err(|error| (format!("{at:?}"), error))
}

impl Builder {
    /// Adds an address to listen on, such as `"localhost:8080"`; can be called repeatedly. Port 0
    /// selects a free port. The default is `127.0.0.1:8080`.
    pub fn listen(mut self, at: impl ToSocketAddrs + fmt::Debug) -> Self {
        self.listen.push(resolve(at));
        self
    }

    /// Selects the mechanism by name. The default, `auto`, selects `uring` if it can run, else `epoll`, else another one.
    pub fn backend(self, name: &str) -> Self {
        Builder { backend: name.to_owned(), ..self }
    }

    /// Sets the number of worker threads, from 1; the default is 1.
    pub fn workers(self, n: u16) -> Self {
        Builder { workers: n, ..self }
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

    /// Sets the user that the process runs as once the server listens, has read the certificates and created the
    /// access log, which this user opens. Also other threads of the process become this user's.
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
    /// use evring_httpd::options::HostOptions;
    /// use evring_httpd::Server;
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

    /// Routes all requests for a path to a handler.
    ///
    /// | path | requests |
    /// |---|---|
    /// | `/about` | this path |
    /// | `/users/{id}` | one segment in the place of `{id}`, which is not empty; [`param`](crate::handlers::param) returns it, decoded |
    /// | `/files/` | this path and all below it; the handler takes the rest from the request's URI: it begins with no slash, and has no dot segments, also decoded |
    /// | `/` | all, including those for files |
    ///
    /// A name in braces stands for a whole segment; `/a-{id}` is an error, as are `/:id`, `/*`, a `?` and a second route of
    /// a path.
    /// The handlers of several methods are one route: `get(list).post(create)`. No segment with `%2F` matches one, so
    /// its client gets 400 (or 405), unless a path that ends in a slash matches. See [`Site::route`](crate::Site::route).
    pub fn route<K>(mut self, path: &str, handler: impl IntoHandler<K>) -> Self {
        let added = self.routes.add(path, Arc::new(handler.into_handler()));
        if let Err(reason) = added {
            self.wrong_route.get_or_insert_with(|| (path.to_owned(), reason));
        }
        self
    }

    /// Puts a function around all handlers, also those that are added later; see [`wrap`](crate::handlers::wrap).
    /// Files, and errors and redirects of the server itself, have no handlers: for a header field with each of them, add
    /// it with `always` to [`FileOptions::headers`], too. Of several functions, the last one is outermost.
    ///
    /// ```
    /// use evring_httpd::body::RequestBody;
    /// use evring_httpd::handlers::Next;
    /// use evring_httpd::{Request, Server};
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

    /// Sets a runtime of tokio for handlers, services and the bodies of their responses: they can use its timers and
    /// sockets, and spawn tasks. Workers still run them on any mechanism; the runtime drives what they wait for, so it
    /// must be one with threads of its own, and outlive the server. With the mechanism `tokio` it is not needed:
    /// handlers are in the mechanism's runtime then.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use evring_httpd::{Request, Server};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    ///     let wait = async |_: Request| {
    ///         tokio::time::sleep(Duration::from_secs(1)).await;
    ///         "a second later\n"
    ///     };
    ///     Ok(Server::builder().tokio(runtime.handle().clone()).route("/", wait).run()?)
    /// }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn tokio(self, runtime: tokio::runtime::Handle) -> Self {
        Builder { tokio: Some(runtime), ..self }
    }

    /// Adds a handler in a sandbox, which sees requests before the site and may answer them: an
    /// application-specific safe handler. Of several handlers, the first that answers does. Each worker
    /// has an instance with a memory of its own. Events that handlers post are dropped.
    /// [`SandboxedHandler::switch`] turns a handler off and on while the server runs.
    #[cfg(feature = "sandbox")]
    pub fn sandbox(mut self, handler: SandboxedHandler) -> Self {
        self.sandbox.push(handler);
        self
    }

    /// See [`Site::limits`](crate::Site::limits), and [`Builder::config`] for the limits that the configuration of the
    /// mechanism has, too.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self.take_rates();
        self
    }

    /// Takes those limits from the configuration that are not the default there.
    fn take_rates(&mut self) {
        let (config, default) = (&self.config, Config::default());
        if config.progress_interval != default.progress_interval {
            self.limits.progress_interval = config.progress_interval;
        }
        if config.min_rate != default.min_rate {
            self.limits.min_rate = config.min_rate;
        }
    }

    /// See [`Site::precompressed`](crate::Site::precompressed).
    pub fn precompressed(self, on: bool) -> Self {
        Builder { file_options: FileOptions { no_precompressed: !on, ..self.file_options }, ..self }
    }

    /// See [`Site::listing`](crate::Site::listing).
    pub fn listing(self, on: bool) -> Self {
        Builder { file_options: FileOptions { listing: on, ..self.file_options }, ..self }
    }

    /// See [`Site::max_age`](crate::Site::max_age).
    pub fn max_age(self, seconds: Option<u32>) -> Self {
        Builder { file_options: FileOptions { max_age: seconds, ..self.file_options }, ..self }
    }

    /// Sets all settings of files, also those of earlier calls such as [`Builder::listing`].
    ///
    /// ```no_run
    /// use evring_httpd::options::FileOptions;
    /// use evring_httpd::Server;
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
    /// use evring_httpd::options::TlsOptions;
    /// use evring_httpd::Server;
    ///
    /// fn main() -> Result<(), evring_httpd::Error> {
    ///     Server::builder().files("public").tls(TlsOptions::files("cert.pem", "key.pem")).run()
    /// }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: TlsOptions) -> Self {
        Builder { tls, ..self }
    }

    /// See [`Site::status`](crate::Site::status).
    pub fn status(self, on: bool) -> Self {
        Builder { status: Some(on), ..self }
    }

    /// Enables the access log in the combined format, one line per response.
    pub fn access_log(self, to: AccessLog) -> Self {
        Builder { log: Some(to), ..self }
    }

    /// Serves `/metrics` in the text format of OpenMetrics, `/healthz` and `/readyz` at an address of their own,
    /// such as `"localhost:9100"`, without TLS. `/readyz` answers with 503 after
    /// [`Handle::drain`](crate::Handle::drain).
    #[cfg(feature = "metrics")]
    pub fn metrics_listen(self, at: impl ToSocketAddrs + fmt::Debug) -> Self {
        Builder { metrics_listen: Some(resolve(at)), ..self }
    }

    /// Sets sockets of a service manager that listen already. The server uses them at their addresses, and listens
    /// there if it has no other address. They stay open until the server ends; a reload may name others of them.
    /// Another process has to keep them open, too: connections for which a server that stops has no room stay in their
    /// queues ([`ListeningSocket::shared`]).
    pub fn inherit(mut self, sockets: Vec<ListeningSocket>) -> Self {
        self.config.inherited = sockets.into_iter().map(ListeningSocket::shared).collect();
        self
    }

    /// Adds sockets that listen already, of a process whose place the server takes
    /// ([`Handle::listening_sockets`](crate::Handle::listening_sockets)). The server uses those at the addresses of its
    /// settings. Sockets at other addresses are not used.
    pub fn take_over(mut self, sockets: Vec<ListeningSocket>) -> Self {
        self.taken_over.extend(sockets);
        self
    }

    /// Sets the time for which a server that stops at a signal still serves, while `/readyz` answers with 503, so that
    /// load balancers send new clients elsewhere: see [`Handle::drain`](crate::Handle::drain). The default is 0.
    pub fn drain_delay(self, time: Duration) -> Self {
        Builder { drain_delay: time, ..self }
    }

    /// Sets the configuration of the mechanism; a further call replaces it, but for roots and inherited sockets. The number of
    /// workers is that of [`Builder::workers`]. Its
    /// addresses come before those of [`Builder::listen`]. It may have a root instead of [`Builder::files`]. A
    /// `progress_interval` or `min_rate` other than the default is that of the limits, too, whatever
    /// [`Builder::limits`] sets, before or after. `max_read_delay` is a quarter of `progress_interval` at most.
    pub fn config(mut self, config: Config) -> Self {
        let roots = config.roots.clone();
        self.config = config.with(|c| {
            c.roots = self.config.roots;
            c.inherited.extend(self.config.inherited);
        });
        self.take_rates();
        self.add_roots(roots);
        self
    }
}

impl Server {
    /// Creates a builder with default settings.
    pub fn builder() -> Builder {
        Builder { returns_to_default: false, ..Builder::from(Options::default()) }
    }
}
