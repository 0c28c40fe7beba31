;; Active messages with remote locks (ASH, section 6.3.3): `a` and the number of a lock acquires it for the
;; connection, `r` and its number releases it. The reply is the message. A handler must not wait (5.4.1): if the
;; lock is held, it aborts, and the application gets the message, to queue it or to refuse it.
;;
;; The locks are the sections of a table that the application shares, `SharedTable::with_sections(256, 8)`: a word with
;; the connection that holds the lock, plus one; 0 is free. No handler learns that a connection has closed: the
;; application, in `Application::closed`, sets the words that name it to 0. `release_of` in
;; `crates/ash-sandbox/tests/example_handlers.rs` does so.
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (import "ash" "lock" (func $lock (param i32) (result i32)))
  (import "ash" "store" (func $store (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    (local $word i32) (local $owner i64) (local $what i32)
    (if (i32.ne (local.get $length) (i32.const 2)) (then (return (i32.const 0))))
    (local.set $what (i32.load8_u (local.get $offset)))
    (local.set $word (call $lock (i32.load8_u offset=1 (local.get $offset))))
    ;; The application is changing this lock.
    (if (i32.lt_s (local.get $word) (i32.const 0)) (then (return (i32.const -1))))
    (local.set $owner (i64.add (local.get $connection) (i64.const 1)))
    (if (i32.eq (local.get $what) (i32.const 0x61))
      (then
        (if (i64.ne (i64.load (local.get $word)) (i64.const 0)) (then (return (i32.const -1))))
        (i64.store (i32.const 0) (local.get $owner)))
      (else
        (if (i32.ne (local.get $what) (i32.const 0x72)) (then (return (i32.const 0))))
        (if (i64.ne (i64.load (local.get $word)) (local.get $owner)) (then (return (i32.const 0))))
        (i64.store (i32.const 0) (i64.const 0))))
    (if (call $store (local.get $word) (i32.const 0) (i32.const 8)) (then (return (i32.const -1))))
    (drop (call $send (local.get $offset) (i32.const 2)))
    (i32.const 1)))
