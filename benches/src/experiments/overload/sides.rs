//! Who takes part.

use multiplex::backends;

use super::{Context, Peer, Setting, Sweep};

/// Who takes part.
pub(super) struct Contestants(Vec<Peer>);

const NGINX: Peer = Peer::Nginx("copy-cached");

impl Contestants {
    /// All mechanisms that can run here, and nginx; few of them where time is short.
    pub(super) fn of(cx: &Context) -> Self {
        if cx.quick {
            return Contestants::few();
        }
        let can = backends().into_iter().filter(|backend| backend.available.is_ok());
        Contestants(can.map(|backend| Peer::Ours(backend.name)).chain([NGINX]).collect())
    }

    /// One mechanism of each kind, and nginx.
    pub(super) fn few() -> Self {
        let wanted = [Peer::Ours("epoll"), Peer::Ours("uring")];
        let all = backends();
        let can = |peer: &Peer| {
            all.iter()
                .any(|b| matches!(peer, Peer::Ours(name) if *name == b.name) && b.available.is_ok())
        };
        Contestants(wanted.into_iter().filter(can).chain([NGINX]).collect())
    }

    /// A sweep for each.
    pub(super) fn sweeps<'a>(&self, setting: Setting<'a>) -> Vec<Sweep<'a>> {
        self.0.iter().map(|peer| Sweep::new(*peer, setting)).collect()
    }
}
