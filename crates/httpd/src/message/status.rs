//! Status codes and reason phrases.

use std::io;

/// The status of a response (RFC 9110, section 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16, pub(crate) &'static str);

impl Status {
    pub(crate) const SWITCHING: Self = Status(101, "Switching Protocols");
    pub(crate) const OK: Self = Status(200, "OK");
    pub(crate) const NO_CONTENT: Self = Status(204, "No Content");
    pub(crate) const PARTIAL: Self = Status(206, "Partial Content");
    pub(crate) const MOVED: Self = Status(301, "Moved Permanently");
    pub(crate) const FOUND: Self = Status(302, "Found");
    pub(crate) const SEE_OTHER: Self = Status(303, "See Other");
    pub(crate) const NOT_MODIFIED: Self = Status(304, "Not Modified");
    pub(crate) const TEMPORARY: Self = Status(307, "Temporary Redirect");
    pub(crate) const PERMANENT: Self = Status(308, "Permanent Redirect");
    pub(crate) const BAD_REQUEST: Self = Status(400, "Bad Request");
    #[cfg(feature = "basic-auth")]
    pub(crate) const UNAUTHORIZED: Self = Status(401, "Unauthorized");
    pub(crate) const FORBIDDEN: Self = Status(403, "Forbidden");
    pub(crate) const NOT_FOUND: Self = Status(404, "Not Found");
    pub(crate) const METHOD: Self = Status(405, "Method Not Allowed");
    pub(crate) const TIMEOUT: Self = Status(408, "Request Timeout");
    pub(crate) const PRECONDITION: Self = Status(412, "Precondition Failed");
    pub(crate) const BODY: Self = Status(413, "Content Too Large");
    pub(crate) const LINE: Self = Status(414, "URI Too Long");
    pub(crate) const RANGE: Self = Status(416, "Range Not Satisfiable");
    pub(crate) const EXPECTATION: Self = Status(417, "Expectation Failed");
    pub(crate) const MISDIRECTED: Self = Status(421, "Misdirected Request");
    pub(crate) const UPGRADE: Self = Status(426, "Upgrade Required");
    pub(crate) const HEAD: Self = Status(431, "Request Header Fields Too Large");
    /// For the log and the metrics, as of nginx: the client left before the response.
    pub(crate) const CANCELLED: Self = Status(499, "Client Closed Request");
    pub(crate) const INTERNAL: Self = Status(500, "Internal Server Error");
    pub(crate) const NOT_IMPLEMENTED: Self = Status(501, "Not Implemented");
    pub(crate) const BUSY: Self = Status(503, "Service Unavailable");
    pub(crate) const VERSION: Self = Status(505, "HTTP Version Not Supported");

    /// Returns the status for a failed file operation.
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Status::FORBIDDEN,
            // EXDEV: a link leaves the root. ENXIO: a socket. Neither exists for clients.
            Some(
                libc::ENOENT
                | libc::ENOTDIR
                | libc::ENAMETOOLONG
                | libc::ELOOP
                | libc::EXDEV
                | libc::ENXIO,
            ) => Status::NOT_FOUND,
            // No descriptors or memory, a hanging disk, or a path that is renamed all the time.
            Some(
                libc::EMFILE
                | libc::ENFILE
                | libc::ENOMEM
                | libc::ENOBUFS
                | libc::EBUSY
                | libc::EAGAIN,
            ) => Status::BUSY,
            _ => Status::INTERNAL,
        }
    }
}
