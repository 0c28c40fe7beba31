//! `/.httpd/status.json` of a server with several workers: the worker that answers has its own figures, and asks the
//! others for theirs, as a scrape of `/metrics` does.

use std::time::Instant;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::site::handler::{Handler, Request};
use crate::site::metrics::Metrics;
use crate::site::pool::Pool;
use crate::site::reply::Response;
use crate::site::response_body::Body;

/// Maximum number of requests that wait for the figures; further ones get 503.
const MAX_QUEUED: usize = 16;

impl Builder {
    /// Returns the thread that waits for the workers, if several show their metrics. One worker needs none.
    pub(super) fn start_status(&self) -> Result<Option<Pool>, Error> {
        let has_files = !self.config.roots.is_empty() || !self.hosts.is_empty();
        let is_shown = self.status.unwrap_or(!has_files && self.routes.is_empty());
        let is_needed = is_shown && self.workers > 1;
        is_needed.then(|| Pool::new(1, MAX_QUEUED)).transpose().map_err(Error::Thread)
    }
}

/// Returns the handler, which waits on the thread of `pool`.
pub(super) fn handler(pool: &Pool, metrics: Metrics, backend: &'static str) -> impl Handler {
    pool.handler(move |_: Request| {
        metrics.refresh();
        let mut response = Response::new(Body::from(metrics.json(backend, Instant::now())));
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    })
}
