//! The client, in a separate process.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::command::Workload;
use crate::failure::Failure;

/// The results of the client for a number of requests.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// CPU time of the client.
    pub(crate) cpu_ns: u64,
}

/// The requests of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientWork<'a> {
    pub(crate) work: Workload,
    pub(crate) path: &'a str,
    pub(crate) connections: usize,
    /// Requests sent at once.
    pub(crate) batch: usize,
    /// The length of the reply to a batch.
    pub(crate) reply_bytes: usize,
    /// Whether each batch has its own connection.
    pub(crate) close: bool,
}

impl ClientWork<'_> {
    /// Returns the usual batches of a workload on open connections.
    pub(crate) fn new(work: Workload, connections: usize, reply_bytes: usize) -> Self {
        let path = Workload::PATH;
        ClientWork { work, path, connections, batch: work.batch(), reply_bytes, close: false }
    }
}

/// A client with open connections, terminated on drop.
#[derive(Debug)]
pub(crate) struct Load {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    request_count: u64,
}

impl Load {
    /// Starts a client, which opens its connections.
    pub(crate) fn start(to: SocketAddr, of: &ClientWork<'_>) -> Result<Self, Failure> {
        let mut child = Command::new(super::server::program()?)
            .args(["client", "--work", of.work.name(), "--connect", &to.to_string()])
            .args(["--connections", &of.connections.to_string()])
            .args(["--reply-bytes", &of.reply_bytes.to_string()])
            .args(["--path", of.path, "--batch", &of.batch.to_string()])
            .args(of.close.then_some("--close"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::new("cannot start the client", e))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
        let mut load = Load { child, input, output, request_count: 0 };
        load.line()?;
        Ok(load)
    }

    /// Makes `count` requests, and returns once the last reply has arrived.
    pub(crate) fn requests(&mut self, count: u64) -> Result<Window, Failure> {
        writeln!(self.input.as_mut().expect("open until the end"), "{count}")?;
        let line = self.line()?;
        self.request_count += count;
        serde_json::from_str(&line).map_err(|e| Failure::new("cannot parse the client's output", e))
    }

    /// Returns the number of requests made so far.
    pub(crate) fn request_count(&self) -> u64 {
        self.request_count
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(Failure::Run("the client ended unexpectedly".to_owned())),
            _ => Ok(line),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // At end of input the client exits.
        drop(self.input.take());
        if self.child.wait().is_err() {
            let _ = self.child.kill();
        }
    }
}
