//! Sockets from a service manager, and the upgrade to another process without losing a connection.
//!
//! At SIGUSR2 the program starts itself again, with the file that its name now leads to, and passes its listening
//! sockets on. When the successor listens, this process stops accepting, ends each connection with its next response,
//! and exits after the last one. Connections that were not accepted stay in the queues of the sockets.

use std::env;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Child, Command};

use command_fds::{CommandFdExt, FdMapping};
use evring_httpd::Handle;
use evring_httpd::evring::ListeningSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Number of sockets from the process before; a pipe to it follows them.
const INHERITED: &str = "EVRING_HTTPD_INHERITED";

/// The first descriptor that is passed on (sd_listen_fds(3)).
const FIRST: RawFd = 3;

/// Maximum time for a successor to listen.
const START_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// What this process got from another one.
#[derive(Default)]
pub(crate) struct Inheritance {
    pub(crate) sockets: Vec<ListeningSocket>,
    /// A pipe to the process before.
    predecessor: Option<OwnedFd>,
}

impl Inheritance {
    /// Takes the descriptors that were passed to this process. Called once, before it opens others.
    pub(crate) fn take() -> io::Result<Self> {
        let count = env::var(INHERITED).ok().and_then(|count| count.parse::<RawFd>().ok());
        let (fds, report): (Vec<RawFd>, _) = match count {
            Some(count) => ((FIRST..FIRST + count).collect(), Some(FIRST + count)),
            None => (sd_notify::listen_fds()?.collect(), None),
        };
        let refused = |fd, error: io::Error| {
            let reason = format!("the inherited descriptor {fd} cannot be used: {error}");
            io::Error::new(error.kind(), reason)
        };
        let socket =
            |fd| own(fd).and_then(ListeningSocket::try_from).map_err(|error| refused(fd, error));
        let sockets = fds.into_iter().map(socket).collect::<Result<_, _>>()?;
        let predecessor = report.map(|fd| own(fd).map_err(|error| refused(fd, error)));
        Ok(Inheritance { sockets, predecessor: predecessor.transpose()? })
    }

    /// Reports that this process listens. Returns whether there is a process before.
    pub(crate) fn report_ready(&mut self) -> bool {
        match self.predecessor.take() {
            // If it has ended, there is nothing to report to.
            Some(pipe) => std::fs::File::from(pipe).write_all(b"1").is_ok(),
            None => false,
        }
    }
}

/// Takes a descriptor that was passed to this process.
fn own(fd: RawFd) -> io::Result<OwnedFd> {
    if !Path::new(&format!("/proc/self/fd/{fd}")).exists() {
        return Err(io::Error::new(ErrorKind::NotFound, "it is not open"));
    }
    // SAFETY: it is open. The caller of the program has passed it on, and nothing else in the program owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // It was passed without the flag. Programs that this one starts get no other descriptors than they are meant to.
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Starts a successor and waits until it listens.
///
/// # Errors
/// If it cannot be started, or ends before it listens; then this process goes on.
pub(crate) fn start_successor(handle: &Handle) -> io::Result<()> {
    let sockets = handle.listening_sockets();
    let mut arguments = env::args_os();
    let program = arguments.next().ok_or(ErrorKind::NotFound)?;
    let (mut ready, report) = io::pipe()?;
    let fds = sockets.iter().map(|socket| socket.as_fd().try_clone_to_owned());
    let fds = fds.chain([Ok(OwnedFd::from(report))]);
    let mapping = |(child_fd, fd): (RawFd, io::Result<OwnedFd>)| {
        fd.map(|parent_fd| FdMapping { parent_fd, child_fd })
    };
    let mappings = (FIRST..).zip(fds).map(mapping).collect::<Result<_, _>>()?;
    let mut command = Command::new(program);
    command.args(arguments).env(INHERITED, sockets.len().to_string());
    command.env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    let mut child = command.spawn()?;
    // This process's end of the pipe, which would hide the child's end.
    drop(command);
    let outcome = wait_until_ready(&mut ready);
    if outcome.is_err() {
        end(&mut child);
    }
    outcome
}

fn wait_until_ready(ready: &mut PipeReader) -> io::Result<()> {
    let mut fds = [PollFd::new(&*ready, PollFlags::IN)];
    if poll(&mut fds, Some(&START_TIMEOUT))? == 0 {
        return Err(io::Error::new(ErrorKind::TimedOut, "the new process does not listen"));
    }
    let mut byte = [0];
    match ready.read(&mut byte)? {
        0 => Err(io::Error::new(ErrorKind::BrokenPipe, "the new process ended before it listened")),
        _ => Ok(()),
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
