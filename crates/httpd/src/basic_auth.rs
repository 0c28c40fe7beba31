//! Basic authentication (RFC 7617) of paths, by files of users.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use evring::__private::read_input_file;

use crate::message::path;
use crate::message::request::RequestHead;
use crate::message::status::Status;

/// Paths for which clients need a name and a password: `FILE`, `FILE,path=/prefix` or `FILE,realm=name`.
///
/// The file has a line `USER:HASH` per user, as `htpasswd -B` writes it. Hashes are those of bcrypt.
///
/// The path is not that of an `index.html`, which is sent for its directory, too. It stands for the path with `.br`, `.zst`
/// or `.gz`, too, which a precompressed file has. At a host where only some paths need
/// passwords, requests for paths with an encoded slash, or without a canonical form, get 400.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BasicAuth {
    file: PathBuf,
    /// The canonical path, without a slash at its end.
    path: Vec<u8>,
    realm: String,
}

/// The users of a realm.
#[derive(Debug)]
pub(crate) struct Realm {
    path: Vec<u8>,
    /// The field of a 401.
    pub(crate) challenge: Vec<u8>,
    hashes: HashMap<Vec<u8>, String>,
    /// A hash of the file, verified for unknown users, so that the time does not tell which names exist.
    any: String,
}

/// A user's name and password, as a client sent them.
#[derive(Debug)]
pub(crate) struct Credentials {
    bytes: Vec<u8>,
    colon: usize,
}

/// Maximum cost of a hash: about a second of one processor.
const MAX_COST: u32 = 14;

impl BasicAuth {
    /// Maximum bytes of a file.
    pub const MAX_FILE_BYTES: usize = 1 << 20;

    /// Returns the file of users.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns whether it is for a canonical path, but not for all.
    pub(crate) fn is_for_some(&self, name: &[u8]) -> bool {
        !self.path.is_empty() && is_within(name, &self.path)
    }

    /// Reads the file.
    pub(crate) fn load(&self) -> io::Result<Realm> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let bytes = read_input_file(&self.file, Self::MAX_FILE_BYTES)?;
        let text =
            String::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8 text".to_owned()))?;
        let mut hashes = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = number + 1;
            let (user, hash) = line
                .split_once(':')
                .ok_or_else(|| invalid(format!("line {number} is not USER:HASH")))?;
            let parts = HashParts::from_str(hash).map_err(|_| {
                invalid(format!("line {number} has no hash of bcrypt: make it with `htpasswd -B`"))
            })?;
            if parts.get_cost() > MAX_COST {
                return Err(invalid(format!(
                    "the hash of line {number} costs more than {MAX_COST}"
                )));
            }
            if hashes.insert(user.as_bytes().to_vec(), hash.to_owned()).is_some() {
                return Err(invalid(format!(
                    "line {number} is the second one of the user `{user}`; remove one of them"
                )));
            }
        }
        let any = hashes.values().next().cloned();
        let any = any.ok_or_else(|| invalid("there is no user".to_owned()))?;
        let challenge =
            format!("WWW-Authenticate: Basic realm=\"{}\", charset=\"UTF-8\"\r\n", self.realm);
        Ok(Realm { path: self.path.clone(), challenge: challenge.into_bytes(), hashes, any })
    }
}

/// Returns whether a canonical path is that of a realm, which has no slash at its end, or below it, or that of its
/// precompressed file.
fn is_within(name: &[u8], of: &[u8]) -> bool {
    let is_precompressed = |rest| path::PRECOMPRESSED.iter().any(|end| end.as_bytes() == rest);
    name.strip_prefix(of)
        .is_some_and(|rest| matches!(rest, [] | [b'/', ..]) || is_precompressed(rest))
}

impl FromStr for BasicAuth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let file = parts.next().filter(|file| !file.is_empty()).ok_or("expected a file")?;
        let (mut path, mut realm) = (Vec::new(), "restricted".to_owned());
        for part in parts {
            match part.split_once('=') {
                Some(("path", prefix)) if prefix.starts_with('/') => {
                    let mut names = prefix.split('/');
                    if prefix.contains('%') || names.any(|name| matches!(name, "." | "..")) {
                        let expected = "expected a path without percent-encodings and dot segments";
                        return Err(expected.to_owned());
                    }
                    path = path::canonical_setting(prefix);
                    if path.ends_with(b"/") {
                        path.pop();
                    }
                    if path.rsplit(|b| *b == b'/').next() == Some(path::INDEX.as_bytes()) {
                        let expected = "expected the path of a directory instead of its index.html, which the \
                                        directory sends, too";
                        return Err(expected.to_owned());
                    }
                }
                Some(("path", _)) => {
                    return Err("expected a path that begins with a slash".to_owned());
                }
                Some(("realm", name))
                    if name.bytes().all(|b| (b' '..0x7f).contains(&b) && !b"\"\\".contains(&b)) =>
                {
                    realm = name.to_owned();
                }
                _ => return Err(format!("expected path=/PREFIX or realm=NAME, not `{part}`")),
            }
        }
        Ok(BasicAuth { file: file.into(), path, realm })
    }
}

impl Realm {
    /// Returns the number of the realm to which a request belongs: of the realms with these numbers, the one with the
    /// longest path.
    ///
    /// # Errors
    /// 400 for a path with an encoded slash or without a canonical form: a handler may take it for one in a realm.
    pub(crate) fn find(
        realms: &[Realm],
        numbers: &[usize],
        request: &RequestHead<'_>,
    ) -> Result<Option<usize>, Status> {
        if numbers.is_empty() {
            return Ok(None);
        }
        // A target without a path is rejected, or has no content.
        let Ok((name, _)) = path::split(request.target) else { return Ok(None) };
        let name = match path::try_canonical(name) {
            Ok(name) if !path::has_encoded_slash(&name) => name,
            // Realms for all paths have these, too.
            _ if numbers.iter().all(|number| realms[*number].path.is_empty()) => name.into(),
            _ => return Err(Status::BAD_REQUEST),
        };
        let is_in = |number: &usize| is_within(&name, &realms[*number].path);
        let all = numbers.iter().copied().filter(is_in);
        Ok(all.max_by_key(|number| realms[*number].path.len()))
    }

    /// Returns whether the credentials are those of a user. This takes the time of the hash.
    pub(crate) fn verify(&self, credentials: &Credentials) -> bool {
        let hash = self.hashes.get(credentials.user());
        let is_right = bcrypt::verify(credentials.password(), hash.unwrap_or(&self.any));
        is_right.unwrap_or(false) && hash.is_some()
    }
}

impl Credentials {
    /// Maximum bytes of credentials in a request, in base64.
    pub(crate) const MAX_BYTES: usize = 1024;

    /// Returns the credentials of a request, if it has valid ones.
    pub(crate) fn of(request: &RequestHead<'_>) -> Option<Self> {
        let value = request.one("authorization")?;
        let (scheme, rest) = value.split_at_checked("Basic ".len())?;
        let rest = rest.trim_ascii();
        if !scheme.eq_ignore_ascii_case(b"Basic ") || rest.len() > Self::MAX_BYTES {
            return None;
        }
        let bytes = STANDARD.decode(rest).ok()?;
        let colon = memchr::memchr(b':', &bytes)?;
        Some(Credentials { bytes, colon })
    }

    pub(crate) fn user(&self) -> &[u8] {
        &self.bytes[..self.colon]
    }

    fn password(&self) -> &[u8] {
        &self.bytes[self.colon + 1..]
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_settings_and_files_are_rejected() {
        for text in [
            "",
            ",path=/a",
            "f,path=a",
            "f,path=/a%20b",
            "f,path=/../a",
            "f,path=/a/.",
            "f,realm=\"",
            "f,user=b",
            "f,path=/index.html",
            "f,path=/a/index.html/",
            "f,path",
        ] {
            assert!(text.parse::<BasicAuth>().is_err(), "{text}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("users");
        let hash = bcrypt::hash("secret", 4).unwrap();
        for (text, expected) in [
            ("", "there is no user"),
            ("# comment\n\nann\n", "line 3 is not USER:HASH"),
            ("ann:secret\n", "line 1 has no hash of bcrypt: make it with `htpasswd -B`"),
            ("ann:$apr1$a$b\n", "line 1 has no hash of bcrypt: make it with `htpasswd -B`"),
            (
                &format!("ann:{}", hash.replace("$04$", "$31$")),
                "the hash of line 1 costs more than 14",
            ),
            (
                &format!("ann:{hash}\nbob:{hash}\n\nann:{hash}\n"),
                "line 4 is the second one of the user `ann`; remove one of them",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let auth: BasicAuth = file.to_str().unwrap().parse().unwrap();
            assert_eq!(auth.load().unwrap_err().to_string(), expected, "{text}");
        }
    }
}
