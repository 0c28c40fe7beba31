//! Waits for other programs, with a limit.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::descendants::kill_descendants;

/// Reads a line from a pipe. At the end of the input it is what there is, without a line feed.
///
/// # Errors
/// If it does not come in time.
pub(crate) fn line_within<R: Read + AsFd>(
    input: &mut BufReader<R>,
    limit: Duration,
) -> io::Result<String> {
    let deadline = Instant::now() + limit;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        if input.buffer().is_empty() && !is_readable_until(input.get_ref().as_fd(), deadline)? {
            let what = format!("no line within {:.1} s", limit.as_secs_f64());
            return Err(io::Error::new(ErrorKind::TimedOut, what));
        }
        let piece = input.fill_buf()?;
        let end = piece.iter().position(|byte| *byte == b'\n').map_or(piece.len(), |at| at + 1);
        line.extend_from_slice(&piece[..end]);
        input.consume(end);
        if end == 0 {
            break;
        }
    }
    String::from_utf8(line).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
}

/// Runs a program, and returns its output. It is killed with its descendants if it does not end in time.
///
/// # Errors
/// Also if it was killed.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // The process keeps its number until it is waited for.
    let number = Pid::from_child(&child);
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(error) => {
            child.kill()?;
            child.wait()?;
            return Err(error.into());
        }
    };
    thread::scope(|scope| {
        let killed = scope.spawn(|| {
            // A descriptor of a process is readable when it has ended (pidfd_open(2)).
            let ended = is_readable_until(process.as_fd(), Instant::now() + limit)?;
            if !ended {
                // They would keep the pipes open.
                kill_descendants(number);
                pidfd_send_signal(&process, Signal::KILL)?;
            }
            Ok::<_, io::Error>(!ended)
        });
        let output = child.wait_with_output();
        if killed.join().expect("nothing in it panics")? {
            let program = command.get_program().to_string_lossy();
            let what = format!("{program} did not end within {:.1} s", limit.as_secs_f64());
            return Err(io::Error::new(ErrorKind::TimedOut, what));
        }
        output
    })
}

/// Waits until a descriptor is readable, or has ended. Returns whether it was in time.
fn is_readable_until(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn line_that_never_came_was_waited_for() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut reader = BufReader::new(reader);
        writer.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(line_within(&mut reader, LONG).unwrap(), "one\n");
        assert_eq!(line_within(&mut reader, LONG).unwrap(), "two\n");
        let error = line_within(&mut reader, SHORT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(writer);
        assert_eq!(line_within(&mut reader, LONG).unwrap(), "");
    }

    #[test]
    fn program_that_never_ended_was_waited_for() {
        let error = output_within(Command::new("sleep").arg("60"), SHORT).unwrap_err();
        assert_eq!(error.to_string(), "sleep did not end within 0.0 s");
        let output = output_within(Command::new("echo").arg("text"), LONG).unwrap();
        assert_eq!((output.status.success(), &*output.stdout), (true, &b"text\n"[..]));
    }
}
