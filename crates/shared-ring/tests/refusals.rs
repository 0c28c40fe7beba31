//! Simulated kernels that lack a feature of io_uring: each leads to a fallback or to an error message.

mod number;

use evring_sim::{Faults, Machine, Plan, SimKernel, Unsupported};
use number::number;
use shared_ring::buffers::{BufferGroup, GatherList};
use shared_ring::sockets::ListenOptions;
use shared_ring::uring::Feature;
use shared_ring::uring::{Mode, SetupError, UringConfig};
use shared_ring::{Host, Kernel, Op, OpKind, Outcome, Socket, Submit, Submitted, Token};

const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Immediate];

fn try_without(what: Unsupported, mode: Mode) -> (Machine, Result<SimKernel, SetupError>) {
    let plan = Plan::default().with(|p| (p.unsupported, p.faults) = (Some(what), Faults::NONE));
    let machine = Machine::new(&plan);
    let config = UringConfig::new(mode, 8, 4, 64);
    let kernel = SimKernel::new(&machine, &config);
    (machine, kernel)
}

#[test]
fn setup_error_names_the_missing_feature() {
    let required = [
        (Unsupported::Uring, "no io_uring"),
        (Unsupported::Permission, "io_uring"),
        (Unsupported::Memory, "locked memory"),
        (Unsupported::Modes, "io_uring"),
        (Unsupported::Without(Feature::ExtArg), "EXT_ARG"),
        (Unsupported::Without(Feature::NoDrop), "NODROP"),
        (Unsupported::Without(Feature::SubmitStable), "SUBMIT_STABLE"),
        (Unsupported::Without(Feature::FastPoll), "FAST_POLL"),
        (Unsupported::BufferRings, "rings of provided buffers"),
        (Unsupported::WorkerBound, "worker threads"),
    ];
    for mode in MODES {
        for (what, word) in required {
            let (machine, kernel) = try_without(what, mode);
            let Err(error) = kernel else { panic!("no error without {what:?} in {mode:?}") };
            let message = error.to_string();
            assert!(message.contains(word) && message.contains("io_uring"), "{what:?}: {message}");
            assert_eq!(machine.verdict().failure, None, "{what:?}");
        }
    }
}

#[test]
fn setup_error_names_each_missing_operation() {
    let mut named = Vec::new();
    for code in 0..=60 {
        let (_, kernel) = try_without(Unsupported::Operation(code), Mode::Deferred);
        if let Err(error) = kernel {
            assert!(error.to_string().contains("io_uring lacks"), "{error}");
            named.push(error.to_string());
        }
    }
    assert_eq!(named.len(), 12, "{named:?}");
}

/// Linux before 6.0 has no multishot receive.
#[test]
fn without_multishot_accepts_and_receives_are_single_shot() {
    for mode in MODES {
        let (machine, kernel) = try_without(Unsupported::Multishot, mode);
        let mut kernel = kernel.unwrap();
        let options = ListenOptions::new(9);
        let (listener, to) =
            kernel.host_mut().listen("10.0.0.1:0".parse().unwrap(), &options).unwrap();
        let accept = Token::new(OpKind::Accept, 0, 0);
        kernel.submit(accept, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
        let manual_peer = machine.manual_peer();
        for slot in 0..3 {
            let conn = manual_peer.with(|net| net.connect(to)).unwrap();
            let socket = loop {
                kernel.turn(None).unwrap();
                match kernel.next().map(|completion| completion.outcome) {
                    Some(Outcome::Accepted(socket)) => break socket,
                    None => {}
                    other => panic!("{other:?}"),
                }
            };
            let receive = Token::new(OpKind::Receive, slot, 0);
            kernel
                .submit(receive, Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT })
                .unwrap();
            let mut received = Vec::new();
            for text in [b"one", b"two"] {
                manual_peer.with(|net| net.send(&conn, text));
                let before = received.len();
                while received.len() < before + 3 {
                    kernel.turn(None).unwrap();
                    while let Some(completion) = kernel.next() {
                        assert!(!completion.is_last, "{completion:?}");
                        if let Outcome::Received(bytes) = completion.outcome {
                            received.extend_from_slice(&bytes);
                        }
                    }
                }
            }
            assert_eq!(received, b"onetwo");
            kernel.cancel(receive);
            while !matches!(kernel.next(), Some(end) if end.token == receive && end.is_last) {
                kernel.turn(None).unwrap();
            }
            kernel.host_mut().close_unused(socket);
        }
        kernel.cancel(accept);
        while !matches!(kernel.next(), Some(end) if end.token == accept && end.is_last) {
            kernel.turn(None).unwrap();
        }
        kernel.host_mut().close_unused(listener);
        drop(kernel);
        assert_eq!(machine.verdict().failure, None);
    }
}

/// Ends the next connection's accept, and returns its socket.
fn accept_next(kernel: &mut SimKernel) -> Socket {
    loop {
        kernel.turn(None).unwrap();
        match kernel.next().map(|completion| completion.outcome) {
            Some(Outcome::Accepted(socket)) => return socket,
            None => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The next accept was posted as a multishot one, and its error ended the listener.
#[test]
fn without_multishot_a_wait_for_room_showed_that_accepts_are_multishot() {
    for mode in MODES {
        let (machine, kernel) = try_without(Unsupported::Multishot, mode);
        let mut kernel = kernel.unwrap();
        let any = "10.0.0.1:0".parse().unwrap();
        let (listener, to) = kernel.host_mut().listen(any, &ListenOptions::new(9)).unwrap();
        let accept = Token::new(OpKind::Accept, 0, 0);
        kernel.submit(accept, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
        let manual_peer = machine.manual_peer();
        let conn = manual_peer.with(|net| net.connect(to)).unwrap();
        let socket = accept_next(&mut kernel);
        manual_peer.with(|net| net.finish(&conn));
        // The socket is full when a send stays in flight.
        let send = Token::new(OpKind::Send, 0, 0);
        let mut sends = 0;
        loop {
            let mut data = Box::new(GatherList::default());
            data.copy(&[7; 5_000]);
            let sent = kernel.submit(send, Op::Send { fd: number(&socket), data }).unwrap();
            let mut is_done = matches!(sent, Submitted::Done(_));
            for _ in 0..50 {
                let now = kernel.now();
                kernel.turn(Some(now)).unwrap();
                is_done |= kernel.next().is_some_and(|sent| sent.token == send);
            }
            if !is_done {
                break;
            }
            sends += 1;
            assert!(sends < 1_000, "the socket was never full");
        }
        let mut received = Vec::new();
        loop {
            manual_peer.with(|net| net.receive(&conn, 10_000, &mut received));
            let now = kernel.now();
            kernel.turn(Some(now)).unwrap();
            if kernel.next().is_some_and(|sent| sent.token == send) {
                break;
            }
        }
        // The first one ends the accept in flight.
        for _ in 0..2 {
            let _conn = manual_peer.with(|net| net.connect(to)).unwrap();
            let socket = accept_next(&mut kernel);
            kernel.host_mut().close_unused(socket);
        }
        kernel.cancel(accept);
        while !matches!(kernel.next(), Some(end) if end.token == accept && end.is_last) {
            kernel.turn(None).unwrap();
        }
        kernel.host_mut().close_unused(socket);
        kernel.host_mut().close_unused(listener);
        drop(kernel);
        assert_eq!(machine.verdict().failure, None);
    }
}
