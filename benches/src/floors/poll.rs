//! The floor for poll(2): one array, passed entirely at every call.

use std::io;
use std::net::TcpListener;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::connection::{Accepted, BUFFER, Task, accept, reply};

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    listener.set_nonblocking(true)?;
    // `fds[0]` is the listener, `fds[i + 1]` watches `sockets[i]`.
    let mut fds = vec![watch(listener.as_raw_fd())];
    let mut sockets: Vec<OwnedFd> = Vec::new();
    let mut buffer = [0; BUFFER];
    let mut calls = 0;
    loop {
        calls += 1;
        let mut ready = rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        let arrived = !fds[0].revents().is_empty();
        ready -= usize::from(arrived);

        let mut i = 0;
        while ready > 0 && i < sockets.len() {
            if fds[i + 1].revents().is_empty() {
                i += 1;
                continue;
            }
            ready -= 1;
            if reply(&sockets[i], &mut buffer, task, &mut calls) {
                i += 1;
            } else {
                fds.swap_remove(i + 1);
                sockets.swap_remove(i);
            }
        }
        if arrived {
            calls += 1;
            match accept(&listener)? {
                Accepted::Connection(socket) => {
                    fds.push(watch(socket.as_raw_fd()));
                    sockets.push(socket);
                }
                Accepted::Nothing => {}
                Accepted::Stopped => return Ok(calls),
            }
        }
    }
}

fn watch(fd: i32) -> PollFd<'static> {
    // SAFETY: the array contains a descriptor only while its socket is in `sockets`, as both are
    // removed together, and that of the listener, which stays open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}
