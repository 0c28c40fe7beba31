//! wrk, a common load generator: a closed loop from one core.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use super::cpu::own_seconds;
use super::wait::output_within;
use super::{CLIENT_CORE, pin};
use crate::failure::Failure;
use crate::outcome;

/// Maximum time that wrk takes beyond the load.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The sequence of requests on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// One after the other.
    KeepAlive,
    /// In batches of this length.
    Pipelined(usize),
    /// One, then the server closes.
    Close,
}

/// The results of wrk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrkObservation {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// Percentiles of the time from a request to the end of its reply, if wrk reports them.
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    /// Share of its core that it used.
    pub(crate) busy: f64,
}

/// An installed wrk, and its script.
#[derive(Debug)]
pub(crate) struct Wrk {
    script: PathBuf,
    pub(crate) version: String,
}

/// Makes wrk send batches of `n` requests, where `n` is its first argument, and print its results as
/// one line of JSON.
const SCRIPT: &str = r#"
init = function(args)
  local n = tonumber(args[1])
  if n > 1 then
    local batch = string.rep(wrk.format(), n)
    request = function() return batch end
  end
end

done = function(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '{"requests":%d,"us":%d,"p50":%g,"p99":%g,"errors":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"#;

/// The output of the script.
#[derive(Deserialize)]
struct Summary {
    requests: u64,
    us: f64,
    p50: f64,
    p99: f64,
    errors: u64,
}

impl Wrk {
    /// Finds wrk and its version.
    ///
    /// # Errors
    /// If it is not installed.
    pub(crate) fn find() -> Result<Self, Failure> {
        // `wrk 4.1.0 [epoll] Copyright (C) 2012 Will Glozer`, with a nonzero exit status.
        let Ok(output) = Command::new("wrk").arg("--version").output() else {
            return Err(Failure::Run("wrk is not installed (Debian package: wrk)".to_owned()));
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_ascii_whitespace().nth(1).unwrap_or("").to_owned();
        let script = outcome::directory()?.join(format!("wrk-{}.lua", std::process::id()));
        fs::write(&script, SCRIPT)?;
        Ok(Wrk { script, version })
    }

    /// Loads a server for `seconds` seconds.
    pub(crate) fn run(
        &self,
        to: SocketAddr,
        path: &str,
        requests: Requests,
        connections: usize,
        seconds: u32,
    ) -> Result<WrkObservation, Failure> {
        let mut command = Command::new("wrk");
        command.args(["--threads", "1", "--connections", &connections.to_string()]);
        command.args(["--duration", &format!("{seconds}s"), "--script"]).arg(&self.script);
        if requests == Requests::Close {
            command.args(["--header", "Connection: close"]);
        }
        let batch = if let Requests::Pipelined(n) = requests { n } else { 1 };
        command.args([&format!("http://{to}{path}"), "--", &batch.to_string()]);
        let before = own_seconds()?;
        let limit = Duration::from_secs(seconds.into()) + TIMEOUT;
        let output =
            on_its_core(&mut command, limit).map_err(|e| Failure::new("cannot run wrk", e))?;
        let summary = parse(&output)?;
        let lasted = summary.us / 1e6;
        let reported = |us: f64| (us > 0.0).then_some(us);
        Ok(WrkObservation {
            requests: summary.requests,
            seconds: lasted,
            p50_us: reported(summary.p50),
            p99_us: reported(summary.p99),
            busy: (own_seconds()? - before) / lasted,
        })
    }
}

impl Drop for Wrk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.script);
    }
}

/// Runs a command on the client core, which is killed if it does not end in time. A child inherits the CPU affinity of the
/// thread that starts it.
pub(super) fn on_its_core(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let run = || pin(&[CLIENT_CORE]).and_then(|()| output_within(command, limit));
    thread::scope(|scope| scope.spawn(run).join()).expect("nothing in it panics")
}

/// Parses the script's output, which is the last line.
fn parse(output: &Output) -> Result<Summary, Failure> {
    let text = String::from_utf8_lossy(&output.stdout);
    let summary: Summary =
        serde_json::from_str(text.lines().last().unwrap_or("")).map_err(|_| {
            Failure::Run(format!("wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr)))
        })?;
    match summary.errors {
        0 if summary.requests > 0 => Ok(summary),
        0 => Err(Failure::Run("wrk received no reply".to_owned())),
        n => Err(Failure::Run(format!("wrk reported {n} errors and {} replies", summary.requests))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(text: &str) -> Output {
        let stdout = text.as_bytes().to_vec();
        Output { status: ExitStatus::from_raw(0), stdout, stderr: Vec::new() }
    }

    #[test]
    fn errors_in_the_summary_are_a_failure() {
        let line = |n| {
            format!("table\n{{\"requests\":9,\"us\":5,\"p50\":1.5,\"p99\":0,\"errors\":{n}}}\n")
        };
        assert_eq!(parse(&output(&line(0))).unwrap().requests, 9);
        let failure = parse(&output(&line(2))).err().unwrap().to_string();
        assert_eq!(failure, "wrk reported 2 errors and 9 replies");
        assert!(parse(&output("unable to connect")).is_err());
    }
}
