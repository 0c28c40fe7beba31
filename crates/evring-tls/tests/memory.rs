//! The memory of a session, by counting allocations. The only test of its process, as it counts all of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evring_tls::rustls::pki_types::ServerName;
use evring_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};
use evring_tls::{Certificates, ServerSession, TlsConfig, Transform, server_config};

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
            let mut wire = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut wire).unwrap();
            }
            self.session.open(&wire, &mut plain).unwrap();
            let back = flush(&mut self.session);
            if wire.is_empty() && back.is_empty() {
                return plain;
            }
            let mut back = &back[..];
            while !back.is_empty() {
                self.client.read_tls(&mut back).unwrap();
                let state = self.client.process_new_packets().unwrap();
                let len = state.plaintext_bytes_to_read();
                io::copy(&mut self.client.reader().take(len as u64), &mut io::sink()).unwrap();
            }
        }
    }
}

#[test]
fn session_is_within_its_maximum() {
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
        for part in message.chunks(16 * 1024) {
            let mut record = vec![22, 3, 1];
            record.extend_from_slice(&(part.len() as u16).to_be_bytes());
            record.extend_from_slice(part);
            let _ = opened.open(&record, &mut Vec::new());
        }
        session = Some(opened);
    });
    drop(session);
    // The message and the records of the test itself exist once each.
    assert!(handshake < max + 2 * 0xff00 + 16 * 1024, "{handshake} bytes for a handshake message");

    // After a handshake: sealing pieces, and records that arrive incomplete.
    let mut peer = Peer::new(&config, &trusted);
    peer.exchange();
    peer.client.writer().write_all(&[7; 16 * 1024]).unwrap();
    let mut record = Vec::new();
    while peer.client.wants_write() {
        peer.client.write_tls(&mut record).unwrap();
    }
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
