//! The readiness of a descriptor that a poller reports.

use shared_ring::Fd;
use shared_ring::poller::Readiness;

use super::{DescriptorKind, SimState};
use crate::stream::End;

/// Returns the readiness of a descriptor.
pub(crate) fn readiness(state: &mut SimState, fd: Fd) -> Readiness {
    let mut ready = Readiness::empty();
    match state.kind(fd, "poll") {
        Ok(DescriptorKind::Listener(listener)) => {
            let listener = *listener;
            ready.set(Readiness::READ, state.has_pending(listener));
        }
        Ok(DescriptorKind::Connected(end)) => {
            let end = *end;
            ready = connection_readiness(state, end);
        }
        Ok(DescriptorKind::Datagrams(datagrams)) => {
            ready = Readiness::WRITE;
            ready.set(Readiness::READ, datagrams.is_readable());
        }
        Ok(DescriptorKind::Refused(_)) => ready = Readiness::all(),
        Ok(DescriptorKind::Event(counter)) => {
            let count = counter.load(std::sync::atomic::Ordering::Acquire);
            ready.set(Readiness::READ, count > 0);
        }
        _ => {}
    }
    ready
}

/// Returns whether nothing more happens on a descriptor: POLLHUP of poll(2), which reports a stream that only its peer has
/// ended by POLLRDHUP.
pub(crate) fn is_hung_up(state: &mut SimState, fd: Fd) -> bool {
    match state.kind(fd, "poll") {
        Ok(DescriptorKind::Connected(end)) => {
            let end = *end;
            let connection = state.connection_of(end);
            connection.is_broken()
                || connection.peer_has_ended(end.side) && connection.is_finished(end.side)
        }
        Ok(DescriptorKind::Refused(_)) => true,
        _ => false,
    }
}

fn connection_readiness(state: &mut SimState, end: End) -> Readiness {
    let connection = state.connection_of(end);
    let mut ready = Readiness::empty();
    ready.set(Readiness::READ, connection.is_readable(end.side));
    ready.set(Readiness::WRITE, connection.is_writable(end.side));
    let ended = connection.peer_has_ended(end.side);
    ready.set(Readiness::HANGUP, ended);
    if connection.is_broken() || ended && connection.is_finished(end.side) {
        ready = Readiness::all();
    }
    connection.arm_writable(end.side);
    ready
}
