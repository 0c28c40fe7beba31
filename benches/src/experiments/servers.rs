//! The servers that experiments compare.

use evring::backends;

use super::Context;
use crate::failure::Failure;
use crate::measure::Peer;
use crate::outcome::Outcome;

pub(super) const NGINX: Peer = Peer::Nginx("copy-cached");
/// External servers besides nginx; included if installed.
const EXTERNAL: [Peer; 5] = [
    Peer::Lighttpd("select"),
    Peer::Lighttpd("poll"),
    Peer::Lighttpd("epoll"),
    Peer::Haproxy,
    Peer::H2o,
];

/// Returns every available mechanism, nginx and the installed external servers; in a quick run, the
/// same as [`few`]. Records versions, and notes the servers that are not installed.
pub(super) fn all(cx: &Context, outcome: &mut Outcome) -> Result<Vec<Peer>, Failure> {
    let mut peers = few(outcome)?;
    if cx.quick {
        return Ok(peers);
    }
    let available = backends().into_iter().filter(|backend| backend.available.is_ok());
    peers = available.map(|backend| Peer::Ours(backend.name)).chain([NGINX]).collect();
    for peer in EXTERNAL {
        match note(peer, false, outcome) {
            Ok(()) => peers.push(peer),
            Err(failure) => outcome.notes.push(format!("{failure}.")),
        }
    }
    Ok(peers)
}

/// Returns one mechanism of each kind, and nginx.
pub(super) fn few(outcome: &mut Outcome) -> Result<Vec<Peer>, Failure> {
    note(NGINX, false, outcome)?;
    let ours = available(&["send", "epoll", "uring"]).into_iter().map(Peer::Ours);
    Ok(ours.chain([NGINX]).collect())
}

/// Records the version of an external server. With `build`, a library's server is built first.
///
/// # Errors
/// If it is not installed or not built.
pub(super) fn note(peer: Peer, build: bool, outcome: &mut Outcome) -> Result<(), Failure> {
    if let Some(version) = peer.find(build)? {
        let name = peer.subject().what.name().to_owned();
        outcome.machine.versions.insert(name, version);
    }
    Ok(())
}

/// Returns the mechanisms in `names` that are available.
pub(super) fn available(names: &[&'static str]) -> Vec<&'static str> {
    let all = backends();
    let is_available = |name: &&&str| all.iter().any(|b| b.name == **name && b.available.is_ok());
    names.iter().filter(is_available).copied().collect()
}
