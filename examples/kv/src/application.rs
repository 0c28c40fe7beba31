//! The server as an application of the runtime.

use std::collections::TryReserveError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use evring::{
    Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, HIGH_WATER, Listener, Rx,
};

use crate::database::{Database, Limits};
use crate::reply;
use crate::session::{Next, Session};
use crate::store::Clock;

/// A memcached server: the [`Application`] of one worker.
#[derive(Debug)]
pub struct Kv {
    database: Database,
    /// Buffer for replies, kept for its memory.
    out: Vec<u8>,
}

impl Kv {
    /// Creates a server with the values of `database`.
    pub fn new(database: Database) -> Self {
        database.common.workers.fetch_add(1, Ordering::Relaxed);
        Kv { database, out: Vec::new() }
    }

    /// Creates a server with `memory` bytes for values.
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated.
    pub fn with_memory(memory: usize, seed: u64) -> Result<Self, TryReserveError> {
        Ok(Kv::new(Database::new(Limits { memory, ..Limits::default() }, seed)?))
    }
}

/// The clock of the mechanism.
struct Time<'a, C> {
    io: &'a C,
    started: Instant,
}

impl<C: Commands> Clock for Time<'_, C> {
    fn elapsed(&self) -> Duration {
        self.io.now().saturating_duration_since(self.started)
    }

    fn unix(&self) -> Duration {
        self.io.wall_time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}

impl Application for Kv {
    type State = Session;
    const MAX_UNCONSUMED: usize = Session::MAX_UNUSED + 1;

    fn accepted(&mut self, x: Cx<'_, impl Commands, Session>, _: Listener) {
        if !self.database.connected() {
            *x.state = Session::refused();
            x.io.send(x.id, Chunk::Copy(reply::TOO_MANY_CONNECTIONS));
            x.io.close(x.id, Close::Flush);
        }
    }

    fn received(&mut self, x: Cx<'_, impl Commands, Session>, rx: &mut Rx<'_>) {
        let Kv { database, out } = self;
        let started = database.common.started(x.io.now());
        loop {
            let time = Time { io: &*x.io, started };
            let (used, next) = x.state.serve(database, &time, rx.bytes(), out);
            rx.consume(used);
            let mut queued = 0;
            if !out.is_empty() {
                queued = x.io.send(x.id, Chunk::Copy(out));
                out.clear();
            }
            match next {
                Next::Input | Next::Output if queued >= HIGH_WATER => {
                    return x.io.set_receiving(x.id, false);
                }
                Next::Input => break,
                Next::Output => {}
                Next::Close => return x.io.close(x.id, Close::Linger),
            }
        }
        if rx.eof() || x.io.is_stopping() && x.state.is_idle() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, Session>) {
        x.io.set_receiving(x.id, true);
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, Session>) {
        if x.state.is_idle() {
            x.io.close(x.id, Close::Flush);
        }
    }

    /// Bytes of a value, or of a line that is discarded, are not for a handler.
    fn has_message(&self, _: ConnId, state: &Session) -> bool {
        !state.is_idle()
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, Session>, _: CloseReason) {
        let refused = x.state.is_refused();
        x.state.end(&mut self.database);
        if !refused {
            self.database.disconnected();
        }
    }
}
