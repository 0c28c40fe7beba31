;; Hostile: sends as much as it can for each message, and does not stop at the maximum.
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
    (loop $again
      (drop (call $send (i32.const 0) (i32.const 65536)))
      (br $again))
    (i32.const 1)))
