//! A client that keeps connections open, with or without TLS, and checks each response.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use evring_httpd::evring_tls::rustls::client::Resumption;
use evring_httpd::evring_tls::rustls::crypto::ring;
use evring_httpd::evring_tls::rustls::pki_types::{CertificateDer, ServerName};
use evring_httpd::evring_tls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, version,
};

use crate::failure::Failure;

/// Maximum time to wait for a byte.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A connection.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// Returns the settings of clients that trust one certificate, speak TLS 1.3 and resume no session.
pub(super) fn tls_13(certificate: CertificateDer<'static>) -> Result<Arc<ClientConfig>, Failure> {
    let failed = |error| Failure::new("the client's TLS", error);
    let mut roots = RootCertStore::empty();
    roots.add(certificate).map_err(failed)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(failed)?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

impl Stream {
    /// Connects, with TLS if there are settings for it.
    pub(super) fn connect(
        to: SocketAddr,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, Failure> {
        let stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let Some(config) = tls else { return Ok(Stream::Plain(stream)) };
        let name = ServerName::try_from("localhost").map_err(|e| Failure::new("a name", e))?;
        let session = ClientConnection::new(Arc::clone(config), name)
            .map_err(|e| Failure::new("the client's TLS", e))?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, stream))))
    }

    pub(super) fn send(&mut self, request: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.write_all(request),
            Stream::Tls(stream) => stream.write_all(request).and_then(|()| stream.flush()),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(into),
            Stream::Tls(stream) => stream.read(into),
        }
    }

    /// Receives a response with status 200 into a buffer, and checks that its head has `field`.
    pub(super) fn receive(&mut self, reply: &mut Vec<u8>, field: &str) -> Result<(), Failure> {
        reply.clear();
        let mut piece = [0; 16 << 10];
        loop {
            match self.read(&mut piece) {
                Ok(0) => return Err(Failure::Run("a response is cut".to_owned())),
                Ok(n) => reply.extend_from_slice(&piece[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::new("no response", error)),
            }
            if let Some(head) = complete_head(reply) {
                let head = String::from_utf8_lossy(head).to_ascii_lowercase();
                return match head.starts_with("http/1.1 200 ") && head.contains(field) {
                    true => Ok(()),
                    false => Err(Failure::Run(format!("an unexpected response: {head}"))),
                };
            }
        }
    }
}

/// Returns the head of a response that is complete, by its length or its last chunk.
fn complete_head(reply: &[u8]) -> Option<&[u8]> {
    let end = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let (head, body) = reply.split_at(end);
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let is_complete = match length {
        Some(length) => body.len() >= length,
        None => body.ends_with(b"0\r\n\r\n"),
    };
    is_complete.then_some(head)
}

/// Connections on each of which one request is made at a time.
pub(super) struct Client {
    streams: Vec<Stream>,
    /// The request of each connection.
    requests: Vec<Vec<u8>>,
    /// The text that the head of each response must contain, in lower case.
    field: &'static str,
    reply: Vec<u8>,
    /// Bytes of all responses.
    received: usize,
}

impl Client {
    /// Connects once for each request.
    pub(super) fn new(
        to: SocketAddr,
        tls: Option<&Arc<ClientConfig>>,
        requests: Vec<Vec<u8>>,
        field: &'static str,
    ) -> Result<Self, Failure> {
        let streams =
            requests.iter().map(|_| Stream::connect(to, tls)).collect::<Result<_, _>>()?;
        Ok(Client { streams, requests, field, reply: Vec::new(), received: 0 })
    }

    /// Makes a number of requests on each connection.
    pub(super) fn requests(&mut self, times: u64) -> Result<(), Failure> {
        for _ in 0..times {
            for (stream, request) in self.streams.iter_mut().zip(&self.requests) {
                stream.send(request)?;
            }
            for stream in &mut self.streams {
                stream.receive(&mut self.reply, self.field)?;
                self.received += self.reply.len();
            }
        }
        Ok(())
    }

    /// Returns the number of bytes of all responses, heads included.
    pub(super) fn received(&self) -> usize {
        self.received
    }
}

/// Returns a request for a path with further fields.
pub(super) fn get(path: &str, fields: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").into_bytes()
}

/// Returns a request with JSON as its body.
pub(super) fn post_json(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_end_by_their_length_or_last_chunk() {
        for reply in [
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ] {
            let all = reply.as_bytes();
            assert!(complete_head(all).unwrap().ends_with(b"\r\n\r\n"));
            assert!((0..all.len()).all(|end| complete_head(&all[..end]).is_none()), "{reply}");
        }
    }
}
