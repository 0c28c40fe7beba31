//! Connections that switch to another protocol (RFC 9110, section 7.8).

use std::fmt;
use std::future::poll_fn;
#[cfg(feature = "futures-io")]
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(feature = "futures-io")]
use std::task::ready;
use std::task::{Context, Poll};

#[cfg(feature = "futures-io")]
use bytes::Buf;
use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderValue, UPGRADE};
use tracing::error;

use crate::decision::options::ResponseOptions;
use crate::message::body::BodyDecoder;
use crate::message::status::Status;
use crate::site::body_memory::BodyMemory;
use crate::site::exchange::IncomingBody;
use crate::site::guard::guard;
#[cfg(feature = "futures-io")]
use crate::site::pipe::CAPACITY_BYTES;
use crate::site::pipe::{Broken, Reader, Writer, pipe};
use crate::site::response_body::{Disconnected, Piece, Pieces};
use crate::site::stream::StreamedBody;

/// Creates the response 101, with which the connection switches to another protocol. Then the server calls `run`
/// with the connection's bytes, and polls its future on the worker's thread. The connection ends with the future,
/// unless that has passed it on.
///
/// `protocol` is the value of the field Upgrade; further fields can be added to the response. A request that does not
/// ask for an upgrade gets 426. The handler checks that the field Upgrade of the request names the protocol. It works for handlers of every kind, and with
/// the body of another library, such as that of axum.
///
/// # Panics
/// If `protocol` is no value of a header field.
///
/// ```
/// use evring_httpd::body::Body;
/// use evring_httpd::handlers::upgrade;
/// use evring_httpd::{Request, Response, Server};
///
/// let echo = |_: Request| -> Response {
///     upgrade("echo", |mut connection| async move {
///         while let Some(bytes) = connection.read().await {
///             if connection.write(bytes).await.is_err() {
///                 break; // the client has gone
///             }
///         }
///     })
/// };
/// let server = Server::builder().route("/echo", echo);
/// ```
pub fn upgrade<B, F, T>(protocol: &'static str, run: F) -> http::Response<B>
where
    B: Default,
    F: FnOnce(Upgraded) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let run: Run = Box::new(|connection| Box::pin(run(connection)));
    let mut response = http::Response::new(B::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(protocol));
    response.extensions_mut().insert(Protocol(Arc::new(Mutex::new(Some(run)))));
    response
}

type Run = Box<dyn FnOnce(Upgraded) -> Running + Send>;
type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The protocol that a connection switches to, in the extensions of a response.
#[derive(Clone)]
pub(crate) struct Protocol(Arc<Mutex<Option<Run>>>);

impl Protocol {
    /// Starts the protocol. Returns the bytes to send, and where those that arrive go.
    ///
    /// # Errors
    /// 500 if it has started before, or panics.
    pub(crate) fn start(
        &self,
        options: ResponseOptions,
        memory: BodyMemory,
    ) -> Result<(StreamedBody, IncomingBody), Status> {
        let run = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(run) = run else {
            error!(
                "connection reset: a response of `upgrade` was sent twice; make one per request"
            );
            return Err(Status::INTERNAL);
        };
        let ((input, reader), (writer, mut output)) = (pipe(), pipe());
        let connection = Upgraded { reader, unread: Bytes::new(), writer };
        let mut running = Some(guard(|| run(connection))?);
        let next = move |context: &mut Context<'_>| {
            if let Some(future) = &mut running
                && future.as_mut().poll(context).is_ready()
            {
                // This drops the writer, unless it was passed on.
                running = None;
            }
            // Without a writer, the bytes end.
            output.poll_piece(context).map(|piece| piece?.ok().map(Piece::Bytes).map(Ok))
        };
        let sent = StreamedBody::new(Pieces::polled(next), None, false, options.ending());
        let body = BodyDecoder::unframed();
        Ok((
            sent,
            IncomingBody { body, writer: input, received: 0, memory, expects_continue: false },
        ))
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol")
    }
}

/// The bytes of a connection that has switched to another protocol; see [`upgrade`].
///
/// At most 64 KiB wait in each direction: the server stops receiving until they are read, and
/// [`Upgraded::write`] waits until the client has received them. There is no time limit for bytes of the client, so a
/// protocol should notice clients that have gone silent; one that receives less than
/// [`Limits::min_rate`](crate::options::Limits::min_rate) is reset. After the client has shut down its sending side, or the
/// server stops, `read` returns `None` (with TLS, an attacker can cause that, too: the protocol's messages have to show
/// where they end); then the protocol has
/// [`Limits::handler_timeout`](crate::options::Limits::handler_timeout) to end, at a stop
/// [`Config::drain_timeout`](evring::Config::drain_timeout) if that is shorter.
///
/// With the feature `futures-io` it implements `AsyncRead` and `AsyncWrite` of `futures-io`.
#[derive(Debug)]
pub struct Upgraded {
    reader: Reader,
    /// The bytes that were received and not yet read.
    #[cfg_attr(not(feature = "futures-io"), expect(dead_code))]
    unread: Bytes,
    writer: Writer,
}

impl Upgraded {
    /// Returns the next bytes, or `None` when the client sends no more.
    pub async fn read(&mut self) -> Option<Bytes> {
        poll_fn(|context| self.poll_read_bytes(context)).await
    }

    /// Returns the next bytes if they have arrived, or `None` when the client sends no more.
    pub fn poll_read_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        #[cfg(feature = "futures-io")]
        if !self.unread.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut self.unread)));
        }
        self.reader.poll_piece(context).map(|piece| piece?.ok())
    }

    /// Sends bytes, after waiting until there is room for them.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn write(&mut self, bytes: impl Into<Bytes>) -> Result<(), Disconnected> {
        poll_fn(|context| self.writer.poll_room(context)).await.map_err(|Broken| Disconnected)?;
        self.writer.push(bytes.into());
        Ok(())
    }
}

#[cfg(feature = "futures-io")]
impl futures_io::AsyncRead for Upgraded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Some(mut bytes) = ready!(self.poll_read_bytes(context)) else {
            return Poll::Ready(Ok(0));
        };
        let len = bytes.len().min(into.len());
        bytes.copy_to_slice(&mut into[..len]);
        self.unread = bytes;
        Poll::Ready(Ok(len))
    }
}

#[cfg(feature = "futures-io")]
impl futures_io::AsyncWrite for Upgraded {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let room = ready!(self.writer.poll_room(context));
        room.map_err(|Broken| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let len = bytes.len().min(CAPACITY_BYTES);
        self.writer.push(Bytes::copy_from_slice(&bytes[..len]));
        Poll::Ready(Ok(len))
    }

    /// The server sends what was written without this.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.end(Ok(http::HeaderMap::new()));
        Poll::Ready(Ok(()))
    }
}
