//! The costs of the instructions of a function: operations when they run, and work of the compiler.
//!
//! Most instructions are one operation, and one unit of work. A load counts as several operations, because it can miss the
//! caches. A branch moves the values that its target takes, and perhaps each local that has another value there: those that are set in
//! the construct which the branch ends or repeats. Each of them is one operation more. The compiler's time depends on the
//! values that live across each branch, too.

use std::collections::HashSet;
use std::mem;

use wasmparser::{
    BlockType, BrTable, FuncType, FuncValidator, FunctionBody, Operator, WasmModuleResources,
};

use super::call::{COPY_MEMORY, FILL_MEMORY};

/// Operations of a load. One operation takes 0.2 ns to a few; a load from the second or third level of the caches takes 5 to
/// 20 ns, and one from memory 100 ns: 100,000 operations then take a millisecond or two. A store does not wait, and its operands
/// are operations, too.
pub(crate) const LOAD: u8 = 8;
/// Operations of a call beyond one, and the values that it moves: the frame of the function.
const CALL: u32 = 2;
/// Those of a call by a table beyond [`CALL`]: the checks of the element.
const CALL_BY_TABLE: u32 = 2;
/// Those of `memory.grow` beyond one, as it is rewritten.
const GROW: u32 = 3;

/// Work beyond one of a call of the host, of one of a function, of one by a table, and of other instructions that become
/// much code, among them a target of a table of branches.
const WORK_OF_HOST_CALL: u64 = 5;
const WORK_OF_CALL: u64 = 25;
const WORK_OF_CALL_BY_TABLE: u64 = 50;
const WORK_OF_GROW: u64 = 20;
const WORK_OF_GLOBAL: u64 = 3;
const WORK_OF_CONDITION: u64 = 6;
const WORK_OF_TARGET: u64 = 8;
/// Work of a loop, and of each local that it uses.
const WORK_OF_LOOP: u64 = 30;
const WORK_OF_LOCAL_IN_LOOP: u64 = 2;
/// Number of values that live across a branch or call, for which the compiler has one unit of work.
const LIVE_VALUES: u64 = 64;

/// The costs of the body of a function, and the functions that it calls.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// Operations of all instructions together, without those of the functions that they call.
    pub(crate) operations: u64,
    /// Work of the compiler.
    pub(crate) work: u64,
    /// For each instruction, how many operations it has more than the engine counts.
    pub(crate) extra: Vec<u32>,
    pub(crate) calls: Vec<u32>,
    pub(crate) calls_by_table: u64,
    pub(crate) copies_or_fills: bool,
    pub(crate) has_loop: bool,
}

/// Types of a module and of its functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Types<'a> {
    pub(crate) types: &'a [FuncType],
    pub(crate) functions: &'a [u32],
    /// Number of functions that are imported.
    pub(crate) imported: u32,
}

/// A block, loop or `if`, or the body of the function.
#[derive(Debug)]
struct Construct {
    /// Values that a branch to it moves, without locals.
    values: u32,
    /// Locals that are set in it.
    set: u32,
    /// Locals that are set or read in it.
    used: u64,
}

impl Construct {
    /// Returns the number of values that a branch to it may have to move.
    fn moves(&self) -> u32 {
        self.values.saturating_add(self.set)
    }
}

/// The locals that an open construct sets and reads.
#[derive(Debug, Default)]
struct Locals {
    construct: usize,
    set: HashSet<u32>,
    used: HashSet<u32>,
}

/// Adds the smaller set to the larger one, so that a local is added a few times only, however deep constructs are nested.
fn merge(into: &mut HashSet<u32>, mut other: HashSet<u32>) {
    if into.len() < other.len() {
        mem::swap(into, &mut other);
    }
    into.extend(other);
}

impl Types<'_> {
    /// Returns what the body of a valid function costs. `validator` has read nothing of it yet.
    ///
    /// # Errors
    /// None for a valid body.
    pub(crate) fn cost<R: WasmModuleResources>(
        &self,
        body: &FunctionBody<'_>,
        validator: &mut FuncValidator<R>,
        (params, results): (u32, u32),
    ) -> wasmparser::Result<Body> {
        validator.read_locals(&mut body.get_binary_reader())?;
        let mut locals = u64::from(params);
        for group in body.get_locals_reader()? {
            locals += u64::from(group?.0);
        }
        let constructs = self.constructs(body, results)?;
        let mut cost = Body { work: locals, ..Body::default() };
        // The constructs that are open, and the next one.
        let (mut open, mut next) = (vec![0], 1);
        let mut operators = body.get_operators_reader()?;
        while !operators.eof() {
            let (operator, offset) = operators.read_with_offset()?;
            validator.op(offset, &operator)?;
            let live = (locals + u64::from(validator.operand_stack_height())) / LIVE_VALUES;
            if matches!(
                operator,
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. }
            ) {
                open.push(next);
                next += 1;
            }
            let target =
                |depth: u32| open.iter().rev().nth(depth as usize).map(|n| &constructs[*n]);
            let innermost = target(0).map_or(0, Construct::moves);
            let (mut extra, mut work) = (0, 0);
            match &operator {
                Operator::Block { .. } => work = live,
                Operator::Loop { .. } => {
                    cost.has_loop = true;
                    extra = innermost;
                    let used = target(0).map_or(0, |construct| construct.used);
                    work = live + WORK_OF_LOOP + WORK_OF_LOCAL_IN_LOOP * used;
                }
                // An `if` without `else` goes to its end from there.
                Operator::If { .. } => (extra, work) = (innermost, live + WORK_OF_CONDITION),
                Operator::Else | Operator::End => (extra, work) = (innermost, live),
                Operator::Br { relative_depth } => {
                    extra = target(*relative_depth).map_or(0, Construct::moves);
                    work = live;
                }
                Operator::BrIf { relative_depth } => {
                    extra = target(*relative_depth).map_or(0, Construct::moves);
                    work = live + WORK_OF_CONDITION;
                }
                Operator::BrTable { targets } => {
                    let depths = depths(targets)?;
                    let moves = depths.iter().filter_map(|n| target(*n)).map(Construct::moves);
                    extra = moves.clone().max().unwrap_or(0);
                    work = u64::from(targets.len()) + (live + WORK_OF_TARGET) * depths.len() as u64;
                    work += moves.map(u64::from).sum::<u64>();
                }
                Operator::Return => (extra, work) = (results, live),
                Operator::Call { function_index } => {
                    cost.calls.push(*function_index);
                    let ty = self.functions.get(*function_index as usize);
                    extra = CALL + ty.map_or(0, |ty| self.values(*ty));
                    let is_own = *function_index >= self.imported;
                    work = live + if is_own { WORK_OF_CALL } else { WORK_OF_HOST_CALL };
                }
                Operator::CallIndirect { type_index, .. } => {
                    cost.calls_by_table += 1;
                    extra = CALL + CALL_BY_TABLE + self.values(*type_index);
                    work = live + WORK_OF_CALL_BY_TABLE;
                }
                // Calls, when the module has been rewritten, which are charged when they are made.
                Operator::MemoryCopy { .. } | Operator::MemoryFill { .. } => {
                    cost.copies_or_fills = true;
                    let is_copy = matches!(operator, Operator::MemoryCopy { .. });
                    cost.operations += if is_copy { COPY_MEMORY.cost } else { FILL_MEMORY.cost };
                    work = live + WORK_OF_HOST_CALL;
                }
                Operator::MemoryGrow { .. } => (extra, work) = (GROW, live + WORK_OF_GROW),
                Operator::GlobalGet { .. } | Operator::GlobalSet { .. } => work = WORK_OF_GLOBAL,
                _ => {}
            }
            if matches!(operator, Operator::End) {
                open.pop();
            }
            let own = if is_load(&operator) { LOAD } else { 1 };
            cost.operations += u64::from(own) + u64::from(extra);
            cost.work += 1 + u64::from(extra) + work;
            cost.extra.push(extra);
        }
        Ok(cost)
    }

    /// Returns the number of parameters and results of a type.
    fn values(&self, ty: u32) -> u32 {
        let ty = self.types.get(ty as usize);
        ty.map_or(0, |ty| (ty.params().len() + ty.results().len()) as u32)
    }

    /// Returns the constructs of a body in the order in which they begin, the body itself first.
    fn constructs(
        &self,
        body: &FunctionBody<'_>,
        results: u32,
    ) -> wasmparser::Result<Vec<Construct>> {
        let construct = |values| Construct { values, set: 0, used: 0 };
        let mut constructs = vec![construct(results)];
        let mut open = vec![Locals::default()];
        for operator in body.get_operators_reader()? {
            let Some(innermost) = open.last_mut() else { break };
            match operator? {
                Operator::Block { blockty } | Operator::If { blockty } => {
                    open.push(Locals { construct: constructs.len(), ..Locals::default() });
                    constructs.push(construct(self.of_block(blockty).1));
                }
                Operator::Loop { blockty } => {
                    open.push(Locals { construct: constructs.len(), ..Locals::default() });
                    constructs.push(construct(self.of_block(blockty).0));
                }
                Operator::LocalGet { local_index } => {
                    innermost.used.insert(local_index);
                }
                Operator::LocalSet { local_index } | Operator::LocalTee { local_index } => {
                    innermost.used.insert(local_index);
                    innermost.set.insert(local_index);
                }
                Operator::End => {
                    let Some(ended) = open.pop() else { break };
                    // The locals end with the body.
                    let Some(outer) = open.last_mut() else { break };
                    let construct = &mut constructs[ended.construct];
                    construct.set = ended.set.len() as u32;
                    construct.used = ended.used.len() as u64;
                    merge(&mut outer.set, ended.set);
                    merge(&mut outer.used, ended.used);
                }
                _ => {}
            }
        }
        Ok(constructs)
    }

    /// Returns the numbers of parameters and results of a block.
    fn of_block(&self, ty: BlockType) -> (u32, u32) {
        match ty {
            BlockType::Empty => (0, 0),
            BlockType::Type(_) => (0, 1),
            BlockType::FuncType(ty) => self
                .types
                .get(ty as usize)
                .map_or((0, 0), |ty| (ty.params().len() as u32, ty.results().len() as u32)),
        }
    }
}

/// Returns whether an instruction loads from the memory. The engine counts the same ones as [`LOAD`]: `COSTS` in `sandboxer`.
fn is_load(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::I32Load { .. }
            | Operator::I64Load { .. }
            | Operator::F32Load { .. }
            | Operator::F64Load { .. }
            | Operator::I32Load8S { .. }
            | Operator::I32Load8U { .. }
            | Operator::I32Load16S { .. }
            | Operator::I32Load16U { .. }
            | Operator::I64Load8S { .. }
            | Operator::I64Load8U { .. }
            | Operator::I64Load16S { .. }
            | Operator::I64Load16U { .. }
            | Operator::I64Load32S { .. }
            | Operator::I64Load32U { .. }
    )
}

/// Returns the targets of a table of branches, each once.
fn depths(table: &BrTable<'_>) -> wasmparser::Result<HashSet<u32>> {
    let mut depths: HashSet<u32> = table.targets().collect::<Result<_, _>>()?;
    depths.insert(table.default());
    Ok(depths)
}
