//! Datagrams on a simulated machine whose socket has no room at times.

mod number;
mod turns;

use evring_sim::{CheckedKernel, Fault, Faults, Machine, Plan, SimKernel, SimPoller};
use number::number;
use shared_ring::sockets::Transmit;
use shared_ring::uring::{Mode, UringConfig};
use shared_ring::{
    Completion, EngineConfig, Errno, Host, Kernel, Op, OpKind, Outcome, Submitted, Token,
};
use turns::{Batch, TurnInto};

const DATAGRAMS: u32 = 8;

/// Sends datagrams at once. Returns how many found no room.
fn send_many(machine: &Machine, mut kernel: impl Kernel<Host = Machine>) -> u32 {
    let socket = machine.datagram_socket().unwrap();
    let (fd, mut batch) = (number(&socket), Batch::new());
    for slot in 0..DATAGRAMS {
        let mut message = Transmit::new("10.0.0.4:53".parse().unwrap());
        message.data.copy(&[slot as u8; 10]);
        let token = Token::new(OpKind::Send, slot, 0);
        match kernel.submit(token, Op::SendTo { fd, message }).unwrap() {
            Submitted::Done(outcome) => batch.push_back(Completion::last(token, outcome)),
            Submitted::InFlight => {}
        }
    }
    while batch.len() < DATAGRAMS as usize {
        kernel.turn_into(None, &mut batch).unwrap();
    }
    let mut sent = machine.take_sent_datagrams(fd);
    sent.sort_by_key(|(_, bytes)| bytes[0]);
    let mut refused = Vec::new();
    for completion in batch {
        match completion.outcome {
            Outcome::SentTo(_, Ok(())) => {}
            Outcome::SentTo(message, Err(Errno::AGAIN)) => {
                assert_eq!(message.data.len(), 10, "it can be sent again");
                refused.push(completion.token.slot());
            }
            other => panic!("{other:?}"),
        }
    }
    let expected: Vec<_> = (0..DATAGRAMS).filter(|slot| !refused.contains(slot)).collect();
    assert_eq!(sent.iter().map(|(_, bytes)| bytes[0].into()).collect::<Vec<u32>>(), expected);
    kernel.finish();
    kernel.host_mut().close_unused(socket);
    drop(kernel);
    assert_eq!((machine.failure(), machine.in_use().sockets), (None, 0));
    refused.len() as u32
}

#[test]
fn second_datagram_that_found_no_room_replaced_the_first() {
    let machine = |seed| {
        let mut plan = Plan::default();
        plan.seed = seed;
        plan.faults = Faults::NONE.with(Fault::ShortSend);
        Machine::new(&plan)
    };
    let (mut by_poller, mut by_ring) = (0, 0);
    for seed in 0..50 {
        let far = machine(seed);
        let kernel = CheckedKernel::polling(
            &far,
            SimPoller::<false>::new(&far),
            &EngineConfig::new(16, 1, 1),
        );
        by_poller += send_many(&far, kernel.unwrap());
        let far = machine(seed);
        let config = UringConfig::new(Mode::Deferred, 16, 1, 1);
        by_ring += send_many(&far, SimKernel::new(&far, &config).unwrap());
    }
    assert!(by_poller > 0, "one datagram waits, and others are handed back");
    assert_eq!(by_ring, 0, "all wait in the ring");
}
