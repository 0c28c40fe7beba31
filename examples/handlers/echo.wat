;; Answers each message with itself, from where it has landed.
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    ;; 1, handled, if the send succeeds (0); else 3, a voluntary abort.
    (select
      (i32.const 3)
      (i32.const 1)
      (call $send (local.get $offset) (local.get $length)))))
