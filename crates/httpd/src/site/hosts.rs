//! The virtual hosts of a site.

use std::collections::HashMap;

use evring::Root;

use crate::decision::options::HostIndex;
use crate::file_options::FileOptions;
use crate::header_rule::HeaderRule;
use crate::host_options::HostName;
use crate::message::path;
use crate::message::request::RequestHead;

/// Maximum length of a host in a request, in bytes; longer ones have no virtual host.
const MAX_HOST_BYTES: usize = 255;

/// A root, and the settings for files below it. A host without a root only redirects.
#[derive(Debug)]
pub(crate) struct FileHost {
    pub(crate) root: Option<Root>,
    pub(crate) options: FileOptions,
}

/// The virtual hosts; the first one is for requests that name none of the others.
#[derive(Debug)]
pub(crate) struct Hosts {
    all: Vec<FileHost>,
    names: HostNames,
}

impl Hosts {
    pub(crate) fn new(first: FileHost) -> Self {
        Hosts { all: vec![first], names: HostNames::default() }
    }

    /// Adds a host.
    pub(crate) fn add(&mut self, names: &[HostName], host: FileHost) {
        self.names.add(names, HostIndex(self.all.len() as u16));
        self.all.push(host);
    }

    /// Returns the number of hosts.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, index: HostIndex) -> &FileHost {
        &self.all[usize::from(index.0)]
    }

    /// Returns the hosts that have a page for paths without a file.
    pub(crate) fn with_fallback(&self) -> Vec<HostIndex> {
        let all = self.all.iter().enumerate();
        let with = all.filter(|(_, host)| host.options.fallback.is_some());
        with.map(|(index, _)| HostIndex(index as u16)).collect()
    }

    /// Returns the header fields of errors and redirects of each host.
    pub(crate) fn fields_of_errors(&self) -> Vec<Vec<u8>> {
        self.all.iter().map(|host| HeaderRule::of_errors(&host.options.headers)).collect()
    }

    pub(crate) fn first_mut(&mut self) -> &mut FileHost {
        &mut self.all[0]
    }

    /// Returns the host of a request.
    #[inline]
    pub(crate) fn of(&self, request: &RequestHead<'_>) -> HostIndex {
        match self.count() {
            1 => HostIndex::default(),
            _ => self.names.of(request),
        }
    }
}

/// The numbers of the virtual hosts by their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostNames {
    by_name: HashMap<Box<[u8]>, HostIndex>,
    /// By the part after the asterisk, with its dot.
    by_domain: HashMap<Box<[u8]>, HostIndex>,
}

impl HostNames {
    /// Adds the names of a host.
    pub(crate) fn add(&mut self, names: &[HostName], index: HostIndex) {
        for name in names.iter().map(HostName::as_bytes) {
            match name.strip_prefix(b"*") {
                Some(domain) => self.by_domain.insert(domain.into(), index),
                None => self.by_name.insert(name.into(), index),
            };
        }
    }

    /// Returns the host that a request names: by its target if that has a host (a request of HTTP/1.0 may have no Host field),
    /// or else by its Host field (RFC 9112, section 3.2.2).
    pub(crate) fn of(&self, request: &RequestHead<'_>) -> HostIndex {
        let of_target = match request.target {
            [b'/' | b'*', ..] => None,
            target => path::split_authority(target).ok().map(|(authority, _)| authority),
        };
        let host = of_target.or_else(|| request.one("host")).unwrap_or_default();
        self.find_name(host)
    }

    /// Returns the host with a name: exactly, or with the longest part after an asterisk.
    fn find_name(&self, host: &[u8]) -> HostIndex {
        let mut buffer = [0; MAX_HOST_BYTES];
        let Some(name) = buffer.get_mut(..host.len()) else { return HostIndex::default() };
        name.copy_from_slice(host);
        name.make_ascii_lowercase();
        // Without the port, and the dot of a fully qualified name.
        let end = memchr::memrchr(b':', name).filter(|at| !name[*at..].contains(&b']'));
        let name = &name[..end.unwrap_or(name.len())];
        let name = name.strip_suffix(b".").unwrap_or(name);
        if let Some(index) = self.by_name.get(name) {
            return *index;
        }
        let dots = memchr::memchr_iter(b'.', name).filter(|at| *at > 0);
        let domain = dots.filter_map(|at| self.by_domain.get(&name[at..])).next();
        domain.copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_name_decides() {
        let host = || FileHost { root: None, options: FileOptions::default() };
        let mut hosts = Hosts::new(host());
        for names in [&["a.org", "www.a.org"][..], &["*.a.org"], &["*.b.a.org", "[::1]"]] {
            let names: Vec<HostName> = names.iter().map(|name| name.parse().unwrap()).collect();
            hosts.add(&names, host());
        }
        for (name, index) in [
            ("a.org", 1),
            ("A.ORG:80", 1),
            ("a.org.", 1),
            ("a.org.:80", 1),
            ("www.a.org", 1),
            ("x.a.org", 2),
            ("x.y.a.org", 2),
            ("b.a.org", 2),
            ("x.b.a.org", 3),
            ("[::1]", 3),
            ("[::1]:8080", 3),
            ("[::2]", 0),
            (".a.org", 0),
            ("xa.org", 0),
            ("org", 0),
            ("", 0),
            (":80", 0),
        ] {
            assert_eq!(hosts.names.find_name(name.as_bytes()), HostIndex(index), "{name}");
        }
        let long = format!("{}.a.org", "x".repeat(249));
        assert_eq!(hosts.names.find_name(long.as_bytes()), HostIndex(2));
        let long = format!("x{long}");
        assert_eq!(hosts.names.find_name(long.as_bytes()), HostIndex(0));
    }
}
