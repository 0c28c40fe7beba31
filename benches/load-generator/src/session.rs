//! What clients ask for: requests, and sessions of them on one connection each.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::plan::LONGEST;

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// As it is sent.
    pub(crate) bytes: Bytes,
    /// As it is sent when it is the last one of its connection.
    pub(crate) last: Bytes,
    /// How long the body of the reply must be, where that is known.
    pub(crate) size: Option<u64>,
    /// How long the client thinks before it asks this.
    pub(crate) think: Duration,
    /// The reply has no body.
    pub(crate) bodiless: bool,
}

impl Ask {
    /// A request by `method` for `path` of `host`, with further `fields` of its head, each ended
    /// by CR LF.
    pub fn new(method: &str, path: &str, host: &str, fields: &str) -> Self {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}");
        Ask {
            bytes: format!("{head}\r\n").into(),
            last: format!("{head}Connection: close\r\n\r\n").into(),
            size: None,
            think: Duration::ZERO,
            bodiless: method == "HEAD",
        }
    }

    /// The same, and a reply whose body is not so long counts as short.
    #[must_use]
    pub fn expecting(mut self, size: Option<u64>) -> Self {
        self.size = size;
        self
    }

    /// The same, asked only so long after the reply to the one before.
    #[must_use]
    pub fn after(mut self, think: Duration) -> Self {
        self.think = think;
        self
    }
}

/// The requests of one connection, in order.
#[derive(Clone, Debug)]
pub struct Session {
    /// One at least.
    pub requests: Vec<Ask>,
    /// How often all of them are made; [`Session::FOREVER`] never ends.
    pub rounds: u64,
}

impl Session {
    /// The connection is kept as long as the server keeps it.
    pub const FOREVER: u64 = u64::MAX;

    /// How many requests there are from a place on; none in one that never ends.
    pub(crate) fn rest(&self, place: u64) -> u64 {
        if self.rounds == Session::FOREVER {
            return 0;
        }
        self.rounds.saturating_mul(self.requests.len() as u64).saturating_sub(place)
    }

    /// The request at a place, and whether it is the last; none behind the end.
    pub(crate) fn at(&self, place: u64) -> Option<(&Ask, bool)> {
        let length = self.requests.len() as u64;
        let end = length.saturating_mul(self.rounds);
        let ask = self.requests.get((place % length.max(1)) as usize)?;
        (place < end).then_some((ask, place + 1 == end))
    }
}

/// What is wrong with a file of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionError {
    /// In which line, from 1 on; 0 for the file as a whole.
    pub line: usize,
    /// A sentence.
    pub what: String,
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.what),
            line => write!(f, "line {line}: {}", self.what),
        }
    }
}

impl std::error::Error for SessionError {}

/// Reads sessions as httperf's `--wsesslog` has them: a line for each request, with a path and
/// what is known of it; an empty line between two sessions; `#` begins a remark.
///
/// ```text
/// /index.html size=1024
///     /logo.png size=300
/// /next.html think=2.5 method=HEAD
/// ```
///
/// `size` is the length of the reply's body in bytes, `think` the time in seconds from the last
/// reply to this request. Lines that are set in belong to what stands above them, for the reader
/// only: how many requests are under way at a time is for the plan to say.
///
/// # Errors
/// Says which line is wrong.
pub fn sessions(text: &str, host: &str, fields: &str) -> Result<Vec<Session>, SessionError> {
    let mut sessions = Vec::new();
    let mut requests = Vec::new();
    let mut end = |requests: &mut Vec<Ask>| {
        if !requests.is_empty() {
            sessions.push(Session { requests: std::mem::take(requests), rounds: 1 });
        }
    };
    for (number, line) in text.lines().enumerate() {
        let said = line.split('#').next().unwrap_or("");
        if said.trim().is_empty() {
            // A remark ends no session.
            if line.trim().is_empty() {
                end(&mut requests);
            }
            continue;
        }
        let ask = request(said, host, fields);
        requests.push(ask.map_err(|what| SessionError { line: number + 1, what })?);
    }
    end(&mut requests);
    if sessions.is_empty() {
        return Err(SessionError { line: 0, what: "there is no request in it".to_owned() });
    }
    Ok(sessions)
}

fn request(line: &str, host: &str, fields: &str) -> Result<Ask, String> {
    let mut words = line.split_whitespace();
    let path = words.next().unwrap_or("");
    if !path.starts_with('/') {
        return Err(format!("a path begins with `/`, not as `{path}` does"));
    }
    let (mut method, mut size, mut think) = ("GET", None, Duration::ZERO);
    for word in words {
        let (name, value) = word.split_once('=').ok_or(format!("`{word}` has no value"))?;
        match name {
            "size" => size = Some(value.parse().map_err(|_| format!("`{word}` is no size"))?),
            "think" => {
                let seconds: f64 = value.parse().map_err(|_| format!("`{word}` is no time"))?;
                think = Duration::try_from_secs_f64(seconds)
                    .ok()
                    .filter(|think| *think <= LONGEST)
                    .ok_or(format!("`{word}` is no time of a day at most"))?;
            }
            "method" if value.bytes().all(|b| b.is_ascii_uppercase()) => method = value,
            "method" => return Err(format!("`{value}` is no method")),
            _ => return Err(format!("`{name}` is not known; there are size, think and method")),
        }
    }
    Ok(Ask::new(method, path, host, fields).expecting(size).after(think))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_sessions_is_read() {
        let text = "# two of them\n/a size=10\n  /b think=0.5 # a picture\n# within\n/c\n\n\n\
                    /d method=HEAD\n";
        let sessions = sessions(text, "h", "X: y\r\n").unwrap();
        assert_eq!(sessions.iter().map(|s| s.requests.len()).collect::<Vec<_>>(), [3, 1]);
        let [a, b, _] = &sessions[0].requests[..] else { panic!() };
        assert_eq!(a.bytes, "GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n");
        assert_eq!(a.last, "GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\nConnection: close\r\n\r\n");
        assert_eq!((a.size, a.think, a.bodiless), (Some(10), Duration::ZERO, false));
        assert_eq!((b.size, b.think), (None, Duration::from_millis(500)));
        assert!(sessions[1].requests[0].bodiless);
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let wrong = |text: &str| sessions(text, "h", "").unwrap_err().to_string();
        assert_eq!(wrong("# nothing\n"), "there is no request in it");
        assert!(wrong("/a\n\nindex.html\n").starts_with("line 3: a path begins with `/`"));
        assert!(wrong("/a size").contains("`size` has no value"));
        assert!(wrong("/a size=big").contains("`size=big` is no size"));
        assert!(wrong("/a think=-1").contains("`think=-1` is no time"));
        assert!(wrong("/a method=get").contains("`get` is no method"));
        assert!(wrong("/a colour=red").contains("`colour` is not known"));
    }

    #[test]
    fn a_session_has_so_many_rounds() {
        let ask = || Ask::new("GET", "/", "h", "");
        let mut session = Session { requests: vec![ask(), ask()], rounds: 2 };
        let last = |s: &Session, place| s.at(place).map(|(_, last)| last);
        assert_eq!([0, 2, 3].map(|p| last(&session, p)), [Some(false), Some(false), Some(true)]);
        assert_eq!(last(&session, 4), None);
        session.rounds = Session::FOREVER;
        assert_eq!(last(&session, 1 << 60), Some(false));
    }
}
