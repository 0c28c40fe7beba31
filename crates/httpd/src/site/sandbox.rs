//! Handlers in a sandbox (application-specific safe handlers, ASHs), which see requests before the site.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ash_sandbox::sandbox::{Ash, Handler, Outcome, Pass, Rejection};
use evring::hooks::{BindError, LandingArea};
use evring::{AnyMechanism, Chunk, Close, Commands, Cx, Listener};
use tracing::warn;

use crate::decision::options::ResponseOptions;
use crate::message::head_errors::start_of_line;
use crate::message::path;
use crate::message::request::{Method, RequestHead};
use crate::message::status::Status;
use crate::response::clock::Clock;
use crate::response::head::connection;
use crate::response::sent::Sent;
use crate::site::context::Context;
use crate::site::sandbox_response::{self, CheckedResponse};
use crate::site::state::State;

/// A handler in a sandbox, and the requests that it sees. See [`Builder::sandbox`](crate::Builder::sandbox).
#[derive(Clone, Debug)]
pub struct SandboxedHandler {
    name: String,
    ash: Ash,
    /// The canonical prefix; `None` matches no request.
    path: Option<Vec<u8>>,
    tenant: u64,
    /// Addresses, of each list at least one of the server's; without lists, the handler is for all.
    addresses: Vec<Vec<SocketAddr>>,
    /// The numbers of these addresses among those of the server.
    positions: Vec<usize>,
    switch: HandlerSwitch,
}

/// Switches a handler in a sandbox off and on while servers run, from any thread, in all their workers.
#[derive(Clone, Debug)]
pub struct HandlerSwitch(Arc<SwitchState>);

#[derive(Debug)]
struct SwitchState {
    is_on: AtomicBool,
    /// How often the handler was enabled.
    enables: AtomicU32,
}

impl HandlerSwitch {
    fn new() -> Self {
        HandlerSwitch(Arc::new(SwitchState { is_on: true.into(), enables: 0.into() }))
    }

    /// Switches the handler off or on, by one store. While it is off, the site gets all requests.
    pub fn set_on(&self, is_on: bool) {
        self.0.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Enables the handler from its next request on, in the workers where aborts have disabled it.
    pub fn enable(&self) {
        self.0.enables.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number and size in bytes of the receive buffers in the memory of a handler with listeners: half of its message area. The
/// rest is for heads that land elsewhere.
const BUFFERS: (u16, u32) = (64, 2048);

/// Returns the canonical form of a prefix of paths; `None` if it is outside of the root.
pub(crate) fn canonical_prefix(prefix: &str) -> Option<Vec<u8>> {
    let mut encoded = Vec::with_capacity(prefix.len());
    path::encode(prefix.as_bytes(), &mut encoded);
    // What follows the last slash is the beginning of a name.
    let (directory, name) = encoded.split_at(encoded.iter().rposition(|b| *b == b'/')? + 1);
    let canonical = path::canonical(directory);
    let is_below = canonical.split(|b| *b == b'/').all(|segment| segment != b"..");
    (canonical.starts_with(b"/") && is_below).then(|| [&canonical, name].concat())
}

impl SandboxedHandler {
    /// Binds a handler to all requests. Messages name the handler by `name`.
    pub fn new(name: &str, ash: Ash) -> Self {
        SandboxedHandler {
            name: name.to_owned(),
            ash,
            path: Some(b"/".to_vec()),
            tenant: 0,
            addresses: Vec::new(),
            positions: Vec::new(),
            switch: HandlerSwitch::new(),
        }
    }

    /// Binds it to the requests whose path begins with `prefix`, a path without percent-encodings. A prefix outside of
    /// the root matches no request. The handler gets paths in their canonical form.
    #[must_use]
    pub fn path(self, prefix: &str) -> Self {
        SandboxedHandler { path: canonical_prefix(prefix), ..self }
    }

    /// Sets the tenant, whose number the handler can ask for. The default is 0.
    #[must_use]
    pub fn tenant(self, tenant: u64) -> Self {
        SandboxedHandler { tenant, ..self }
    }

    /// Binds it to an address of the server, and perhaps others: it sees only the requests that arrive there. A server
    /// without one of them does not start. The kernel receives what arrives there into the memory of the first handler
    /// that is bound to the address, so that the handler gets heads without a copy; without TLS, it can read all that
    /// arrives at the address, also what other handlers and the site get.
    #[must_use]
    pub fn listener(self, address: SocketAddr) -> Self {
        self.listener_at_one_of(&[address])
    }

    /// Binds it to those of these addresses that the server has, at least one. They are the meanings of a name.
    pub(crate) fn listener_at_one_of(mut self, addresses: &[SocketAddr]) -> Self {
        self.addresses.push(addresses.to_vec());
        self
    }

    /// Returns what switches the handler off and on, and enables it again. Clones of a handler have the same one.
    pub fn switch(&self) -> HandlerSwitch {
        self.switch.clone()
    }

    /// Returns the lists of its addresses, of each of which the server has at least one.
    pub(crate) fn addresses_mut(&mut self) -> impl Iterator<Item = &mut Vec<SocketAddr>> {
        self.addresses.iter_mut()
    }

    /// Finds its addresses among those of the server.
    ///
    /// # Errors
    /// If the server has none of a list; the name of the handler, and the first address of the list.
    pub(crate) fn find_listeners(
        &mut self,
        listen: &[SocketAddr],
    ) -> Result<(), (String, SocketAddr)> {
        let is_missing = |list: &&Vec<SocketAddr>| !list.iter().any(|at| listen.contains(at));
        if let Some(missing) = self.addresses.iter().find(is_missing).and_then(|list| list.first())
        {
            return Err((self.name.clone(), *missing));
        }
        let is_own = |at: &SocketAddr| self.addresses.iter().any(|list| list.contains(at));
        let found = listen.iter().enumerate().filter(|(_, at)| is_own(at));
        self.positions = found.map(|(position, _)| position).collect();
        Ok(())
    }
}

/// The handlers of a worker, each with a memory of its own.
#[derive(Default)]
pub(crate) struct Sandbox {
    bound: Vec<Bound>,
    /// Room for the head of a response.
    memory: Vec<u8>,
}

struct Bound {
    name: String,
    path: Option<Vec<u8>>,
    handler: Handler,
    switch: HandlerSwitch,
    /// How often the switch had enabled the handler at the last request.
    enables: u32,
    /// The log says that aborts have disabled it.
    is_disabled: bool,
    /// The numbers of its listeners; with none, it is for all.
    listeners: Vec<u16>,
    /// Where messages of its listeners land.
    area: Option<LandingArea>,
}

impl Bound {
    /// Returns whether the handler sees requests for a canonical path that arrive at a listener.
    fn is_for(&self, name: &[u8], listener: u16) -> bool {
        self.path.as_ref().is_some_and(|prefix| name.starts_with(prefix))
            && (self.listeners.is_empty() || self.listeners.contains(&listener))
    }

    /// Does what the switch says.
    fn obey_switch(&mut self) {
        let state = &*self.switch.0;
        self.handler.set_on(state.is_on.load(Ordering::Relaxed));
        let enables = state.enables.load(Ordering::Relaxed);
        if enables != self.enables {
            self.enables = enables;
            self.handler.enable();
            self.is_disabled = false;
        }
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.bound.iter().map(|bound| &bound.name)).finish()
    }
}

impl Sandbox {
    /// Creates an instance of each handler for this worker, which has these numbers of listeners at each address of the
    /// server.
    pub(crate) fn new(
        handlers: &[SandboxedHandler],
        listeners: &[usize],
    ) -> Result<Self, (String, Rejection)> {
        let of_position = |position: &usize| {
            let first: usize = listeners[..*position].iter().sum();
            first as u16..(first + listeners[*position]) as u16
        };
        let bound = handlers.iter().map(|handler| match handler.ash.instantiate(handler.tenant) {
            Ok(instance) => Ok(Bound {
                name: handler.name.clone(),
                path: handler.path.clone(),
                handler: instance,
                switch: handler.switch(),
                enables: handler.switch.0.enables.load(Ordering::Relaxed),
                is_disabled: false,
                listeners: handler.positions.iter().flat_map(of_position).collect(),
                area: None,
            }),
            Err(rejection) => Err((handler.name.clone(), rejection)),
        });
        let memory = Vec::with_capacity(sandbox_response::MAX_HEAD_BYTES);
        Ok(Sandbox { bound: bound.collect::<Result<_, _>>()?, memory })
    }

    /// Lets the kernel receive from each listener into the memory of the first handler that is bound to it.
    pub(crate) fn land(&mut self, server: &mut AnyMechanism) -> Result<(), (String, BindError)> {
        let mut taken = Vec::new();
        for Bound { name, handler, listeners, area, .. } in &mut self.bound {
            let free: Vec<_> = listeners.iter().filter(|n| !taken.contains(*n)).copied().collect();
            if free.is_empty() {
                continue;
            }
            let (count, size) = BUFFERS;
            let add = |buffers| server.add_buffers(buffers);
            let landing = LandingArea::new(handler, count, size, add).and_then(|landing| {
                let set = |n: &u16| server.set_listener_group(Listener(*n), landing.group());
                free.iter().try_for_each(set)?;
                Ok(landing)
            });
            *area = Some(landing.map_err(|error| (name.clone(), error))?);
            taken.extend(free);
        }
        Ok(())
    }

    /// Returns the instances.
    #[cfg(test)]
    pub(crate) fn handlers(&mut self) -> impl Iterator<Item = &mut Handler> {
        self.bound.iter_mut().map(|bound| &mut bound.handler)
    }

    /// Lets the handlers that are bound to a request answer it, in their order. Returns what the first
    /// that has handled it has sent; a handler that discards it, or sends nothing, ends the connection. What is not exactly
    /// one response is an involuntary abort.
    /// A request with a body, and HEAD, whose response has none, are left to the site, and so are all under
    /// overload (section 2.4).
    #[inline]
    pub(crate) fn answer(
        &mut self,
        context: &Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> Option<Sent> {
        if self.bound.is_empty() { None } else { self.ask(context, x, request, options) }
    }

    #[inline(never)]
    fn ask(
        &mut self,
        context: &Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> Option<Sent> {
        let metrics = context.metrics.own();
        if request.has_body() || request.method == Method::Head {
            return None;
        }
        // Handlers get canonical paths only.
        let (name, _) = path::split(request.target).ok()?;
        let name = path::try_canonical(name).ok().filter(|name| !path::has_encoded_slash(name))?;
        if x.io.is_overloaded() {
            let is_bound = self.bound.iter().any(|bound| bound.is_for(&name, x.state.listener));
            metrics.sandbox_passed.add(is_bound.into());
            metrics.sandbox_overloaded.add(is_bound.into());
            return None;
        }
        let head = canonical_head(request, &name);
        let connection = x.id.value();
        let Sandbox { bound, memory } = self;
        let listener = x.state.listener;
        let bound = bound.iter_mut().filter(|bound| bound.is_for(&name, listener));
        let mut has_passed = false;
        for bound in bound {
            bound.obey_switch();
            let Bound { name, handler, is_disabled, area, .. } = bound;
            let slot = area.as_ref().and_then(|area| area.slot_of(&head));
            let has_landed = slot.is_some();
            let mut outcome = match slot {
                Some(slot) => handler.handle(&head, connection, slot, x.io.now()),
                None => handler.handle_copy(&head, connection, x.io.now()),
            };
            metrics.sandbox_landed.add((has_landed && has_run(&outcome)).into());
            let mut response = None;
            if outcome == Outcome::Handled && !handler.sends().is_empty() {
                match sandbox_response::check(handler.sent(&head), memory) {
                    Ok(checked) => response = Some(checked),
                    Err(reason) => {
                        warn!("the handler {name} sent what is not one response: {reason}");
                        outcome = handler.reject();
                    }
                }
            }
            match outcome {
                Outcome::Handled => metrics.sandbox_handled.add(1),
                Outcome::Discarded => metrics.sandbox_discarded.add(1),
                Outcome::Passed(reason) => {
                    has_passed = true;
                    if let Pass::Involuntary(abort) = reason {
                        metrics.sandbox_aborts.add(1);
                        if handler.is_disabled() && !std::mem::replace(is_disabled, true) {
                            warn!("the handler {name} is disabled after too many aborts: {abort}");
                        }
                    }
                    continue;
                }
            }
            let Some(response) = response else {
                x.io.close(x.id, Close::Flush);
                let status = Status::NO_CONTENT;
                return Some(Sent { stays_open: false, ..Sent::new(status, 0, 0) });
            };
            let clock = &context.responder.clock;
            return Some(send(x, handler.sent(&head), response, (clock, memory), options));
        }
        metrics.sandbox_passed.add(has_passed.into());
        None
    }
}

/// Returns whether the handler got the message.
fn has_run(outcome: &Outcome) -> bool {
    use Pass::{Disabled, Governed, Off, OverBudget};
    !matches!(outcome, Outcome::Passed(Off | Disabled | OverBudget | Governed(_)))
}

/// Returns a head that begins with its request line, and whose target has a canonical path, by which files and passwords are
/// found, too. The host of a target in absolute form becomes that of the Host field.
fn canonical_head<'a>(request: &RequestHead<'a>, name: &[u8]) -> Cow<'a, [u8]> {
    let RequestHead { head, target, .. } = *request;
    // Handlers look for the method in the first bytes, in front of which a client may send empty lines.
    let head = &head[start_of_line(head)..];
    let query = memchr::memchr(b'?', target).unwrap_or(target.len());
    if &target[..query] == name {
        return Cow::Borrowed(head);
    }
    // The method, which comes first, contains no slash.
    let at = memchr::memmem::find(head, target).unwrap_or_default();
    let (method, rest) = (&head[..at], &head[at + target.len()..]);
    let mut fields = request.fields();
    let host = fields.find(|(name, _)| name.eq_ignore_ascii_case(b"host"));
    let Some((field, host)) = host.filter(|_| !target.starts_with(b"/")) else {
        return Cow::Owned([method, name, &target[query..], rest].concat());
    };
    let end_of_name = field.as_ptr().addr() + field.len() - rest.as_ptr().addr();
    let (before, line) = rest.split_at(end_of_name);
    let after = &line[memchr::memchr(b'\r', line).unwrap_or_default()..];
    let host = [b": ", host].concat();
    Cow::Owned([method, name, &target[query..], before, &host, after].concat())
}

/// Writes the fields that a response of a handler needs and does not have (RFC 9110, section 6.6.1, and RFC 9112, section
/// 9.6).
fn put_missing_fields(
    out: &mut Vec<u8>,
    response: CheckedResponse,
    clock: &Clock,
    options: ResponseOptions,
) {
    let (date, server) = clock.date_and_server();
    if !response.has_date {
        out.extend_from_slice(date);
    }
    if !response.has_server {
        out.extend_from_slice(server);
    }
    if !response.closes {
        out.extend_from_slice(connection(options));
    }
}

/// Sends a response of a handler, which was checked, with the fields that it needs behind its status line. `memory` has
/// room for these.
fn send<'a>(
    x: &mut Cx<'_, impl Commands, State>,
    pieces: impl Iterator<Item = &'a [u8]>,
    response: CheckedResponse,
    (clock, memory): (&Clock, &mut Vec<u8>),
    options: ResponseOptions,
) -> Sent {
    let CheckedResponse { status, body_bytes, has_date, has_server, closes, .. } = response;
    let options = options.ending_if(closes);
    let is_whole = has_date && has_server && (closes || connection(options).is_empty());
    let (mut queued, mut line_bytes) = (0, if is_whole { 0 } else { response.line_bytes });
    memory.clear();
    for piece in pieces {
        let (line, rest) = piece.split_at(line_bytes.min(piece.len()));
        if line_bytes > 0 {
            line_bytes -= line.len();
            memory.extend_from_slice(line);
            if line_bytes > 0 {
                continue;
            }
            put_missing_fields(memory, response, clock, options);
            queued = x.io.send(x.id, Chunk::Copy(memory));
        }
        if !rest.is_empty() {
            queued = x.io.send(x.id, Chunk::Copy(rest));
        }
    }
    Sent { status, ..Sent::new(Status::OK, body_bytes, queued) }.close(x.io, x.id, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::message::request::{HeadMemory, parse};

    #[test]
    fn handlers_get_the_path_and_the_host_that_the_server_uses() {
        for (line, fields, canonical) in [
            ("GET /a?b", "Host: h\r\nX: y\r\n", "GET /a?b HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n"),
            ("GET /%61?%61", "Host: h\r\n", "GET /a?%61 HTTP/1.1\r\nHost: h\r\n\r\n"),
            (
                "GET http://t:8/%61?b",
                "X: y\r\nhost:h.test\r\nZ: host: h\r\n",
                "GET /a?b HTTP/1.1\r\nX: y\r\nhost: t:8\r\nZ: host: h\r\n\r\n",
            ),
        ] {
            let mut memory = HeadMemory::new();
            let head = format!("{line} HTTP/1.1\r\n{fields}\r\n");
            let request = parse(head.as_bytes(), &mut memory, &Limits::default()).unwrap();
            let head = canonical_head(&request, b"/a");
            assert_eq!(head.escape_ascii().to_string(), canonical.escape_default().to_string());
        }
    }
}
