//! The floor beneath epoll(7): level-triggered.

use std::io;
use std::net::TcpListener;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsRawFd, OwnedFd};

use super::{Accepted, BUFFER, Task, accept, answer};

const LISTENER: u64 = u64::MAX;

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    listener.set_nonblocking(true)?;
    let queue = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&queue, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    // By descriptor, which the kernel keeps small.
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
            let place = &mut connections[data.u64() as usize];
            if place.as_ref().is_some_and(|s| !answer(s, &mut buffer, task, &mut calls)) {
                // Closing also takes it out of the interest list.
                *place = None;
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
