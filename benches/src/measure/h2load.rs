//! h2load, the load generator of nghttp2, with HTTP/1.1 from one core.

use std::process::Command;
use std::time::Duration;

use super::cpu::own_seconds;
use super::wrk::on_its_core;
use crate::failure::Failure;

/// Maximum time of a run, which lasts some seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The results of h2load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct H2loadObservation {
    pub(crate) requests: u64,
    /// Requests per second.
    pub(crate) rate: f64,
    /// CPU time that it used, in seconds.
    pub(crate) own_seconds: f64,
}

/// An installed h2load.
#[derive(Debug)]
pub(crate) struct H2load {
    pub(crate) version: String,
}

impl H2load {
    /// Finds h2load and its version.
    ///
    /// # Errors
    /// If it is not installed.
    pub(crate) fn find() -> Result<Self, Failure> {
        // `h2load nghttp2/1.52.0`
        let Ok(output) = Command::new("h2load").arg("--version").output() else {
            let what = "h2load is not installed (Debian package: nghttp2-client)".to_owned();
            return Err(Failure::Run(what));
        };
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(H2load { version: text.trim().rsplit('/').next().unwrap_or("").to_owned() })
    }

    /// Makes `requests` requests on `connections` concurrent connections; with `close`, each on a new
    /// connection.
    pub(crate) fn run(
        &self,
        url: &str,
        connections: usize,
        requests: u64,
        close: bool,
    ) -> Result<H2loadObservation, Failure> {
        let mut command = Command::new("h2load");
        command.args(["--h1", "--threads=1"]);
        command.arg(format!("--clients={connections}")).arg(format!("--requests={requests}"));
        if close {
            command.args(["--header", "connection: close"]);
        }
        let before = own_seconds()?;
        let output = on_its_core(command.arg(url), TIMEOUT)
            .map_err(|e| Failure::new("cannot run h2load", e))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (rate, succeeded) = parse(&text).ok_or_else(|| {
            Failure::Run(format!(
                "h2load failed: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            ))
        })?;
        if succeeded != requests {
            return Err(Failure::Run(format!("h2load got {succeeded} of {requests} replies")));
        }
        Ok(H2loadObservation { requests, rate, own_seconds: own_seconds()? - before })
    }
}

/// Parses the rate and the number of successful requests from lines such as
/// `finished in 2.51s, 15912.58 req/s, 0B/s` and
/// `requests: 40000 total, 40000 started, 40000 done, 40000 succeeded, 0 failed, ...`.
fn parse(text: &str) -> Option<(f64, u64)> {
    let line = |start| text.lines().find(|line| line.starts_with(start));
    let rate = line("finished in")?.split(", ").nth(1)?.split(' ').next()?.parse().ok()?;
    let counts = line("requests:")?.split(", ");
    let succeeded = counts.filter_map(|part| part.strip_suffix(" succeeded")).next()?;
    Some((rate, succeeded.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_successes_are_parsed() {
        let text = "progress: 100% done\n\nfinished in 2.51s, 15912.58 req/s, 0B/s\n\
                    requests: 40000 total, 40000 started, 40000 done, 39999 succeeded, 1 failed\n";
        assert_eq!(parse(text), Some((15912.58, 39_999)));
        assert_eq!(parse("unable to connect\n"), None);
    }
}
