;; Remote write for peers that are not trusted (ASH, section 6.2): the message has a segment, an offset in it and
;; a size, four bytes each, little-endian, and the data. A table says where the segments are; what does not fit
;; its segment is discarded.
(module
  (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  ;; At 0: the number of segments. From 8 on: the base and the size of each.
  (data (i32.const 0) "\02\00\00\00\00\00\00\00"
    "\00\10\00\00\00\10\00\00"
    "\00\40\00\00\40\00\00\00")
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    (local $segment i32) (local $at i32) (local $size i32) (local $room i32)
    (if (i32.lt_u (local.get $length) (i32.const 12)) (then (return (i32.const 2))))
    (local.set $segment (i32.load (local.get $offset)))
    (local.set $at (i32.load offset=4 (local.get $offset)))
    (local.set $size (i32.load offset=8 (local.get $offset)))
    (if (i32.ge_u (local.get $segment) (i32.load (i32.const 0))) (then (return (i32.const 2))))
    (local.set $segment (i32.add (i32.const 8) (i32.shl (local.get $segment) (i32.const 3))))
    (local.set $room (i32.load offset=4 (local.get $segment)))
    (if (i32.gt_u (local.get $at) (local.get $room)) (then (return (i32.const 2))))
    (if (i32.gt_u (local.get $size) (i32.sub (local.get $room) (local.get $at)))
      (then (return (i32.const 2))))
    (if (i32.ne (local.get $size) (i32.sub (local.get $length) (i32.const 12)))
      (then (return (i32.const 2))))
    (drop (call $copy (i32.add (i32.load (local.get $segment)) (local.get $at))
      (i32.add (local.get $offset) (i32.const 12))
      (local.get $size)))
    (i32.const 1)))
