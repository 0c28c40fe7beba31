//! The floor for epoll(7): level-triggered.

use std::io;
use std::net::TcpListener;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsRawFd, OwnedFd};

use super::connection::{Accepted, BUFFER, Task, accept, reply};

/// The data of the listener's events.
pub(super) const LISTENER: u64 = u64::MAX;

/// Creates an epoll instance that watches the listener.
pub(super) fn watching(listener: &TcpListener) -> io::Result<OwnedFd> {
    listener.set_nonblocking(true)?;
    let queue = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&queue, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    Ok(queue)
}

/// Replaces the events by the next ones.
#[inline]
pub(super) fn wait(queue: &OwnedFd, events: &mut Vec<Event>) -> io::Result<()> {
    events.clear();
    rustix::io::retry_on_intr(|| epoll::wait(queue, rustix::buffer::spare_capacity(events), None))?;
    Ok(())
}

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    let queue = watching(&listener)?;
    // Indexed by descriptor; the kernel assigns the lowest free number.
    let mut connections: Vec<Option<OwnedFd>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buffer = [0; BUFFER];
    let mut calls = 2;
    loop {
        calls += 1;
        wait(&queue, &mut events)?;
        for &Event { data, .. } in &events {
            if data.u64() == LISTENER {
                calls += 2;
                match accept(&listener)? {
                    Accepted::Connection(socket) => add(&queue, &mut connections, socket)?,
                    Accepted::Nothing => {}
                    Accepted::Stopped => return Ok(calls),
                }
                continue;
            }
            let slot = &mut connections[data.u64() as usize];
            if slot.as_ref().is_some_and(|s| !reply(s, &mut buffer, task, &mut calls)) {
                // Closing also removes it from the interest list.
                *slot = None;
            }
        }
    }
}

fn add(queue: &OwnedFd, connections: &mut Vec<Option<OwnedFd>>, socket: OwnedFd) -> io::Result<()> {
    let fd = socket.as_raw_fd() as usize;
    epoll::add(queue, &socket, EventData::new_u64(fd as u64), EventFlags::IN)?;
    if connections.len() <= fd {
        connections.resize_with(fd + 1, || None);
    }
    connections[fd] = Some(socket);
    Ok(())
}
