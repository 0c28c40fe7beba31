//! Replies that are not files.

use multiplex::{Chunk, Commands, Conn};

use crate::clock::Clock;
use crate::files::Files;
use crate::reply::{self, About, Manner};
use crate::status::Status;

impl Files {
    /// Sends a reply with no more to it than its status; true if the connection goes on.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        status: Status,
        manner: Manner,
    ) -> bool {
        let allow = if status == Status::METHOD { "Allow: GET, HEAD\r\n" } else { "" };
        send(&mut self.scratch, &self.clock, io, id, status, allow.as_bytes(), manner)
    }

    /// Sends a client from the name of a directory to the same name with a slash; true
    /// if the connection goes on.
    pub(crate) fn redirect(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        path: &[u8],
        query: Option<&[u8]>,
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
        send(&mut self.scratch, &self.clock, io, id, Status::MOVED, &location, manner)
    }
}

fn send(
    out: &mut Vec<u8>,
    clock: &Clock,
    io: &mut impl Commands,
    id: Conn,
    status: Status,
    field: &[u8],
    manner: Manner,
) -> bool {
    let Status(code, phrase) = status;
    let len = b"000 \n".len() + phrase.len();
    let about =
        About { content_type: "text/plain; charset=utf-8", modified: None, len: len as u64 };
    out.clear();
    reply::head(out, status, clock.stamp(), about);
    out.extend_from_slice(field);
    reply::end_head(out, manner);
    if manner.body {
        reply::put(out, format_args!("{code} {phrase}\n"));
    }
    io.send(id, Chunk::Copy(out));
    manner.finish(io, id)
}
