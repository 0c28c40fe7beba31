//! Handlers that are services of tower.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tower_service::Service;
use tracing::error;

use crate::message::status::Status;
use crate::site::handler::{Handler, Request};
use crate::site::into_handler::{IntoHandler, WaitingHandler};
use crate::site::reply::Response;
use crate::site::request_body::{BodyError, RequestBody};
use crate::site::response_body::Body;

/// The kind of a [`tower_service::Service`], for [`IntoHandler`].
#[allow(missing_debug_implementations, reason = "it has no values")]
pub enum ServiceKind {}

/// Each request gets a clone of the service. An error of the service gives 500, and is logged.
impl<S, B> IntoHandler<(ServiceKind, B)> for S
where
    S: Service<Request<RequestBody>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: 'static,
    B: HttpBody + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn into_handler(self) -> impl Handler {
        WaitingHandler(move |head, body| {
            let mut service = self.clone();
            async move {
                let answer = async {
                    poll_fn(|context| service.poll_ready(context)).await?;
                    service.call(Request::from_parts(head, body)).await
                };
                match answer.await {
                    Ok(response) => Ok(convert(response).await.into()),
                    Err(reason) => {
                        error!("a service failed: {}", reason.into());
                        Err(Status::INTERNAL)
                    }
                }
            }
        })
    }
}

/// Converts a response. A body that is complete at once is sent with its head.
async fn convert<B>(response: http::Response<B>) -> Response
where
    B: HttpBody + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (head, body) = response.into_parts();
    let mut body = Box::pin(body);
    let len = body.size_hint().exact();
    if body.is_end_stream() {
        return Response::from_parts(head, Body::default());
    }
    let mut first = poll_fn(|context| Poll::Ready(poll_piece(body.as_mut(), context))).await;
    let body = match first {
        Poll::Ready(Some(Ok(bytes))) if len == Some(bytes.len() as u64) => bytes.into(),
        _ => {
            Body::poll_fn(len, move |context| match std::mem::replace(&mut first, Poll::Pending) {
                Poll::Ready(piece) => Poll::Ready(piece),
                Poll::Pending => poll_piece(body.as_mut(), context),
            })
        }
    };
    Response::from_parts(head, body)
}

/// Returns the next bytes of a body. Trailer fields are dropped.
fn poll_piece<B>(
    mut body: Pin<&mut B>,
    context: &mut Context<'_>,
) -> Poll<Option<io::Result<Bytes>>>
where
    B: HttpBody,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    loop {
        return match body.as_mut().poll_frame(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(io::Error::other(error)))),
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(mut data) => Poll::Ready(Some(Ok(data.copy_to_bytes(data.remaining())))),
                Err(_) => continue,
            },
        };
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(piece)) => Poll::Ready(Some(piece.map(Frame::data))),
            Poll::Ready(None) => Poll::Ready(self.trailers().map(Frame::trailers).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.known_len() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.known_len().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
