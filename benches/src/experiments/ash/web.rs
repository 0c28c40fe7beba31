//! A page from a handler against the same page from the file server.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::{Context, DEFAULT, Experiment};
use super::page::module;
use super::{Contestant, bars, pages, ratio, run_rounds};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{ClientWork, Conditions, Load, OtherPrograms, Server, Site, Subject, fetch};
use crate::outcome::{self, Outcome};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-web",
    title: "the web server: a page from a handler in the sandbox, and from the cache of files",
    source: "ASH, section 6.4.3, figures 6-6 and 6-7, table 6-12; goal of this project: at least 0.9",
    own_network: false,
    run,
};

const FIGURE: &str = "CPU time of the server per request, 1 KiB";
const PATH: &str = "/1k.txt";
const BODY_BYTES: usize = 1 << 10;
const CONNECTIONS: usize = 64;
const WARM_UP: u64 = 2_000;
/// Rounds, and requests of each server in a round.
const QUICK: (usize, u64) = (5, 4_000);
const FULL: (usize, u64) = (25, 40_000);

const NOTES: [&str; 1] = [
    "Server on core 0, in a new process in each round, client on core 1, 64 connections with one request each at a time. Requests land in the \
     memory of the handler, which has the whole reply there, and compares the beginning of the request; the reply \
     is that of the file server, byte for byte, in one send. Its Date stays as it is, while the file server writes the \
     present one.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let (rounds, requests) = if cx.quick { QUICK } else { FULL };
    let site = Site::bare(b"")?;
    let reply = Loaded::start(&site, None)?.reply;
    let module = Module::write(&reply)?;
    let measure = |handler| {
        let mut server = Loaded::start(&site, handler)?;
        if server.reply != reply {
            return Err(Failure::Run("the reply of the handler is another one".to_owned()));
        }
        server.us_per_request(requests)
    };
    let mut all = [
        Contestant::new("file server", || measure(None)),
        Contestant::new("handler", || measure(Some(&module.0))),
    ];
    run_rounds(cx, rounds, &mut all)?;
    bars(&mut outcome, FIGURE, "us", "server", &all);
    ratio(&mut outcome, "handler_over_file", DEFAULT, &all, ("file server", "handler"));
    outcome.paper(
        FIGURE,
        "ASH, figures 6-6 and 6-7: with many requests on a connection, handlers are as fast as a user-level \
         server that polls, and faster than one that is suspended.",
    );
    drop(all);
    pages::measure(cx, &mut outcome)?;
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    outcome.notes.extend(pages::NOTES.map(str::to_owned));
    Ok(outcome)
}

/// A server with its client.
struct Loaded {
    // The client is dropped first, so that the server observes the end of its connections.
    load: Load,
    server: Server,
    reply: Vec<u8>,
}

impl Loaded {
    fn start(site: &Site, handler: Option<&Path>) -> Result<Self, Failure> {
        let (what, mechanism) = (ServerKind::Httpd, DEFAULT.to_owned());
        let subject = Subject { what, mechanism, work: Workload::File };
        let conditions = Conditions { handler, ..Conditions::default() };
        let mut server = Server::start_under(&subject, site, &conditions)?;
        server.check_reply(PATH, BODY_BYTES)?;
        let reply = without_date(fetch(&server, PATH)?);
        let work =
            ClientWork { path: PATH, ..ClientWork::new(Workload::File, CONNECTIONS, reply.len()) };
        let mut load = Load::start(server.address(), &work)?;
        load.requests(WARM_UP)?;
        Ok(Loaded { load, server, reply })
    }

    fn us_per_request(&mut self, requests: u64) -> Result<f64, Failure> {
        let before = self.server.cpu()?;
        let window = self.load.requests(requests)?;
        Ok(self.server.cpu()?.since(&before) as f64 / 1e3 / window.requests as f64)
    }
}

/// Replaces the digits of the date, which differ between two replies.
fn without_date(mut reply: Vec<u8>) -> Vec<u8> {
    const FIELD: &[u8] = b"\r\ndate: ";
    let is_date = |line: &[u8]| line.to_ascii_lowercase() == FIELD;
    if let Some(at) = reply.windows(FIELD.len()).position(is_date) {
        let value = reply[at + FIELD.len()..].iter_mut().take_while(|byte| **byte != b'\r');
        value.filter(|byte| byte.is_ascii_digit()).for_each(|byte| *byte = b'0');
    }
    reply
}

/// The file of a module, removed on drop.
struct Module(PathBuf);

impl Module {
    /// Writes the module of a handler that answers requests for the page.
    fn write(reply: &[u8]) -> Result<Self, Failure> {
        let path = outcome::directory()?.join(format!("ash-web-{}.wasm", std::process::id()));
        let wasm = wat::parse_str(module(reply, false))
            .map_err(|e| Failure::new("the module of the page's handler", e))?;
        fs::write(&path, wasm)?;
        Ok(Module(path))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_do_not_matter() {
        let reply = |time: &str| format!("HTTP/1.1 200 OK\r\nDate: {time}\r\n\r\n1").into_bytes();
        assert_eq!(without_date(reply("01:22")), without_date(reply("23:59")));
        assert!(without_date(reply("1")).ends_with(b"\r\n\r\n1"));
    }
}
