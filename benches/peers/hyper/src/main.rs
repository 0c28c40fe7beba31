//! hyper as a server that the lab measures: one thread of tokio, a handler that answers at once.
//!
//! Its arguments are an address, the length of the listen backlog, and the reply.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, backlog, hello] = &args[..] else {
        return Err("three arguments are required".into());
    };
    let (address, backlog): (SocketAddr, u32) = (address.parse()?, backlog.parse()?);
    let hello = Bytes::from(hello.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(backlog)?;
        let mut http = http1::Builder::new();
        // Sends the replies to pipelined requests together.
        http.pipeline_flush(true);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let hello = hello.clone();
            let service = service_fn(move |_: Request<Incoming>| answer(hello.clone()));
            let connection = http.serve_connection(TokioIo::new(stream), service);
            // Errors of a connection are ignored.
            tokio::spawn(async { drop(connection.await) });
        }
    })
}

async fn answer(hello: Bytes) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(hello));
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    Ok(response)
}
