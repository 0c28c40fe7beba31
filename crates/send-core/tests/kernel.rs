//! System call counters of a ring whose completions are events.

use std::net::TcpStream;
use std::time::Instant;

use send_core::kernel::{Capacity, Delivery, SendKernel};
use shared_ring::sockets::ListenOptions;
use shared_ring::uring::{UringConfig, UringKernel};
use shared_ring::{Host, Kernel, Op, OpKind, Outcome, Submit, Token};

/// Notification is lowered while more new connections than this are queued.
const BATCH_ABOVE: usize = 32;

#[test]
fn unblocking_call_was_not_counted() {
    let delivery = Delivery::Preemptive;
    let config = UringConfig::new(delivery.mode(), 16, 1, 16);
    let mut kernel = match SendKernel::new(&config, delivery) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let options = ListenOptions::new(64);
    let at = "127.0.0.1:0".parse().unwrap();
    let (listener, address) = kernel.host_mut().listen(at, &options).unwrap();
    let token = Token::new(OpKind::Accept, 0, 0);
    // SAFETY: the listener stays open.
    let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
    kernel.submit(token, accept).unwrap();
    let past = Some(Instant::now());
    kernel.turn(past).unwrap();
    // This lowers notification; the next connection makes the signal block itself.
    let mut clients: Vec<_> =
        (0..=BATCH_ABOVE).map(|_| TcpStream::connect(address).unwrap()).collect();
    kernel.turn(past).unwrap();
    clients.push(TcpStream::connect(address).unwrap());
    while kernel.counts().masked == 0 {
        std::hint::spin_loop();
    }
    assert_eq!((kernel.counts().masked, kernel.counts().unmasked), (1, 0));
    let mut accepted = 0;
    while accepted < clients.len() {
        while let Some(completion) = kernel.next() {
            if let Outcome::Accepted(socket) = completion.outcome {
                kernel.host_mut().close_unused(socket);
                accepted += 1;
            }
        }
        let before = (kernel.counters().system_calls, kernel.counts().unmasked);
        kernel.turn(past).unwrap();
        let calls = kernel.counters().system_calls - before.0;
        // Each turn enters the ring once.
        assert_eq!(calls, 1 + kernel.counts().unmasked - before.1);
    }
    assert_eq!(kernel.counts().unmasked, 1);
}

#[test]
fn queues_of_no_event_passed_none_on() {
    let delivery = Delivery::Ps2;
    let config = UringConfig::new(delivery.mode(), 16, 1, 16);
    let kernel = match UringKernel::new(&config) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let mut kernel = SendKernel::with_kernel(kernel, delivery, Capacity::new(8, 0)).unwrap();
    kernel.waker().wake();
    let woken = (0..1_000).any(|_| {
        kernel.turn(Some(Instant::now())).unwrap();
        kernel.next().is_some_and(|completion| matches!(completion.outcome, Outcome::Woken))
    });
    assert!(woken);
}
