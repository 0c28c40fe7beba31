//! Sockets.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr;

use super::buffer::Bytes;
use super::files::opened;
use super::{done, fill, filled};
use crate::call::{Call, Direction, Waits};
use crate::descriptor::{Descriptor, Nature};
use crate::operation::{Operation, Owned};
use crate::pages::Scratch;

/// Makes a socket, with `SOCK_CLOEXEC`: socket(2).
pub fn socket(
    domain: i32,
    socket_type: i32,
    protocol: i32,
) -> impl Operation<Output = io::Result<Descriptor>> {
    // SAFETY: the arguments are numbers.
    unsafe {
        let prepare = move |(): &mut (), _: &mut Scratch| {
            let kind = (socket_type | libc::SOCK_CLOEXEC) as usize;
            Call::bounded(libc::SYS_socket, [domain as usize, kind, protocol as usize, 0, 0, 0])
        };
        Owned::new((), prepare, |(), result, _: &Scratch| opened(result, Nature::default()))
    }
}

/// Takes a connection: accept4(2), with `SOCK_CLOEXEC`. The owner executes it if the listener is
/// non-blocking; else a syscall thread does, once there is a connection. Several may be posted.
pub fn accept(listener: &Descriptor) -> impl Operation<Output = io::Result<Descriptor>> {
    // SAFETY: the arguments are numbers, and null pointers.
    unsafe {
        let prepare = |listener: &mut Descriptor, _: &mut Scratch| {
            let flags = libc::SOCK_CLOEXEC as usize;
            Call::new(libc::SYS_accept4, [listener.arg(), 0, 0, flags, 0, 0])
                .waits(listener.stream(Direction::Read))
                .object(listener.known().object())
        };
        Owned::new(listener.clone(), prepare, |_, result, _: &Scratch| {
            opened(result, Nature::default())
        })
    }
}

/// Connects a socket: connect(2). Of a non-blocking socket no thread waits for the connection.
pub fn connect(
    socket: &Descriptor,
    address: SocketAddr,
) -> impl Operation<Output = io::Result<()>> {
    // SAFETY: the scratch holds the address.
    unsafe {
        let prepare = move |socket: &mut Descriptor, scratch: &mut Scratch| {
            let waits = match socket.stream(Direction::Write) {
                // It is writable only when it is connected.
                Waits::ReadyThenBlocks(..) => Waits::Indefinitely,
                waits => waits,
            };
            connect_call(socket.number(), address, scratch)
                .waits(waits)
                .object(socket.known().object())
        };
        Owned::new(socket.clone(), prepare, done)
    }
}

/// Returns a connect(2) whose address is in the scratch memory.
pub(crate) fn connect_call(socket: RawFd, address: SocketAddr, scratch: &mut Scratch) -> Call {
    let len = encode(address, scratch);
    let name = scratch.as_mut_ptr() as usize;
    Call::new(libc::SYS_connect, [socket as usize, name, len, 0, 0, 0])
}

/// Writes a `struct sockaddr_in` or `sockaddr_in6`. Returns its length.
fn encode(address: SocketAddr, scratch: &mut Scratch) -> usize {
    let at = scratch.as_mut_ptr();
    // SAFETY: plain C structures, shorter than the scratch memory and less aligned.
    unsafe {
        match address {
            SocketAddr::V4(v4) => {
                let mut name: libc::sockaddr_in = mem::zeroed();
                name.sin_family = libc::AF_INET as libc::sa_family_t;
                name.sin_port = v4.port().to_be();
                name.sin_addr.s_addr = Ipv4Addr::to_bits(*v4.ip()).to_be();
                ptr::write(at.cast(), name);
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let mut name: libc::sockaddr_in6 = mem::zeroed();
                name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                name.sin6_port = v6.port().to_be();
                name.sin6_flowinfo = v6.flowinfo();
                name.sin6_scope_id = v6.scope_id();
                name.sin6_addr.s6_addr = Ipv6Addr::octets(v6.ip());
                ptr::write(at.cast(), name);
                size_of::<libc::sockaddr_in6>()
            }
        }
    }
}

/// Receives from a socket: recv(2).
pub fn receive(
    socket: &Descriptor,
    buffer: Vec<u8>,
) -> impl Operation<Output = (io::Result<usize>, Vec<u8>)> {
    // SAFETY: the kernel writes to the unused capacity, which is on the heap.
    unsafe {
        let prepare = |(socket, buffer): &mut (Descriptor, Vec<u8>), _: &mut Scratch| {
            fill(buffer, |address, len| {
                let flags = libc::MSG_DONTWAIT as usize;
                Call::new(libc::SYS_recvfrom, [socket.arg(), address, len, flags, 0, 0])
                    .waits(socket.ready(Direction::Read))
            })
        };
        Owned::new((socket.clone(), buffer), prepare, filled)
    }
}

/// Sends to a connected socket: send(2), without `SIGPIPE`. Returns the number of bytes sent. Sends to one socket have no
/// order among them, unless each is posted after the last one has ended.
pub fn send<B: Bytes>(
    socket: &Descriptor,
    bytes: B,
) -> impl Operation<Output = (io::Result<usize>, B)> {
    // SAFETY: the bytes do not move.
    unsafe {
        let prepare = |(socket, bytes): &mut (Descriptor, B), _: &mut Scratch| {
            let bytes = bytes.bytes();
            let (address, len) = (bytes.as_ptr() as usize, bytes.len());
            let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
            Call::new(libc::SYS_sendto, [socket.arg(), address, len, flags, 0, 0])
                .waits(socket.ready(Direction::Write))
        };
        let finish = |(_, bytes): (Descriptor, B), result, _: &Scratch| (result, bytes);
        Owned::new((socket.clone(), bytes), prepare, finish)
    }
}

/// Ends the sending or receiving of a socket: shutdown(2).
pub fn shutdown(
    socket: &Descriptor,
    how: std::net::Shutdown,
) -> impl Operation<Output = io::Result<()>> {
    let how = match how {
        std::net::Shutdown::Read => libc::SHUT_RD,
        std::net::Shutdown::Write => libc::SHUT_WR,
        std::net::Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: the arguments are numbers.
    unsafe {
        let prepare = move |socket: &mut Descriptor, _: &mut Scratch| {
            Call::bounded(libc::SYS_shutdown, [socket.arg(), how as usize, 0, 0, 0, 0])
        };
        Owned::new(socket.clone(), prepare, done)
    }
}

/// Sets an option of a socket that is an integer: setsockopt(2).
pub fn set_option(
    socket: &Descriptor,
    level: i32,
    name: i32,
    value: i32,
) -> impl Operation<Output = io::Result<()>> {
    // SAFETY: the scratch holds the value. Options that hold pointers are not integers, and too
    // short a value is refused.
    unsafe {
        let prepare = move |socket: &mut Descriptor, scratch: &mut Scratch| {
            scratch.as_mut_ptr().cast::<i32>().write(value);
            let (value, len) = (scratch.as_mut_ptr() as usize, size_of::<i32>());
            let args = [socket.arg(), level as usize, name as usize, value, len, 0];
            Call::bounded(libc::SYS_setsockopt, args)
        };
        Owned::new(socket.clone(), prepare, done)
    }
}

/// Returns an option of a socket that is an integer: getsockopt(2).
pub fn option(
    socket: &Descriptor,
    level: i32,
    name: i32,
) -> impl Operation<Output = io::Result<i32>> {
    // SAFETY: the scratch has room for value and length.
    unsafe {
        let prepare = move |socket: &mut Descriptor, scratch: &mut Scratch| {
            scratch[0] = 0;
            scratch.as_mut_ptr().add(1).cast::<u32>().write(size_of::<i32>() as u32);
            let value = scratch.as_mut_ptr();
            let (value, len) = (value as usize, value.add(1) as usize);
            let args = [socket.arg(), level as usize, name as usize, value, len, 0];
            Call::bounded(libc::SYS_getsockopt, args)
        };
        let finish = |_, result: io::Result<usize>, scratch: &Scratch| {
            result.map(|_| scratch.as_ptr().cast::<i32>().read())
        };
        Owned::new(socket.clone(), prepare, finish)
    }
}

/// Waits until a descriptor is readable or writable, without a thread: poll(2). Returns its events,
/// in poll's format; none if another caller was faster.
pub fn poll(
    descriptor: &Descriptor,
    direction: Direction,
) -> impl Operation<Output = io::Result<i16>> {
    // SAFETY: the scratch holds the structure.
    unsafe {
        let prepare = move |descriptor: &mut Descriptor, scratch: &mut Scratch| {
            let events = match direction {
                Direction::Read => libc::POLLIN | libc::POLLRDHUP,
                Direction::Write => libc::POLLOUT,
            };
            let at = scratch.as_mut_ptr();
            at.cast::<libc::pollfd>().write(libc::pollfd {
                fd: descriptor.number(),
                events,
                revents: 0,
            });
            // A timeout of zero.
            at.add(2).write(0);
            at.add(3).write(0);
            Call::new(libc::SYS_ppoll, [at as usize, 1, at.add(2) as usize, 0, 0, 0])
                .waits(Waits::AfterReady(descriptor.number(), direction))
        };
        let finish = |_, result: io::Result<usize>, scratch: &Scratch| {
            result.map(|_| scratch.as_ptr().cast::<libc::pollfd>().read().revents)
        };
        Owned::new(descriptor.clone(), prepare, finish)
    }
}
