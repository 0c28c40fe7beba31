//! Sockets from a service manager, and a successor: another process that takes the sockets without losing a connection.
//!
//! At SIGUSR2 the program starts itself again, with the file that its name now leads to, and passes its listening
//! sockets on. When the successor listens, this process stops accepting, ends each connection with its next response,
//! and exits after the last one. Connections that were not accepted stay in the queues of the sockets.
//!
//! A service manager has to know the successor as the main process before this one exits, or it ends the service: so
//! this process reports it. And systemd watches its own children only (it may kill other processes at once at a stop),
//! so the successor is no child of this process: the one between them exits at once.
//!
//! A stop is for both processes until the successor serves alone. So it reports that it listens and waits for an answer:
//! if this process is about to stop, or has ended, there is none, and the successor stops, too. A SIGHUP that arrives
//! meanwhile is for both, too: this process passes it on.

use std::env;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use evring_httpd::Handle;
use evring_httpd::evring::sockets::ListeningSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::arrivals;
use crate::end::End;

/// Number of sockets from the process before, and how many of them, the first ones, a service manager gave to it: `3,1`.
/// A socket to the process follows them.
pub(crate) const INHERITED: &str = "EVRING_HTTPD_INHERITED";

/// The first descriptor that is passed on (sd_listen_fds(3)).
const FIRST: RawFd = 3;

/// Maximum time for a successor to listen.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for a successor that has failed to say why, and to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The report of a successor that waits for an answer. Older versions do not wait, and report `1`.
const READY: u8 = b'2';

/// The answer: the successor serves.
const SERVE: &[u8] = b"1";

/// The state that this process got from its predecessor.
#[derive(Default)]
pub(crate) struct Inheritance {
    /// Those of a service manager.
    pub(crate) sockets: Vec<ListeningSocket>,
    /// Other ones of the process before.
    pub(crate) taken_over: Vec<ListeningSocket>,
    /// A socket to the process before.
    predecessor: Option<OwnedFd>,
}

impl Inheritance {
    /// Takes the descriptors that were passed to this process. Called once, before it opens others.
    pub(crate) fn take() -> io::Result<Self> {
        let counts = env::var_os(INHERITED).map(|counts| parse_counts(&counts.to_string_lossy()));
        let (fds, of_manager, report): (Vec<RawFd>, _, _) = match counts.transpose()? {
            Some((count, of_manager)) => {
                ((FIRST..FIRST + count).collect(), of_manager, Some(FIRST + count))
            }
            None => (listen_fds()?, usize::MAX, None),
        };
        let rejected = |fd, error: io::Error| {
            let reason = format!("the inherited descriptor {fd} cannot be used: {error}");
            io::Error::new(error.kind(), reason)
        };
        let socket =
            |fd| own(fd).and_then(ListeningSocket::try_from).map_err(|error| rejected(fd, error));
        let mut sockets: Vec<_> = fds.into_iter().map(socket).collect::<Result<_, _>>()?;
        let taken_over = sockets.split_off(of_manager.min(sockets.len()));
        let predecessor = report.map(|fd| own(fd).map_err(|error| rejected(fd, error)));
        Ok(Inheritance { sockets, taken_over, predecessor: predecessor.transpose()? })
    }

    /// Returns whether this process takes the place of another one.
    pub(crate) fn is_successor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Reports to the process before, if there is one, that this process listens, and waits until it may serve alone.
    ///
    /// # Errors
    /// If it stops, or has ended: this process stops, too.
    pub(crate) fn report_ready(&mut self) -> io::Result<()> {
        let Some(predecessor) = self.predecessor.take() else { return Ok(()) };
        let mut predecessor = File::from(predecessor);
        let report = predecessor.write_all(&[READY]);
        match report.and_then(|()| predecessor.read_exact(&mut [0])) {
            // A program of before gives the end of a pipe, and no answer.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BADF) => Ok(()),
            Err(error) => {
                let reason = format!(
                    "the process whose place this one takes stops, and a stop is for both; start the server again: \
                     {error}"
                );
                Err(io::Error::new(error.kind(), reason))
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Parses the value of [`INHERITED`]. A program of before gives the first number only.
fn parse_counts(text: &str) -> io::Result<(RawFd, usize)> {
    let (count, of_manager) = text.split_once(',').unwrap_or((text, "0"));
    match (count.parse::<u16>(), of_manager.parse()) {
        (Ok(count), Ok(of_manager)) => Ok((count.into(), of_manager)),
        _ => {
            let reason = format!("the variable {INHERITED} is for a successor only, not {text:?}");
            Err(io::Error::new(ErrorKind::InvalidInput, reason))
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

/// Starts a successor and waits until it listens. Returns its process. A service manager has given the sockets at the
/// addresses `given`, and `end` has a successor before that serves alone.
///
/// # Errors
/// If it cannot be started, or ends before it listens, or this process is about to stop. Then this process continues to
/// serve, or stops.
pub(crate) fn start(handle: &Handle, given: &[SocketAddr], end: &End) -> io::Result<Pid> {
    if std::process::id() == 1 {
        let reason = "a container ends with its first process, so replace the container";
        return Err(io::Error::new(ErrorKind::Unsupported, reason));
    }
    let (mut sockets, others): (Vec<_>, _) = handle
        .listening_sockets()
        .into_iter()
        .partition(|socket| given.contains(&socket.address()));
    let of_manager = sockets.len();
    sockets.extend::<Vec<_>>(others);
    let about_to_stop =
        || io::Error::other("the server is about to stop; start it again afterwards");
    if end.is_stopping() || sockets.is_empty() {
        return Err(about_to_stop());
    }
    let mut arguments = env::args_os();
    let program = arguments.next().ok_or(ErrorKind::NotFound)?;
    let named = |error: io::Error| {
        let reason = format!("cannot start {}: {error}", Path::new(&program).display());
        io::Error::new(error.kind(), reason)
    };
    let (mut successor, report) = UnixStream::pair()?;
    let own_report = report.try_clone()?;
    let fds = sockets.iter().map(|socket| socket.as_fd().try_clone_to_owned());
    let fds = fds.chain([Ok(OwnedFd::from(report))]);
    let mapping = |(child_fd, fd): (RawFd, io::Result<OwnedFd>)| {
        fd.map(|parent_fd| FdMapping { parent_fd, child_fd })
    };
    let mappings = (FIRST..).zip(fds).map(mapping).collect::<Result<_, _>>()?;
    let mut command = Command::new(&program);
    command.args(arguments).env(INHERITED, format!("{},{of_manager}", sockets.len()));
    command.env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
    // SAFETY: between fork and exec the function makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(move || leave_parent(&own_report)) };
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    let before = arrivals::counts();
    // This is the process in between, which has exited.
    command.spawn().map_err(named)?.wait()?;
    // This process's copies of the successor's socket, which would hide the successor's end.
    drop(command);
    let (process, report) = wait_until_ready(&mut successor, START_TIMEOUT)?;
    if !end.set_successor() {
        // The stop was for the server, whichever process it is: the successor gets no answer. One of an older program
        // waits for none.
        if report != READY {
            let _ = process.signal(Signal::TERM);
        }
        return Err(about_to_stop());
    }
    if report == READY {
        if successor.write_all(SERVE).is_err() {
            end.remove_successor();
            return Err(ended());
        }
        let counts = arrivals::SIGNALS.into_iter().zip(before).zip(arrivals::counts());
        for ((signal, before), now) in counts {
            if now != before {
                // It may have read the settings, or opened the log, before. Fails if it has ended.
                let _ = process.signal(signal);
            }
        }
    }
    Ok(process.number)
}

/// Makes a process of its own of a child that has not executed its program yet, and reports its number.
fn leave_parent(mut report: &UnixStream) -> io::Result<()> {
    // SAFETY: the process has one thread. In the new one, the caller makes only system calls until it executes a
    // program.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => report.write_all(&std::process::id().to_ne_bytes()),
        // SAFETY: the call has no preconditions.
        _ => unsafe { libc::_exit(0) },
    }
}

/// The process of a successor.
#[derive(Debug)]
struct SuccessorProcess {
    number: Pid,
    /// Names this process even if that ends and the number is used again. Not every kernel and sandbox has it.
    descriptor: Option<OwnedFd>,
}

impl SuccessorProcess {
    /// Sends it a signal; by its number only without a descriptor.
    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        match &self.descriptor {
            Some(descriptor) => pidfd_send_signal(descriptor, signal),
            None => kill_process(self.number, signal),
        }
    }
}

/// Waits until the successor reports that it listens. Returns its process and the report. If there is none within
/// `timeout`, or the wait fails, it is killed: else it could serve beside this process.
fn wait_until_ready(
    successor: &mut UnixStream,
    timeout: Duration,
) -> io::Result<(SuccessorProcess, u8)> {
    let mut number = [0; size_of::<u32>()];
    successor.read_exact(&mut number).map_err(|_| ended())?;
    let number = Pid::from_raw(i32::from_ne_bytes(number)).ok_or_else(ended)?;
    let descriptor = match pidfd_open(number, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Err(ended()),
        descriptor => descriptor.ok(),
    };
    let process = SuccessorProcess { number, descriptor };
    let report = read_report(successor, timeout);
    if let Err(error) = &report {
        let has_failed = error.kind() == ErrorKind::BrokenPipe;
        match &process.descriptor {
            // It says why, and ends.
            Some(descriptor) if has_failed && wait_for(descriptor, END_TIMEOUT).is_ok() => {}
            None if has_failed => {}
            descriptor => {
                // Fails if it has ended; then its number is not used without the descriptor.
                let _ = process.signal(Signal::KILL);
                // Until then, its number in the pid file is that of a server that runs.
                let _ = descriptor.as_ref().map(|descriptor| wait_for(descriptor, END_TIMEOUT));
            }
        }
    }
    report.map(|report| (process, report))
}

/// Waits for the report that the successor listens.
fn read_report(successor: &mut UnixStream, timeout: Duration) -> io::Result<u8> {
    wait_for(&*successor, timeout)?;
    let mut report = [0];
    successor.read_exact(&mut report).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => ended(),
        _ => error,
    })?;
    Ok(report[0])
}

/// Waits until a descriptor is readable, which that of a process is at its end.
fn wait_for(fd: impl AsFd, timeout: Duration) -> io::Result<()> {
    let until = Instant::now() + timeout;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => {
                return Err(io::Error::new(ErrorKind::TimedOut, "the new process does not listen"));
            }
            Ok(_) => return Ok(()),
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(ErrorKind::BrokenPipe, "the new process ended before it listened")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Child;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    /// Starts a command as a successor that has reported its number.
    fn successor(program: &str, argument: &str) -> (Child, UnixStream, UnixStream) {
        let child = Command::new(program).arg(argument).spawn().unwrap();
        let (ready, mut report) = UnixStream::pair().unwrap();
        report.write_all(&child.id().to_ne_bytes()).unwrap();
        (child, ready, report)
    }

    #[test]
    fn successor_that_has_ended_already_was_reported_as_no_such_process() {
        let (mut child, mut ready, report) = successor("true", "60");
        child.wait().unwrap();
        drop(report);
        let error = wait_until_ready(&mut ready, START_TIMEOUT).unwrap_err();
        assert_eq!(error.to_string(), ended().to_string());
    }

    #[test]
    fn successor_that_does_not_report_is_killed() {
        let (mut child, mut ready, _report) = successor("sleep", "60");
        let error = wait_until_ready(&mut ready, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        // The wait ends early for another reason.
        let (mut child, mut ready, report) = successor("sleep", "60");
        drop(report);
        let error = wait_until_ready(&mut ready, START_TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn successor_was_killed_before_it_had_said_why_it_failed() {
        // On a slow machine its time may be over.
        let ends_by_itself = |_| {
            let (mut child, mut ready, report) = successor("sleep", "0.2");
            drop(report);
            wait_until_ready(&mut ready, START_TIMEOUT).unwrap_err();
            child.wait().unwrap().signal().is_none()
        };
        assert!((0..5).any(ends_by_itself));
    }

    #[test]
    fn sockets_of_an_older_program_were_bound_again() {
        assert_eq!(parse_counts("3,1").unwrap(), (3, 1));
        assert_eq!(parse_counts("3").unwrap(), (3, 0));
        for text in ["", "x", "-1,0", "1,x", "1,1,1", "2000000000000"] {
            assert!(parse_counts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn signal_ended_the_wait_for_the_successor() {
        signal_hook::flag::register(libc::SIGURG, Arc::new(AtomicBool::new(false))).unwrap();
        let (mut child, mut ready, mut report) = successor("sleep", "60");
        let number = child.id();
        let (sender, thread_number) = std::sync::mpsc::channel();
        let waiter = thread::spawn(move || {
            // SAFETY: the call has no preconditions.
            sender.send(unsafe { libc::pthread_self() }).unwrap();
            wait_until_ready(&mut ready, START_TIMEOUT)
        });
        let thread_number = thread_number.recv().unwrap();
        for _ in 0..1000 {
            // SAFETY: the thread ends after the report only, and it is joined later.
            unsafe { libc::pthread_kill(thread_number, libc::SIGURG) };
            thread::yield_now();
        }
        report.write_all(b"1").unwrap();
        assert_eq!(waiter.join().unwrap().unwrap().0.number.as_raw_pid().unsigned_abs(), number);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
