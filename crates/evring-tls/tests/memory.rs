//! The memory of a session, by counting allocations. The only test of its process, as it counts all of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evring_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use evring_tls::rustls::version::{TLS12, TLS13};
use evring_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};
use evring_tls::{Certificates, ServerSession, TlsConfig, Transform, server_config};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns what a client sends next.
fn from_client(client: &mut ClientConnection) -> Vec<u8> {
    let mut wire = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut wire).unwrap();
    }
    wire
}

/// Passes what the session sends to a client.
fn to_client(client: &mut ClientConnection, mut wire: &[u8]) {
    while !wire.is_empty() {
        client.read_tls(&mut wire).unwrap();
        let state = client.process_new_packets().unwrap();
        let len = state.plaintext_bytes_to_read();
        io::copy(&mut client.reader().take(len as u64), &mut io::sink()).unwrap();
    }
}

/// Runs `f` and returns the most bytes that were allocated during it, in addition to those before.
fn peak(f: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    f();
    MOST.load(Ordering::Relaxed) - before
}

/// Discards what it is given.
fn flush(session: &mut ServerSession) -> Vec<u8> {
    let mut wire = Vec::new();
    session.wire(&mut wire).unwrap();
    wire
}

/// Runs `f` and returns by how many bytes the memory has grown.
fn grown(f: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    f();
    LIVE.load(Ordering::Relaxed).saturating_sub(before)
}

/// Passes a message of the handshake, in records of the maximum length.
fn open_message(session: &mut ServerSession, message: &[u8]) {
    for part in message.chunks(16 * 1024) {
        let mut record = vec![22, 3, 3];
        record.extend_from_slice(&(part.len() as u16).to_be_bytes());
        record.extend_from_slice(part);
        let _ = session.open(&record, &mut Vec::new());
    }
}

struct Peer {
    client: ClientConnection,
    session: ServerSession,
}

impl Peer {
    fn new(config: &TlsConfig, trusted: &Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::clone(trusted), name).unwrap();
        Peer { client, session: ServerSession::new(config).unwrap() }
    }

    /// Exchanges bytes until neither side has more.
    fn exchange(&mut self) -> Vec<u8> {
        let mut plain = Vec::new();
        loop {
            let wire = from_client(&mut self.client);
            self.session.open(&wire, &mut plain).unwrap();
            let back = flush(&mut self.session);
            if wire.is_empty() && back.is_empty() {
                return plain;
            }
            to_client(&mut self.client, &back);
        }
    }
}

#[test]
fn session_is_within_its_maximum() {
    without_client_certificates();
    with_client_certificates();
}

fn without_client_certificates() {
    let certificates = Arc::new(Certificates::self_signed(&["localhost"]).unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(certificates.first_chain().remove(0)).unwrap();
    let config = TlsConfig::from(server_config(certificates, None, &[]).unwrap());
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let client = client.with_safe_default_protocol_versions().unwrap();
    let trusted = Arc::new(client.with_root_certificates(roots).with_no_client_auth());
    let max = ServerSession::MAX_BYTES;
    // The first session allocates the memory that all sessions share.
    let mut first = Peer::new(&config, &trusted);
    first.exchange();

    // The start of a handshake message that claims to be long, in records of the maximum length.
    let mut session = None;
    let handshake = peak(|| {
        let mut opened = ServerSession::new(&config).unwrap();
        let mut message = vec![1, 0, 0xff, 0xf0];
        message.resize(0xff00, 0);
        open_message(&mut opened, &message);
        session = Some(opened);
    });
    drop(session);
    // The message and the records of the test itself exist once each.
    assert!(handshake < max + 2 * 0xff00 + 16 * 1024, "{handshake} bytes for a handshake message");

    // After a handshake: sealing pieces, and records that arrive incomplete.
    let mut peer = Peer::new(&config, &trusted);
    peer.exchange();
    peer.client.writer().write_all(&[7; 16 * 1024]).unwrap();
    let record = from_client(&mut peer.client);
    let Peer { session, .. } = &mut peer;
    let mut plain = Vec::with_capacity(32 * 1024);
    let mut sink = io::sink();
    let use_of = peak(|| {
        for piece in 0..64 {
            session.seal(&[piece; 16 * 1024]).unwrap();
            session.wire(&mut sink).unwrap();
        }
        for byte in &record[..record.len() - 1] {
            session.open(&[*byte], &mut plain).unwrap();
        }
    });
    assert_eq!(plain.len(), 0);
    session.open(&record[record.len() - 1..], &mut plain).unwrap();
    assert_eq!(plain, [7; 16 * 1024]);
    assert!(use_of < max, "{use_of} bytes for records");

    // All sessions that wait for a request.
    const SESSIONS: usize = 100;
    let mut peers = Vec::with_capacity(SESSIONS);
    let before = LIVE.load(Ordering::Relaxed);
    peers.extend((0..SESSIONS).map(|_| {
        let mut peer = Peer::new(&config, &trusted);
        peer.exchange();
        peer.session
    }));
    let idle = (LIVE.load(Ordering::Relaxed) - before) / SESSIONS;
    println!("a handshake message: {handshake}, records: {use_of}, idle: {idle} bytes");
    assert!(idle < 16 * 1024, "{idle} bytes for an idle session");
}

/// The maximum was that of sessions whose clients have no certificates, and certificates of 60 KiB were kept.
fn with_client_certificates() {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut authorities = RootCertStore::empty();
    authorities.add(issuer.der().clone()).unwrap();
    let certificates = Arc::new(Certificates::self_signed(&["localhost"]).unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(certificates.first_chain().remove(0)).unwrap();
    let config = TlsConfig::from(server_config(certificates, Some(authorities), &[]).unwrap());
    let key = KeyPair::generate().unwrap();
    let signed = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    let signed = signed.signed_by(&key, &issuer).unwrap().der().clone();
    // No path to the authority needs the certificate that is repeated.
    let padding = |bytes: usize| {
        let one = Certificates::self_signed(&["localhost"]).unwrap().first_chain().remove(0);
        let place = one.len() + size_of::<CertificateDer<'_>>();
        std::iter::repeat_n(one, bytes / place)
    };
    let settings = |version, bytes: usize, long_hello: bool| {
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let client = client.with_protocol_versions(&[version]).unwrap();
        let client = client.with_root_certificates(roots.clone());
        let chain = [signed.clone()].into_iter().chain(padding(bytes)).collect();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut client = client.with_client_auth_cert(chain, key).unwrap();
        if long_hello {
            client.alpn_protocols = vec![vec![b'x'; 250]; 250];
        }
        Arc::new(client)
    };
    let max = ServerSession::MAX_BYTES_WITH_CLIENT_CERTIFICATES;

    for version in [&TLS12, &TLS13] {
        // Long certificates are refused.
        let Peer { mut client, mut session } =
            Peer::new(&config, &settings(version, 60 << 10, false));
        session.open(&from_client(&mut client), &mut Vec::new()).unwrap();
        to_client(&mut client, &flush(&mut session));
        let long = from_client(&mut client);
        let mut result = Ok(false);
        let most = peak(|| result = session.open(&long, &mut Vec::new()));
        let error = result.unwrap_err();
        assert!(most < max, "{most} bytes for long certificates");
        assert!(error.to_string().contains("more than 16 KiB"), "{error}");

        // After a handshake, with the copy of the application.
        let trusted = settings(version, 15 << 10, false);
        Peer::new(&config, &trusted).exchange();
        let before = LIVE.load(Ordering::Relaxed);
        let mut peer = Peer::new(&config, &trusted);
        peer.exchange();
        let Peer { session, client: _ } = peer;
        let info = session.info().unwrap();
        let kept = LIVE.load(Ordering::Relaxed) - before;
        println!("with certificates: {kept} bytes");
        assert!(info.client_certificates().len() > 1);
        assert!(kept < 100 * 1024, "{kept} bytes for certificates");
    }

    // A client that has sent a long first message, its certificates, and a part of the message that signs them.
    let Peer { mut client, session } = Peer::new(&config, &settings(&TLS12, 15 << 10, true));
    drop(session);
    let (mut session, mut plain, mut back) = (None, Vec::new(), Vec::with_capacity(16 << 10));
    let hello = from_client(&mut client);
    let mut held = grown(|| {
        let session = session.insert(ServerSession::new(&config).unwrap());
        session.open(&hello, &mut plain).unwrap();
        session.wire(&mut back).unwrap();
    });
    to_client(&mut client, &back);
    let (session, wire) = (session.as_mut().unwrap(), from_client(&mut client));
    const CERTIFICATE_VERIFY: u8 = 15;
    let mut end = 0;
    while wire[end + 5] != CERTIFICATE_VERIFY {
        end += 5 + usize::from(u16::from_be_bytes([wire[end + 3], wire[end + 4]]));
    }
    held += grown(|| {
        session.open(&wire[..end], &mut plain).unwrap();
    });
    let mut message = vec![CERTIFICATE_VERIFY, 0, 0xff, 0xf0];
    message.resize(0xff00, 0);
    let most = held + peak(|| held += grown(|| open_message(session, &message)));
    println!("with certificates, in a handshake: {held}, {most} bytes");
    assert!(most < max, "{most} bytes during a handshake");
}
