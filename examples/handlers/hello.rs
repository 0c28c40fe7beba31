//! Answers `GET /hello`; other requests reach the application.

#![no_std]

use ash_guest::{Message, Verdict, handler};

handler!(hello);

const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\nHello from a handler\n";

fn hello(message: &Message<'_>) -> Verdict {
    if !message.bytes().starts_with(b"GET /hello ") || !message.bytes().ends_with(b"\r\n\r\n") {
        return Verdict::Pass;
    }
    match message.send(RESPONSE) {
        Ok(()) => Verdict::Handled,
        Err(_) => Verdict::Abort,
    }
}
