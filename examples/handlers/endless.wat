;; Hostile: loops for ever. The sandbox stops it, and disables it after a few messages.
(module
  (memory (export "memory") 1 1)
  (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
    (loop $again (br $again))
    (i32.const 1)))
