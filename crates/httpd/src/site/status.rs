//! `/.httpd/status.json`: the metrics of all workers. In a server, a thread asks the workers for theirs, as a scrape of
//! `/metrics` does.

use std::time::Instant;

use evring::{Commands, Cx};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

use crate::decision::options::{HostIndex, ResponseOptions};
use crate::decision::representation::RepresentationHeaders;
use crate::message::body::BodyDecoder;
use crate::message::request::RequestHead;
use crate::response::prepared::PreparedResponse;
use crate::site::Site;
use crate::site::any_response::Response;
use crate::site::context::Context;
use crate::site::handler::Wait;
use crate::site::metrics::Metrics;
use crate::site::pool::Pool;
use crate::site::response_body::Body;
use crate::site::routes::Routes;
use crate::site::state::State;

/// Returns whether a site shows its metrics and, without files, evring's page. Without a setting it does if it has nothing
/// else.
pub(crate) fn is_shown(setting: Option<bool>, has_files: bool, routes: &Routes) -> bool {
    setting.unwrap_or(!has_files && routes.is_empty())
}

/// Returns whether the metrics and evring's page are enabled.
pub(super) fn is_shown_by(site: &Site) -> bool {
    let has_files = site.files.hosts.count() > 1 || site.has_root(HostIndex::default());
    is_shown(site.status, has_files, &site.handlers.routes)
}

/// Answers with the metrics: those that the workers have now, or, without a thread, those that they have copied.
pub(super) fn answer(
    site: &mut Site,
    x: &mut Cx<'_, impl Commands, State>,
    request: &RequestHead<'_>,
    options: ResponseOptions,
) -> bool {
    if let Some(thread) = &site.status_thread {
        let wait = wait_on(thread, site.context.metrics.clone(), site.backend.clone());
        let body = (BodyDecoder::default(), options);
        return site.handlers.wait(&mut site.context, x, request, body, wait);
    }
    let Context { metrics, responder, .. } = &site.context;
    metrics.own().copy_stats(&x.io.stats());
    let text = metrics.json(&site.backend, x.io.now());
    let representation = RepresentationHeaders::uncached("application/json");
    let mut prepared = PreparedResponse::new(representation, text.as_bytes(), &responder.clock);
    let sent = prepared.send(x.io, x.id, &responder.clock, options);
    x.state.record(sent)
}

/// Waits for the metrics on a thread.
fn wait_on(thread: &Pool, metrics: Metrics, backend: String) -> Wait {
    let response = thread.respond(move || {
        metrics.refresh();
        let mut response = Response::new(Body::from(metrics.json(&backend, Instant::now())));
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    });
    Wait::new(|_| response)
}
