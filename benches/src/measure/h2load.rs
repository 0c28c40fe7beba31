//! h2load, the load generator of nghttp2, speaking HTTP/1.1 from one core.

use std::process::Command;

use super::processor::own_seconds;
use super::wrk::on_its_core;
use crate::failure::Failure;

/// What h2load saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct H2loadObservation {
    pub(crate) requests: u64,
    /// Requests in a second.
    pub(crate) rate: f64,
    /// Processor time that it used, in seconds.
    pub(crate) own_seconds: f64,
}

/// h2load.
#[derive(Debug)]
pub(crate) struct H2load {
    pub(crate) version: String,
}

impl H2load {
    /// Looks whether it is installed.
    pub(crate) fn find() -> Result<Self, Failure> {
        // `h2load nghttp2/1.52.0`
        let Ok(output) = Command::new("h2load").arg("--version").output() else {
            let what = "h2load is not installed (Debian package: nghttp2-client)".to_owned();
            return Err(Failure::Run(what));
        };
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(H2load { version: text.trim().rsplit('/').next().unwrap_or("").to_owned() })
    }

    /// Makes so many requests on so many connections at a time; with `close`, on a new connection
    /// each.
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
        let output =
            on_its_core(command.arg(url)).map_err(|e| Failure::new("can't run h2load", e))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let told = read(&text).ok_or_else(|| {
            Failure::Run(format!(
                "h2load failed: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            ))
        })?;
        let (rate, succeeded) = told;
        if succeeded != requests {
            return Err(Failure::Run(format!("h2load got {succeeded} of {requests} replies")));
        }
        Ok(H2loadObservation { requests, rate, own_seconds: own_seconds()? - before })
    }
}

/// The rate, and how many requests succeeded, from lines such as
/// `finished in 2.51s, 15912.58 req/s, 0B/s` and
/// `requests: 40000 total, 40000 started, 40000 done, 40000 succeeded, 0 failed, ...`.
fn read(text: &str) -> Option<(f64, u64)> {
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
    fn the_rate_is_read() {
        let text = "progress: 100% done\n\nfinished in 2.51s, 15912.58 req/s, 0B/s\n\
                    requests: 40000 total, 40000 started, 40000 done, 39999 succeeded, 1 failed\n";
        assert_eq!(read(text), Some((15912.58, 39_999)));
        assert_eq!(read("unable to connect\n"), None);
    }
}
