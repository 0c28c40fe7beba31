//! The slow clients.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use evring_httpd::evring_tls::rustls::pki_types::ServerName;
use evring_httpd::evring_tls::rustls::{ClientConfig, ClientConnection};
use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use crate::failure::Failure;

/// The operation that the clients perform slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Attack {
    /// They send a head.
    #[default]
    Head,
    /// They send a body.
    Body,
    /// They receive a response.
    Response,
    /// They shake hands.
    Handshake,
}

/// Receive buffer of a client, in bytes; the kernel doubles it.
const RECEIVE_BUFFER: usize = 4096;

impl Attack {
    pub(super) const ALL: [Attack; 4] =
        [Attack::Head, Attack::Body, Attack::Response, Attack::Handshake];

    pub(super) fn name(self) -> &'static str {
        match self {
            Attack::Head => "head",
            Attack::Body => "body",
            Attack::Response => "response",
            Attack::Handshake => "handshake",
        }
    }

    /// Returns what a client sends at once, and what it sends slowly.
    fn bytes(self, config: &Arc<ClientConfig>) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let endless = vec![b'x'; 4096];
        Ok(match self {
            Attack::Head => (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec(), endless),
            Attack::Body => {
                let head =
                    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n";
                (head.to_vec(), endless)
            }
            Attack::Response => {
                (b"GET /1m.txt HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), endless)
            }
            Attack::Handshake => {
                let failed = |error| Failure::new("the client's TLS", error);
                let name =
                    ServerName::try_from("localhost").map_err(|e| Failure::new("a name", e))?;
                let mut session =
                    ClientConnection::new(Arc::clone(config), name).map_err(failed)?;
                let mut hello = Vec::new();
                session.write_tls(&mut hello)?;
                // The last byte never comes.
                hello.pop();
                (Vec::new(), hello)
            }
        })
    }
}

/// Slow clients of one kind.
pub(super) struct Attackers {
    attack: Attack,
    /// Bytes that each client sends at once.
    first: Vec<u8>,
    /// Bytes that each client sends slowly.
    bytes: Vec<u8>,
    /// Those that are connected, and how much of that they have sent.
    streams: Vec<(TcpStream, usize)>,
}

impl Attackers {
    pub(super) fn new(attack: Attack, config: &Arc<ClientConfig>) -> Result<Self, Failure> {
        let (first, bytes) = attack.bytes(config)?;
        Ok(Attackers { attack, first, bytes, streams: Vec::new() })
    }

    /// Connects further clients.
    pub(super) fn connect(&mut self, to: SocketAddr, count: usize) -> io::Result<()> {
        for _ in 0..count {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            // A buffer that is set before the connect bounds the window.
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
            connect(&socket, &to)?;
            let mut stream = TcpStream::from(socket);
            stream.set_nodelay(true)?;
            stream.write_all(&self.first)?;
            stream.set_nonblocking(true)?;
            self.streams.push((stream, 0));
        }
        Ok(())
    }

    /// Returns how many were connected after the last step, or have connected since.
    pub(super) fn count(&self) -> usize {
        self.streams.len()
    }

    /// Has each client move a byte. Returns how many are still connected.
    pub(super) fn step(&mut self) -> usize {
        let (attack, bytes) = (self.attack, &self.bytes);
        self.streams.retain_mut(|(stream, sent)| match attack {
            // A reset is noticed before the bytes that have arrived are read.
            Attack::Response => {
                matches!(stream.take_error(), Ok(None)) && is_open(stream.read(&mut [0]))
            }
            _ => {
                let byte = bytes.get(*sent..=*sent);
                *sent += 1;
                byte.is_none_or(|byte| is_open(stream.write(byte)))
                    && is_open(stream.read(&mut [0; 4096]))
            }
        });
        self.streams.len()
    }
}

/// Returns whether a connection is open, by the result of a call that does not wait.
fn is_open(moved: io::Result<usize>) -> bool {
    match moved {
        Ok(n) => n > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}
