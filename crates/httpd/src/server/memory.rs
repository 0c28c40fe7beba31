//! The memory that a server holds when all limits are reached.

#[cfg(feature = "basic-auth")]
use std::collections::HashSet;

#[cfg(feature = "tls")]
use evring_tls::ServerSession;
use tracing::info;

use crate::error_page::ErrorPage;
use crate::server::builder::Builder;
use crate::site::Site;
#[cfg(feature = "compression")]
use crate::site::compressor::CompressorThreads;
use crate::site::log::LogWriter;
#[cfg(feature = "basic-auth")]
use crate::site::login::LoginThreads;

impl Builder {
    /// Returns the maximum bytes of memory that the server holds when all limits are reached at once.
    /// The server logs it at `info` when it starts.
    ///
    /// Not included: the program itself, the kernel's socket buffers, memory of handlers and of bytes that
    /// they share in responses, and fragmentation in the allocator.
    pub fn memory_at_full_load(&self) -> usize {
        let Builder { config, limits, .. } = self;
        let log = match self.access_logs().is_empty() {
            true => 0,
            false => LogWriter::memory(self.has_host_logs(), self.workers.into()),
        };
        #[cfg(feature = "compression")]
        let compressed = match self.max_compressed_file() {
            Some(max_bytes) => CompressorThreads::memory(max_bytes, self.workers.into())
                .saturating_add(limits.max_compressed_memory),
            None => 0,
        };
        #[cfg(not(feature = "compression"))]
        let compressed = 0;
        #[cfg(feature = "basic-auth")]
        let realms = self.basic_auths().flatten().collect::<HashSet<_>>().len();
        #[cfg(feature = "basic-auth")]
        let logins = LoginThreads::memory(realms, self.workers.into());
        #[cfg(not(feature = "basic-auth"))]
        let logins = 0;
        let mechanism = config.memory_at_full_load::<Site>();
        let site = limits.memory(config.max_connections);
        #[cfg(feature = "tls")]
        let (session, kept_sessions) = match self.tls.client_ca {
            _ if !self.has_tls() => (0, 0),
            None => (ServerSession::MAX_BYTES, 0),
            Some(_) => (
                ServerSession::MAX_BYTES_WITH_CLIENT_CERTIFICATES,
                evring_tls::MAX_KEPT_SESSIONS_BYTES,
            ),
        };
        #[cfg(not(feature = "tls"))]
        let (session, kept_sessions) = (0_usize, 0);
        let site = site.saturating_add(session.saturating_mul(config.max_connections as usize));
        mechanism
            .saturating_add(site)
            .saturating_mul(self.workers.into())
            .saturating_add(kept_sessions)
            .saturating_add(log)
            .saturating_add(compressed)
            .saturating_add(logins)
            .saturating_add(
                self.pages().map(|(_, files)| files.error_pages.len()).sum::<usize>()
                    * ErrorPage::MAX_BYTES,
            )
    }

    /// Logs the maximum memory and its parts; `purpose` is empty, or what the server is for.
    pub(super) fn log_memory(&self, purpose: &str) {
        let Builder { config, limits, workers, .. } = self;
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        info!(
            "memory at full load{purpose}: at most {} MiB in addition to the program itself; workers: {workers}, each with \
             {} connections, {} MiB buffered, {} MiB of bodies and {} MiB of cached files",
            mib(self.memory_at_full_load()),
            config.max_connections,
            mib(config.max_buffered_bytes),
            mib(limits.max_body_memory),
            mib(limits.cache_bytes),
        );
    }
}
