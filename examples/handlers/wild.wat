;; Hostile: writes to the message area, then behind all memory. The first store already traps.
(module
  (memory (export "memory") 1 1)
  (func (export "ash_handle") (param $offset i32) (param i32 i64 i32) (result i32)
    (i32.store (local.get $offset) (i32.const -1))
    (i32.store (i32.const 0x7fff0000) (i32.const -1))
    (i32.const 1)))
