//! System calls by number.

use std::os::fd::{AsRawFd, BorrowedFd};

use shared_ring::calls::Arg;

use super::files::{at, folder, opened, run};
use crate::*;

pub(super) const CALL: Token = Token::new(OpKind::Call, 0, 7);

const EXECUTORS: [Executor; 5] = [
    Executor::InPlace,
    Executor::WhenReadable,
    Executor::WhenWritable,
    Executor::Ring,
    Executor::Thread,
];

/// Makes a call and returns it with its result.
fn make(kernel: &mut impl Kernel, call: Call, by: Executor) -> (Box<Call>, Result<usize, Errno>) {
    let outcome = match kernel.submit(CALL, Op::Call(Box::new(call), by)).unwrap() {
        Submitted::Done(outcome) => outcome,
        Submitted::InFlight => next(kernel, &mut Batch::new(), CALL).outcome,
    };
    called(outcome)
}

pub(super) fn called(outcome: Outcome) -> (Box<Call>, Result<usize, Errno>) {
    match outcome {
        Outcome::Called(call, result) => (call, result),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn calls_return_values_memory_and_errors(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let path = at(&root, "file", SymlinkPolicy::Beneath);
    let file = opened(run(&mut kernel, FileOp::Open(path, Access::Read)));
    for by in EXECUTORS {
        let (call, result) = make(&mut kernel, Call::random(64), by);
        assert_eq!(result, Ok(64), "{by:?}");
        assert!(call.memory(0).iter().any(|byte| *byte != 0));
        // SAFETY: the file is open until the end of the test.
        let fd = unsafe { shared_ring::Fd::lent(BorrowedFd::borrow_raw(file.as_raw_fd())) };
        let (call, result) = make(&mut kernel, Call::read_at(fd, 8, 100), by);
        assert_eq!(result, Ok(2), "{by:?}");
        assert_eq!(call.memory(1)[..2], *b"89");
        assert_eq!((call.memory(0).len(), call.memory(6).len()), (0, 0));
        // SAFETY: no call has this number.
        let unknown = unsafe { Call::new(9_999, [Arg::Value(1), Arg::None, Arg::zeroed(8)]) };
        let (call, result) = make(&mut kernel, unknown, by);
        assert_eq!(result, Err(Errno::NOSYS), "{by:?}");
        let [first, _, memory, ..] = call.into_args();
        assert!(matches!((first, memory), (Arg::Value(1), Arg::Memory(m)) if m.len() == 8));
    }
}

pub(crate) fn call_that_waits_completes(mut kernel: impl Kernel, far: &impl Far) {
    let (event, add) = far.event(true);
    for by in [Executor::Ring, Executor::Thread] {
        let read = Box::new(Call::read(number(&event), 8));
        let submitted = kernel.submit(CALL, Op::Call(read, by)).unwrap();
        assert!(matches!(submitted, Submitted::InFlight));
        soon(&mut kernel, &mut Batch::new());
        add();
        add();
        let (call, result) = called(next(&mut kernel, &mut Batch::new(), CALL).outcome);
        assert_eq!(result, Ok(8));
        let mut count = u64::from_ne_bytes(call.memory(1).try_into().unwrap());
        if count == 1 {
            // The call was faster than the second addition.
            let (call, _) = make(&mut kernel, Call::read(number(&event), 8), by);
            count += u64::from_ne_bytes(call.memory(1).try_into().unwrap());
        }
        assert_eq!(count, 2, "{by:?}");
    }
    kernel.host_mut().close_unused(event);
}

pub(crate) fn call_waits_until_its_descriptor_is_readable(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, mut peer) = plain(&mut kernel, far);
    for bytes in [b"one", b"two"] {
        let read = Box::new(Call::read(number(&socket), 8));
        let op = Op::Call(read, Executor::WhenReadable);
        assert!(matches!(kernel.submit(CALL, op), Ok(Submitted::InFlight)));
        let mut batch = Batch::new();
        soon(&mut kernel, &mut batch);
        assert!(batch.is_empty(), "{batch:?}");
        peer.write_all(bytes);
        let (call, result) = called(next(&mut kernel, &mut batch, CALL).outcome);
        assert_eq!((result, &call.memory(1)[..3]), (Ok(3), &bytes[..]));
    }
    close(&mut kernel, socket);
}

pub(crate) fn second_call_that_waits_for_a_descriptor_is_busy(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let (socket, mut peer) = plain(&mut kernel, far);
    let fd = number(&socket);
    let read = || Op::Call(Box::new(Call::read(fd, 8)), Executor::WhenReadable);
    kernel.submit(CALL, read()).unwrap();
    let second = Token::new(OpKind::Call, 1, 7);
    let mut batch = Batch::new();
    kernel.submit(second, read()).unwrap();
    kernel.cancel(second);
    let (_, result) = called(next(&mut kernel, &mut batch, second).outcome);
    // A ring lets both wait.
    assert!(matches!(result, Err(Errno::BUSY | Errno::CANCELED)), "{result:?}");
    peer.write_all(b"x");
    assert_eq!(called(next(&mut kernel, &mut batch, CALL).outcome).1, Ok(1));
    close(&mut kernel, socket);
}

pub(crate) fn cancelled_call_keeps_its_memory_until_its_end(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let (event, add) = far.event(true);
    let (socket, _peer) = plain(&mut kernel, far);
    for (by, fd) in [
        (Executor::Ring, number(&event)),
        (Executor::Thread, number(&event)),
        (Executor::WhenReadable, number(&socket)),
    ] {
        let read = Box::new(Call::read(fd, 8));
        kernel.submit(CALL, Op::Call(read, by)).unwrap();
        let mut batch = Batch::new();
        soon(&mut kernel, &mut batch);
        kernel.cancel(CALL);
        soon(&mut kernel, &mut batch);
        // A thread waits for the event all the same, and uses the memory.
        add();
        let done = next(&mut kernel, &mut batch, CALL);
        assert!(done.is_last);
        match called(done.outcome) {
            (call, Ok(8)) => assert_eq!(call.memory(1), 1u64.to_ne_bytes()),
            (_, Err(Errno::CANCELED)) => {
                let (_, result) = make(&mut kernel, Call::read(number(&event), 8), Executor::Ring);
                assert_eq!(result, Ok(8));
            }
            other => panic!("{other:?}"),
        }
    }
    close(&mut kernel, socket);
    kernel.host_mut().close_unused(event);
}

pub(crate) fn call_in_flight_is_dropped_with_its_kernel(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, _peer) = plain(&mut kernel, far);
    let read = Box::new(Call::read(number(&socket), 8));
    kernel.submit(CALL, Op::Call(read, Executor::WhenReadable)).unwrap();
    for (slot, by) in [Executor::Ring, Executor::Thread].into_iter().enumerate() {
        let random = Op::Call(Box::new(Call::random(100_000)), by);
        kernel.submit(Token::new(OpKind::Call, 1 + slot as u32, 0), random).unwrap();
    }
    kernel.finish();
    kernel.host_mut().close_unused(socket);
}

pub(crate) fn call_beyond_the_table_is_handed_back(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, _peer) = plain(&mut kernel, far);
    kernel
        .submit(receive(0), Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT })
        .unwrap();
    let random = || Op::Call(Box::new(Call::random(8)), Executor::Thread);
    let error = kernel.submit(CALL, random()).unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::Full);
    assert!(matches!(error.op, Op::Call(call, _) if call.memory(0).len() == 8));
    cancel(&mut kernel, &mut Batch::new(), receive(0));
    kernel.submit(CALL, random()).unwrap();
    let error = kernel.submit(CALL, random()).unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::TokenInUse);
    assert_eq!(called(next(&mut kernel, &mut Batch::new(), CALL).outcome).1, Ok(8));
    close(&mut kernel, socket);
}
