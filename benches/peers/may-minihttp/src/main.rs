//! may_minihttp as a server that the lab measures: coroutines on one thread, a handler that answers
//! at once.
//!
//! Its arguments are an address, the length of the listen backlog, which is ignored, and the reply.

use std::error::Error;
use std::io;

use may_minihttp::{HttpServer, HttpService, Request, Response};

#[derive(Clone)]
struct Hello(&'static str);

impl HttpService for Hello {
    fn call(&mut self, _: Request, reply: &mut Response) -> io::Result<()> {
        reply.header("Content-Type: text/plain; charset=utf-8").body(self.0);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, _, hello] = &args[..] else { return Err("three arguments are required".into()) };
    may::config().set_workers(1).set_pool_capacity(1_000).set_stack_size(0x1000);
    let server = HttpServer(Hello(hello.clone().leak())).start(address.as_str())?;
    server.join().map_err(|_| "the server has ended")?;
    Ok(())
}
