//! Instruction counts, by valgrind.

use std::fs;
use std::process::{Command, Stdio};

use super::site::fetch;
use super::{Conditions, Load, Server, Site, Subject};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::outcome;

/// Two numbers of requests. The difference of their counts excludes start and end.
const FEW: u64 = 2_000;
const MANY: u64 = 42_000;

/// Counts the instructions that servers execute outside the kernel.
#[derive(Debug)]
pub(crate) struct Callgrind(());

impl Callgrind {
    /// Finds valgrind.
    ///
    /// # Errors
    /// If it is not installed.
    pub(crate) fn find() -> Result<Self, Failure> {
        let mut command = Command::new("valgrind");
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Ok(Callgrind(())),
            _ => Err(Failure::Run(
                "valgrind is not installed (Debian package: valgrind), so instructions were not \
                 counted"
                    .to_owned(),
            )),
        }
    }

    /// Returns the instructions per request.
    pub(crate) fn count(
        &self,
        subject: &Subject,
        site: &Site,
        connections: usize,
    ) -> Result<f64, Failure> {
        let few = total(subject, site, connections, FEW)?;
        let many = total(subject, site, connections, MANY)?;
        Ok((many as f64 - few as f64) / (MANY - FEW) as f64)
    }
}

fn total(subject: &Subject, site: &Site, connections: usize, count: u64) -> Result<u64, Failure> {
    let log = outcome::directory()?.join(format!("callgrind-{}.log", std::process::id()));
    let option = format!("--log-file={}", log.display());
    let args = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &option];
    let conditions = Conditions { under: &args, ..Conditions::default() };
    let server = Server::start_under(subject, site, &conditions)?;
    if subject.work == Workload::File && subject.what == ServerKind::App {
        let what = "the server does not work under valgrind";
        fetch(&server, Workload::PATH).map_err(|e| Failure::new(what, e))?;
    }
    let reply_bytes = site.reply_bytes(subject.work);
    let mut load = Load::start(server.address(), subject.work, connections, reply_bytes)?;
    load.requests(count)?;
    drop(load);
    server.terminate()?;
    let text = fs::read_to_string(&log)?;
    let _ = fs::remove_file(&log);
    collected(&text)
        .ok_or_else(|| Failure::Run(format!("no total in the log of callgrind:\n{text}")))
}

/// Parses the total from a log such as `==1== Collected : 123456`.
fn collected(log: &str) -> Option<u64> {
    let line = log.lines().find(|l| l.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_for_a_server_on_io_uring() {
        let Ok(callgrind) = Callgrind::find() else { return };
        let site = Site::bare(b"a reply").unwrap();
        let mechanism = "uring".to_owned();
        let subject = Subject { what: ServerKind::Floor, mechanism, work: Workload::File };
        let count = callgrind.count(&subject, &site, 8).unwrap();
        assert!((10.0..100_000.0).contains(&count), "{count}");
    }

    #[test]
    fn total_is_parsed_from_the_log() {
        let log = "==7== Events    : Ir\n==7== Collected : 1234567\n==7==\n";
        assert_eq!(super::collected(log), Some(1_234_567));
        assert_eq!(super::collected("==7== killed\n"), None);
    }
}
