;; Answers `get KEY` of memcached's protocol from a table that the application shares (ASH, section 5.4.1). The
;; application writes each item to the bucket of its key, over what was there; what is not there, and every other
;; command, reaches the application.
;;
;; The table begins with the number of buckets, a power of two, in 64 bytes; then come buckets of 512 bytes:
;;   0   version: odd while the application writes the bucket, 0 if it never did
;;   8   length of the key     12  length of the reply
;;   16  key, up to 112 bytes  128 reply, up to 384 bytes: VALUE KEY FLAGS LENGTH\r\nDATA\r\nEND\r\n
;; The bucket of a key is the lowest bits of its FNV-1a hash of 32 bits.
(module
  (import "ash" "table" (func $table (result i32)))
  (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  ;; A copy of the bucket is at 4096.
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    (local $table i32) (local $key i32) (local $len i32) (local $n i32) (local $byte i32) (local $hash i32)
    (local $version i64)
    (local.set $table (call $table))
    (if (i32.lt_s (local.get $table) (i32.const 0)) (then (return (i32.const 0))))
    ;; "get ", a key of 1 to 112 bytes, "\r\n"
    (local.set $len (i32.sub (local.get $length) (i32.const 6)))
    (if (i32.gt_u (i32.sub (local.get $len) (i32.const 1)) (i32.const 111)) (then (return (i32.const 0))))
    (if (i32.ne (i32.load (local.get $offset)) (i32.const 0x20746567)) (then (return (i32.const 0))))
    (local.set $key (i32.add (local.get $offset) (i32.const 4)))
    (if (i32.ne (i32.load16_u (i32.add (local.get $key) (local.get $len))) (i32.const 0x0a0d))
      (then (return (i32.const 0))))
    (local.set $hash (i32.const 0x811c9dc5))
    (loop $next
      (local.set $byte (i32.load8_u (i32.add (local.get $key) (local.get $n))))
      ;; Several keys, or several commands.
      (if (i32.le_u (local.get $byte) (i32.const 0x20)) (then (return (i32.const 0))))
      (local.set $hash (i32.mul (i32.xor (local.get $hash) (local.get $byte)) (i32.const 0x01000193)))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $n) (local.get $len))))
    (local.set $hash (i32.and (local.get $hash)
      (i32.sub (i32.load (local.get $table)) (i32.const 1))))
    (local.set $table (i32.add (i32.add (local.get $table) (i32.const 64))
      (i32.shl (local.get $hash) (i32.const 9))))
    (local.set $version (i64.load (local.get $table)))
    (if (i64.eqz (local.get $version)) (then (return (i32.const 0))))
    ;; The application writes: a handler must not wait, so it aborts.
    (if (i32.wrap_i64 (i64.and (local.get $version) (i64.const 1))) (then (return (i32.const -1))))
    (if (call $copy (i32.const 4096) (local.get $table) (i32.const 512)) (then (return (i32.const -1))))
    (if (i64.ne (i64.load (local.get $table)) (local.get $version)) (then (return (i32.const -1))))
    (if (i32.ne (i32.load (i32.const 4104)) (local.get $len)) (then (return (i32.const 0))))
    (local.set $n (i32.const 0))
    (loop $next
      (if (i32.ne (i32.load8_u offset=4112 (local.get $n))
            (i32.load8_u (i32.add (local.get $key) (local.get $n))))
        (then (return (i32.const 0))))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $n) (local.get $len))))
    (if (call $send (i32.const 4224) (i32.load (i32.const 4108))) (then (return (i32.const -1))))
    (i32.const 1)))
