//! Who takes part.

use multiplex::backends;

use super::Context;
use crate::measure::Peer;

const NGINX: Peer = Peer::Nginx("copy-cached");

/// All mechanisms that can run here, and nginx; few of them where time is short.
pub(super) fn all(cx: &Context) -> Vec<Peer> {
    if cx.quick {
        return few();
    }
    let can = backends().into_iter().filter(|backend| backend.available.is_ok());
    can.map(|backend| Peer::Ours(backend.name)).chain([NGINX]).collect()
}

/// One mechanism of each kind, and nginx.
pub(super) fn few() -> Vec<Peer> {
    let can = available(&["epoll", "uring"]).into_iter().map(Peer::Ours);
    can.chain([NGINX]).collect()
}

/// Those of some mechanisms that can run here.
pub(super) fn available(wanted: &[&'static str]) -> Vec<&'static str> {
    let all = backends();
    let can = |name: &&&str| all.iter().any(|b| b.name == **name && b.available.is_ok());
    wanted.iter().filter(can).copied().collect()
}
