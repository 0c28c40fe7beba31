//! Requests, and sessions of requests on one connection.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::plan::MAX_DURATION;

/// A request to send.
#[derive(Clone, Debug)]
pub struct Request {
    /// The encoded request.
    pub(crate) bytes: Bytes,
    /// The encoded request with `Connection: close`, for the last one of a connection.
    pub(crate) last: Bytes,
    /// Expected length of the reply's body in bytes, if known.
    pub(crate) expected_len: Option<u64>,
    /// Think time before this request.
    pub(crate) think_time: Duration,
    /// The reply has no body (`HEAD`).
    pub(crate) no_body: bool,
}

impl Request {
    /// Creates a request. Each line of `fields`, further header fields, ends with CR LF.
    pub fn new(method: &str, path: &str, host: &str, fields: &str) -> Self {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}");
        Request {
            bytes: format!("{head}\r\n").into(),
            last: format!("{head}Connection: close\r\n\r\n").into(),
            expected_len: None,
            think_time: Duration::ZERO,
            no_body: method == "HEAD",
        }
    }

    /// Sets the expected length of the reply's body. Any other length counts as `ShortBody`.
    #[must_use]
    pub fn with_expected_len(mut self, expected_len: Option<u64>) -> Self {
        self.expected_len = expected_len;
        self
    }

    /// Sets the think time: the delay from the previous reply to this request.
    #[must_use]
    pub fn with_think_time(mut self, think_time: Duration) -> Self {
        self.think_time = think_time;
        self
    }
}

/// The requests of one connection, in order.
#[derive(Clone, Debug)]
pub struct Session {
    /// At least one request.
    pub requests: Vec<Request>,
    /// Number of times that the requests are repeated; [`Session::FOREVER`] is unlimited.
    pub rounds: u64,
}

impl Session {
    /// Repeats the requests until the server closes the connection.
    pub const FOREVER: u64 = u64::MAX;

    /// Returns the number of requests from `index` to the end; 0 for an unlimited session.
    pub(crate) fn remaining(&self, index: u64) -> u64 {
        if self.rounds == Session::FOREVER {
            return 0;
        }
        self.rounds.saturating_mul(self.requests.len() as u64).saturating_sub(index)
    }

    /// Returns the request at `index` and whether it is the last, or `None` after the end.
    pub(crate) fn at(&self, index: u64) -> Option<(&Request, bool)> {
        let length = self.requests.len() as u64;
        let end = length.saturating_mul(self.rounds);
        let request = self.requests.get((index % length.max(1)) as usize)?;
        (index < end).then_some((request, index + 1 == end))
    }
}

/// An error in a session file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionError {
    /// Line number from 1, or 0 for the file as a whole.
    pub line: usize,
    /// Message for the user.
    pub message: String,
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.message),
            line => write!(f, "line {line}: {}", self.message),
        }
    }
}

impl std::error::Error for SessionError {}

/// Parses a session file in the format of httperf's `--wsesslog`. Each line has a path and options
/// of one request. An empty line separates sessions, and `#` begins a comment.
///
/// ```text
/// /index.html size=1024
///     /logo.png size=300
/// /next.html think=2.5 method=HEAD
/// ```
///
/// `size` is the expected length of the reply's body in bytes. `think` is the time in seconds from
/// the previous reply to this request. Indentation has no meaning;
/// [`pipeline_depth`](crate::Plan::pipeline_depth) limits the requests in flight.
///
/// # Errors
/// Returns the first invalid line.
pub fn parse_sessions(text: &str, host: &str, fields: &str) -> Result<Vec<Session>, SessionError> {
    let mut sessions = Vec::new();
    let mut requests = Vec::new();
    let mut end = |requests: &mut Vec<Request>| {
        if !requests.is_empty() {
            sessions.push(Session { requests: std::mem::take(requests), rounds: 1 });
        }
    };
    for (number, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or("");
        if content.trim().is_empty() {
            // A comment line does not separate sessions.
            if line.trim().is_empty() {
                end(&mut requests);
            }
            continue;
        }
        let request = request(content, host, fields);
        requests.push(request.map_err(|message| SessionError { line: number + 1, message })?);
    }
    end(&mut requests);
    if sessions.is_empty() {
        return Err(SessionError { line: 0, message: "the file has no requests".to_owned() });
    }
    Ok(sessions)
}

fn request(line: &str, host: &str, fields: &str) -> Result<Request, String> {
    let mut tokens = line.split_whitespace();
    let path = tokens.next().unwrap_or("");
    if !path.starts_with('/') {
        return Err(format!("the path `{path}` does not begin with `/`"));
    }
    let (mut method, mut expected_len, mut think_time) = ("GET", None, Duration::ZERO);
    for token in tokens {
        let (name, value) = token.split_once('=').ok_or(format!("`{token}` has no value"))?;
        match name {
            "size" => {
                expected_len =
                    Some(value.parse().map_err(|_| format!("`{token}` is not a size in bytes"))?)
            }
            "think" => {
                let seconds: f64 =
                    value.parse().map_err(|_| format!("`{token}` is not a time in seconds"))?;
                think_time = Duration::try_from_secs_f64(seconds)
                    .ok()
                    .filter(|think_time| *think_time <= MAX_DURATION)
                    .ok_or(format!("`{token}` is not a time of at most a day"))?;
            }
            "method" if value.bytes().all(|b| b.is_ascii_uppercase()) => method = value,
            "method" => return Err(format!("the method `{value}` is not in capital letters")),
            _ => return Err(format!("unknown option `{name}`; use size, think or method")),
        }
    }
    Ok(Request::new(method, path, host, fields)
        .with_expected_len(expected_len)
        .with_think_time(think_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_file_is_parsed() {
        let text = "# two of them\n/a size=10\n  /b think=0.5 # a picture\n# within\n/c\n\n\n\
                    /d method=HEAD\n";
        let sessions = parse_sessions(text, "h", "X: y\r\n").unwrap();
        assert_eq!(sessions.iter().map(|s| s.requests.len()).collect::<Vec<_>>(), [3, 1]);
        let [a, b, _] = &sessions[0].requests[..] else { panic!() };
        assert_eq!(a.bytes, "GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n");
        assert_eq!(a.last, "GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\nConnection: close\r\n\r\n");
        assert_eq!((a.expected_len, a.think_time, a.no_body), (Some(10), Duration::ZERO, false));
        assert_eq!((b.expected_len, b.think_time), (None, Duration::from_millis(500)));
        assert!(sessions[1].requests[0].no_body);
    }

    #[test]
    fn invalid_line_is_reported_with_its_number() {
        let error = |text: &str| parse_sessions(text, "h", "").unwrap_err().to_string();
        assert_eq!(
            error(
                "# nothing
        "
            ),
            "the file has no requests"
        );
        assert!(
            error(
                "/a

        index.html
        "
            )
            .starts_with("line 3: the path `index.html`")
        );
        assert!(error("/a size").contains("`size` has no value"));
        assert!(error("/a size=big").contains("`size=big` is not a size"));
        assert!(error("/a think=-1").contains("`think=-1` is not a time"));
        assert!(error("/a method=get").contains("method `get`"));
        assert!(error("/a colour=red").contains("unknown option `colour`"));
    }

    #[test]
    fn session_ends_after_its_rounds() {
        let request = || Request::new("GET", "/", "h", "");
        let mut session = Session { requests: vec![request(), request()], rounds: 2 };
        let last = |s: &Session, index| s.at(index).map(|(_, last)| last);
        assert_eq!([0, 2, 3].map(|p| last(&session, p)), [Some(false), Some(false), Some(true)]);
        assert_eq!(last(&session, 4), None);
        session.rounds = Session::FOREVER;
        assert_eq!(last(&session, 1 << 60), Some(false));
    }
}
