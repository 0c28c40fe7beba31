//! Checks of the settings for contradictions, and of the files that they name.

use std::collections::HashSet;
#[cfg(any(feature = "basic-auth", feature = "sandbox"))]
use std::net::SocketAddr;
#[cfg(feature = "sandbox")]
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
#[cfg(feature = "tls")]
use std::sync::Arc;

#[cfg(feature = "tls")]
use evring_tls::Certificates;
#[cfg(feature = "basic-auth")]
use tracing::warn;

#[cfg(feature = "basic-auth")]
use crate::basic_auth::BasicAuth;
#[cfg(feature = "compression")]
use crate::compression::Compression;
use crate::decision::options::HostIndex;
use crate::error_page::LoadedPage;
use crate::file_options::FileOptions;
use crate::host_options::HostOptions;
#[cfg(feature = "basic-auth")]
use crate::page_path::PagePath;
use crate::redirect::Redirect;
use crate::server::builder::Builder;
use crate::server::error::Error;
#[cfg(feature = "sandbox")]
use crate::server::modules;
#[cfg(feature = "tls")]
use crate::server::tls;
#[cfg(feature = "tls")]
use crate::server::tls::{LoadedTls, Tickets};
use crate::site::log;
#[cfg(feature = "basic-auth")]
use crate::site::login::Realms;
#[cfg(feature = "sandbox")]
use crate::site::sandbox::Sandbox;

impl Builder {
    /// Returns the settings of basic authentication of each host.
    #[cfg(feature = "basic-auth")]
    pub(super) fn basic_auths(&self) -> impl Iterator<Item = &[BasicAuth]> {
        self.hosts_and_files().map(move |(host, _)| self.basic_auth_of(host))
    }

    /// Returns those of a host.
    #[cfg(feature = "basic-auth")]
    fn basic_auth_of<'a>(&'a self, host: Option<&'a HostOptions>) -> &'a [BasicAuth] {
        host.and_then(|host| host.basic_auth.as_ref()).unwrap_or(&self.basic_auth)
    }

    /// Reads the files of users.
    #[cfg(feature = "basic-auth")]
    pub(super) fn load_realms(&self) -> Result<Realms, Error> {
        Realms::load(self.basic_auths()).map_err(|(file, error)| Error::Users(file, error))
    }

    /// Warns if clients in the network send passwords without TLS.
    #[cfg(feature = "basic-auth")]
    pub(super) fn warn_of_plain_passwords(&self, listen: &[SocketAddr]) {
        #[cfg(feature = "tls")]
        if self.has_tls() {
            return;
        }
        let is_used = self.basic_auths().any(|of_host| !of_host.is_empty());
        if let Some(at) = listen.iter().find(|at| is_used && !at.ip().is_loopback()) {
            warn!(
                "clients of {at} send the passwords of basic-auth as plain text: use TLS, or a loopback address \
                 behind a proxy with TLS"
            );
        }
    }

    /// Returns the maximum bytes of a file that is compressed at any host, if one compresses files.
    #[cfg(feature = "compression")]
    pub(super) fn max_compressed_file(&self) -> Option<usize> {
        let all = self.pages().map(|(_, files)| files.compression);
        all.filter(Compression::is_enabled).map(|enabled| enabled.max_bytes as usize).max()
    }

    /// Checks the settings that are wrong whatever the files have.
    pub(super) fn check_values(&self) -> Result<(), Error> {
        if let Some((path, reason)) = &self.wrong_route {
            return Err(Error::Route(path.clone(), reason));
        }
        // The cache is read before the server changes its user, and again at a reload.
        #[cfg(all(feature = "sandbox", feature = "user"))]
        if self.user.is_some() && self.handler_cache.is_some() {
            return Err(Error::Conflict(
                "handler-cache keeps compiled handlers for one user; use no other user, or no cache",
            ));
        }
        if let Some(host) = self.host_of_another_format() {
            return Err(conflict_of(
                Some(host),
                "access-log names the file of another log, which has another log-format; use one format, or two files",
            ));
        }
        #[cfg(feature = "compression")]
        for (host, files) in self.hosts_and_files() {
            let c = &files.compression;
            if c.is_enabled() && c.min_bytes > c.max_bytes.into() {
                let reason = "no file is compressed: compress-min is above compress-max";
                return Err(conflict_of(host, reason));
            }
        }
        #[cfg(feature = "tls")]
        if self.tls.self_signed {
            let reason = "tls-self-signed makes a certificate, and tls-cert names another; use one of both settings";
            if !self.tls.certificates.is_empty() {
                return Err(Error::Conflict(reason));
            }
            if let Some(host) = self.hosts.iter().find(|host| host.certificate.is_some()) {
                return Err(conflict_of(Some(host), reason));
            }
        }
        if self.workers == 0 {
            return Err(Error::Conflict(
                "a server without workers serves nobody; set `workers` to 1 or more",
            ));
        }
        self.conflict.map_or(Ok(()), |reason| Err(Error::Conflict(reason)))
    }

    /// Checks the settings, and the files that they name, without starting the server. Warns of certificates that
    /// have expired.
    ///
    /// # Errors
    /// Those of [`Builder::start`] that do not depend on the mechanism and the addresses. Without addresses in the
    /// settings, those of the server are known at the start, as a service manager may give them: then neither they nor
    /// the addresses of handlers are checked.
    pub fn check(&self) -> Result<(), Error> {
        self.check_values()?;
        let mut listeners = self.listeners(&[], &[], &[])?;
        if !self.has_addresses() {
            listeners.listen.clear();
        }
        listeners.check_distinct()?;
        self.check_paths()?;
        #[cfg(feature = "basic-auth")]
        {
            self.load_realms()?;
            self.warn_of_plain_passwords(&listeners.listen);
        }
        self.check_pages()?;
        #[cfg(feature = "sandbox")]
        self.check_handlers(&listeners.listen)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = self.load_tls(listeners.listen.len(), None, &Tickets::new())? {
            tls::warn_of_invalid(&tls.certificates);
        }
        Ok(())
    }

    /// Checks the directories and the access logs.
    pub(super) fn check_paths(&self) -> Result<(), Error> {
        for root in self.pages().filter_map(|(root, _)| root) {
            // Search permission suffices.
            let found = std::fs::metadata(root.join("."));
            found.map_err(|error| Error::Root(root.to_owned(), error))?;
        }
        for path in self.access_logs().into_iter().filter_map(|log| log.path) {
            log::check(&path).map_err(|error| Error::Log(path, error))?;
        }
        Ok(())
    }

    /// Returns whether the settings name the addresses of the server.
    fn has_addresses(&self) -> bool {
        !self.listen.is_empty() || !self.config.listen.is_empty()
    }

    /// Checks the handlers in a sandbox, of which it creates an instance as each worker does.
    #[cfg(feature = "sandbox")]
    fn check_handlers(&self, listen: &[SocketAddr]) -> Result<(), Error> {
        let mut handlers = modules::check(&self.modules, self.handler_cache.as_deref())?;
        handlers.extend(self.sandbox.iter().cloned());
        Sandbox::new(&handlers, &[])
            .map_err(|(name, rejection)| Error::Handler(name, rejection))?;
        if !self.has_addresses() {
            return Ok(());
        }
        // A socket of a service manager may be for both families.
        let of_ipv6 = listen.iter().filter(|at| at.ip() == Ipv6Addr::UNSPECIFIED);
        let of_ipv4 = of_ipv6.map(|at| SocketAddr::from((Ipv4Addr::UNSPECIFIED, at.port())));
        let all: Vec<_> = listen.iter().copied().chain(of_ipv4).collect();
        modules::find_listeners(&mut handlers, &all, &[])
    }

    /// Returns whether the server serves with TLS.
    #[cfg(feature = "tls")]
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_enabled() || self.hosts.iter().any(|host| host.certificate.is_some())
    }

    /// Reads the certificates of all hosts.
    #[cfg(feature = "tls")]
    pub(super) fn load_tls(
        &self,
        first_redirecting: usize,
        made: Option<Arc<Certificates>>,
        tickets: &Tickets,
    ) -> Result<Option<LoadedTls>, Error> {
        let mut tls = self.tls.clone();
        for (certificate, key) in self.hosts.iter().filter_map(|host| host.certificate.clone()) {
            tls.certificates.push(certificate);
            tls.keys.push(key);
        }
        tls.load(first_redirecting, made, tickets)
    }

    /// Checks that the hosts have names of their own, and that the pages below their roots can be read.
    pub(super) fn check_pages(&self) -> Result<(), Error> {
        let mut names = HashSet::new();
        for host in &self.hosts {
            if host.names.is_empty() || !host.names.iter().all(|name| names.insert(name)) {
                return Err(Error::Conflict("each virtual host needs names of its own"));
            }
        }
        let is_empty = |host: &&HostOptions| host.root.is_none() && host.files.redirects.is_empty();
        if let Some(host) = self.hosts.iter().find(is_empty) {
            return Err(conflict_of(Some(host), "it needs a directory, or redirects"));
        }
        if self.hosts.len() >= usize::from(u16::MAX) {
            return Err(Error::Conflict("a server has fewer than 65535 virtual hosts"));
        }
        self.load_error_pages()?;
        for (host, files) in self.hosts_and_files() {
            let FileOptions { fallback, redirects, .. } = files;
            if let Some(redirect) = Redirect::find_loop(redirects) {
                return Err(Error::RedirectLoop(redirect.to_string()));
            }
            if let Some((unused, earlier)) = Redirect::find_unused(redirects) {
                return Err(Error::RedirectUnused(unused.to_string(), earlier.to_string()));
            }
            #[cfg(feature = "basic-auth")]
            if files
                .error_pages
                .iter()
                .any(|error_page| self.needs_password(host, &error_page.page))
            {
                let reason = "a page of error-page is sent without the password that basic-auth needs for it; move the \
                              page, or protect all paths";
                return Err(conflict_of(host, reason));
            }
            let Some(page) = fallback else { continue };
            if redirects.iter().any(|redirect| redirect.matches(page.canonical())) {
                let reason = "a redirect matches the page of fallback; exclude it or move it";
                return Err(conflict_of(host, reason));
            }
            #[cfg(feature = "basic-auth")]
            if self.needs_password(host, page) {
                let reason = "other paths send the page of fallback without the password that basic-auth needs for it; \
                              move the page, or protect all paths";
                return Err(conflict_of(host, reason));
            }
            let root = self.root_of(host)?;
            let path = root.join(page.path());
            page.open(root, self.config.symlinks).map_err(|error| Error::Page(path, error))?;
        }
        Ok(())
    }

    /// Returns whether a page needs a password that is not needed for all paths.
    #[cfg(feature = "basic-auth")]
    fn needs_password(&self, host: Option<&HostOptions>, page: &PagePath) -> bool {
        self.basic_auth_of(host).iter().any(|auth| auth.is_for_some(page.canonical()))
    }

    /// Returns the root and the settings of each host, which contain the pages that it sends by itself.
    pub(super) fn pages(&self) -> impl Iterator<Item = (Option<&Path>, &FileOptions)> {
        self.hosts_and_files().map(|(host, files)| (self.root(host), files))
    }

    /// Returns the virtual hosts with their settings for files; the first host is `None`.
    fn hosts_and_files(&self) -> impl Iterator<Item = (Option<&HostOptions>, &FileOptions)> {
        let others = self.hosts.iter().map(|host| (Some(host), &host.files));
        [(None, &self.file_options)].into_iter().chain(others)
    }

    fn root<'a>(&'a self, host: Option<&'a HostOptions>) -> Option<&'a Path> {
        match host {
            None => self.config.roots.first().map(PathBuf::as_path),
            Some(host) => host.root.as_deref(),
        }
    }

    /// Returns the directory of a host that has pages.
    fn root_of<'a>(&'a self, host: Option<&'a HostOptions>) -> Result<&'a Path, Error> {
        let reason = "fallback and error-page need a directory of files";
        self.root(host).ok_or_else(|| conflict_of(host, reason))
    }

    /// Reads the pages of errors, which are sent as files are: those that the user of the server may read.
    pub(super) fn load_error_pages(&self) -> Result<Vec<(HostIndex, LoadedPage)>, Error> {
        let mut all = Vec::new();
        for (index, (host, files)) in self.hosts_and_files().enumerate() {
            for error_page in &files.error_pages {
                let root = self.root_of(host)?;
                let path = root.join(error_page.page.path());
                let file = error_page.page.open(root, self.config.symlinks);
                let page = file.and_then(|file| error_page.load(file, &files.mime_types));
                let page = page.map_err(|error| Error::Page(path, error))?;
                all.push((HostIndex(index as u16), page));
            }
        }
        Ok(all)
    }
}

/// Returns the error of settings of a host that contradict each other.
fn conflict_of(host: Option<&HostOptions>, reason: &'static str) -> Error {
    match host.and_then(|host| host.names.first()) {
        None => Error::Conflict(reason),
        Some(name) => Error::HostConflict(name.clone(), reason),
    }
}
