//! Responses that consist of a status only, and redirects.

use evring::{Commands, Cx};

use crate::reply::ResponseOptions;
use crate::respond::{ResponseWriter, send_status};
use crate::site::Site;
use crate::state::State;
use crate::status::Status;

impl Site {
    /// Sends a response that has only a status. Returns whether the connection stays open.
    #[cold]
    pub(crate) fn send_error(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        status: Status,
        options: ResponseOptions,
    ) -> bool {
        let field = match status {
            Status::METHOD | Status::NO_CONTENT => "Allow: GET, HEAD, OPTIONS\r\n",
            // The shortage is usually brief.
            Status::BUSY => "Retry-After: 1\r\n",
            _ => "",
        };
        let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
        send_status(x, status, field.as_bytes(), options, writer)
    }

    /// Redirects from a directory's canonical path to the same path with a slash. Returns whether
    /// the connection stays open.
    pub(crate) fn redirect(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        (path, query): (&[u8], Option<&[u8]>),
        options: ResponseOptions,
    ) -> bool {
        let mut location = b"Location: ".to_vec();
        // A canonical path has no second slash in front, which would name another host.
        location.extend_from_slice(path);
        location.push(b'/');
        if let Some(query) = query {
            location.push(b'?');
            location.extend_from_slice(query);
        }
        location.extend_from_slice(b"\r\n");
        let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
        send_status(x, Status::MOVED, &location, options, writer)
    }
}
