//! Requests that need a user's name and password.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use evring::mailbox::{Mailbox, Sender};
use evring::{Commands, ConnId, Cx, Others, RemoteHandle};

use crate::basic_auth::{BasicAuth, Credentials, Realm};
use crate::decision::options::{HostIndex, ResponseOptions};
use crate::message::request::RequestHead;
use crate::message::status::Status;
use crate::site::context::Context;
use crate::site::pool::Pool;
use crate::site::state::{PendingWork, State};

/// Tag of the wake-ups.
pub(crate) const TAG: u64 = u64::from_be_bytes(*b"password");

/// Passwords of a worker that are verified, or wait for it, at a time. Further requests get 503.
const MAX_PENDING: usize = 32;

/// Credentials that a worker remembers as right. When there are more, it forgets all.
const MAX_KNOWN: usize = 1024;

/// The realms of all hosts.
#[derive(Debug)]
pub(crate) struct Realms {
    all: Vec<Realm>,
    /// The numbers of each host's realms.
    by_host: Vec<Vec<usize>>,
}

impl Realms {
    /// Reads the files of users. Hosts with the same setting share its realm.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub(crate) fn load<'a>(
        hosts: impl Iterator<Item = &'a [BasicAuth]>,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let mut realms = Realms { all: Vec::new(), by_host: Vec::new() };
        let mut numbers = HashMap::new();
        for host in hosts {
            let mut of_host = Vec::with_capacity(host.len());
            for auth in host {
                let number = match numbers.entry(auth) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        let realm = auth.load();
                        realms.all.push(realm.map_err(|error| (auth.file().to_owned(), error))?);
                        *new.insert(realms.all.len() - 1)
                    }
                };
                of_host.push(number);
            }
            realms.by_host.push(of_host);
        }
        Ok(realms)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number of the realm to which a request for a host belongs.
    ///
    /// # Errors
    /// Those of [`Realm::find`].
    fn find(&self, host: HostIndex, request: &RequestHead<'_>) -> Result<Option<usize>, Status> {
        let of_host = self.by_host.get(usize::from(host.0));
        Realm::find(&self.all, of_host.map_or(&[], Vec::as_slice), request)
    }
}

/// The part that the workers share: realms, and threads that verify passwords.
#[derive(Clone, Debug)]
pub(crate) struct LoginThreads {
    realms: Arc<Realms>,
    pool: Pool,
}

impl LoginThreads {
    const THREADS: usize = 2;

    /// Returns the maximum bytes of memory for the logins of `workers` and `realms` files of users.
    pub(crate) fn memory(realms: usize, workers: usize) -> usize {
        // The table of users takes less than four times the bytes of the shortest lines.
        const REALM: usize = 4 * BasicAuth::MAX_FILE_BYTES;
        const PENDING: usize = MAX_PENDING * (Credentials::MAX_BYTES + 512);
        // A table of hashes grows by doubling, and has its old half meanwhile.
        const KNOWN: usize = MAX_KNOWN * 4 * size_of::<Key>();
        if realms == 0 { 0 } else { realms * REALM + workers * (PENDING + KNOWN) }
    }

    /// Starts the threads.
    pub(crate) fn start(realms: Realms, workers: usize) -> io::Result<Self> {
        let pool = Pool::new(Self::THREADS, MAX_PENDING * workers)?;
        Ok(LoginThreads { realms: Arc::new(realms), pool })
    }
}

/// A keyed hash of a realm's number and credentials. Its key is a secret of the process.
type Key = (u64, u64);

/// Verifies the credentials of a worker's requests.
#[derive(Debug)]
pub(crate) struct Logins {
    threads: LoginThreads,
    mailbox: Mailbox<Verified>,
    sender: Sender<Verified>,
    pending: usize,
    keys: [RandomState; 2],
    known: Known,
}

/// The result for a connection.
#[derive(Debug)]
struct Verified {
    id: ConnId,
    key: Key,
    is_right: bool,
}

/// The credentials that were right, as far as the worker remembers them.
#[derive(Debug, Default)]
struct Known(HashSet<Key>);

impl Known {
    /// Adds one. If there are too many, the others are forgotten.
    fn insert(&mut self, key: Key) {
        if self.0.len() == MAX_KNOWN {
            self.0.clear();
        }
        self.0.insert(key);
    }
}

/// The outcome of a request's login.
enum Access {
    Granted,
    /// The number of the realm.
    Refused(usize),
    /// Whether it needs a password is not known.
    Invalid(Status),
    /// Too many passwords wait to be verified.
    Busy,
    /// The password is being verified.
    Waits,
}

impl Logins {
    pub(crate) fn new(threads: LoginThreads, remote: &RemoteHandle) -> Self {
        let (mailbox, sender) = Mailbox::new(remote, TAG, MAX_PENDING);
        let (keys, known) = ([RandomState::new(), RandomState::new()], Known::default());
        Logins { threads, mailbox, sender, pending: 0, keys, known }
    }

    /// Decides on a request for a host. `was_wrong`: its password was verified just now.
    fn check(
        &mut self,
        id: ConnId,
        (request, host): (&RequestHead<'_>, HostIndex),
        was_wrong: bool,
    ) -> Access {
        let realm = match self.threads.realms.find(host, request) {
            Ok(Some(realm)) => realm,
            Ok(None) => return Access::Granted,
            Err(status) => return Access::Invalid(status),
        };
        let credentials = Credentials::of(request).filter(|_| !was_wrong);
        let Some(credentials) = credentials else { return Access::Refused(realm) };
        let hash = |key: &RandomState| key.hash_one((realm, credentials.as_bytes()));
        let key = (hash(&self.keys[0]), hash(&self.keys[1]));
        if self.known.0.contains(&key) {
            return Access::Granted;
        }
        if self.pending == MAX_PENDING {
            return Access::Busy;
        }
        let (realms, sender) = (Arc::clone(&self.threads.realms), self.sender.clone());
        let is_queued = self.threads.pool.post(move || {
            let mut result =
                SentOnDrop { sender, verified: Some(Verified { id, key, is_right: false }) };
            let is_right = realms.all[realm].verify(&credentials);
            if let Some(verified) = &mut result.verified {
                verified.is_right = is_right;
            }
        });
        self.pending += usize::from(is_queued);
        if is_queued { Access::Waits } else { Access::Busy }
    }

    /// Takes the results that have arrived.
    fn take_results(&mut self) -> Vec<Verified> {
        let results: Vec<_> = self.mailbox.drain().collect();
        self.pending -= results.len();
        for verified in results.iter().filter(|verified| verified.is_right) {
            self.known.insert(verified.key);
        }
        results
    }
}

/// Sends the result of a call when the call ends, also by a panic.
struct SentOnDrop {
    sender: Sender<Verified>,
    verified: Option<Verified>,
}

impl Drop for SentOnDrop {
    fn drop(&mut self) {
        if let Some(verified) = self.verified.take() {
            // The mailbox has room for all that are pending; if it is closed, no connection waits.
            let _ = self.sender.send(verified);
        }
    }
}

/// How to go on with a request.
pub(crate) enum Login {
    /// It may be answered.
    Granted,
    /// It was answered. Whether the next request may be processed.
    Answered(bool),
    /// Its password is being verified. Its head arrives again after that.
    Waits,
}

impl Logins {
    /// Decides on a request for a host, after whose head `remaining` bytes have arrived, and answers it if it is
    /// refused.
    pub(crate) fn decide(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        (request, host): (&RequestHead<'_>, HostIndex),
        remaining: usize,
    ) -> Login {
        #[cfg(feature = "tls")]
        if x.state.redirects {
            return Login::Granted;
        }
        let was_wrong = std::mem::take(&mut x.state.has_wrong_password);
        let access = self.check(x.id, (request, host), was_wrong);
        let realm = match access {
            Access::Granted => return Login::Granted,
            Access::Waits => {
                x.io.set_receiving(x.id, false);
                x.io.set_deadline(x.id, Some(x.io.now() + context.limits.progress_interval));
                x.state.work = Some(Box::new(PendingWork::Login));
                return Login::Waits;
            }
            Access::Refused(realm) => Ok(realm),
            Access::Invalid(status) => Err(status),
            Access::Busy => Err(Status::BUSY),
        };
        let options = ResponseOptions { host, ..context.options(x, request, remaining) };
        let options = options.ending_if(request.has_body());
        let (responder, metrics) = (&mut context.responder, context.metrics.own());
        let sent = match realm {
            Ok(realm) => {
                metrics.refused_logins.add(1);
                let challenge = &self.threads.realms.all[realm].challenge;
                responder.send_status((x.io, x.id), Status::UNAUTHORIZED, challenge, options)
            }
            Err(Status::BUSY) => {
                metrics.rejected_logins.add(1);
                responder.send_error((x.io, x.id), Status::BUSY, options)
            }
            Err(status) => responder.send_error((x.io, x.id), status, options.ending()),
        };
        Login::Answered(x.state.record(sent))
    }

    /// Goes on with the requests whose passwords were verified.
    pub(crate) fn woken(&mut self, io: &mut impl Commands, mut all: Others<'_, State>) {
        for Verified { id, is_right, .. } in self.take_results() {
            let Some(state) = all.get(io, id) else { continue };
            if state.work.take_if(|work| matches!(**work, PendingWork::Login)).is_some() {
                state.has_wrong_password = !is_right;
                io.set_receiving(id, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use evring::{AnyMechanism, Config};

    use super::*;
    use crate::limits::Limits;
    use crate::message::request::{HeadMemory, parse};

    #[test]
    fn known_credentials_are_forgotten_when_there_are_too_many() {
        let mut known = Known::default();
        (0..MAX_KNOWN as u64).for_each(|n| known.insert((n, n)));
        assert_eq!(known.0.len(), MAX_KNOWN);
        known.insert((u64::MAX, 0));
        assert_eq!(known.0.into_iter().collect::<Vec<_>>(), [(u64::MAX, 0)]);
    }

    #[test]
    fn number_of_passwords_that_are_verified_is_bounded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("a:{}\n", bcrypt::hash("right", 4).unwrap())).unwrap();
        let auth: BasicAuth = file.path().to_str().unwrap().parse().unwrap();
        let realms = Realms::load([&[auth][..]].into_iter()).unwrap();
        let mechanism = AnyMechanism::new("auto", &Config::default()).unwrap();
        // With room for those of two workers, of which this is one.
        let threads = LoginThreads::start(realms, 2).unwrap();
        let held = threads.pool.hold(LoginThreads::THREADS);
        let mut logins = Logins::new(threads, &mechanism.remote());
        let mut numbers = 0..;
        let mut waits = |logins: &mut Logins| {
            let credentials = STANDARD.encode(format!("a:{}", numbers.next().unwrap()));
            let head =
                format!("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {credentials}\r\n\r\n");
            let mut memory = HeadMemory::new();
            let request = parse(head.as_bytes(), &mut memory, &Limits::default()).unwrap();
            match logins.check(ConnId::new(0, 1), (&request, HostIndex(0)), false) {
                Access::Waits => true,
                Access::Busy => false,
                _ => panic!("it was not verified"),
            }
        };
        for n in 0..MAX_PENDING {
            assert!(waits(&mut logins), "{n} wait");
        }
        assert!(!waits(&mut logins));
        drop(held);
        // Until a result is taken.
        assert!(!waits(&mut logins));
        while logins.take_results().is_empty() {
            thread::yield_now();
        }
        assert!(waits(&mut logins));
    }
}
