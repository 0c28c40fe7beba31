//! The simplest server: sends one reply on each connection and closes it.
//!
//! Load generators are measured against it. The reply and the FIN share one packet.

use std::io;
use std::net::TcpListener;

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::net::{self, RecvFlags, SendFlags};

use super::connection::{Accepted, BUFFER, Task, accept};
use super::epoll::{LISTENER, wait, watching};

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    let queue = watching(&listener)?;
    let mut events = Vec::with_capacity(256);
    let mut buffer = [0; BUFFER];
    let mut calls = 2;
    loop {
        calls += 1;
        wait(&queue, &mut events)?;
        for &Event { data, .. } in &events {
            if data.u64() != LISTENER {
                // SAFETY: the number was released when the connection was added, it is open, and its
                // only event is this one, as it is closed here.
                let socket = unsafe { OwnedFd::from_raw_fd(data.u64() as RawFd) };
                calls += 3;
                reply(&socket, &mut buffer, task);
                continue;
            }
            loop {
                calls += 2;
                match accept(&listener)? {
                    Accepted::Connection(socket) => {
                        let fd = socket.into_raw_fd();
                        // SAFETY: the descriptor is open, and nothing else owns it.
                        let socket = unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) };
                        let data = EventData::new_u64(fd as u64);
                        epoll::add(&queue, socket, data, EventFlags::IN)?;
                    }
                    Accepted::Nothing => break,
                    Accepted::Stopped => return Ok(calls),
                }
            }
        }
    }
}

fn reply(socket: &OwnedFd, buffer: &mut [u8], task: Task) {
    // A closed connection gets no reply.
    if let Ok((n @ 1.., _)) = net::recv(socket, &mut *buffer, RecvFlags::empty()) {
        let flags = SendFlags::NOSIGNAL | SendFlags::MORE;
        let _ = net::send(socket, task.reply(&buffer[..n]), flags);
    }
}
