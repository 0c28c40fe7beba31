//! axum on hyper as a server that the lab measures: one thread of tokio.
//!
//! Its arguments are an address, the length of the listen backlog, and the reply.

use std::error::Error;
use std::net::SocketAddr;

use axum::serve::ListenerExt;
use tokio::net::TcpSocket;

mod router;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, backlog, hello] = &args[..] else {
        return Err("three arguments are required".into());
    };
    let (address, backlog): (SocketAddr, u32) = (address.parse()?, backlog.parse()?);
    let router = router::router(hello.clone().leak());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(backlog)?.tap_io(|stream| {
            // Fails only if the connection has ended.
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, router).await?;
        Ok(())
    })
}
