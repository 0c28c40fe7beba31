//! Sockets from a service manager, and the upgrade to another process without losing a connection.
//!
//! At SIGUSR2 the program starts itself again, with the file that its name now leads to, and passes its listening
//! sockets on. When the successor listens, this process stops accepting, ends each connection with its next response,
//! and exits after the last one. Connections that were not accepted stay in the queues of the sockets.
//!
//! A service manager has to know the successor as the main process before this one exits, or it ends the service: so
//! this process reports it. And systemd watches its own children only (it may kill other processes at once at a stop),
//! so the successor is no child of this process: the one between them exits at once.

use std::env;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use command_fds::{CommandFdExt, FdMapping};
use evring_httpd::Handle;
use evring_httpd::evring::ListeningSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Number of sockets from the process before; a pipe to it follows them.
pub(crate) const INHERITED: &str = "EVRING_HTTPD_INHERITED";

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
            None => (listen_fds()?, None),
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

    /// Reports to the process before, if there is one, that this process listens.
    pub(crate) fn report_ready(&mut self) {
        if let Some(pipe) = self.predecessor.take() {
            // If it has ended, there is nothing to report to.
            let _ = std::fs::File::from(pipe).write_all(b"1");
        }
    }
}

/// Returns the descriptors from a service manager.
fn listen_fds() -> io::Result<Vec<RawFd>> {
    let fds = sd_notify::listen_fds().map(Iterator::collect);
    fds.map_err(|error| {
        let reason = format!("the sockets of the variable LISTEN_FDS cannot be used: {error}");
        io::Error::new(error.kind(), reason)
    })
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

/// Starts a successor and waits until it listens. Returns its process.
///
/// # Errors
/// If it cannot be started, or ends before it listens; then this process goes on.
pub(crate) fn start_successor(handle: &Handle) -> io::Result<Pid> {
    if std::process::id() == 1 {
        let reason = "a container ends with its first process, so replace the container";
        return Err(io::Error::new(ErrorKind::Unsupported, reason));
    }
    let sockets = handle.listening_sockets();
    let mut arguments = env::args_os();
    let program = arguments.next().ok_or(ErrorKind::NotFound)?;
    let (mut ready, report) = io::pipe()?;
    let own_report = report.try_clone()?;
    let fds = sockets.iter().map(|socket| socket.as_fd().try_clone_to_owned());
    let fds = fds.chain([Ok(OwnedFd::from(report))]);
    let mapping = |(child_fd, fd): (RawFd, io::Result<OwnedFd>)| {
        fd.map(|parent_fd| FdMapping { parent_fd, child_fd })
    };
    let mappings = (FIRST..).zip(fds).map(mapping).collect::<Result<_, _>>()?;
    let mut command = Command::new(program);
    command.args(arguments).env(INHERITED, sockets.len().to_string());
    command.env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
    // SAFETY: between fork and exec the function makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(move || leave_parent(&own_report)) };
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    // This is the process in between, which has exited.
    command.spawn()?.wait()?;
    // This process's ends of the pipe, which would hide the successor's end.
    drop(command);
    wait_until_ready(&mut ready)
}

/// Makes a process of its own of a child that has not executed its program yet, and reports its number.
fn leave_parent(mut report: &PipeWriter) -> io::Result<()> {
    // SAFETY: the process has one thread. In the new one, the caller makes only system calls until it executes a
    // program.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => report.write_all(&std::process::id().to_ne_bytes()),
        // SAFETY: the call has no preconditions.
        _ => unsafe { libc::_exit(0) },
    }
}

/// Waits until the successor reports that it listens. If it does not in time, it is killed.
fn wait_until_ready(pipe: &mut PipeReader) -> io::Result<Pid> {
    let ended =
        || io::Error::new(ErrorKind::BrokenPipe, "the new process ended before it listened");
    let mut number = [0; size_of::<u32>()];
    pipe.read_exact(&mut number).map_err(|_| ended())?;
    let successor = Pid::from_raw(i32::from_ne_bytes(number)).ok_or_else(ended)?;
    // It names this process even if that ends and the number is used again.
    let process = pidfd_open(successor, PidfdFlags::empty())?;
    let mut fds = [PollFd::new(&*pipe, PollFlags::IN)];
    if poll(&mut fds, Some(&START_TIMEOUT))? == 0 {
        let _ = pidfd_send_signal(process, Signal::KILL);
        return Err(io::Error::new(ErrorKind::TimedOut, "the new process does not listen"));
    }
    match pipe.read(&mut [0])? {
        0 => Err(ended()),
        _ => Ok(successor),
    }
}
