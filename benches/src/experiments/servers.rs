//! The servers that experiments compare.

use evring::mechanisms::backends;

use super::Context;
use crate::failure::Failure;
use crate::measure::Peer;
use crate::outcome::Outcome;

/// The mechanism of `--backend auto`, which is compared with other servers.
pub(crate) const DEFAULT: &str = "uring";
/// nginx, configured as its experts would, and as Debian ships it.
pub(super) const NGINX: Peer = Peer::Nginx("tuned");
pub(super) const NGINX_SHIPPED: Peer = Peer::Nginx("shipped");
/// External servers besides nginx; included if installed.
const EXTERNAL: [Peer; 5] = [
    Peer::Lighttpd("select"),
    Peer::Lighttpd("poll"),
    Peer::Lighttpd("epoll"),
    Peer::Haproxy,
    Peer::H2o,
];

/// Returns whether a server in a figure is not ours.
pub(crate) fn is_external(name: &str) -> bool {
    ["nginx", "lighttpd", "haproxy", "h2o", "hyper", "axum", "may_minihttp", "memcached"]
        .iter()
        .any(|external| name.starts_with(external))
}

/// Returns every available mechanism, nginx in both configurations and the installed external servers; in a quick run, the
/// same as [`few`]. Records versions, and notes the servers that are not installed.
pub(super) fn all(cx: &Context, outcome: &mut Outcome) -> Result<Vec<Peer>, Failure> {
    if cx.quick {
        return few(outcome);
    }
    note(NGINX, false, outcome)?;
    let available = backends().into_iter().filter(|backend| backend.available.is_ok());
    let peers = available.map(|backend| Peer::Ours(backend.name));
    let mut peers: Vec<_> = peers.chain([NGINX, NGINX_SHIPPED]).collect();
    for peer in EXTERNAL {
        match note(peer, false, outcome) {
            Ok(()) => peers.push(peer),
            Err(failure) => outcome.notes.push(format!("{failure}.")),
        }
    }
    Ok(peers)
}

/// Returns one mechanism of each kind, and nginx in both configurations.
pub(super) fn few(outcome: &mut Outcome) -> Result<Vec<Peer>, Failure> {
    note(NGINX, false, outcome)?;
    let ours = available(&["send", "epoll", "uring"]).into_iter().map(Peer::Ours);
    Ok(ours.chain([NGINX, NGINX_SHIPPED]).collect())
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
