;; Remote write for trusted peers (ASH, section 6.2): the message has an address in the handler's memory, four
;; bytes, little-endian, and the data that are copied there. `lab run ash-sandbox` measures it.
(module
  (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    (if (i32.lt_u (local.get $length) (i32.const 4)) (then (return (i32.const 2))))
    ;; The trusted copy checks the range, so a wrong address harms nothing but is useless.
    (if (call $copy (i32.load (local.get $offset))
          (i32.add (local.get $offset) (i32.const 4))
          (i32.sub (local.get $length) (i32.const 4)))
      (then (return (i32.const 2))))
    (i32.const 1)))
