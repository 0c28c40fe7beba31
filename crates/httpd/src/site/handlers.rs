//! Calls of handlers, and the responses of handlers.

use std::ops::ControlFlow;
use std::sync::Arc;

use evring::{Chunk, Close, Commands, Cx, Lateness, Others, Rx};
use tracing::error;

use crate::decision::options::ResponseOptions;
use crate::decision::representation::RepresentationHeaders;
use crate::message::body::BodyDecoder;
use crate::message::conversion::{HttpConversion, trailers};
use crate::message::request::{Expects, Framing, KeptHead, Method, RequestHead};
use crate::message::status::Status;
use crate::response::clock::Clock;
use crate::response::prepared::PreparedResponse;
use crate::site::any_response::{AnyResponse, ResponseKind};
use crate::site::body_memory::BodyMemory;
use crate::site::client_info;
use crate::site::context::Context;
use crate::site::exchange::{Exchange, IncomingBody, Stage, WaitsFor};
use crate::site::guard::{Guarded, guard};
use crate::site::handler::{Answer, BodySink, Handler, Wait};
use crate::site::head::Head;
use crate::site::log::LoggedRequest;
use crate::site::pipe::pipe;
use crate::site::progress::{self, Progress};
use crate::site::request_body::RequestBody;
use crate::site::responses::{self, SendProgress};
use crate::site::routes::{ConstantFor, Route, Routes};
use crate::site::state::{AfterBody, BodyReceipt, PendingWork, State};
use crate::site::upgrade::Protocol;
use crate::site::wakers::{Task, Wakers};

/// Why a handler that waits is not woken, and what to do.
const NO_HANDLE: &str = "the site has no handle: call `Site::remote`";

/// The handlers of a site.
#[derive(Debug, Default)]
pub(crate) struct Handlers {
    pub(crate) routes: Routes,
    conversion: HttpConversion,
    /// The constant responses, by the indices of their routes, once they were requested.
    constants: Vec<Option<PreparedResponse>>,
    /// The wake-ups of handlers that wait, if the mechanism's handle is known.
    pub(crate) wakers: Option<Wakers>,
}

impl Handlers {
    /// Calls a handler. Returns whether the next request may be processed.
    pub(crate) fn call(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        (body, options): (BodyDecoder, ResponseOptions),
        route: Route,
    ) -> bool {
        let is_constant = match route.constant {
            ConstantFor::None => false,
            ConstantFor::Gets => request.method == Method::Get,
            ConstantFor::All => true,
        };
        if is_constant && !body.is_open() {
            return self.send_constant(context, x, &route, options);
        }
        if route.sheds_if_late {
            let options = options.ending_if(body.is_open());
            if let Some(proceed) = shed(context, x, options) {
                return proceed;
            }
        }
        if !body.is_open() && route.params.is_none() && route.canonical.is_none() {
            let handler = self.routes.handler(&route);
            match guard(|| handler.handle_head(&Head::parsed(request))) {
                Ok(None) => {}
                Ok(Some(AnyResponse(ResponseKind::Plain(response))))
                    if responses::is_simple(&response) =>
                {
                    return responses::send_plain(context, x, response, options);
                }
                Ok(Some(response)) => return self.send(context, x, Ok(response), options),
                Err(status) => return self.send(context, x, Err(status), options),
            }
        }
        self.call_converted(context, x, request, (body, options), route)
    }

    /// Calls a handler that needs the types of `http`. Not inlined, as its values are large.
    #[inline(never)]
    fn call_converted(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        (body, options): (BodyDecoder, ResponseOptions),
        route: Route,
    ) -> bool {
        let handler = self.routes.handler(&route);
        let Ok(mut head) = self.conversion.parts(request, route.canonical) else {
            return context.send_error(x, Status::BAD_REQUEST, options.ending());
        };
        if let Some(params) = route.params {
            head.extensions.insert(params);
        }
        if route.wants_client_info {
            client_info::add(context, x, &mut head.extensions);
        }
        if !body.is_open() {
            head = match guard(|| handler.handle_without_body(head)) {
                Ok(ControlFlow::Continue(head)) => head,
                Ok(ControlFlow::Break(response)) => {
                    return self.send(context, x, Ok(response), options);
                }
                Err(status) => return self.send(context, x, Err(status), options),
            }
        }
        match guard(|| Arc::clone(handler).handle(head)) {
            Ok(Answer::Receive(sink)) if !body.is_open() => {
                self.end(context, x, Guarded::new(sink), b"", options)
            }
            Ok(Answer::Receive(sink)) => {
                if request.expects == Expects::Continue {
                    x.io.send(x.id, Chunk::Static(b"HTTP/1.1 100 Continue\r\n\r\n"));
                }
                let head = context.logs_requests().then(|| KeptHead::new(request, None));
                let then = AfterBody::BodySink(Guarded::new(sink), head);
                Self::receive_body(context, x, (body, options), then);
                true
            }
            Ok(Answer::Wait(wait)) => self.wait(context, x, request, (body, options), wait),
            Ok(Answer::Respond(response)) => {
                let options = options.ending_if(body.is_open());
                self.send(context, x, Ok(response.into()), options)
            }
            Err(status) => context.send_error(x, status, options.ending()),
        }
    }

    /// Sends a constant response. Returns whether the next request may be processed.
    #[inline]
    fn send_constant(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        route: &Route,
        options: ResponseOptions,
    ) -> bool {
        let clock = &context.responder.clock;
        if self.constants.len() <= route.index {
            self.constants.resize_with(route.index + 1, || None);
        }
        let prepared = match &mut self.constants[route.index] {
            Some(prepared) => prepared,
            slot => match constant(self.routes.handler(route), clock) {
                Ok(prepared) => slot.insert(prepared),
                Err(status) => return context.send_error(x, status, options.ending()),
            },
        };
        let sent = prepared.send(x.io, x.id, clock, options);
        x.state.record(sent)
    }

    /// Makes the connection receive the body of a request.
    pub(crate) fn receive_body(
        context: &Context,
        x: &mut Cx<'_, impl Commands, State>,
        (body, options): (BodyDecoder, ResponseOptions),
        then: AfterBody,
    ) {
        let held = BodyMemory::new(&context.bodies);
        let receipt = BodyReceipt { body, received: 0, options, held, then };
        x.state.work = Some(Box::new(PendingWork::Body(receipt)));
    }

    /// Passes received bytes of a body to its sink. Returns false if processing stops here.
    pub(crate) fn data(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        bytes: &[u8],
    ) -> bool {
        let Some(BodyReceipt { options, held, then: AfterBody::BodySink(sink, _), .. }) =
            x.state.body()
        else {
            return true;
        };
        let options = options.ending();
        let response = match guard(|| (sink.data(bytes), sink.held_bytes())) {
            // A sink that holds nothing is not rejected for the memory of others.
            Ok((None, bytes))
                if held.set(bytes) <= context.limits.max_body_memory || bytes == 0 =>
            {
                return true;
            }
            Ok((None, _)) => {
                context.metrics.own().rejected_bodies.add(1);
                Err(Status::BUSY)
            }
            Ok((Some(response), _)) => Ok(response.into()),
            Err(status) => Err(status),
        };
        let work = x.state.work.take();
        let proceed = self.send(context, x, response, options);
        if let Some(PendingWork::Body(receipt)) = work.as_deref() {
            context.count(x.state, LoggedRequest::new(receipt.then.request().as_ref(), b""));
        }
        proceed
    }

    /// Ends the body of a sink, with its trailer section. Returns whether the next request may be
    /// processed.
    pub(crate) fn end(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        sink: Guarded<Box<dyn BodySink>>,
        bytes: &[u8],
        options: ResponseOptions,
    ) -> bool {
        let response = guard(|| sink.into_inner().end(trailers(bytes)));
        self.send(context, x, response.map(AnyResponse::from), options)
    }

    /// Sends a handler's response. Returns whether the next request may be processed.
    fn send(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        response: Result<AnyResponse, Status>,
        options: ResponseOptions,
    ) -> bool {
        let response = match response {
            // Nothing would wake it.
            Ok(response) if self.wakers.is_none() && options.body && response.waits() => {
                error!("the body of a response waits, but {NO_HANDLE}");
                drop(Guarded::new(response));
                Err(Status::INTERNAL)
            }
            response => response,
        };
        match responses::send(context, &mut self.conversion, x, response, options) {
            SendProgress::Sent(proceed) => proceed,
            SendProgress::Streams(body) => {
                let task = if body.waits() { self.task(x) } else { None };
                let exchange = Exchange { task, ..Exchange::new(Stage::Body(body), options) };
                self.begin(context, x, exchange)
            }
            SendProgress::Upgrades(protocol) => self.start_protocol(context, x, &protocol, options),
        }
    }

    /// Starts the protocol that a connection has switched to. Returns whether its bytes may be processed.
    #[cold]
    fn start_protocol(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        protocol: &Protocol,
        options: ResponseOptions,
    ) -> bool {
        let started = protocol.start(options, BodyMemory::new(&context.bodies));
        let (Some(task), Ok((sent, incoming))) = (self.task(x), started) else {
            x.io.close(x.id, Close::Reset);
            return false;
        };
        let exchange = Exchange::new(Stage::Body(sent), options);
        let (task, incoming) = (Some(task), Some(incoming));
        self.begin(context, x, Exchange { task, incoming, is_upgraded: true, ..exchange })
    }

    /// Calls a handler that waits. Returns whether the next request may be processed.
    pub(crate) fn wait(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        (body, options): (BodyDecoder, ResponseOptions),
        wait: Wait,
    ) -> bool {
        let Some(task) = self.task(x) else {
            drop(Guarded::new(wait));
            return context.send_error(x, Status::INTERNAL, options.ending());
        };
        let (incoming, request_body) = if body.is_open() {
            let (writer, reader) = pipe();
            let memory = BodyMemory::new(&context.bodies);
            let expects_continue = request.expects == Expects::Continue;
            let incoming = IncomingBody { body, writer, received: 0, memory, expects_continue };
            let len = match request.framing {
                Framing::Length(len) => Some(len),
                Framing::Chunked => None,
            };
            (Some(incoming), RequestBody::new(reader, len))
        } else {
            (None, RequestBody::default())
        };
        let response = match guard(|| wait.start(request_body)) {
            Ok(response) => Guarded::new(response),
            Err(status) => return context.send_error(x, status, options.ending()),
        };
        let exchange = Exchange::new(Stage::Handler(response), options);
        let exchange = Exchange { task: Some(task), incoming, ..exchange };
        let proceed = if exchange.incoming.is_some() {
            // What has arrived of the body is passed to it next, and then it is polled.
            x.state.work = Some(Box::new(PendingWork::Exchange(exchange)));
            true
        } else {
            self.begin(context, x, exchange)
        };
        if let Some(exchange) = x.state.exchange()
            && context.logs_requests()
        {
            exchange.head = Some(KeptHead::new(request, None));
        }
        proceed
    }

    /// Begins an exchange. Returns whether the next request, or the request's body, may be processed.
    fn begin(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        exchange: Exchange,
    ) -> bool {
        match progress::begin(context, &mut self.conversion, x, exchange) {
            Progress::Ended(proceed) => proceed,
            // The bytes that follow belong to the exchange.
            Progress::Waits => true,
        }
    }

    /// Returns the waker of a connection, or `None` if the mechanism's handle is unknown.
    fn task(&self, x: &mut Cx<'_, impl Commands, State>) -> Option<Task> {
        let Some(wakers) = &self.wakers else {
            error!("a handler waits, but {NO_HANDLE}");
            return None;
        };
        let observed = x.state.observed.get_or_insert_default();
        Some(observed.task.get_or_insert_with(|| wakers.task(x.id)).clone())
    }

    /// Continues the exchange of a connection whose send queue has drained. Returns false if no exchange
    /// waited for that.
    pub(crate) fn drained(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
    ) -> bool {
        let waits = x.state.exchange().is_some_and(|e| e.waits_for == WaitsFor::Room);
        if waits {
            progress::resume(context, &mut self.conversion, x);
        }
        waits
    }

    /// Continues the exchanges of the connections that were woken.
    pub(crate) fn woken(
        &mut self,
        context: &mut Context,
        io: &mut impl Commands,
        mut all: Others<'_, State>,
    ) {
        let Some(wakers) = &mut self.wakers else { return };
        let woken = wakers.take_woken(io);
        for id in &woken {
            let Some(state) = all.get(io, *id) else { continue };
            let mut x = Cx { io, id: *id, state, others: Others::none() };
            progress::resume(context, &mut self.conversion, &mut x);
        }
        if let Some(wakers) = &mut self.wakers {
            wakers.recycle(woken);
        }
    }

    /// Passes received bytes to the exchange of a connection. Returns true if it has ended and the next
    /// request may be processed.
    pub(crate) fn receive(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        rx: &mut Rx<'_>,
    ) -> bool {
        progress::receive(context, &mut self.conversion, x, rx)
    }

    /// Tells the protocol that a connection has switched to that the server stops: its input ends. Returns whether
    /// the connection has switched.
    pub(crate) fn stop_protocol(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
    ) -> bool {
        let is_upgraded = x.state.exchange().is_some_and(|exchange| exchange.is_upgraded);
        if is_upgraded {
            progress::end_input(context, &mut self.conversion, x);
        }
        is_upgraded
    }
}

/// Makes the constant response of a handler.
#[cold]
fn constant(handler: &Arc<dyn Handler>, clock: &Clock) -> Result<PreparedResponse, Status> {
    let constant = guard(|| handler.constant_for(&http::Method::GET))?;
    let (content_type, body) = constant.unwrap_or_default();
    let body = Guarded::new(body);
    Ok(PreparedResponse::new(RepresentationHeaders::plain(content_type), &body, clock))
}

/// Rejects a late request. Returns `None` if it is in time, else whether the next request may be processed.
#[cold]
fn shed(
    context: &mut Context,
    x: &mut Cx<'_, impl Commands, State>,
    options: ResponseOptions,
) -> Option<bool> {
    match x.io.lateness(x.id) {
        Lateness::InTime => None,
        Lateness::Late => {
            context.metrics.own().rejected_late.add(1);
            Some(context.send_error(x, Status::BUSY, options))
        }
        Lateness::Abandoned => {
            context.metrics.own().reset_late.add(1);
            x.io.close(x.id, Close::Reset);
            Some(false)
        }
    }
}
