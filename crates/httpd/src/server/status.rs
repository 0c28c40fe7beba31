//! The thread that waits for the metrics of the workers, which `/.httpd/status.json` shows.

use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::site::pool::Pool;
use crate::site::status;

/// Maximum number of requests that wait for the metrics; further ones get 503.
const MAX_QUEUED: usize = 16;

impl Builder {
    /// Starts the thread, if the metrics are shown. One worker has it, too: those that it replaces may still serve.
    pub(super) fn start_status(&self) -> Result<Option<Pool>, Error> {
        let has_files = !self.config.roots.is_empty() || !self.hosts.is_empty();
        let is_shown = status::is_shown(self.status, has_files, &self.routes);
        is_shown.then(|| Pool::new(1, MAX_QUEUED)).transpose().map_err(Error::Thread)
    }
}
