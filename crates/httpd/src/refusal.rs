//! Replies that are not files.

use multiplex::{Commands, Cx};

use crate::reply::Manner;
use crate::respond::{Pen, brief};
use crate::site::Site;
use crate::state::State;
use crate::status::Status;

impl Site {
    /// Sends a reply with no more to it than its status; true if the connection goes on.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        status: Status,
        manner: Manner,
    ) -> bool {
        let field = match status {
            Status::METHOD | Status::NO_CONTENT => "Allow: GET, HEAD, OPTIONS\r\n",
            // What is short now is soon there again.
            Status::BUSY => "Retry-After: 1\r\n",
            _ => "",
        };
        let pen = Pen { out: &mut self.scratch, clock: &self.clock };
        brief(x, status, field.as_bytes(), manner, pen)
    }

    /// Sends a client from the name of a directory, a canonical path, to the same name with a
    /// slash; true if the connection goes on.
    pub(crate) fn redirect(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        (path, query): (&[u8], Option<&[u8]>),
        manner: Manner,
    ) -> bool {
        let mut location = b"Location: ".to_vec();
        // It has no second slash in front, which would lead to another host.
        location.extend_from_slice(path);
        location.push(b'/');
        if let Some(query) = query {
            location.push(b'?');
            location.extend_from_slice(query);
        }
        location.extend_from_slice(b"\r\n");
        let pen = Pen { out: &mut self.scratch, clock: &self.clock };
        brief(x, Status::MOVED, &location, manner, pen)
    }
}
