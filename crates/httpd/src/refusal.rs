//! Replies that are not files.

use multiplex::{Chunk, Commands, Conn, HIGH_WATER};

use crate::files::Files;
use crate::reply::{self, About, Manner};
use crate::state::State;
use crate::status::Status;

impl Files {
    /// Sends a reply with no more to it than its status; true if the connection goes on.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        status: Status,
        manner: Manner,
    ) -> bool {
        let allow = if status == Status::METHOD { "Allow: GET, HEAD\r\n" } else { "" };
        self.send_brief(io, id, state, status, allow.as_bytes(), manner)
    }

    /// Sends a client from the name of a directory, a target's path, to the same name with a
    /// slash; true if the connection goes on.
    pub(crate) fn redirect(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        (path, query): (&[u8], Option<&[u8]>),
        manner: Manner,
    ) -> bool {
        // Two slashes in front would lead to another host.
        let slashes = path.iter().take_while(|b| **b == b'/').count();
        let mut location = b"Location: /".to_vec();
        location.extend_from_slice(&path[slashes..]);
        location.push(b'/');
        if let Some(query) = query {
            location.push(b'?');
            location.extend_from_slice(query);
        }
        location.extend_from_slice(b"\r\n");
        self.send_brief(io, id, state, Status::MOVED, &location, manner)
    }

    fn send_brief(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        status: Status,
        field: &[u8],
        manner: Manner,
    ) -> bool {
        let Status(code, phrase) = status;
        let len = b"000 \n".len() + phrase.len();
        let about =
            About { content_type: "text/plain; charset=utf-8", modified: None, len: len as u64 };
        let out = &mut self.scratch;
        out.clear();
        reply::head(out, status, self.clock.stamp(), about);
        out.extend_from_slice(field);
        reply::end_head(out, manner);
        if manner.body {
            reply::put(out, format_args!("{code} {phrase}\n"));
        }
        state.full = io.send(id, Chunk::Copy(out)) >= HIGH_WATER;
        manner.finish(io, id)
    }
}
