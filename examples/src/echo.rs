//! Sends back what it receives.

use evring::{Application, Chunk, Close, Commands, Cx, HIGH_WATER, Rx};

/// Sends back what it receives, from the buffer in which it arrived.
///
/// A peer that sends faster than it reads is not read from until its replies have drained.
#[derive(Clone, Copy, Debug, Default)]
pub struct Echo;

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 1; // it leaves none

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
