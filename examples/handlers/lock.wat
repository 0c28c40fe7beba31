;; Active messages with remote locks (ASH, section 6.3.3): `a` and the number of a lock acquires it for the
;; connection, `r` and its number releases it. The reply is the message. A handler must not wait (5.4.1): if the
;; lock is held, it aborts, and the application gets the message, to queue it or to refuse it.
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  ;; At 1024: for each of 256 locks the connection that holds it, plus one; 0 is free.
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    (local $lock i32) (local $owner i64) (local $what i32)
    (if (i32.ne (local.get $length) (i32.const 2)) (then (return (i32.const 0))))
    (local.set $what (i32.load8_u (local.get $offset)))
    (local.set $lock (i32.add (i32.const 1024)
      (i32.shl (i32.load8_u offset=1 (local.get $offset)) (i32.const 3))))
    (local.set $owner (i64.add (local.get $connection) (i64.const 1)))
    (if (i32.eq (local.get $what) (i32.const 0x61)) (then
      (if (i64.ne (i64.load (local.get $lock)) (i64.const 0)) (then (return (i32.const -1))))
      (i64.store (local.get $lock) (local.get $owner))
      (drop (call $send (local.get $offset) (i32.const 2)))
      (return (i32.const 1))))
    (if (i32.eq (local.get $what) (i32.const 0x72)) (then
      (if (i64.ne (i64.load (local.get $lock)) (local.get $owner)) (then (return (i32.const 0))))
      (i64.store (local.get $lock) (i64.const 0))
      (drop (call $send (local.get $offset) (i32.const 2)))
      (return (i32.const 1))))
    (i32.const 0)))
