//! Which part of a site answers a request: a handler, the files, or the site itself.

use std::path::Path;

use evring::{Commands, Cx};

use crate::decision::options::{HostIndex, ResponseOptions};
use crate::decision::plan::{check_file_method, is_plain};
use crate::decision::representation::RepresentationHeaders;
use crate::message::body::BodyDecoder;
use crate::message::host::is_authority_form;
use crate::message::path;
use crate::message::request::{Expects, KeptHead, Method, RequestHead};
use crate::message::status::Status;
use crate::redirect::Redirect;
use crate::response::prepared::PreparedResponse;
use crate::site::Site;
use crate::site::handlers::Handlers;
use crate::site::lookup::FileLookup;
use crate::site::state::{AfterBody, State};
use crate::site::status;

/// The path of the server's metrics.
const STATUS: &str = "/.httpd/status.json";

/// Returns whether a target has the scheme https although the connection has no TLS: it is for another server (RFC 9110,
/// section 7.4).
#[cold]
fn is_misdirected(x: &Cx<'_, impl Commands, State>, request: &RequestHead<'_>) -> bool {
    path::is_https(request.target) && x.io.session(x.id).is_none()
}

/// Returns whether a request is a CONNECT whose target is not an authority, the only form that it may have (RFC 9112, section
/// 3.2.3).
#[inline]
fn is_malformed_connect(request: &RequestHead<'_>) -> bool {
    let is_connect = request.method == Method::Known && request.name == b"CONNECT";
    is_connect && !is_authority_form(request.target)
}

impl Site {
    /// Answers a request for a host, after whose head `remaining` bytes have arrived. Returns whether the next
    /// request may be processed.
    #[inline]
    pub(super) fn answer(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        (request, host): (&RequestHead<'_>, HostIndex),
        remaining: usize,
    ) -> bool {
        let host = x.state.host(host);
        let options = ResponseOptions { host, ..self.context.options(x, request, remaining) };
        if is_malformed_connect(request) {
            return self.context.send_error(x, Status::BAD_REQUEST, options.ending());
        }
        #[cfg(feature = "tls")]
        if x.state.redirects {
            return self.redirect_to_https(x, request, options);
        }
        if !request.target.starts_with(b"/") && is_misdirected(x, request) {
            return self.context.send_error(x, Status::MISDIRECTED, options.ending());
        }
        #[cfg(feature = "sandbox")]
        if let Some(sent) = self.sandbox.answer(&self.context, x, request, options) {
            return x.state.record(sent);
        }
        if is_plain(request) {
            if let Some(route) = self.handlers.routes.find_exact(request.target) {
                let body = (BodyDecoder::default(), options);
                return self.handlers.call(&mut self.context, x, request, body, route);
            }
            return self.answer_for_file(x, request, options);
        }
        match self.answer_unusual(x, request, options) {
            Ok(proceed) => proceed,
            Err(status) => {
                // The next request begins behind one without a body whose method alone is wrong.
                let is_method = matches!(status, Status::METHOD | Status::NOT_IMPLEMENTED);
                let has_end = request.target.starts_with(b"/") && !request.has_body();
                let goes_on = is_method && has_end && options.stays_open();
                self.context.send_error(x, status, options.ending_if(!goes_on))
            }
        }
    }

    /// Redirects a request to https. The connection ends if the request has a body.
    #[cfg(feature = "tls")]
    #[cold]
    fn redirect_to_https(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> bool {
        let options = options.ending_if(request.has_body());
        let location = self.redirect.as_ref().and_then(|redirect| redirect.location(request));
        match location {
            Some(location) => {
                let to = (&mut *x.io, x.id);
                let responder = &mut self.context.responder;
                let sent = responder.send_status(to, Status::PERMANENT, &location, options);
                x.state.record(sent)
            }
            None => self.context.send_error(x, Status::BAD_REQUEST, options.ending()),
        }
    }

    /// Answers a GET or HEAD.
    #[inline(always)]
    fn answer_for_file(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> bool {
        match self.files.answer(&mut self.context, x, request, request.target, options) {
            Some(proceed) => proceed,
            None => self.answer_uncached(x, request, options),
        }
    }

    /// Answers a request whose target is not a key of the cache; its canonical path may be one. Returns whether the next
    /// request may be processed.
    #[cold]
    fn answer_uncached(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> bool {
        let found = path::split(request.target).and_then(|(path, query)| {
            let name = path::try_canonical(path)?;
            let route = self.handlers.routes.find_for(&name, path);
            Ok((name, query, route))
        });
        let (name, query, route) = match found {
            Ok(found) => found,
            Err(status) => return self.context.send_error(x, status, options.ending()),
        };
        if let Some(route) = route {
            let body = (BodyDecoder::default(), options);
            return self.handlers.call(&mut self.context, x, request, body, route);
        }
        if let Some(proceed) = self.redirect(x, (&name, query), options) {
            return proceed;
        }
        let is_first_host = options.host == HostIndex::default();
        if is_first_host && *name == *STATUS.as_bytes() && status::is_shown_by(self) {
            return status::answer(self, x, request, options);
        }
        if let Some(proceed) = self.files.answer(&mut self.context, x, request, &name, options) {
            return proceed;
        }
        let lookup = match FileLookup::open(&name, options) {
            Ok(lookup) => lookup,
            Err(Status::NOT_FOUND) => {
                return self.context.send_error(x, Status::NOT_FOUND, options);
            }
            Err(status) => return self.context.send_error(x, status, options.ending()),
        };
        if !self.has_root(options.host) {
            return self.answer_page(x, request, lookup.paths.plain.as_path(), options);
        }
        self.files.look_up(&self.context, x, request, lookup);
        false
    }

    /// Answers a request for a canonical path that is redirected. Returns `None` if it is not, else whether the next
    /// request may be processed.
    fn redirect(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        (name, query): (&[u8], Option<&[u8]>),
        options: ResponseOptions,
    ) -> Option<bool> {
        let (status, location) =
            Redirect::find(&self.files.hosts.get(options.host).options.redirects, name, query)?;
        let to = (&mut *x.io, x.id);
        let sent = self.context.responder.send_status(to, status, &location, options);
        Some(x.state.record(sent))
    }

    /// Without a root: answers with evring's page, at `/` of the first host only.
    fn answer_page(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        path: &Path,
        options: ResponseOptions,
    ) -> bool {
        let is_page = path == Path::new(path::INDEX) && options.host == HostIndex::default();
        if !is_page || !status::is_shown_by(self) {
            return self.context.send_error(x, Status::NOT_FOUND, options);
        }
        let page = include_str!("page.html")
            .replace("{backend}", &self.backend)
            .replace("{version}", env!("CARGO_PKG_VERSION"));
        let representation = RepresentationHeaders::plain("text/html; charset=utf-8");
        let clock = &self.context.responder.clock;
        let mut prepared = PreparedResponse::new(representation, page.as_bytes(), clock);
        let proceed = self.context.send_planned(x, &mut prepared, request, options);
        self.files.cache.insert(b"/", prepared, None, x.io.now());
        proceed
    }

    /// Answers a request that is not a plain GET or HEAD.
    #[cold]
    fn answer_unusual(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> Result<bool, Status> {
        if request.expects == Expects::Unknown {
            return Err(Status::EXPECTATION);
        }
        let body = BodyDecoder::new(request.framing, &self.context.limits)?;
        if request.target == b"*" && request.method != Method::Options {
            return Err(Status::BAD_REQUEST);
        }
        match path::split(request.target) {
            Ok((path, query)) => {
                let name = path::try_canonical(path)?;
                if let Some(route) = self.handlers.routes.find_for(&name, path) {
                    let body = (body, options);
                    return Ok(self.handlers.call(&mut self.context, x, request, body, route));
                }
                let options = options.ending_if(body.is_open());
                if let Some(proceed) = self.redirect(x, (&name, query), options) {
                    return Ok(proceed);
                }
            }
            // CONNECT has an authority as its target, OPTIONS may have an asterisk.
            Err(status) if request.target != b"*" && request.name != b"CONNECT" => {
                return Err(status);
            }
            Err(_) => {}
        }
        check_file_method(request.method)?;
        if !body.is_open() {
            return Ok(self.answer_without_body(x, request, options));
        }
        // The body is not used. A client that waits for 100 Continue need not send it.
        if request.expects == Expects::Continue {
            return Ok(self.answer_without_body(x, request, options.ending()));
        }
        let then = AfterBody::Answer(KeptHead::new(request, None));
        Handlers::receive_body(&self.context, x, (body, options), then);
        Ok(true)
    }

    /// Answers a request whose body has arrived or is not used.
    pub(super) fn answer_without_body(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> bool {
        match request.method {
            Method::Options => self.context.send_error(x, Status::NO_CONTENT, options),
            _ => self.answer_for_file(x, request, options),
        }
    }
}
