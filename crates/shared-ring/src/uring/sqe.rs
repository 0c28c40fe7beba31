//! Submission queue entries of operations.

use std::rc::Rc;

use io_uring::opcode;
use io_uring::squeue::{Entry as Sqe, Flags};
use io_uring::types::{CancelBuilder, Fd as Raw, OpenHow};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::calls;
use crate::beneath::{STAT_FLAGS, mode};
use crate::datagram::{CONTROL_BYTES, NAME_BYTES, Name};
use crate::discard::DiscardBuffer;
use crate::disk::CURRENT;
use crate::file_op;
use crate::{
    Access, BufferGroup, Call, Executor, Fd, FileOp, GatherList, Op, OpKind, PathAt, SymlinkPolicy,
    Token, WriteAt,
};

/// State of an operation in flight: memory at a stable address, and its progress.
#[derive(Default)]
pub(super) struct OpState {
    pub(super) memory: OpMemory,
    /// Number of submissions that the ring holds.
    pub(super) in_ring: u16,
    /// Number of submissions still to be made.
    pub(super) queued: u16,
    /// The last submission was multishot, if its operation supports that.
    pub(super) multishot: bool,
    pub(super) cancelled: bool,
    /// A send from memory waits for room.
    pub(super) polls: bool,
    /// How it waits for room.
    pub(super) room_poll: RoomPoll,
    /// A thread executes it.
    pub(super) on_thread: bool,
    /// A read found that its part is not in the page cache.
    pub(super) was_cold: bool,
    /// The error that ended an accept with several submissions, while the others are being cancelled.
    pub(super) errno: Option<Errno>,
}

impl OpState {
    /// Returns whether a cancellation is due: of the operation, or of its poll only.
    pub(super) fn cancel_is_due(&self) -> bool {
        self.cancelled || self.room_poll == RoomPoll::Ending
    }
}

/// How an operation polls its socket for room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RoomPoll {
    /// Once. The ring reports to such a poll at once that the peer has shut down its sending side (POLLRDHUP), with or
    /// without room.
    #[default]
    Once,
    /// By a multishot poll, after such a report without room. It reports the state, and from then on changes.
    Changes,
    /// The multishot poll has reported room, and is being cancelled.
    Ending,
}

#[derive(Default)]
pub(super) enum OpMemory {
    #[default]
    None,
    Address(Box<Name>),
    /// Destination of a read.
    Bytes(Vec<u8>),
    /// Destination of a read of the uncached part that a send of a file waits for.
    Discarded(Rc<DiscardBuffer>),
}

impl OpMemory {
    /// Returns the destination of a read.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        if !matches!(self, OpMemory::Bytes(_)) {
            *self = OpMemory::Bytes(Vec::new());
        }
        match self {
            OpMemory::Bytes(bytes) => bytes,
            _ => unreachable!("it was just set"),
        }
    }
}

fn raw(fd: Fd) -> Raw {
    Raw(fd.raw())
}

/// Returns the submission for an operation, which points into `op` and `state`, and to what they keep. With `multishot`, it
/// is multishot if the operation supports that.
pub(super) fn sqe(token: Token, op: &mut Op, state: &mut OpState, multishot: bool) -> Sqe {
    let sqe = match op {
        Op::Accept { listener, per_turn: None } if multishot => {
            opcode::AcceptMulti::new(raw(*listener)).flags(ACCEPT_FLAGS).build()
        }
        Op::Accept { listener, .. } => {
            let none = std::ptr::null_mut();
            opcode::Accept::new(raw(*listener), none, none.cast()).flags(ACCEPT_FLAGS).build()
        }
        Op::Receive { fd, group } if multishot => opcode::RecvMulti::new(raw(*fd), group.0).build(),
        Op::Receive { fd, group } => opcode::Recv::new(raw(*fd), std::ptr::null_mut(), 0)
            .buf_group(group.0)
            .build()
            .flags(Flags::BUFFER_SELECT),
        Op::ReceiveFrom { fd, group } => {
            let header = &raw const DATAGRAM_HEADER.0;
            opcode::RecvMsgMulti::new(raw(*fd), header, group.0)
                .flags(libc::MSG_TRUNC as u32)
                .build()
        }
        Op::SendTo { fd, message } => {
            let flags = libc::MSG_NOSIGNAL as u32;
            opcode::SendMsg::new(raw(*fd), message.message()).flags(flags).build()
        }
        Op::Send { fd, .. } if state.polls => writable(raw(*fd), state),
        Op::Send { fd, data } => send(*fd, data),
        Op::Writable { fd } => writable(raw(*fd), state),
        Op::SendFile { fd, file, offset, len, .. } => match &mut state.memory {
            // Not cached, and being read.
            OpMemory::Discarded(memory) => {
                let len = (*len).min(DiscardBuffer::BYTES as u32);
                let read = opcode::Read::new(raw(file.fd()), memory.as_mut_ptr(), len);
                read.offset(*offset).build()
            }
            // The socket's buffer is full: wait until it is writable.
            _ => writable(raw(*fd), state),
        },
        Op::Connect { fd, to } => {
            state.memory = OpMemory::Address(Box::new(Name::of(*to)));
            let OpMemory::Address(name) = &state.memory else { unreachable!("it was just set") };
            let start = (&raw const name.storage).cast();
            opcode::Connect::new(raw(*fd), start, name.len).build()
        }
        Op::Close { socket } => opcode::Close::new(raw(socket.number())).build(),
        Op::File(op) => file(op, state),
        Op::Call(call, by) => call_or_poll(call, *by, state),
    };
    sqe.user_data(token.bits())
}

/// Waits until a socket has room.
fn writable(fd: Raw, state: &OpState) -> Sqe {
    let multishot = state.room_poll != RoomPoll::Once;
    opcode::PollAdd::new(fd, libc::POLLOUT as u32).multi(multishot).build()
}

/// Returns whether a poll reported room, or an error that a send returns.
pub(super) fn has_room(events: u32) -> bool {
    events & (libc::POLLOUT | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) as u32 != 0
}

/// Returns whether an operation in flight waits until its socket has room.
pub(super) fn waits_for_room(op: &Op, state: &OpState) -> bool {
    match op {
        Op::Writable { .. } => true,
        Op::Send { .. } => state.polls,
        Op::Call(_, Executor::WhenWritable) => true,
        Op::SendFile { .. } => !matches!(state.memory, OpMemory::Discarded(_)),
        _ => false,
    }
}

/// Returns whether an operation in flight reads a file or writes to one, by the ring.
pub(super) fn uses_file(op: &Op, state: &OpState) -> bool {
    match op {
        Op::Call(call, Executor::Ring) => calls::may_use_file(call.number()),
        Op::File(op) => matches!(op, FileOp::Read(..) | FileOp::Write(_)),
        Op::SendFile { .. } => matches!(state.memory, OpMemory::Discarded(_)),
        _ => false,
    }
}

/// Returns whether an operation opens a path.
pub(super) fn opens(op: &Op) -> bool {
    matches!(op, Op::File(FileOp::Open(..) | FileOp::Stat(_)))
}

const ACCEPT_FLAGS: i32 = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

/// Not `MSG_WAITALL`: such a send reports nothing until its end, so a slow peer could not be
/// distinguished from one that takes nothing. With `MSG_DONTWAIT` a full socket is reported, and polled: the ring's own
/// poll ends at once when the peer has shut down its sending side, and then a worker thread would block in the send.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

fn send(fd: Fd, data: &mut GatherList) -> Sqe {
    if let Some(one) = data.single() {
        return opcode::Send::new(raw(fd), one.as_ptr(), one.len() as u32)
            .flags(SEND_FLAGS)
            .build();
    }
    data.fill_msghdr();
    opcode::SendMsg::new(raw(fd), &raw const data.msghdr.header).flags(SEND_FLAGS as u32).build()
}

/// The layout of datagrams in their buffers, in the format of recvmsg(2).
struct DatagramHeader(libc::msghdr);

// SAFETY: its pointers are null, and nothing writes to it: the kernel writes to receive buffers only.
unsafe impl Sync for DatagramHeader {}

static DATAGRAM_HEADER: DatagramHeader = {
    // SAFETY: a plain C structure for which all zero bytes are a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_namelen = NAME_BYTES as u32;
    header.msg_controllen = CONTROL_BYTES;
    DatagramHeader(header)
};

fn file(op: &FileOp, state: &mut OpState) -> Sqe {
    match op {
        FileOp::Open(at, access) => open(at, &OPEN_HOW[*access as usize]),
        FileOp::Stat(at) => open(at, &STAT_HOW),
        FileOp::List(_) => unreachable!("the ring can't list directories"),
        FileOp::Read(file, range) => {
            let bytes = state.memory.bytes();
            bytes.reserve_exact(file_op::len(range) as usize - bytes.len());
            let (filled, spare) = (bytes.len() as u32, bytes.spare_capacity_mut());
            let len = file_op::len(range) - filled;
            opcode::Read::new(raw(file.fd()), spare.as_mut_ptr().cast(), len)
                .offset(range.start + u64::from(filled))
                .build()
        }
        FileOp::Write(write) => {
            let len = u32::try_from(write.bytes.len()).unwrap_or(u32::MAX);
            let sqe = opcode::Write::new(raw(write.file.fd()), write.bytes.as_ptr(), len);
            match write.at {
                WriteAt::End => sqe.offset(CURRENT).rw_flags(libc::RWF_APPEND).build(),
                WriteAt::Offset(at) => sqe.offset(at).build(),
            }
        }
    }
}

/// Returns the submission that makes a system call, or waits for its descriptor.
fn call_or_poll(call: &mut Call, by: Executor, state: &OpState) -> Sqe {
    let fd = call.fd().map_or(Raw(-1), raw);
    match by {
        Executor::WhenReadable => opcode::PollAdd::new(fd, libc::POLLIN as u32).build(),
        Executor::WhenWritable => writable(fd, state),
        _ => {
            // SAFETY: the call stays in the table until the completion of the submission.
            let job = unsafe { call.job() };
            calls::sqe(&job).expect("other calls are executed by a thread")
        }
    }
}

fn open(at: &PathAt, how: &'static [OpenHow; 2]) -> Sqe {
    opcode::OpenAt2::new(raw(at.root.fd()), at.path.as_ptr(), &how[at.symlinks as usize]).build()
}

/// For each kind of access and policy for symbolic links, the arguments of openat2(2).
static OPEN_HOW: [[OpenHow; 2]; 4] = [
    how(Access::ALL[0].flags()),
    how(Access::ALL[1].flags()),
    how(Access::ALL[2].flags()),
    how(Access::ALL[3].flags()),
];
static STAT_HOW: [OpenHow; 2] = how(STAT_FLAGS);

const fn how(flags: OFlags) -> [OpenHow; 2] {
    let how = OpenHow::new().flags(flags.bits() as u64).mode(mode(flags).bits() as u64);
    [
        how.resolve(SymlinkPolicy::Beneath.resolve().bits()),
        how.resolve(SymlinkPolicy::Anywhere.resolve().bits()),
    ]
}

/// Returns the multishot submission that reports bytes or states of a descriptor, by the token's kind.
pub(super) fn multishot(token: Token, fd: Fd) -> Sqe {
    let sqe = match token.kind() {
        OpKind::Stream => opcode::RecvMulti::new(raw(fd), BufferGroup::DEFAULT.0).build(),
        _ => opcode::PollAdd::new(raw(fd), STATES).multi(true).build(),
    };
    sqe.user_data(token.bits())
}

/// The reported states, besides POLLERR and POLLHUP. Not POLLPRI, which the kernel reports for all
/// arriving data.
const STATES: u32 = (libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP) as u32;

/// Returns the request to cancel everything. Its success is not reported.
pub(super) fn cancel_all(own: Token) -> Sqe {
    opcode::AsyncCancel2::new(CancelBuilder::any())
        .build()
        .flags(Flags::SKIP_SUCCESS)
        .user_data(own.bits())
}

/// Returns the request to cancel every submission of an operation. Its success is not reported.
pub(super) fn cancel(token: Token, own: Token) -> Sqe {
    cancel_named(token.bits(), own.bits())
}

/// Returns the same for submissions with any user data.
pub(super) fn cancel_named(user_data: u64, own: u64) -> Sqe {
    opcode::AsyncCancel2::new(CancelBuilder::user_data(user_data).all())
        .build()
        .flags(Flags::SKIP_SUCCESS)
        .user_data(own)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::File;

    #[test]
    fn a_read_that_goes_on_takes_no_more_memory() {
        let file = File::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let mut op = Op::File(FileOp::Read(file, 0..1_000));
        let (token, mut note) = (Token::new(OpKind::File, 0, 0), OpState::default());
        for part in [300, 699, 1] {
            sqe(token, &mut op, &mut note, true);
            let bytes = note.memory.bytes();
            assert_eq!(bytes.capacity(), 1_000);
            bytes.extend_from_slice(&[0; 699][..part]);
        }
    }
}
