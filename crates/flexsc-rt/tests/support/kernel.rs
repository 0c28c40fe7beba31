//! A kernel, its sockets and its turns, for the tests of the kernel.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU16;
use std::time::Instant;

use flexsc_rt::kernel::FlexScKernel;
use shared_ring::sockets::ListenOptions;
use shared_ring::{
    Completion, EngineConfig, Errno, Fd, Host, Kernel, Op, OpKind, Outcome, Socket, Submit,
    Submitted, Token,
};

pub(crate) fn kernel() -> FlexScKernel {
    FlexScKernel::new(&EngineConfig::new(256, 2, 4096)).expect("a kernel")
}

pub(crate) fn listen(kernel: &mut FlexScKernel) -> (Socket, SocketAddr) {
    let at = "127.0.0.1:0".parse().unwrap();
    kernel.host_mut().listen(at, &ListenOptions::new(128)).unwrap()
}

/// Names a socket that outlives the kernel's operations.
pub(crate) fn fd(socket: &Socket) -> Fd {
    // SAFETY: the tests close sockets when nothing is in flight.
    unsafe { socket.fd() }
}

pub(crate) fn submit(kernel: &mut FlexScKernel, token: Token, op: Op) {
    assert!(matches!(kernel.submit(token, op), Ok(Submitted::InFlight)));
}

/// Runs turns until there is a completion that is no wake.
pub(crate) fn next(kernel: &mut FlexScKernel) -> Completion {
    loop {
        while let Some(completion) = kernel.next() {
            if !matches!(completion.outcome, Outcome::Woken) {
                return completion;
            }
        }
        kernel.turn(None).unwrap();
    }
}

/// Runs a turn that does not wait, and discards its completions.
pub(crate) fn turn(kernel: &mut FlexScKernel) -> usize {
    kernel.turn(Some(Instant::now())).unwrap();
    std::iter::from_fn(|| kernel.next()).count()
}

/// Waits until a listener's side of so many connections is established: loopback may deliver the last packet of a
/// handshake after connect(2) has returned. They need not have been accepted.
pub(crate) fn wait_for_connections(address: SocketAddr, count: usize) {
    let local = format!(":{:04X}", address.port());
    let is_one = |line: &&str| {
        // Number, local address, remote address, state (proc(5)).
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|at| at.ends_with(&local)) && fields.nth(1) == Some("01")
    };
    let established = || {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        table.lines().filter(is_one).count()
    };
    while established() < count {
        std::thread::yield_now();
    }
}

pub(crate) fn accept(listener: &Socket, per_turn: Option<u16>) -> Op {
    Op::Accept { listener: fd(listener), per_turn: per_turn.and_then(NonZeroU16::new) }
}

/// Accepts a connection. Returns both ends.
pub(crate) fn connect(kernel: &mut FlexScKernel) -> (Socket, TcpStream) {
    let (listener, address) = listen(kernel);
    let token = Token::new(OpKind::Accept, 99, 0);
    submit(kernel, token, accept(&listener, Some(1)));
    let theirs = TcpStream::connect(address).unwrap();
    let Outcome::Accepted(ours) = next(kernel).outcome else { panic!("no connection") };
    kernel.cancel(token);
    assert!(matches!(next(kernel).outcome, Outcome::Failed(Errno::CANCELED, None)));
    kernel.host_mut().close_unused(listener);
    (ours, theirs)
}
