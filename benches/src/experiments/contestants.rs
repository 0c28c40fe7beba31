//! Who takes part.

use evring::backends;

use super::Context;
use crate::failure::Failure;
use crate::measure::Peer;
use crate::outcome::Outcome;

pub(super) const NGINX: Peer = Peer::Nginx("copy-cached");
/// Servers of others, beside nginx; they take part where they are installed.
const OTHERS: [Peer; 5] = [
    Peer::Lighttpd("select"),
    Peer::Lighttpd("poll"),
    Peer::Lighttpd("epoll"),
    Peer::Haproxy,
    Peer::H2o,
];

/// All mechanisms that can run here, nginx and other servers; few of them where time is short.
/// Notes the versions and who is missing.
pub(super) fn all(cx: &Context, outcome: &mut Outcome) -> Result<Vec<Peer>, Failure> {
    let mut peers = few(outcome)?;
    if cx.quick {
        return Ok(peers);
    }
    let can = backends().into_iter().filter(|backend| backend.available.is_ok());
    peers = can.map(|backend| Peer::Ours(backend.name)).chain([NGINX]).collect();
    for peer in OTHERS {
        match note(peer, false, outcome) {
            Ok(()) => peers.push(peer),
            Err(failure) => outcome.notes.push(format!("{failure}.")),
        }
    }
    Ok(peers)
}

/// One mechanism of each kind, and nginx.
pub(super) fn few(outcome: &mut Outcome) -> Result<Vec<Peer>, Failure> {
    note(NGINX, false, outcome)?;
    let can = available(&["send", "epoll", "uring"]).into_iter().map(Peer::Ours);
    Ok(can.chain([NGINX]).collect())
}

/// Looks whether a server of others is there, and notes its version. With `build` it is built, if
/// it is a library's.
pub(super) fn note(peer: Peer, build: bool, outcome: &mut Outcome) -> Result<(), Failure> {
    if let Some(version) = peer.find(build)? {
        let name = peer.subject().what.name().to_owned();
        outcome.machine.versions.insert(name, version);
    }
    Ok(())
}

/// Those of some mechanisms that can run here.
pub(super) fn available(wanted: &[&'static str]) -> Vec<&'static str> {
    let all = backends();
    let can = |name: &&&str| all.iter().any(|b| b.name == **name && b.available.is_ok());
    wanted.iter().filter(can).copied().collect()
}
