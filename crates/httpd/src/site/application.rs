//! The site as an application: what each event of a connection means, and its deadlines.

use std::io;
use std::mem::take;
use std::time::Instant;

use evring::files::FileOutcome;
use evring::{Application, Close, CloseReason, Commands, ConnId, Cx, Listener, Others, Rx};
use tracing::debug;

use crate::decision::options::ResponseOptions;
use crate::limits::Limits;
use crate::message::request::HeadMemory;
use crate::message::status::Status;
use crate::site::Site;
#[cfg(feature = "tls")]
use crate::site::client_info;
#[cfg(feature = "compression")]
use crate::site::compressor;
use crate::site::context::Context;
use crate::site::files::last_timer;
#[cfg(feature = "basic-auth")]
use crate::site::login;
use crate::site::metrics::COPY_TAG;
use crate::site::progress;
use crate::site::receive::Received;
use crate::site::state::{Arrival, PendingWork, State};
use crate::site::wakers;
use crate::site::{DRAIN_TAG, RETIRE_TAG};

impl Application for Site {
    type State = State;
    const MAX_UNCONSUMED: usize = Limits::MAX_HEAD_BYTES;

    #[cfg_attr(not(any(feature = "sandbox", feature = "tls")), expect(unused_variables))]
    fn accepted(&mut self, mut x: Cx<'_, impl Commands, State>, at: Listener) {
        #[cfg(feature = "tls")]
        if let Some(redirect) = &self.redirect {
            x.state.redirects = redirect.listeners.contains(&at.0);
        }
        #[cfg(feature = "sandbox")]
        {
            x.state.listener = at.0;
        }
        if !self.seeded {
            self.files.cache.seed(x.io.random());
            self.files.close_timer = last_timer(x.io);
            self.seeded = true;
            self.context.metrics.set_started(x.io.now());
        }
        if self.context.measures {
            self.context.client_addr(&mut x);
        }
        x.state.arrival = Arrival::Part { after_line: false };
        x.io.set_deadline(x.id, Some(x.io.now() + self.context.limits.header_timeout));
    }

    fn received(&mut self, mut x: Cx<'_, impl Commands, State>, rx: &mut Rx<'_>) {
        let now = tick(self, x.io);
        let mut memory = self.head_memory.take().unwrap_or_else(|| Box::new(HeadMemory::new()));
        let next = self.answer_all(&mut x, rx, &mut memory);
        self.head_memory = Some(memory);
        if rx.eof() && matches!(next, Received::All | Received::Partial) {
            return x.io.close(x.id, Close::Flush);
        }
        set_deadline(&self.context, &mut x, now, next);
    }

    fn drained(&mut self, mut x: Cx<'_, impl Commands, State>) {
        let was_full = take(&mut x.state.full);
        if was_full {
            x.state.start_watching();
            self.context.count_awaited(x.state);
        }
        if self.handlers.drained(&mut self.context, &mut x) {
            return;
        }
        if take(&mut x.state.paused) {
            x.io.set_receiving(x.id, true);
        } else if was_full && !x.state.arrival.is_part() {
            let now = x.io.now();
            set_deadline(&self.context, &mut x, now, Received::All);
        }
    }

    fn file(
        &mut self,
        mut x: Cx<'_, impl Commands, State>,
        _: u32,
        outcome: io::Result<FileOutcome>,
    ) {
        tick(self, x.io);
        self.files.completed(&mut self.context, &mut x, outcome);
    }

    fn expired(&mut self, mut x: Cx<'_, impl Commands, State>) {
        tick(self, x.io);
        if progress::expired(&mut self.context, &mut x) {
            return;
        }
        #[cfg(feature = "compression")]
        if self.files.compression_expired(&mut self.context, &mut x) {
            return;
        }
        let (before, unsent) = (x.state.unsent, x.io.unsent_bytes(x.id));
        if self.context.looks_after_response(&mut x, unsent) {
            return;
        }
        let metrics = self.context.metrics.own();
        #[cfg(feature = "basic-auth")]
        if matches!(x.state.work.as_deref(), Some(PendingWork::Login)) {
            metrics.logins_timed_out.add(1);
            debug!("connection reset: the password was not verified in time");
            return x.io.close(x.id, Close::Reset);
        }
        if matches!(x.state.work.as_deref(), Some(PendingWork::File(..))) {
            metrics.files_timed_out.add(1);
            debug!("connection reset: file operation timed out");
            x.io.close(x.id, Close::Reset);
        } else if self.context.is_stalled(x.state, unsent) {
            metrics.reset_slow.add(1);
            debug!("connection reset: client is too slow");
            x.io.close(x.id, Close::Reset);
        } else if unsent > 0 || x.state.full {
            // If everything is sent, `drained` follows.
            self.context.watch_progress(&mut x, unsent);
        } else if before > 0 && x.state.is_idle() && !x.state.arrival.is_part() {
            // The client has everything, and may send its next request.
            x.state.stop_watching();
            self.context.await_request(&mut x);
        } else if x
            .state
            .body()
            .is_some_and(|w| u128::from(take(&mut w.received)) >= self.context.min_progress())
        {
            // The body arrives fast enough.
            x.io.set_deadline(x.id, Some(x.io.now() + self.context.limits.progress_interval));
        } else if x.state.scanned > 0 || x.state.body().is_some() {
            let receipt = x.state.body();
            let options =
                receipt.map_or(ResponseOptions::last(true), |receipt| receipt.options.ending());
            self.reject_request(&mut x, Status::TIMEOUT, options, b"");
        } else {
            let (counter, reason) = match x.state.requests {
                #[cfg(feature = "tls")]
                _ if client_info::is_handshaking(&x) => {
                    (&metrics.handshakes_timed_out, "the TLS handshake did not end in time")
                }
                0 => (&metrics.silent_timed_out, "no request arrived in time"),
                _ => (&metrics.idle_timed_out, "no further request arrived in time"),
            };
            counter.add(1);
            debug!("connection closed: {reason}");
            x.io.close(x.id, Close::Flush);
        }
    }

    fn closed(&mut self, mut x: Cx<'_, impl Commands, State>, reason: CloseReason) {
        #[cfg(feature = "tls")]
        if matches!(&reason, CloseReason::Failed(error) if error.kind() == io::ErrorKind::InvalidData)
        {
            self.context.metrics.own().tls_errors.add(1);
            debug!("connection closed: {reason:?}");
        }
        // While it took its last response, or it has vanished.
        if matches!(&reason, CloseReason::Failed(error) if error.kind() == io::ErrorKind::TimedOut)
        {
            self.context.metrics.own().reset_slow.add(1);
            debug!("connection reset: client is too slow, or has vanished");
        }
        let has_left = !matches!(reason, CloseReason::Stopped);
        self.context.subtract_unsent(&mut x);
        if has_left && x.state.body().is_some() {
            self.cancel_body(&mut x);
        }
        progress::cancel(&mut self.context, &mut x, has_left);
        self.context.count_awaited(x.state);
    }

    fn woken(&mut self, io: &mut impl Commands, all: Others<'_, State>, tag: u64) {
        tick(self, io);
        match tag {
            wakers::TAG => self.handlers.woken(&mut self.context, io, all),
            #[cfg(feature = "compression")]
            compressor::TAG => self.files.woken(&mut self.context, io, all),
            #[cfg(feature = "basic-auth")]
            login::TAG => {
                if let Some(logins) = &mut self.logins {
                    logins.woken(io, all);
                }
            }
            DRAIN_TAG => self.context.drain(),
            RETIRE_TAG => self.context.retire(io, all),
            COPY_TAG => self.context.metrics.copy_for_scrape(&io.stats()),
            _ => {}
        }
    }

    fn timer(&mut self, io: &mut impl Commands, _: Others<'_, State>, timer: u32) {
        if Some(timer) == self.files.close_timer {
            self.files.close_unused(io);
        }
    }

    fn stopping(&mut self, mut x: Cx<'_, impl Commands, State>) {
        if self.handlers.stop_protocol(&mut self.context, &mut x) {
            return;
        }
        // Requests that are being received or looked up are still answered.
        if x.state.is_idle() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, _id: ConnId, state: &State) -> bool {
        state.is_idle()
    }

    fn is_unserved(&self, _id: ConnId, state: &State) -> bool {
        state.requests == 0
    }
}

/// Brings the clock of responses to the time of this turn, which it returns. Does each second's work once.
#[inline]
fn tick(site: &mut Site, io: &mut impl Commands) -> Instant {
    let now = io.now();
    if site.context.responder.clock.tick(now, io) {
        site.context.metrics.own().copy_stats(&io.stats());
        if site.files.close_timer.is_none() {
            site.files.close_unused(io);
        }
    }
    now
}

/// Sets the deadline for the next step of a connection; one store for a plain request.
#[inline]
fn set_deadline(
    context: &Context,
    x: &mut Cx<'_, impl Commands, State>,
    now: Instant,
    next: Received,
) {
    match next {
        Received::All => context.await_request(x),
        // The deadline stays, so that single bytes do not extend it.
        Received::Partial if x.state.arrival.is_part() => {}
        Received::Partial => {
            x.state.arrival = Arrival::Part { after_line: x.state.arrival.has_line() };
            x.state.stop_watching();
            let time = match x.state.body() {
                Some(_) => context.limits.progress_interval,
                None => context.limits.header_timeout,
            };
            x.io.set_deadline(x.id, Some(now + time));
        }
        Received::Full => {
            x.state.paused = true;
            x.io.set_receiving(x.id, false);
            context.await_progress(x);
        }
        Received::Waits => {}
    }
}
