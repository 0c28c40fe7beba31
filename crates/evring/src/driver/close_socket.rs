//! Closing of a socket that has no operation in flight.

use shared_ring::{Host, Op, Socket, Submit, Submitted, Token};

/// Closes a socket with no operation in flight. Returns whether it is closed already.
pub(super) fn close<K: Submit>(kernel: &mut K, token: Token, socket: Socket) -> bool {
    match kernel.submit(token, Op::Close { socket }) {
        Ok(Submitted::InFlight) => false,
        Ok(Submitted::Done(_)) => true,
        Err(rejected) => {
            if let Op::Close { socket } = rejected.op {
                kernel.host_mut().close_unused(socket);
            }
            true
        }
    }
}
