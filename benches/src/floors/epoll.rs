//! The floor for epoll(7): level-triggered.

use std::io;
use std::net::TcpListener;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsRawFd, OwnedFd};

use super::connection::{Accepted, BUFFER, Task, accept, reply};

const LISTENER: u64 = u64::MAX;

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    listener.set_nonblocking(true)?;
    let queue = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&queue, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    // Indexed by descriptor; the kernel assigns the lowest free number.
    let mut connections: Vec<Option<OwnedFd>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buffer = [0; BUFFER];
    let mut calls = 2;
    loop {
        calls += 1;
        events.clear();
        rustix::io::retry_on_intr(|| {
            epoll::wait(&queue, rustix::buffer::spare_capacity(&mut events), None)
        })?;
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
