//! An example as a child process, and a client.
#![allow(dead_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A running example; dropping it kills it.
pub(crate) struct Program {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Program {
    /// Starts an example, and waits until it listens.
    pub(crate) fn start(path: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(path);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect(&line);
        Program { address: address.parse().unwrap(), child }
    }

    /// Sends a request, with a body unless it is empty, and returns the response.
    pub(crate) fn request(&self, line: &str, fields: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n"
        );
        // In one piece, as the server may answer the head alone.
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        Answer::parse(&received)
    }

    pub(crate) fn get(&self, target: &str) -> Answer {
        self.request(&format!("GET {target}"), "", b"")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Returns whether the program has a handler of a signal (proc_pid_status(5)). It listens before.
    fn handles(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        caught & 1 << (signal.as_raw() - 1) != 0
    }

    /// Ends the program with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM, and expects that the program ends with success.
    pub(crate) fn stop(mut self) {
        while !self.handles(Signal::TERM) {
            thread::yield_now();
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// The body; of a chunked one, with the sizes of the chunks.
    pub(crate) body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect(&text);
        let status = head.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }
}
