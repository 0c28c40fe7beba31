//! The floor for tokio: a current-thread runtime with a task per connection.

use std::cell::Cell;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;

use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::connection::{BUFFER, Task};

/// Counter of reads, writes and accepts. The runtime does not count its waits.
type Calls = Rc<Cell<u64>>;

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let calls = Calls::default();
    LocalSet::new().block_on(&runtime, accept(listener, task, Rc::clone(&calls)))?;
    Ok(calls.get())
}

async fn accept(listener: TcpListener, task: Task, calls: Calls) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                calls.set(calls.get() + 1);
                tokio::task::spawn_local(reply(stream, task, Rc::clone(&calls)));
            }
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

async fn reply(mut stream: TcpStream, task: Task, calls: Calls) {
    let mut buffer = [0; BUFFER];
    // `read` instead of `readable` and `try_read`: after a short read tokio treats the socket as
    // empty, which saves a read that fails.
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(task.reply(&buffer[..n])).await.is_err() {
            return;
        }
        calls.set(calls.get() + 2);
    }
}
