//! The floor for select(2): a bit map, copied at every call because the kernel overwrites it.

use std::io;
use std::net::TcpListener;

use rustix::event::{FdSetElement, FdSetIter, fd_set_insert, fd_set_remove, select};
use rustix::fd::{AsRawFd, OwnedFd};

use super::connection::{Accepted, BUFFER, Task, accept, reply};

/// Number of descriptors in an element.
const BITS: usize = 64;

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    listener.set_nonblocking(true)?;
    let listening = listener.as_raw_fd();
    let mut sockets: Vec<Option<OwnedFd>> = Vec::new();
    let (mut interest, mut ready) = (Vec::new(), Vec::new());
    insert(&mut interest, listening);
    let mut buffer = [0; BUFFER];
    let mut calls = 0;
    loop {
        calls += 1;
        wait(&interest, &mut ready)?;
        for fd in FdSetIter::new(&ready) {
            if fd == listening {
                calls += 1;
                match accept(&listener)? {
                    Accepted::Connection(socket) => {
                        insert(&mut interest, socket.as_raw_fd());
                        store(&mut sockets, socket);
                    }
                    Accepted::Nothing => {}
                    Accepted::Stopped => return Ok(calls),
                }
                continue;
            }
            let slot = &mut sockets[fd as usize];
            if slot.as_ref().is_some_and(|s| !reply(s, &mut buffer, task, &mut calls)) {
                *slot = None;
                fd_set_remove(&mut interest, fd);
            }
        }
    }
}

fn wait(interest: &[FdSetElement], ready: &mut Vec<FdSetElement>) -> io::Result<()> {
    loop {
        ready.clear();
        ready.extend_from_slice(interest);
        let bound = (ready.len() * BITS) as i32;
        // SAFETY: every bit is that of the listener or of a socket in the table, and so open: bit
        // and socket are removed together. The map has `bound` bits.
        match unsafe { select(bound, Some(ready.as_mut_slice()), None, None, None) } {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn insert(set: &mut Vec<FdSetElement>, fd: i32) {
    let elements = fd as usize / BITS + 1;
    if set.len() < elements {
        set.resize(elements, FdSetElement::default());
    }
    fd_set_insert(set, fd);
}

fn store(sockets: &mut Vec<Option<OwnedFd>>, socket: OwnedFd) {
    let fd = socket.as_raw_fd() as usize;
    if sockets.len() <= fd {
        sockets.resize_with(fd + 1, || None);
    }
    sockets[fd] = Some(socket);
}
