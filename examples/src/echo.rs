//! An echo server.

use evring::{Application, Chunk, Close, Commands, Cx, HIGH_WATER, Rx};

/// Echoes received bytes without a copy.
///
/// While a peer does not read its replies, the server stops receiving from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Echo;

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 1; // consumes everything

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let ended = rx.eof();
        if !rx.bytes().is_empty() && x.io.send(x.id, Chunk::Received(rx.take())) >= HIGH_WATER {
            x.io.set_receiving(x.id, false);
        }
        if ended {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, ()>) {
        x.io.set_receiving(x.id, true);
    }
}
