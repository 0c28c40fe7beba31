//! What a ring's kernel may lack, simulated: each leads to the next best way or to a sentence.

mod number;

use number::number;
use shared_ring::sim::{Faults, Machine, Plan, Refuses, SimKernel};
use shared_ring::{
    Ability, BufferSizes, Host, Kernel, Kind, ListenOptions, Missing, Mode, Op, Outcome, Submit,
    Token, UringConfig,
};

const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Immediate];

fn try_without(what: Refuses, mode: Mode) -> (Machine, Result<SimKernel, Missing>) {
    let plan = Plan { refuses: Some(what), faults: Faults::NONE, ..Plan::default() };
    let machine = Machine::new(&plan);
    let config = UringConfig { mode, operations: 8, buffers: 4, buffer_size: 64 };
    let kernel = SimKernel::new(&machine, &config);
    (machine, kernel)
}

#[test]
fn what_it_can_not_do_without_is_named() {
    let refused = [
        (Refuses::Uring, "no io_uring"),
        (Refuses::Permission, "io_uring"),
        (Refuses::Memory, "locked memory"),
        (Refuses::Modes, "io_uring"),
        (Refuses::Without(Ability::ExtArg), "EXT_ARG"),
        (Refuses::Without(Ability::NoDrop), "NODROP"),
        (Refuses::Without(Ability::SubmitStable), "SUBMIT_STABLE"),
        (Refuses::Without(Ability::FastPoll), "FAST_POLL"),
        (Refuses::BufferRings, "rings of provided buffers"),
        (Refuses::WorkerBound, "worker threads"),
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
        let (_, kernel) = try_without(Refuses::Operation(code), Mode::Deferred);
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
        let (machine, kernel) = try_without(Refuses::Multishot, mode);
        let mut kernel = kernel.unwrap();
        let options =
            ListenOptions { backlog: 9, reuse_port: false, buffers: BufferSizes::default() };
        let (listener, to) =
            kernel.host_mut().listen("10.0.0.1:0".parse().unwrap(), &options).unwrap();
        let accept = Token::new(Kind::Accept, 0, 0);
        kernel.submit(accept, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
        let hand = machine.hand();
        for slot in 0..3 {
            let line = hand.with(|net| net.connect(to)).unwrap();
            let socket = loop {
                kernel.turn(None).unwrap();
                match kernel.next().map(|completion| completion.outcome) {
                    Some(Outcome::Accepted(socket)) => break socket,
                    None => {}
                    other => panic!("{other:?}"),
                }
            };
            let receive = Token::new(Kind::Receive, slot, 0);
            kernel.submit(receive, Op::Receive { fd: number(&socket) }).unwrap();
            let mut got = Vec::new();
            for text in [b"one", b"two"] {
                hand.with(|net| net.send(&line, text));
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
            kernel.host_mut().discard(socket);
        }
        kernel.cancel(accept);
        while !matches!(kernel.next(), Some(end) if end.token == accept && end.last) {
            kernel.turn(None).unwrap();
        }
        kernel.host_mut().discard(listener);
        drop(kernel);
        assert_eq!(machine.verdict().failure, None);
    }
}
