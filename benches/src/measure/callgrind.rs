//! Instructions, counted exactly by valgrind.

use std::fs;
use std::process::{Command, Stdio};

use super::site::fetch;
use super::{Conditions, Load, Server, Site, Subject};
use crate::command::{What, Workload};
use crate::failure::Failure;
use crate::outcome;

/// The two numbers of requests whose difference leaves out start and end.
const FEW: u64 = 2_000;
const MANY: u64 = 42_000;

/// Counts instructions that servers execute outside the kernel.
#[derive(Debug)]
pub(crate) struct Callgrind(());

impl Callgrind {
    /// Looks whether it is installed.
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

    /// Instructions for each request.
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
    let words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &option];
    let conditions = Conditions { under: &words, ..Conditions::default() };
    let server = Server::start_under(subject, site, &conditions)?;
    if subject.work == Workload::File && subject.what == What::App {
        let broken = "it does not run as usual under valgrind";
        fetch(&server, Workload::PATH).map_err(|e| Failure::new(broken, e))?;
    }
    let reply_bytes = site.reply_bytes(subject.work);
    let mut load = Load::start(server.address(), subject.work, connections, reply_bytes)?;
    load.requests(count)?;
    drop(load);
    server.terminate()?;
    let text = fs::read_to_string(&log)?;
    let _ = fs::remove_file(&log);
    collected(&text).ok_or_else(|| Failure::Run(format!("callgrind said nothing:\n{text}")))
}

/// Finds the total in a log such as `==1== Collected : 123456`.
fn collected(log: &str) -> Option<u64> {
    let line = log.lines().find(|l| l.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_where_the_server_waits_in_the_ring() {
        let Ok(callgrind) = Callgrind::find() else { return };
        let site = Site::bare(b"a reply").unwrap();
        let mechanism = "uring".to_owned();
        let subject = Subject { what: What::Floor, mechanism, work: Workload::File };
        let count = callgrind.count(&subject, &site, 8).unwrap();
        assert!((10.0..100_000.0).contains(&count), "{count}");
    }

    #[test]
    fn the_total_is_found_in_the_log() {
        let log = "==7== Events    : Ir\n==7== Collected : 1234567\n==7==\n";
        assert_eq!(super::collected(log), Some(1_234_567));
        assert_eq!(super::collected("==7== killed\n"), None);
    }
}
