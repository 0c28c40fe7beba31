//! Lowers pipes to Cranelift's instructions on vectors, a block at a time. A lane is as wide as the pipe's gauge.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    ConstantData, Endianness, InstBuilder, MemFlagsData, Type, Value, types,
};
use cranelift_frontend::{FunctionBuilder, Variable};

use super::lanes::{Lanes, Use, identity};
use super::words::{LITTLE_ENDIAN, width};
use crate::ilp::instruction::{Binary, Class, Instruction, Operand, Unary};
use crate::ilp::program::Placed;
use crate::ilp::state::KEYSTREAM_BYTES;
use crate::ilp::{Gauge, MAX_TEMPORARY};

/// All that Cranelift has on x86-64.
pub(super) const VECTOR_BYTES: usize = 16;
/// Vectors of a block: so many that the processor adds, shifts and compares independent words at the same time.
const VECTORS: usize = 4;
pub(super) const BLOCK_BYTES: usize = VECTORS * VECTOR_BYTES;

/// As in memory: the first lane is the lowest.
const ORDER_OF_LANES: MemFlagsData = MemFlagsData::new().with_endianness(Endianness::Little);

/// A block of the message on its way through the pipes.
pub(super) type Block = [Value; VECTORS];

/// The loop's body for one block.
pub(super) struct Vectors<'a, 'b> {
    pub(super) builder: &'a mut FunctionBuilder<'b>,
    keystreams: Value,
    /// For each persistent register of the list, what the lanes have of it.
    registers: Vec<Variable>,
}

impl<'a, 'b> Vectors<'a, 'b> {
    /// Fills the lanes, before the loop.
    pub(super) fn new(
        builder: &'a mut FunctionBuilder<'b>,
        persistent: &[Variable],
        keystreams: Value,
        lanes: &[Lanes],
    ) -> Vectors<'a, 'b> {
        let mut vectors = Vectors { builder, keystreams, registers: Vec::new() };
        for ((gauge, used), register) in uses(lanes).zip(persistent) {
            let filled = match used {
                Use::Read => vectors.splat(gauge, *register),
                Use::Gather(operation) => {
                    let word = identity(operation).expect("words are gathered by such operations");
                    vectors.constant(gauge, word)
                }
            };
            let variable = vectors.builder.declare_var(of_lanes(gauge));
            vectors.builder.def_var(variable, filled);
            vectors.registers.push(variable);
        }
        vectors
    }

    /// Loads a block.
    pub(super) fn load(&mut self, address: Value) -> Block {
        std::array::from_fn(|number| self.load_vector(address, number * VECTOR_BYTES))
    }

    /// Stores a block.
    pub(super) fn store(&mut self, address: Value, block: Block) {
        for (number, vector) in block.into_iter().enumerate() {
            self.builder.ins().store(
                LITTLE_ENDIAN,
                vector,
                address,
                (number * VECTOR_BYTES) as i32,
            );
        }
    }

    /// Has a block pass through a pipe.
    pub(super) fn pipe(
        &mut self,
        placed: &Placed,
        lanes: &Lanes,
        place: Value,
        block: Block,
    ) -> Block {
        let mut gathered: Vec<Option<Value>> = vec![None; lanes.registers.len()];
        let mut given = block;
        for (number, vector) in given.iter_mut().enumerate() {
            let stream = placed.keystream.map(|stream| {
                let address = self.builder.ins().iadd(self.keystreams, place);
                let offset = stream * KEYSTREAM_BYTES + number * VECTOR_BYTES;
                let loaded = self.load_vector(address, offset);
                self.cast(lanes.gauge, loaded)
            });
            let word = self.cast(lanes.gauge, *vector);
            *vector = self.body(placed, lanes, word, stream, &mut gathered);
        }
        for (index, words) in gathered.into_iter().enumerate() {
            let (Some(words), Use::Gather(operation)) = (words, lanes.registers[index]) else {
                continue;
            };
            let variable = self.registers[placed.first_register + index];
            let before = self.builder.use_var(variable);
            let after = self.binary(operation, lanes.gauge, before, words);
            self.builder.def_var(variable, after);
        }
        given
    }

    /// Adds what the lanes have gathered to the registers, behind the loop.
    pub(super) fn finish(mut self, persistent: &[Variable], lanes: &[Lanes]) {
        for (index, (gauge, used)) in uses(lanes).enumerate() {
            let Use::Gather(operation) = used else { continue };
            let mut gathered = self.builder.use_var(self.registers[index]);
            // Half of the lanes to the other half, until each lane has the words of all.
            let mut distance = VECTOR_BYTES / 2;
            while distance >= gauge.bytes() {
                let other = self.shuffle(gauge, gathered, |at| (at + distance) % VECTOR_BYTES);
                gathered = self.binary(operation, gauge, gathered, other);
                distance /= 2;
            }
            let before = self.splat(gauge, persistent[index]);
            let after = self.binary(operation, gauge, before, gathered);
            let mut word = self.builder.ins().extractlane(after, 0);
            if gauge != Gauge::Bits64 {
                word = self.builder.ins().uextend(types::I64, word);
            }
            self.builder.def_var(persistent[index], word);
        }
    }

    /// Lowers the body for a vector of words. What it gathers is added to what other vectors have.
    fn body(
        &mut self,
        placed: &Placed,
        lanes: &Lanes,
        word: Value,
        stream: Option<Value>,
        gathered: &mut [Option<Value>],
    ) -> Value {
        let gauge = lanes.gauge;
        let registers = placed.first_register;
        let mut temporaries: [Option<Value>; MAX_TEMPORARY] = [None; MAX_TEMPORARY];
        let mut given = word;
        for instruction in &placed.pipe.body {
            let get = |vectors: &mut Self, operand: &Operand| match operand {
                Operand::Constant(constant) => vectors.constant(gauge, *constant),
                Operand::Register(register) if register.class == Class::Persistent => {
                    let variable = vectors.registers[registers + usize::from(register.index)];
                    vectors.builder.use_var(variable)
                }
                Operand::Register(register) => {
                    temporaries[usize::from(register.index)].expect("written before it is read")
                }
            };
            let (to, value) = match instruction {
                Instruction::Input { to } => (to, word),
                Instruction::Output { from } => {
                    given = get(self, from);
                    continue;
                }
                Instruction::Keystream { to } => (to, stream.expect("the pipe has a keystream")),
                Instruction::Unary { operation, to, from, .. } => {
                    let from = get(self, from);
                    (to, self.unary(*operation, gauge, from))
                }
                Instruction::Binary { operation, to, left, right, .. }
                    if to.class == Class::Persistent =>
                {
                    let other = if *left == (*to).into() { right } else { left };
                    let mut words = get(self, other);
                    let gathered = &mut gathered[usize::from(to.index)];
                    if let Some(before) = *gathered {
                        words = self.binary(*operation, gauge, before, words);
                    }
                    *gathered = Some(words);
                    continue;
                }
                Instruction::Binary { operation, to, left, right, .. } => {
                    let left = get(self, left);
                    let value = match (is_shift(*operation), right) {
                        (true, Operand::Constant(bits)) => {
                            self.shift(*operation, gauge, left, *bits as u32 % gauge.bits())
                        }
                        _ => {
                            let right = get(self, right);
                            self.binary(*operation, gauge, left, right)
                        }
                    };
                    (to, value)
                }
                Instruction::Select { to, condition, then, otherwise } => {
                    let condition = get(self, condition);
                    let (then, otherwise) = (get(self, then), get(self, otherwise));
                    let zero = self.constant(gauge, 0);
                    let mask = self.builder.ins().icmp(IntCC::NotEqual, condition, zero);
                    (to, self.builder.ins().bitselect(mask, then, otherwise))
                }
                Instruction::Crc32c { .. } | Instruction::Lookup { .. } => {
                    unreachable!("the pipe works by lanes: checked")
                }
            };
            temporaries[usize::from(to.index)] = Some(value);
        }
        given
    }

    fn unary(&mut self, operation: Unary, gauge: Gauge, word: Value) -> Value {
        match operation {
            Unary::Move => word,
            Unary::Not => self.builder.ins().bnot(word),
            Unary::SwapBytes => self.shuffle(gauge, word, |at| at ^ (gauge.bytes() - 1)),
            Unary::CountOnes => self.builder.ins().popcnt(word),
            Unary::TrailingZeros => unreachable!("not by lanes: checked"),
        }
    }

    fn binary(&mut self, operation: Binary, gauge: Gauge, left: Value, right: Value) -> Value {
        let ins = self.builder.ins();
        match operation {
            Binary::Add => ins.iadd(left, right),
            Binary::Subtract => ins.isub(left, right),
            Binary::Multiply => ins.imul(left, right),
            Binary::And => ins.band(left, right),
            Binary::Or => ins.bor(left, right),
            Binary::Xor => ins.bxor(left, right),
            Binary::AddEndAroundCarry => {
                let sum = ins.iadd(left, right);
                // All ones, which is -1, in the lanes that carry.
                let carry = self.builder.ins().icmp(IntCC::UnsignedLessThan, sum, left);
                self.builder.ins().isub(sum, carry)
            }
            Binary::Equal => self.compare(IntCC::Equal, gauge, left, right),
            Binary::LessThan => self.compare(IntCC::UnsignedLessThan, gauge, left, right),
            Binary::ShiftLeft | Binary::ShiftRight | Binary::RotateLeft => {
                unreachable!("shifts are by constants: checked")
            }
        }
    }

    fn compare(&mut self, condition: IntCC, gauge: Gauge, left: Value, right: Value) -> Value {
        let mask = self.builder.ins().icmp(condition, left, right);
        let one = self.constant(gauge, 1);
        self.builder.ins().band(mask, one)
    }

    fn shift(&mut self, operation: Binary, gauge: Gauge, word: Value, bits: u32) -> Value {
        if bits == 0 {
            return word;
        }
        let amount = self.builder.ins().iconst(types::I32, i64::from(bits));
        match operation {
            Binary::ShiftLeft => self.builder.ins().ishl(word, amount),
            Binary::ShiftRight => self.builder.ins().ushr(word, amount),
            // Cranelift has no rotation of lanes.
            _ => {
                let high = self.builder.ins().ishl(word, amount);
                let rest = i64::from(gauge.bits() - bits);
                let rest = self.builder.ins().iconst(types::I32, rest);
                let low = self.builder.ins().ushr(word, rest);
                self.builder.ins().bor(high, low)
            }
        }
    }

    /// Puts the bytes of a vector into another order: at each place the one from the place that `from` gives.
    fn shuffle(&mut self, gauge: Gauge, word: Value, from: impl Fn(usize) -> usize) -> Value {
        let bytes = self.cast(Gauge::Bits8, word);
        let order: Vec<u8> = (0..VECTOR_BYTES).map(|at| from(at) as u8).collect();
        let order = self.builder.func.dfg.immediates.push(ConstantData::from(order));
        let shuffled = self.builder.ins().shuffle(bytes, bytes, order);
        self.cast(gauge, shuffled)
    }

    /// The low bits of a register in each lane.
    fn splat(&mut self, gauge: Gauge, register: Variable) -> Value {
        let mut word = self.builder.use_var(register);
        if gauge != Gauge::Bits64 {
            word = self.builder.ins().ireduce(width(gauge), word);
        }
        self.builder.ins().splat(of_lanes(gauge), word)
    }

    /// The low bits of a constant in each lane.
    fn constant(&mut self, gauge: Gauge, word: u64) -> Value {
        let bytes = word.to_le_bytes()[..gauge.bytes()].repeat(VECTOR_BYTES / gauge.bytes());
        let constant = self.builder.func.dfg.constants.insert(ConstantData::from(bytes));
        self.builder.ins().vconst(of_lanes(gauge), constant)
    }

    fn load_vector(&mut self, address: Value, offset: usize) -> Value {
        self.builder.ins().load(types::I8X16, LITTLE_ENDIAN, address, offset as i32)
    }

    /// The same bits in lanes of this gauge.
    fn cast(&mut self, gauge: Gauge, vector: Value) -> Value {
        let lanes = of_lanes(gauge);
        if self.builder.func.dfg.value_type(vector) == lanes {
            return vector;
        }
        self.builder.ins().bitcast(lanes, ORDER_OF_LANES, vector)
    }
}

/// The gauge of each persistent register of a list, and its use.
fn uses(lanes: &[Lanes]) -> impl Iterator<Item = (Gauge, Use)> {
    lanes.iter().flat_map(|lanes| lanes.registers.iter().map(|used| (lanes.gauge, *used)))
}

fn is_shift(operation: Binary) -> bool {
    matches!(operation, Binary::ShiftLeft | Binary::ShiftRight | Binary::RotateLeft)
}

fn of_lanes(gauge: Gauge) -> Type {
    width(gauge).by((VECTOR_BYTES / gauge.bytes()) as u32).expect("Cranelift has such vectors")
}
