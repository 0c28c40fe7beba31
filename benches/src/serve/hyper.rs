//! hyper as a server under test: one thread of tokio, a handler that answers at once.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

/// Serves `hello` at every path until the process ends.
pub(super) fn serve(listener: TcpListener, hello: &'static str) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut http = http1::Builder::new();
        // Replies to requests that came together leave together.
        http.pipeline_flush(true);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let service = service_fn(move |_: Request<Incoming>| answer(hello));
            let connection = http.serve_connection(TokioIo::new(stream), service);
            // How a connection ends is its client's affair.
            tokio::spawn(async { drop(connection.await) });
        }
    })
}

async fn answer(hello: &'static str) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(hello.as_bytes())));
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    Ok(response)
}
