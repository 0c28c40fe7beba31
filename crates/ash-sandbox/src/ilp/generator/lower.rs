//! Lowers a list of pipes to Cranelift's instructions: a loop over blocks of vectors, if all pipes of the list work lane by
//! lane, one over the units that are left, and the same steps for the end of the message, which is shorter than a unit.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Function, InstBuilder, SigRef, UserFuncName, Value, types};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

use super::lanes::Lanes;
use super::vectors::{BLOCK_BYTES, Vectors};
use super::words::{LITTLE_ENDIAN, TRUSTED, Words, crc32c_signature};
use crate::ilp::program::Program;
use crate::ilp::{Mode, UNIT_BYTES};

/// Writes the loops into a function with the parameters registers, source, destination, bytes, keystreams.
pub(super) fn build(
    function: &mut Function,
    context: &mut FunctionBuilderContext,
    target: TargetFrontendConfig,
    of: &Program,
    lanes: Option<&[Lanes]>,
) {
    function.name = UserFuncName::default();
    let mut builder = FunctionBuilder::new(function, context);
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let &[registers, source, destination, len, keystreams] = builder.block_params(entry) else {
        unreachable!("the signature has five parameters");
    };
    let at = builder.declare_var(types::I64);
    let zero = builder.ins().iconst(types::I64, 0);
    builder.def_var(at, zero);
    let persistent: Vec<Variable> =
        of.initial.iter().map(|_| builder.declare_var(types::I64)).collect();
    for (slot, variable) in persistent.iter().enumerate() {
        let value = builder.ins().load(types::I64, TRUSTED, registers, slot as i32 * 8);
        builder.def_var(*variable, value);
    }
    let end = builder.ins().band_imm_s(len, -(UNIT_BYTES as i64));
    let rest = builder.ins().band_imm_u(len, UNIT_BYTES as i64 - 1);
    let call = builder.import_signature(crc32c_signature(builder.func.signature.call_conv));
    let mut loops =
        Loops { builder, of, persistent, call, at, source, destination, keystreams, end, rest };
    if let Some(lanes) = lanes {
        loops.blocks(lanes);
    }
    loops.units();
    loops.tail();
    let Loops { mut builder, persistent, .. } = loops;
    for (slot, variable) in persistent.iter().enumerate() {
        let value = builder.use_var(*variable);
        builder.ins().store(TRUSTED, value, registers, slot as i32 * 8);
    }
    builder.ins().return_(&[]);
    builder.seal_all_blocks();
    builder.finalize(target);
}

struct Loops<'a> {
    builder: FunctionBuilder<'a>,
    of: &'a Program,
    persistent: Vec<Variable>,
    call: SigRef,
    /// How far the loops are, in bytes.
    at: Variable,
    source: Value,
    destination: Value,
    keystreams: Value,
    /// The bytes of all units.
    end: Value,
    /// The bytes behind them.
    rest: Value,
}

impl<'b> Loops<'b> {
    /// The loop over blocks. It has at least one turn, or is not entered: registers that are wider than what it adds to them
    /// stay as they are.
    fn blocks(&mut self, lanes: &[Lanes]) {
        let [begin, body, exit, after] = [(); 4].map(|()| self.builder.create_block());
        let end = self.builder.ins().band_imm_s(self.end, -(BLOCK_BYTES as i64));
        self.builder.ins().brif(end, begin, &[], after, &[]);

        self.builder.switch_to_block(begin);
        let mut vectors = Vectors::new(&mut self.builder, &self.persistent, self.keystreams, lanes);
        vectors.builder.ins().jump(body, &[]);

        vectors.builder.switch_to_block(body);
        let place = vectors.builder.use_var(self.at);
        let address = vectors.builder.ins().iadd(self.source, place);
        let mut block = vectors.load(address);
        for (placed, lanes) in self.of.pipes.iter().zip(lanes) {
            block = vectors.pipe(placed, lanes, place, block);
        }
        if self.of.mode == Mode::Write {
            let address = vectors.builder.ins().iadd(self.destination, place);
            vectors.store(address, block);
        }
        let next = vectors.builder.ins().iadd_imm_s(place, BLOCK_BYTES as i64);
        vectors.builder.def_var(self.at, next);
        let more = vectors.builder.ins().icmp(IntCC::UnsignedLessThan, next, end);
        vectors.builder.ins().brif(more, body, &[], exit, &[]);

        vectors.builder.switch_to_block(exit);
        vectors.finish(&self.persistent, lanes);
        self.builder.ins().jump(after, &[]);
        self.builder.switch_to_block(after);
    }

    /// The loop over the units that are left.
    fn units(&mut self) {
        let [head, body, exit] = [(); 3].map(|()| self.builder.create_block());
        self.builder.ins().jump(head, &[]);

        self.builder.switch_to_block(head);
        let place = self.builder.use_var(self.at);
        let more = self.builder.ins().icmp(IntCC::UnsignedLessThan, place, self.end);
        self.builder.ins().brif(more, body, &[], exit, &[]);

        self.builder.switch_to_block(body);
        let address = self.builder.ins().iadd(self.source, place);
        let mut unit = self.builder.ins().load(types::I64, LITTLE_ENDIAN, address, 0);
        for placed in &self.of.pipes {
            unit = self.words(place).pipe(placed, unit);
        }
        if self.of.mode == Mode::Write {
            let address = self.builder.ins().iadd(self.destination, place);
            self.builder.ins().store(LITTLE_ENDIAN, unit, address, 0);
        }
        let next = self.builder.ins().iadd_imm_s(place, UNIT_BYTES as i64);
        self.builder.def_var(self.at, next);
        self.builder.ins().jump(head, &[]);
        self.builder.switch_to_block(exit);
    }

    /// The pipes for the bytes behind the last unit, if there are any.
    fn tail(&mut self) {
        let (of, rest) = (self.of, self.rest);
        let source = self.builder.ins().iadd(self.source, self.end);
        let destination = self.builder.ins().iadd(self.destination, self.end);
        self.words(self.end).when(rest, |words| {
            let mut tail = words.load_tail(source, rest);
            for placed in &of.pipes {
                tail = words.pipe_tail(placed, tail, rest);
            }
            if of.mode == Mode::Write {
                words.store_tail(destination, tail, rest);
            }
        });
    }

    /// The body for the unit at this place.
    fn words(&mut self, place: Value) -> Words<'_, 'b> {
        let (persistent, call, keystreams) = (&self.persistent, self.call, self.keystreams);
        Words { builder: &mut self.builder, persistent, call, place, keystreams }
    }
}
