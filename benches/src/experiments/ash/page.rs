//! A page that handlers send, and the handlers that send it.

use ash_sandbox::sandbox::{Handler, NativeCalls, Sandboxer};

use super::policy;
use crate::failure::Failure;

/// A request for the page.
pub(super) const REQUEST: &[u8] = b"GET /1k.txt HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Returns the reply with a page of this size.
pub(super) fn reply(bytes: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
    [head.as_bytes(), &b"x".repeat(bytes)].concat()
}

/// Returns the module of a handler that sends this reply to requests for the page. With a lock, it first takes that of the
/// first section of its table, or aborts.
pub(super) fn module(reply: &[u8], has_lock: bool) -> String {
    let data: String = reply.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let (first, second) = (u64::from_le_bytes(*b"GET /1k."), u64::from_le_bytes(*b"txt HTTP"));
    let len = reply.len();
    let (import, lock) = if has_lock {
        (
            r#"(import "ash" "lock" (func $lock (param i32) (result i32)))"#,
            "(if (i32.lt_s (call $lock (i32.const 0)) (i32.const 0)) (then (return (i32.const -1))))",
        )
    } else {
        ("", "")
    };
    format!(
        r#"(module
            (import "ash" "send" (func $send (param i32 i32) (result i32)))
            {import}
            (memory (export "memory") 1 1)
            (data (i32.const 0) "{data}")
            (func (export "ash_handle") (param $offset i32) (param $length i32) (param i64 i32) (result i32)
                {lock}
                (if (i32.lt_u (local.get $length) (i32.const 16)) (then (return (i32.const 0))))
                (if (i64.ne (i64.load (local.get $offset)) (i64.const {first}))
                    (then (return (i32.const 0))))
                (if (i64.ne (i64.load offset=8 (local.get $offset)) (i64.const {second}))
                    (then (return (i32.const 0))))
                (drop (call $send (i32.const 0) (i32.const {len})))
                (i32.const 1)))"#
    )
}

/// Returns whether a message requests the page, by what [`module`] compares.
pub(super) fn is_request(message: &[u8]) -> bool {
    message.starts_with(b"GET /1k.txt HTTP")
}

/// Returns an unsafe handler that does what [`module`] does, without a lock.
pub(super) fn native(reply: Vec<u8>) -> Result<Handler, Failure> {
    let mut reply = Some(reply);
    let mut len = 0;
    let entry = move |calls: &mut NativeCalls<'_>| {
        let (message, memory) = calls.memory();
        if !is_request(message) {
            return 0;
        }
        if let Some(reply) = reply.take() {
            len = reply.len();
            memory[..len].copy_from_slice(&reply);
        }
        i32::from(calls.send(0, len as u32) == 0)
    };
    let trusted = Sandboxer::new(policy()).and_then(|sandboxer| sandboxer.trust(1, 1 << 16, entry));
    trusted.map_err(|e| Failure::new("cannot create an unsafe handler", e))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ash_sandbox::sandbox::{Outcome, Pass, SharedTable};

    use super::super::{load, load_with};
    use super::*;

    #[test]
    fn handlers_answer_requests_for_their_page_only() {
        let sandboxed = load(&module(b"a reply", false));
        for mut handler in [sandboxed, native(b"a reply".to_vec())].map(Result::unwrap) {
            assert_eq!(handler.handle_copy(REQUEST, 1, Instant::now()), Outcome::Handled);
            assert_eq!(handler.sent(REQUEST).collect::<Vec<_>>(), [b"a reply"]);
            for other in [&b"GET /1k.txt"[..], b"GET /2k.txt HTTP/1.1", b"GET /1k.html HTTP/1.1"] {
                let passed = Outcome::Passed(Pass::ByHandler);
                assert_eq!(handler.handle_copy(other, 1, Instant::now()), passed);
            }
        }
    }

    #[test]
    fn handler_that_finds_the_lock_taken_aborts() {
        let table = SharedTable::with_sections(1, 8).unwrap();
        let mut handler = load_with(&module(b"a reply", true), policy(), Some(&table)).unwrap();
        let mut outcome = || handler.handle_copy(REQUEST, 1, Instant::now());
        let lock = table.try_lock(0).unwrap();
        assert_eq!(outcome(), Outcome::Passed(Pass::Voluntary));
        drop(lock);
        assert_eq!(outcome(), Outcome::Handled);
    }
}
