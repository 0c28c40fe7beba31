//! A listener whose connections real-time signals have reported. They have no handler and would end
//! the process, so this test has its own.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use send_core::kernel::{Delivery, SendKernel};
use shared_ring::poller::{Poller, Readiness, RtSig};
use shared_ring::uring::UringConfig;
use shared_ring::{Fd, Host, Kernel, Op, OpKind, Outcome, Submit, Token};

#[test]
fn listener_that_had_sent_real_time_signals_ended_the_process() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: the listener is dropped last.
    let fd = unsafe { Fd::lent(listener.as_fd()) };
    let mut former = RtSig::new().unwrap();
    former.set(fd, Readiness::READ).unwrap();
    drop(former);
    let delivery = Delivery::Preemptive;
    let config = UringConfig::new(delivery.mode(), 8, 1, 16);
    let mut kernel = match SendKernel::new(&config, delivery) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let accept = Op::Accept { listener: fd, per_turn: None };
    kernel.submit(Token::new(OpKind::Accept, 0, 0), accept).unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let accepted = loop {
        if let Some(completion) = kernel.next() {
            break completion.outcome;
        }
        assert!(Instant::now() < until, "no connection");
        kernel.turn(Some(until)).unwrap();
    };
    let Outcome::Accepted(socket) = accepted else { panic!("{accepted:?}") };
    kernel.host_mut().close_unused(socket);
    drop(kernel);
}
