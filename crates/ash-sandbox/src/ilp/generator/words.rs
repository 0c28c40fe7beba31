//! Lowers pipes to Cranelift's instructions, a unit at a time. Values are 64 bits wide, as registers are; what is narrower
//! has zeros above.

use std::sync::Arc;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Endianness, InstBuilder, MemFlagsData, SigRef, Signature, Type, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};

use crate::ilp::castagnoli;
use crate::ilp::instruction::{Binary, Class, Instruction, Operand, Register, Unary};
use crate::ilp::program::Placed;
use crate::ilp::state::KEYSTREAM_BYTES;
use crate::ilp::{Gauge, MAX_TEMPORARY, UNIT_BYTES};

/// Loads and stores of aligned memory that is known to be there.
pub(super) const TRUSTED: MemFlagsData = MemFlagsData::trusted();
/// Loads and stores of the message, at any alignment. They cannot trap: the range was checked.
pub(super) const LITTLE_ENDIAN: MemFlagsData =
    MemFlagsData::new().with_endianness(Endianness::Little).with_notrap();

/// The signature of the functions that update a CRC32C: the CRC and a word, the CRC.
pub(super) fn crc32c_signature(convention: CallConv) -> Signature {
    let mut signature = Signature::new(convention);
    signature.params = vec![AbiParam::new(types::I64); 2];
    signature.returns = vec![AbiParam::new(types::I64)];
    signature
}

/// The loop's body for one unit.
pub(super) struct Words<'a, 'b> {
    pub(super) builder: &'a mut FunctionBuilder<'b>,
    pub(super) persistent: &'a [Variable],
    /// The functions that update a CRC32C.
    pub(super) call: SigRef,
    /// How far the loop is, in bytes.
    pub(super) place: Value,
    pub(super) keystreams: Value,
}

impl Words<'_, '_> {
    /// Has a unit pass through a pipe, step by step.
    pub(super) fn pipe(&mut self, placed: &Placed, unit: Value) -> Value {
        let mut given: Option<Value> = None;
        for first in (0..UNIT_BYTES).step_by(placed.pipe.step_bytes()) {
            let stream = self.keystream(placed, first);
            let bytes = self.step(placed, unit, first, stream);
            given = Some(given.map_or(bytes, |before| self.builder.ins().bor(before, bytes)));
        }
        given.unwrap_or(unit)
    }

    /// Lowers a pipe's body for the step that begins `first` bytes into the unit. Returns what it gives, in its place in the
    /// unit.
    pub(super) fn step(
        &mut self,
        placed: &Placed,
        unit: Value,
        first: usize,
        stream: Option<Value>,
    ) -> Value {
        let pipe = &placed.pipe;
        let gauges = (pipe.input, pipe.output);
        self.body(placed, &pipe.body, gauges, unit, first, stream)
    }

    /// As [`step`](Words::step), for a body that takes and gives words of these gauges.
    pub(super) fn body(
        &mut self,
        placed: &Placed,
        body: &[Instruction],
        (input, output): (Gauge, Gauge),
        unit: Value,
        first: usize,
        stream: Option<Value>,
    ) -> Value {
        let registers = &self.persistent[placed.first_register..][..placed.pipe.initial.len()];
        let mut temporaries: [Option<Value>; MAX_TEMPORARY] = [None; MAX_TEMPORARY];
        let [mut taken, mut place] = [first as u32 * 8; 2];
        let mut given: Option<Value> = None;
        for instruction in body {
            let get = |builder: &mut FunctionBuilder<'_>, operand: Operand| match operand {
                Operand::Constant(constant) => builder.ins().iconst(types::I64, constant as i64),
                Operand::Register(Register { class: Class::Persistent, index }) => {
                    builder.use_var(registers[usize::from(index)])
                }
                Operand::Register(Register { class: Class::Temporary, index }) => {
                    temporaries[usize::from(index)].expect("written before it is read: checked")
                }
            };
            let (to, value) = match instruction {
                Instruction::Input { to } => {
                    let word = self.shift_right(unit, taken);
                    taken += input.bits();
                    (*to, self.cut(input, word))
                }
                Instruction::Output { from } => {
                    let word = get(self.builder, *from);
                    let word = self.cut(output, word);
                    let word = self.shift_left(word, place);
                    place += output.bits();
                    given = Some(given.map_or(word, |before| self.builder.ins().bor(before, word)));
                    continue;
                }
                Instruction::Unary { operation, gauge, to, from } => {
                    let word = get(self.builder, *from);
                    (*to, self.unary(*operation, *gauge, word))
                }
                Instruction::Binary { operation, gauge, to, left, right } => {
                    let left = get(self.builder, *left);
                    let right = get(self.builder, *right);
                    (*to, self.binary(*operation, *gauge, left, right))
                }
                Instruction::Select { to, condition, then, otherwise } => {
                    let condition = get(self.builder, *condition);
                    let then = get(self.builder, *then);
                    let otherwise = get(self.builder, *otherwise);
                    (*to, self.builder.ins().select(condition, then, otherwise))
                }
                Instruction::Crc32c { gauge, to, word } => {
                    let crc = get(self.builder, (*to).into());
                    let word = get(self.builder, *word);
                    (*to, self.crc32c(*gauge, crc, word))
                }
                Instruction::Lookup { to, table, index } => {
                    let index = get(self.builder, *index);
                    (*to, self.lookup(table, index))
                }
                Instruction::Keystream { to } => (*to, stream.expect("the pipe has a keystream")),
            };
            match to.class {
                Class::Temporary => temporaries[usize::from(to.index)] = Some(value),
                Class::Persistent => {
                    self.builder.def_var(registers[usize::from(to.index)], value);
                }
            }
        }
        given.expect("a body gives as much as it takes: checked")
    }

    fn unary(&mut self, operation: Unary, gauge: Gauge, word: Value) -> Value {
        let word = self.narrow(gauge, word);
        let ins = self.builder.ins();
        let result = match operation {
            Unary::Move => word,
            Unary::Not => ins.bnot(word),
            // A byte has one order only.
            Unary::SwapBytes if gauge == Gauge::Bits8 => word,
            Unary::SwapBytes => ins.bswap(word),
            Unary::CountOnes => ins.popcnt(word),
            Unary::TrailingZeros => ins.ctz(word),
        };
        self.widen(gauge, result)
    }

    fn binary(&mut self, operation: Binary, gauge: Gauge, left: Value, right: Value) -> Value {
        if operation == Binary::AddEndAroundCarry {
            return self.add_end_around_carry(gauge, left, right);
        }
        let (left, right) = (self.narrow(gauge, left), self.narrow(gauge, right));
        let ins = self.builder.ins();
        let result = match operation {
            Binary::Add => ins.iadd(left, right),
            Binary::Subtract => ins.isub(left, right),
            Binary::Multiply => ins.imul(left, right),
            Binary::And => ins.band(left, right),
            Binary::Or => ins.bor(left, right),
            Binary::Xor => ins.bxor(left, right),
            // Cranelift takes shifts modulo the width, as the instructions do.
            Binary::ShiftLeft => ins.ishl(left, right),
            Binary::ShiftRight => ins.ushr(left, right),
            Binary::RotateLeft => ins.rotl(left, right),
            Binary::Equal => return self.compare(IntCC::Equal, left, right),
            Binary::LessThan => return self.compare(IntCC::UnsignedLessThan, left, right),
            Binary::AddEndAroundCarry => unreachable!("done above"),
        };
        self.widen(gauge, result)
    }

    fn compare(&mut self, condition: IntCC, left: Value, right: Value) -> Value {
        let result = self.builder.ins().icmp(condition, left, right);
        self.builder.ins().uextend(types::I64, result)
    }

    fn add_end_around_carry(&mut self, gauge: Gauge, left: Value, right: Value) -> Value {
        let (left, right) = (self.cut(gauge, left), self.cut(gauge, right));
        let sum = self.builder.ins().iadd(left, right);
        let carry = match gauge {
            Gauge::Bits64 => self.compare(IntCC::UnsignedLessThan, sum, left),
            _ => self.shift_right(sum, gauge.bits()),
        };
        let sum = self.cut(gauge, sum);
        self.builder.ins().iadd(sum, carry)
    }

    /// Calls a function, as Cranelift has no such instruction.
    fn crc32c(&mut self, gauge: Gauge, crc: Value, word: Value) -> Value {
        let function = match gauge {
            Gauge::Bits8 => castagnoli::update_1_byte as *const () as usize,
            Gauge::Bits16 => castagnoli::update_2_bytes as *const () as usize,
            Gauge::Bits32 => castagnoli::update_4_bytes as *const () as usize,
            Gauge::Bits64 => castagnoli::word_update_address(),
        };
        let function = self.builder.ins().iconst(types::I64, function as i64);
        let call = self.builder.ins().call_indirect(self.call, function, &[crc, word]);
        self.builder.inst_results(call)[0]
    }

    fn lookup(&mut self, table: &Arc<[u64; 256]>, index: Value) -> Value {
        let index = self.cut(Gauge::Bits8, index);
        let offset = self.shift_left(index, 3);
        let table = self.builder.ins().iconst(types::I64, Arc::as_ptr(table) as i64);
        let address = self.builder.ins().iadd(table, offset);
        self.builder.ins().load(types::I64, TRUSTED, address, 0)
    }

    /// The bytes of a pipe's keystream for the step that begins `first` bytes into the unit.
    pub(super) fn keystream(&mut self, placed: &Placed, first: usize) -> Option<Value> {
        let number = placed.keystream?;
        let address = self.builder.ins().iadd(self.keystreams, self.place);
        let offset = (number * KEYSTREAM_BYTES + first) as i32;
        let narrow = match placed.pipe.step_bytes() {
            1 => types::I8,
            2 => types::I16,
            4 => types::I32,
            _ => types::I64,
        };
        let word = self.builder.ins().load(narrow, LITTLE_ENDIAN, address, offset);
        Some(match narrow {
            types::I64 => word,
            _ => self.builder.ins().uextend(types::I64, word),
        })
    }

    /// The low bits of a word, the others zero.
    fn cut(&mut self, gauge: Gauge, word: Value) -> Value {
        match gauge {
            Gauge::Bits64 => word,
            _ => self.builder.ins().band_imm_u(word, gauge.mask() as i64),
        }
    }

    fn narrow(&mut self, gauge: Gauge, word: Value) -> Value {
        match width(gauge) {
            types::I64 => word,
            narrow => self.builder.ins().ireduce(narrow, word),
        }
    }

    fn widen(&mut self, gauge: Gauge, word: Value) -> Value {
        match gauge {
            Gauge::Bits64 => word,
            _ => self.builder.ins().uextend(types::I64, word),
        }
    }

    fn shift_left(&mut self, word: Value, bits: u32) -> Value {
        if bits == 0 { word } else { self.builder.ins().ishl_imm_u(word, i64::from(bits)) }
    }

    fn shift_right(&mut self, word: Value, bits: u32) -> Value {
        if bits == 0 { word } else { self.builder.ins().ushr_imm_u(word, i64::from(bits)) }
    }
}

pub(super) fn width(gauge: Gauge) -> Type {
    match gauge {
        Gauge::Bits8 => types::I8,
        Gauge::Bits16 => types::I16,
        Gauge::Bits32 => types::I32,
        Gauge::Bits64 => types::I64,
    }
}
