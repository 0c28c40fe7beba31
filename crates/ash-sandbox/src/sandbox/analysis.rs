//! The static checks of a module, and its longest path.

use std::collections::HashMap;

use wasmparser::{
    ConstExpr, DataKind, ElementItems, ElementKind, ExternalKind, FuncType,
    FuncValidatorAllocations, Import, Name, NameSectionReader, Operator, Parser, Payload, TypeRef,
    ValType, Validator, WasmFeatures, WasmFeatures as Features,
};

use super::call::{CALLS, Call, ENTRY, MEMORY, MODULE, Type};
use super::cost::{Body, Types};
use super::{Policy, Reason, Rejection};

const PAGE: u64 = 65536;

/// Depth of nested calls beyond which the longest path is not sought, as that takes a stack.
const MAX_DEPTH: u32 = 256;

/// The kind of bound of a module's run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// No loops and no recursion: no path has more operations than this, beside those for the bytes that host calls
    /// touch. It runs without checks.
    Acyclic(u64),
    /// Loops, recursion, or calls that are nested more than 256 deep: it is stopped when it has used up its operations.
    Cyclic,
}

/// The facts that the sandboxer derives from a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Analysis {
    pub(crate) bound: Bound,
    /// Whether it may call what is charged by its bytes, whose number is not known before.
    pub(crate) is_by_bytes: bool,
    pub(crate) memory_bytes: usize,
}

/// Maximum number of mutable globals, which the host saves for each message. Compilers use one.
pub(crate) const MAX_GLOBALS: u32 = 64;

/// Maximum number of parameters of a type, and of results: a call or branch moves no more.
const MAX_VALUES: usize = 16;

/// Work of the compiler for an entry of a section, such as an import or a data segment; for a function beside its body; and
/// for each parameter and result of a type or function.
const WORK_OF_ENTRY: u64 = 60;
const WORK_OF_FUNCTION: u64 = 40;
const WORK_OF_VALUE: u64 = 8;

/// WebAssembly's first version with what compilers emit by default.
fn features(policy: &Policy) -> WasmFeatures {
    let mut features = Features::WASM1
        | Features::SIGN_EXTENSION
        | Features::MULTI_VALUE
        | Features::CALL_INDIRECT_OVERLONG
        | Features::BULK_MEMORY_OPT
        | Features::SATURATING_FLOAT_TO_INT
        | Features::EXTENDED_CONST;
    features.set(Features::FLOATS, policy.allows_floats);
    features
}

#[derive(Default)]
struct Contents<'a> {
    types: Vec<FuncType>,
    /// Types of all functions, the imported ones first.
    functions: Vec<u32>,
    imported: Vec<Call>,
    bodies: Vec<Body>,
    /// Work of the compiler beside that of the bodies.
    work: u64,
    in_tables: Vec<u32>,
    /// Number of elements of the table; there is one at most.
    table: u64,
    memory: Option<wasmparser::MemoryType>,
    exports: Vec<(&'a str, ExternalKind, u32)>,
    data_end: u64,
    data_is_unknown: bool,
    names: HashMap<u32, String>,
}

/// Checks a module before it is rewritten, so that errors name its own functions and offsets.
///
/// Returns also how many operations each instruction of each function has more than the engine counts.
///
/// # Errors
/// The first reason for which the policy rejects it.
pub(crate) fn analyse(
    wasm: &[u8],
    policy: &Policy,
) -> Result<(Analysis, Vec<Vec<u32>>), Rejection> {
    let mut contents = Contents::default();
    contents.read(wasm, policy)?;
    let memory_bytes = contents.check_memory(policy)?;
    let mut costs = vec![Cost::Unknown; contents.functions.len()];
    let bound = contents.longest_path(contents.check_entry()?, &mut costs, policy)?;
    contents.check_work(bound, policy)?;
    let analysis = Analysis { bound, is_by_bytes: contents.is_by_bytes(&costs), memory_bytes };
    Ok((analysis, contents.bodies.into_iter().map(|body| body.extra).collect()))
}

fn invalid(error: wasmparser::BinaryReaderError) -> Rejection {
    Rejection::new(Reason::Invalid(error.to_string()))
}

/// Returns the value of an expression that is one constant; `None` for any other.
fn constant(expression: &ConstExpr<'_>) -> Result<Option<u32>, Rejection> {
    let mut operators = expression.get_operators_reader();
    let first = operators.read().map_err(invalid)?;
    let is_all = matches!(operators.read().map_err(invalid)?, Operator::End);
    match first {
        Operator::I32Const { value } if is_all => Ok(Some(value as u32)),
        _ => Ok(None),
    }
}

impl<'a> Contents<'a> {
    fn read(&mut self, wasm: &'a [u8], policy: &Policy) -> Result<(), Rejection> {
        let mut validator = Validator::new_with_features(features(policy));
        let mut allocations = FuncValidatorAllocations::default();
        // Names come last, and are needed for errors before.
        self.read_names(wasm);
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload.map_err(invalid)?;
            let valid = validator.payload(&payload).map_err(invalid)?;
            if let wasmparser::ValidPayload::Func(function, body) = valid {
                let mut function = function.into_validator(allocations);
                let (number, mut again) = (function.index(), function.clone());
                let result = function.validate(&body);
                result.map_err(|error| self.in_function(number, invalid(error).reason))?;
                allocations = function.into_allocations();
                let (types, functions) = (&self.types[..], &self.functions[..]);
                let types = Types { types, functions, imported: self.imported.len() as u32 };
                let cost = types.cost(&body, &mut again, self.type_of(number)).map_err(invalid)?;
                self.bodies.push(cost);
                continue;
            }
            self.read_payload(payload, policy)?;
        }
        Ok(())
    }

    fn read_payload(&mut self, payload: Payload<'a>, policy: &Policy) -> Result<(), Rejection> {
        match payload {
            Payload::TypeSection(section) => {
                for (number, ty) in (0..).zip(section.into_iter_err_on_gc_types()) {
                    let ty = ty.map_err(invalid)?;
                    let values = ty.params().len().max(ty.results().len());
                    if values > MAX_VALUES {
                        return Err(Reason::TypeTooWide(number, values, MAX_VALUES).into());
                    }
                    self.types.push(ty);
                    let (params, results) = self.values(number);
                    self.work += WORK_OF_ENTRY + WORK_OF_VALUE * u64::from(params + results);
                }
            }
            Payload::ImportSection(section) => {
                self.add_entries(section.count());
                for import in section.into_imports() {
                    self.check_import(import.map_err(invalid)?)?;
                }
            }
            Payload::FunctionSection(section) => {
                if section.count() > policy.max_functions {
                    let (count, max) = (section.count(), policy.max_functions);
                    return Err(Reason::TooManyFunctions(count, max).into());
                }
                for ty in section {
                    let ty = ty.map_err(invalid)?;
                    self.functions.push(ty);
                    let (params, results) = self.values(ty);
                    self.work += WORK_OF_FUNCTION + WORK_OF_VALUE * u64::from(params + results);
                }
            }
            Payload::TableSection(section) => {
                for table in section {
                    // Handlers have no instruction by which it grows.
                    let (count, max) = (table.map_err(invalid)?.ty.initial, policy.max_functions);
                    if count > max.into() {
                        return Err(Reason::TableTooLarge(count, max).into());
                    }
                    self.table = count;
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    self.memory = Some(memory.map_err(invalid)?);
                }
            }
            Payload::GlobalSection(section) => {
                self.add_entries(section.count());
                let mut mutable = 0;
                for global in section {
                    mutable += u32::from(global.map_err(invalid)?.ty.mutable);
                }
                if mutable > MAX_GLOBALS {
                    return Err(Reason::TooManyGlobals(mutable, MAX_GLOBALS).into());
                }
            }
            Payload::ExportSection(section) => {
                self.add_entries(section.count());
                for export in section {
                    let export = export.map_err(invalid)?;
                    self.exports.push((export.name, export.kind, export.index));
                }
            }
            Payload::StartSection { func, .. } => {
                return Err(self.in_function(func, Reason::Start));
            }
            Payload::ElementSection(section) => {
                self.add_entries(section.count());
                for (number, element) in (0..).zip(section) {
                    let element = element.map_err(invalid)?;
                    let outside = Reason::ElementsOutsideTable(number, self.table);
                    // The validator rejects segments of other kinds, which belong to a feature that is off.
                    let ElementKind::Active { offset_expr, .. } = element.kind else {
                        return Err(outside.into());
                    };
                    let count = match &element.items {
                        ElementItems::Functions(functions) => functions.count(),
                        ElementItems::Expressions(_, items) => items.count(),
                    };
                    let start = constant(&offset_expr)?;
                    let end = start.map(|start| u64::from(start) + u64::from(count));
                    if end.is_none_or(|end| end > self.table) {
                        return Err(outside.into());
                    }
                    self.work += u64::from(count);
                    match element.items {
                        ElementItems::Functions(functions) => {
                            for function in functions {
                                self.in_tables.push(function.map_err(invalid)?);
                            }
                        }
                        // The validator rejects `ref.null` and `ref.func`, so there is no such expression. The longest path
                        // would not have the functions that one names.
                        ElementItems::Expressions(..) if count > 0 => return Err(outside.into()),
                        ElementItems::Expressions(..) => {}
                    }
                }
                // A module can name a function as often as it has room for.
                self.in_tables.sort_unstable();
                self.in_tables.dedup();
            }
            Payload::DataSection(section) => {
                self.add_entries(section.count());
                for data in section {
                    let data = data.map_err(invalid)?;
                    // The validator rejects passive segments, which belong to a feature that is off.
                    let DataKind::Active { offset_expr, .. } = data.kind else {
                        return Err(Reason::DataOutsideMemory.into());
                    };
                    match constant(&offset_expr)? {
                        Some(start) => {
                            let end = u64::from(start) + data.data.len() as u64;
                            self.data_end = self.data_end.max(end);
                        }
                        None => self.data_is_unknown = true,
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn read_names(&mut self, wasm: &'a [u8]) {
        for payload in Parser::new(0).parse_all(wasm).map_while(Result::ok) {
            let Payload::CustomSection(section) = payload else { continue };
            if section.name() != "name" {
                continue;
            }
            let reader = wasmparser::BinaryReader::new(section.data(), section.data_offset());
            for name in NameSectionReader::new(reader).map_while(Result::ok) {
                let Name::Function(functions) = name else { continue };
                for naming in functions.into_iter().map_while(Result::ok) {
                    self.names.insert(naming.index, naming.name.to_owned());
                }
            }
        }
    }

    fn check_import(&mut self, import: Import<'a>) -> Result<(), Rejection> {
        let Import { module, name, ty } = import;
        let call = CALLS.iter().find(|call| module == MODULE && call.name == name);
        let (Some(call), TypeRef::Func(ty)) = (call, ty) else {
            return Err(Reason::Import(module.into(), name.into()).into());
        };
        let has_type = self.types.get(ty as usize).is_some_and(|ty| {
            same(ty.params(), call.parameters) && same(ty.results(), call.result.as_slice())
        });
        if !has_type {
            return Err(Reason::ImportType(name.into()).into());
        }
        self.functions.push(ty);
        self.imported.push(*call);
        Ok(())
    }

    /// Counts entries of a section.
    fn add_entries(&mut self, count: u32) {
        self.work += WORK_OF_ENTRY * u64::from(count);
    }

    /// Returns the numbers of parameters and results of a type.
    fn values(&self, ty: u32) -> (u32, u32) {
        let ty = self.types.get(ty as usize);
        ty.map_or((0, 0), |ty| (ty.params().len() as u32, ty.results().len() as u32))
    }

    /// Returns those of a function.
    fn type_of(&self, function: u32) -> (u32, u32) {
        self.functions.get(function as usize).map_or((0, 0), |ty| self.values(*ty))
    }

    fn check_memory(&self, policy: &Policy) -> Result<usize, Rejection> {
        let exported = self
            .exports
            .iter()
            .any(|(name, kind, _)| (*name, *kind) == (MEMORY, ExternalKind::Memory));
        let Some(memory) = self.memory.filter(|_| exported) else {
            return Err(Reason::NoMemory.into());
        };
        if memory.maximum != Some(memory.initial) {
            return Err(Reason::GrowingMemory.into());
        }
        let bytes = memory.initial.saturating_mul(PAGE);
        if bytes > policy.max_memory_bytes as u64 {
            return Err(Reason::MemoryTooLarge(bytes, policy.max_memory_bytes).into());
        }
        if bytes == 0 {
            return Err(Reason::NoMemory.into());
        }
        if self.data_is_unknown || self.data_end > bytes {
            return Err(Reason::DataOutsideMemory.into());
        }
        Ok(bytes as usize)
    }

    /// Returns the number of the entry.
    fn check_entry(&self) -> Result<u32, Rejection> {
        let entry = self.exports.iter().find(|(name, ..)| *name == ENTRY);
        let Some(&(_, ExternalKind::Func, number)) = entry else {
            return Err(Reason::NoEntry.into());
        };
        let ty = self.functions.get(number as usize).and_then(|ty| self.types.get(*ty as usize));
        let is_entry = ty.is_some_and(|ty| {
            same(ty.params(), &[Type::I32, Type::I32, Type::I64, Type::I32])
                && same(ty.results(), &[Type::I32])
        });
        if is_entry { Ok(number) } else { Err(self.in_function(number, Reason::NoEntry)) }
    }

    /// Sums the operations of all functions that the entry reaches, for each call once. This is more
    /// than the longest path has.
    fn longest_path(
        &self,
        entry: u32,
        costs: &mut Vec<Cost>,
        policy: &Policy,
    ) -> Result<Bound, Rejection> {
        // A handler with a longer path would never be invoked.
        let max = policy.max_operations.min(policy.operations_per_second);
        match self.cost(entry, 0, costs) {
            Some(operations) if operations > max => {
                Err(self.in_function(entry, Reason::TooLong(operations, max)))
            }
            Some(operations) => Ok(Bound::Acyclic(operations)),
            None => Ok(Bound::Cyclic),
        }
    }

    /// Checks that the compiler has little work with each body and with all, those included that the entry does not reach.
    /// Of a cyclic handler, less than one body runs between two checks of its bound, so a body has no more operations either.
    fn check_work(&self, bound: Bound, policy: &Policy) -> Result<(), Rejection> {
        let max = policy.max_body_operations;
        for (number, body) in (self.imported.len() as u32..).zip(&self.bodies) {
            let of_run = if bound == Bound::Cyclic { body.operations } else { 0 };
            let long = body.work.max(of_run);
            if long > max {
                return Err(self.in_function(number, Reason::BodyTooLong(long, max)));
            }
        }
        let work = self.bodies.iter().map(|body| body.work).sum::<u64>() + self.work;
        let max = policy.max_module_operations;
        if work > max { Err(Reason::TooMuchCode(work, max).into()) } else { Ok(()) }
    }

    /// Returns whether a function whose cost was sought calls what is charged by its bytes.
    fn is_by_bytes(&self, costs: &[Cost]) -> bool {
        let calls_it = |function: &u32| {
            self.imported.get(*function as usize).is_some_and(|call| call.is_by_bytes)
        };
        let in_tables = self.in_tables.iter().any(calls_it);
        let reached = costs[self.imported.len()..].iter().zip(&self.bodies);
        let mut reached = reached.filter(|(cost, _)| !matches!(cost, Cost::Unknown));
        reached.any(|(_, body)| {
            body.copies_or_fills
                || body.calls.iter().any(calls_it)
                || in_tables && body.calls_by_table > 0
        })
    }

    /// Returns the number of operations of a function that is called at a depth, with those that it calls; none if it is
    /// cyclic.
    fn cost(&self, function: u32, depth: u32, costs: &mut Vec<Cost>) -> Option<u64> {
        if let Some(call) = self.imported.get(function as usize) {
            return Some(call.cost);
        }
        match costs[function as usize] {
            Cost::Known(cost) => return Some(cost),
            Cost::InProgress | Cost::Cyclic => return None,
            Cost::Unknown if depth > MAX_DEPTH => return None,
            Cost::Unknown => {}
        }
        costs[function as usize] = Cost::InProgress;
        let cost = self.cost_of_body(function, depth, costs);
        costs[function as usize] = cost.map_or(Cost::Cyclic, Cost::Known);
        cost
    }

    fn cost_of_body(&self, function: u32, depth: u32, costs: &mut Vec<Cost>) -> Option<u64> {
        let body = &self.bodies[function as usize - self.imported.len()];
        if body.has_loop {
            return None;
        }
        let mut cost = body.operations;
        for callee in &body.calls {
            cost = cost.saturating_add(self.cost(*callee, depth + 1, costs)?);
        }
        if body.calls_by_table > 0 {
            let mut max = 0;
            for callee in &self.in_tables {
                max = max.max(self.cost(*callee, depth + 1, costs)?);
            }
            cost = cost.saturating_add(max.saturating_mul(body.calls_by_table));
        }
        Some(cost)
    }

    fn in_function(&self, number: u32, reason: Reason) -> Rejection {
        let name = self.names.get(&number).cloned();
        Rejection { function: Some(name.unwrap_or_else(|| number.to_string())), reason }
    }
}

#[derive(Clone, Copy, Debug)]
enum Cost {
    Unknown,
    InProgress,
    Known(u64),
    Cyclic,
}

fn same(types: &[ValType], expected: &[Type]) -> bool {
    let expected = expected.iter().map(|ty| match ty {
        Type::I32 => ValType::I32,
        Type::I64 => ValType::I64,
    });
    types.iter().copied().eq(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_nested_deep_overflowed_the_stack() {
        const DEPTH: usize = 50_000;
        let mut text = String::from(
            "(module (memory (export \"memory\") 1 1)
             (func (export \"ash_handle\") (param i32 i32 i64 i32) (result i32) (call 1) (i32.const 1))",
        );
        (2..DEPTH).for_each(|callee| text += &format!("(func (call {callee}))"));
        text += "(func))";
        let wasm = wat::parse_str(text).unwrap();
        let policy = Policy {
            max_functions: DEPTH as u32,
            max_module_operations: u64::MAX,
            ..Policy::default()
        };
        assert_eq!(analyse(&wasm, &policy).unwrap().0.bound, Bound::Cyclic);
    }

    #[test]
    fn functions_were_analysed_as_often_as_elements_named_them() {
        let elements = "0 1 ".repeat(1000);
        let text =
            format!("(module (func) (func) (table 2000 funcref) (elem (i32.const 0) {elements}))");
        let policy = Policy { max_functions: 2000, ..Policy::default() };
        let (wasm, mut contents) = (wat::parse_str(text).unwrap(), Contents::default());
        contents.read(&wasm, &policy).unwrap();
        assert_eq!(contents.in_tables, [0, 1]);
    }
}
