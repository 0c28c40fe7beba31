//! Lowers pipes for the end of the message, which is shorter than a unit. It is in the low bytes of a word, with zeros above.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use cranelift_frontend::Variable;

use super::words::{LITTLE_ENDIAN, Words};
use crate::ilp::program::Placed;
use crate::ilp::{Gauge, Tail, UNIT_BYTES};

impl Words<'_, '_> {
    /// Has `rest` bytes pass through a pipe.
    pub(super) fn pipe_tail(&mut self, placed: &Placed, tail: Value, rest: Value) -> Value {
        let step = placed.pipe.step_bytes();
        let is_padded = placed.pipe.tail == Tail::Pad;
        let given = self.steps(placed, tail, rest, if is_padded { 1 } else { step });
        match placed.pipe.tail {
            // No part of a step is left.
            _ if step == 1 => given,
            Tail::Pad => self.low_bytes(given, rest),
            Tail::Pass => {
                let whole = self.whole_steps(placed, rest);
                let left = self.high_bytes(tail, whole);
                self.builder.ins().bor(given, left)
            }
            Tail::Bytes => self.bytes(placed, tail, rest, given),
        }
    }

    /// Lowers the steps of which at least so many bytes are there. Returns what they give.
    fn steps(&mut self, placed: &Placed, tail: Value, rest: Value, at_least: usize) -> Value {
        let given = self.builder.declare_var(types::I64);
        let zero = self.builder.ins().iconst(types::I64, 0);
        self.builder.def_var(given, zero);
        // The tail is shorter than a unit.
        let firsts = (0..UNIT_BYTES).step_by(placed.pipe.step_bytes());
        for first in firsts.filter(|first| first + at_least < UNIT_BYTES) {
            let needed = self.builder.ins().iconst(types::I64, (first + at_least) as i64);
            let is_there = self.builder.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, rest, needed);
            self.when(is_there, |words| {
                let stream = words.keystream(placed, first).map(|stream| {
                    let left = words.builder.ins().iadd_imm_s(rest, -(first as i64));
                    words.low_bytes(stream, left)
                });
                let bytes = words.step(placed, tail, first, stream);
                words.join(given, bytes);
            });
        }
        self.builder.use_var(given)
    }

    /// Lowers the tail body for each byte behind the last whole step. Returns what they and the steps before them give.
    fn bytes(&mut self, placed: &Placed, tail: Value, rest: Value, before: Value) -> Value {
        let given = self.builder.declare_var(types::I64);
        self.builder.def_var(given, before);
        let whole = self.whole_steps(placed, rest);
        let bytes = self.builder.ins().isub(rest, whole);
        let gauges = (Gauge::Bits8, Gauge::Bits8);
        for first in 0..UNIT_BYTES - 1 {
            let place = self.builder.ins().iconst(types::I64, first as i64);
            // Before the whole steps' end, it wraps around.
            let number = self.builder.ins().isub(place, whole);
            let is_left = self.builder.ins().icmp(IntCC::UnsignedLessThan, number, bytes);
            self.when(is_left, |words| {
                let body = &placed.pipe.tail_body;
                let byte = words.body(placed, body, gauges, tail, first, None);
                words.join(given, byte);
            });
        }
        self.builder.use_var(given)
    }

    /// Loads `rest` bytes.
    pub(super) fn load_tail(&mut self, address: Value, rest: Value) -> Value {
        let tail = self.builder.declare_var(types::I64);
        let zero = self.builder.ins().iconst(types::I64, 0);
        self.builder.def_var(tail, zero);
        self.parts(address, rest, |words, part, address, bits| {
            let word = words.builder.ins().load(part, LITTLE_ENDIAN, address, 0);
            let word = words.builder.ins().uextend(types::I64, word);
            let word = words.builder.ins().ishl(word, bits);
            words.join(tail, word);
        });
        self.builder.use_var(tail)
    }

    /// Stores `rest` bytes.
    pub(super) fn store_tail(&mut self, address: Value, tail: Value, rest: Value) {
        self.parts(address, rest, |words, part, address, bits| {
            let word = words.builder.ins().ushr(tail, bits);
            let word = words.builder.ins().ireduce(part, word);
            words.builder.ins().store(LITTLE_ENDIAN, word, address, 0);
        });
    }

    /// Lowers something for 4, 2 and 1 bytes, those of them whose sum is `rest`. It gets their address, and their place in the
    /// word.
    fn parts(
        &mut self,
        address: Value,
        rest: Value,
        mut part: impl FnMut(&mut Self, Type, Value, Value),
    ) {
        for (bytes, width) in [(4, types::I32), (2, types::I16), (1, types::I8)] {
            let is_there = self.builder.ins().band_imm_u(rest, bytes);
            self.when(is_there, |words| {
                // Behind the larger parts.
                let place = words.builder.ins().band_imm_u(rest, UNIT_BYTES as i64 - 2 * bytes);
                let address = words.builder.ins().iadd(address, place);
                let bits = words.builder.ins().ishl_imm_u(place, 3);
                part(words, width, address, bits);
            });
        }
    }

    /// Lowers something that happens when a condition is not 0.
    pub(super) fn when(&mut self, condition: Value, then: impl FnOnce(&mut Self)) {
        let [body, after] = [(); 2].map(|()| self.builder.create_block());
        self.builder.ins().brif(condition, body, &[], after, &[]);
        self.builder.switch_to_block(body);
        then(self);
        self.builder.ins().jump(after, &[]);
        self.builder.switch_to_block(after);
    }

    /// Adds bytes, in their place, to those that a variable has.
    fn join(&mut self, variable: Variable, bytes: Value) {
        let before = self.builder.use_var(variable);
        let after = self.builder.ins().bor(before, bytes);
        self.builder.def_var(variable, after);
    }

    /// The bytes of the steps that are there as a whole.
    fn whole_steps(&mut self, placed: &Placed, rest: Value) -> Value {
        self.builder.ins().band_imm_s(rest, -(placed.pipe.step_bytes() as i64))
    }

    /// The first bytes of a word, fewer than eight, the others zero.
    fn low_bytes(&mut self, word: Value, bytes: Value) -> Value {
        let high = self.high_bytes(word, bytes);
        self.builder.ins().bxor(word, high)
    }

    /// A word without its first bytes, fewer than eight, which are zero.
    fn high_bytes(&mut self, word: Value, bytes: Value) -> Value {
        let bits = self.builder.ins().ishl_imm_u(bytes, 3);
        let high = self.builder.ins().ushr(word, bits);
        self.builder.ins().ishl(high, bits)
    }
}
