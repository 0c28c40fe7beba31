//! The site: the application that answers HTTP requests.

mod answer;
pub(crate) mod any_response;
mod application;
pub(crate) mod body_memory;
pub(crate) mod cache;
pub(crate) mod client_info;
#[cfg(feature = "compression")]
pub(crate) mod compress;
#[cfg(feature = "compression")]
pub(crate) mod compressor;
pub(crate) mod constant;
pub(crate) mod context;
pub(crate) mod deferred;
pub(crate) mod exchange;
pub(crate) mod files;
pub(crate) mod guard;
pub(crate) mod handler;
pub(crate) mod handlers;
pub(crate) mod head;
pub(crate) mod host_logs;
pub(crate) mod hosts;
#[cfg(feature = "tls")]
pub(crate) mod https_redirect;
pub(crate) mod into_handler;
pub(crate) mod into_response;
#[cfg(feature = "json")]
pub(crate) mod json;
pub(crate) mod listing;
pub(crate) mod log;
#[cfg(feature = "basic-auth")]
pub(crate) mod login;
pub(crate) mod lookup;
mod lookup_steps;
pub(crate) mod marked;
pub(crate) mod methods;
pub(crate) mod metrics;
pub(crate) mod middleware;
pub(crate) mod oneshot;
pub(crate) mod params;
pub(crate) mod pipe;
pub(crate) mod pool;
pub(crate) mod progress;
mod receive;
pub(crate) mod request_body;
#[cfg(feature = "compression")]
pub(crate) mod reservation;
pub(crate) mod response_body;
pub(crate) mod responses;
pub(crate) mod routes;
#[cfg(feature = "sandbox")]
pub(crate) mod sandbox;
#[cfg(feature = "sandbox")]
mod sandbox_response;
#[cfg(feature = "tower")]
pub(crate) mod service;
pub(crate) mod shed;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod stream;
pub(crate) mod upgrade;
pub(crate) mod wakers;

use std::sync::Arc;

use evring::{RemoteHandle, Root};

use crate::decision::options::HostIndex;
use crate::limits::Limits;
use crate::message::request::HeadMemory;
use crate::site::cache::Cache;
use crate::site::context::Context;
use crate::site::files::Files;
use crate::site::handlers::Handlers;
#[cfg(feature = "tls")]
use crate::site::https_redirect::HttpsRedirect;
use crate::site::into_handler::IntoHandler;
use crate::site::pool::Pool;
use crate::site::wakers::Wakers;

/// An HTTP site: handlers, and files below a root or evring's page.
///
/// A cached small file is served with one lookup and one copy. Other files require file operations
/// of the mechanism. The connection does not receive meanwhile, so responses are in the order
/// of their requests without a queue. The site uses the last timer of
/// [`Config::max_timers`](evring::Config::max_timers), if there is one; an application or a hook around it uses others.
#[derive(Debug)]
pub struct Site {
    pub(crate) context: Context,
    pub(crate) files: Files,
    pub(crate) handlers: Handlers,
    #[cfg(feature = "sandbox")]
    pub(crate) sandbox: crate::site::sandbox::Sandbox,
    /// Verifies passwords, if paths need some.
    #[cfg(feature = "basic-auth")]
    pub(crate) logins: Option<login::Logins>,
    pub(crate) backend: String,
    /// Memory for the heads of requests, while none is processed.
    head_memory: Option<Box<HeadMemory>>,
    /// Whether the cache has a random hash seed.
    seeded: bool,
    /// Whether the site serves its metrics and, without files, evring's page. `None` enables both if
    /// there are neither files nor handlers.
    pub(crate) status: Option<bool>,
    /// The thread that waits for the metrics of the workers of a server.
    pub(crate) status_thread: Option<Pool>,
    /// Redirects requests without TLS.
    #[cfg(feature = "tls")]
    pub(crate) redirect: Option<HttpsRedirect>,
}

/// Tag of the wake-up after which each connection ends with its next response.
pub(crate) const DRAIN_TAG: u64 = u64::from_be_bytes(*b"draining");

/// Tag of the wake-up of workers that others replace: as [`DRAIN_TAG`], and idle connections end soon.
pub(crate) const RETIRE_TAG: u64 = u64::from_be_bytes(*b"retiring");

impl Site {
    /// Creates a site that serves the files below `root`, or evring's page without one.
    pub fn new(root: Option<Root>) -> Self {
        let context = Context::new();
        Site {
            files: Files::new(root, &context.limits),
            context,
            handlers: Handlers::default(),
            #[cfg(feature = "sandbox")]
            sandbox: crate::site::sandbox::Sandbox::default(),
            #[cfg(feature = "basic-auth")]
            logins: None,
            backend: "unnamed".to_owned(),
            head_memory: None,
            seeded: false,
            status: None,
            status_thread: None,
            #[cfg(feature = "tls")]
            redirect: None,
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        let limits = limits.clamped();
        self.files.cache = Cache::new(&limits);
        self.context.limits = limits;
        self
    }

    /// Sets the name of the mechanism, for the page and the metrics.
    #[must_use]
    pub fn backend(self, name: &str) -> Self {
        Site { backend: name.to_owned(), ..self }
    }

    /// Enables precompressed files: a client that accepts gzip gets `a.css.gz` instead of `a.css`.
    /// Enabled by default.
    #[must_use]
    pub fn precompressed(mut self, on: bool) -> Self {
        self.files.hosts.first_mut().options.no_precompressed = !on;
        self
    }

    /// Enables listings of directories without an `index.html`. Disabled by default.
    #[must_use]
    pub fn listing(mut self, on: bool) -> Self {
        self.files.hosts.first_mut().options.listing = on;
        self
    }

    /// Sets `Cache-Control: max-age` of files, in seconds. The default is no field, which leaves
    /// caching to heuristics.
    #[must_use]
    pub fn max_age(mut self, seconds: Option<u32>) -> Self {
        self.files.hosts.first_mut().options.max_age = seconds;
        self
    }

    /// Enables the metrics at `/.httpd/status.json` and, without files, evring's page at `/`. By
    /// default they are enabled if the site has neither files nor handlers.
    #[must_use]
    pub fn status(self, on: bool) -> Self {
        Site { status: Some(on), ..self }
    }

    /// Returns whether a host serves files.
    fn has_root(&self, host: HostIndex) -> bool {
        self.files.hosts.get(host).root.is_some()
    }

    /// Routes all requests for a path, with any method, to a handler. A path that ends in a slash also
    /// matches everything below it. A segment `{name}` matches any one segment, the [parameter](crate::handlers::param) of that name; see
    /// [`Builder::route`](crate::Builder::route). Paths without names come before those with names, and these before
    /// those that end in a slash, of which the longest wins. A missing leading slash is added.
    /// Handlers take precedence over files. Request paths are matched in canonical form: decoded,
    /// without dot segments and empty segments. The URI of a request has the path as it arrived; one with such segments, or
    /// that does not begin with the path here, becomes the canonical one. So a handler may take the rest of it: neither it nor
    /// what it decodes to leaves a directory. Requests for which that is impossible get 400.
    ///
    /// # Panics
    /// If a segment has braces and is no parameter, or begins with `:` or `*`, if the path has a `?`, or if it has a
    /// route already.
    #[must_use]
    pub fn route<K>(mut self, path: &str, handler: impl IntoHandler<K>) -> Self {
        let added = self.handlers.routes.add(path, Arc::new(handler.into_handler()));
        if let Err(reason) = added {
            panic!("the route {path}: {reason}");
        }
        self
    }

    /// Sets the handle of the mechanism that runs the site. Handlers that wait need it, and bodies such as that of
    /// [`Body::channel`](crate::body::Body::channel), else they are answered with 500; a [`Server`](crate::Server) sets it.
    #[must_use]
    pub fn remote(mut self, handle: &RemoteHandle) -> Self {
        self.handlers.wakers = Some(Wakers::new(handle));
        self
    }
}
