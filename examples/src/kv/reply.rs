//! Replies on their way to a client.

use multiplex::{Chunk, Commands, Conn};

/// Where replies go, and how much of them waits there.
pub(super) struct Out<'a, C> {
    pub io: &'a mut C,
    pub id: Conn,
    pub queued: usize,
}

impl<C: Commands> Out<'_, C> {
    pub(super) fn send(&mut self, chunk: Chunk<'_>) {
        self.queued = self.io.send(self.id, chunk);
    }

    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.send(Chunk::Copy(bytes));
    }

    pub(super) fn say(&mut self, text: &'static [u8]) {
        self.send(Chunk::Static(text));
    }

    pub(super) fn say_unless(&mut self, quiet: bool, text: &'static [u8]) {
        if !quiet {
            self.say(text);
        }
    }
}
