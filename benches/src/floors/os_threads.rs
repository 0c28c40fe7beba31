//! The floor for threads of the kernel: one for each connection, in blocking calls.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::connection::{BUFFER, Task};

/// The size of a stack; only pages that were used occupy memory.
const STACK_BYTES: usize = 256 << 10;

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    let calls = Arc::new(AtomicU64::new(0));
    loop {
        calls.fetch_add(1, Ordering::Relaxed);
        match listener.accept() {
            Ok((stream, _)) => {
                let calls = Arc::clone(&calls);
                thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
                    let mut made = 0;
                    // An error ends the connection.
                    let _ = while_open(stream, task, &mut made);
                    calls.fetch_add(made, Ordering::Relaxed);
                })?;
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ECONNABORTED | libc::EINTR) => {}
                Some(libc::EINVAL) => return Ok(calls.load(Ordering::Relaxed)),
                _ => return Err(error),
            },
        }
    }
}

fn while_open(mut stream: TcpStream, task: Task, calls: &mut u64) -> io::Result<()> {
    let mut buffer = [0; BUFFER];
    loop {
        *calls += 2;
        let received = stream.read(&mut buffer)?;
        if received == 0 {
            return Ok(());
        }
        stream.write_all(task.reply(&buffer[..received]))?;
    }
}
