//! Settings of a virtual host.

use std::path::PathBuf;
use std::str::FromStr;

use crate::access_log::AccessLog;
#[cfg(feature = "basic-auth")]
use crate::basic_auth::BasicAuth;
use crate::file_options::FileOptions;
use crate::message::host::is_host;

/// A virtual host: a root and settings for requests that name it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostOptions {
    /// The names, at least one. Each belongs to one host.
    pub names: Vec<HostName>,
    /// Directory to serve; a host without one has redirects only.
    pub root: Option<PathBuf>,
    /// Settings for files.
    pub files: FileOptions,
    /// Paths for which clients need a name and a password, instead of those of the server; `None` are those of the
    /// server. As handlers are the same for all hosts, protect their paths at each.
    #[cfg(feature = "basic-auth")]
    pub basic_auth: Option<Vec<BasicAuth>>,
    /// The access log of the host, instead of that of the server; `Some(None)` is none, and `None` that of the server.
    pub access_log: Option<Option<AccessLog>>,
    /// Files of a certificate chain and its key, for clients that ask for a name in it.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl HostOptions {
    /// Returns the default settings for a host.
    pub fn new(name: HostName, root: impl Into<PathBuf>) -> Self {
        HostOptions {
            names: vec![name],
            root: Some(root.into()),
            files: FileOptions::default(),
            #[cfg(feature = "basic-auth")]
            basic_auth: None,
            access_log: None,
            certificate: None,
        }
    }
}

/// The name of a virtual host, such as `example.org`; `*.example.org` stands for all names below `example.org`.
///
/// ```
/// let name: evring_httpd::options::HostName = "*.Example.org".parse()?;
/// assert_eq!(name.to_string(), "*.example.org");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(String);

impl HostName {
    /// Maximum length of a name, in bytes.
    const MAX_BYTES: usize = 255;

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let domain = text.strip_prefix("*.").unwrap_or(text);
        // Names and addresses of IPv6 in brackets, without a port.
        let is_name =
            is_host(domain.as_bytes()) && (!domain.contains(':') || domain.ends_with(']'));
        // Each label has a character.
        let is_plain =
            !domain.contains(['*', '%']) && domain.split('.').all(|label| !label.is_empty());
        match is_name && is_plain && text.len() <= Self::MAX_BYTES {
            true => Ok(HostName(text.to_ascii_lowercase())),
            false => Err(format!(
                "expected a host name without a port, such as example.org or *.example.org, not `{text}`"
            )),
        }
    }
}

impl std::fmt::Display for HostName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hosts_without_ports() {
        for text in ["example.org", "*.example.org", "localhost", "127.0.0.1", "[::1]", "xn--a.b"] {
            let name: HostName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
        assert_eq!("A.b".parse::<HostName>().unwrap().to_string(), "a.b");
        let long = "a".repeat(256);
        for text in [
            "", "*", "*.", "a..b", ".a", "*..a", "a:80", "[::1]:80", "::1", "a b", "a/b", "*.*.a",
            "a.*", "a.", "%41", &long,
        ] {
            assert!(text.parse::<HostName>().unwrap_err().starts_with("expected "), "{text}");
        }
    }
}
