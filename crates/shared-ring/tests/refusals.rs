//! What a ring's kernel may lack, simulated: each leads to the next best way or to a sentence.

mod number;

use number::number;
use shared_ring::sim::{Faults, Machine, Plan, SimKernel, Unsupported};
use shared_ring::{
    BufferSizes, Feature, Host, Kernel, ListenOptions, Mode, Op, OpKind, Outcome, SetupError,
    Submit, Token, UringConfig,
};

const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Immediate];

fn try_without(what: Unsupported, mode: Mode) -> (Machine, Result<SimKernel, SetupError>) {
    let plan = Plan { unsupported: Some(what), faults: Faults::NONE, ..Plan::default() };
    let machine = Machine::new(&plan);
    let config = UringConfig { mode, operations: 8, buffers: 4, buffer_size: 64 };
    let kernel = SimKernel::new(&machine, &config);
    (machine, kernel)
}

#[test]
fn what_it_can_not_do_without_is_named() {
    let refused = [
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
        for (what, word) in refused {
            let (machine, kernel) = try_without(what, mode);
            let Err(missing) = kernel else { panic!("{what:?} is not missed in {mode:?}") };
            let sentence = missing.to_string();
            assert!(
                sentence.contains(word) && sentence.contains("io_uring"),
                "{what:?}: {sentence}"
            );
            assert_eq!(machine.verdict().failure, None, "{what:?}");
        }
    }
}

#[test]
fn so_is_each_operation() {
    let mut named = Vec::new();
    for code in 0..=60 {
        let (_, kernel) = try_without(Unsupported::Operation(code), Mode::Deferred);
        if let Err(missing) = kernel {
            assert!(missing.to_string().contains("io_uring lacks"), "{missing}");
            named.push(missing.to_string());
        }
    }
    assert_eq!(named.len(), 10, "{named:?}");
}

/// Kernels before 6.0 know no receive that goes on.
#[test]
fn without_multishot_it_accepts_and_receives_one_at_a_time() {
    for mode in MODES {
        let (machine, kernel) = try_without(Unsupported::Multishot, mode);
        let mut kernel = kernel.unwrap();
        let options =
            ListenOptions { backlog: 9, reuse_port: false, buffers: BufferSizes::default() };
        let (listener, to) =
            kernel.host_mut().listen("10.0.0.1:0".parse().unwrap(), &options).unwrap();
        let accept = Token::new(OpKind::Accept, 0, 0);
        kernel.submit(accept, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
        let manual_peer = machine.manual_peer();
        for slot in 0..3 {
            let line = manual_peer.with(|net| net.connect(to)).unwrap();
            let socket = loop {
                kernel.turn(None).unwrap();
                match kernel.next().map(|completion| completion.outcome) {
                    Some(Outcome::Accepted(socket)) => break socket,
                    None => {}
                    other => panic!("{other:?}"),
                }
            };
            let receive = Token::new(OpKind::Receive, slot, 0);
            kernel.submit(receive, Op::Receive { fd: number(&socket) }).unwrap();
            let mut got = Vec::new();
            for text in [b"one", b"two"] {
                manual_peer.with(|net| net.send(&line, text));
                let before = got.len();
                while got.len() < before + 3 {
                    kernel.turn(None).unwrap();
                    while let Some(completion) = kernel.next() {
                        assert!(!completion.last, "{completion:?}");
                        if let Outcome::Received(bytes) = completion.outcome {
                            got.extend_from_slice(&bytes);
                        }
                    }
                }
            }
            assert_eq!(got, b"onetwo");
            kernel.cancel(receive);
            while !matches!(kernel.next(), Some(end) if end.token == receive && end.last) {
                kernel.turn(None).unwrap();
            }
            kernel.host_mut().close_unused(socket);
        }
        kernel.cancel(accept);
        while !matches!(kernel.next(), Some(end) if end.token == accept && end.last) {
            kernel.turn(None).unwrap();
        }
        kernel.host_mut().close_unused(listener);
        drop(kernel);
        assert_eq!(machine.verdict().failure, None);
    }
}
