//! Rewrites a module (section 4.1.2: sandboxing by code inspection). Host calls, which check their ranges and are charged
//! by their length, replace the instructions `memory.copy` and `memory.fill`. `memory.grow` becomes its result, as no memory
//! grows. Before an instruction that costs more operations than the engine counts, there are as many `nop`, which the engine
//! counts and which are no code; behind a call, there is an empty loop, where the engine checks the bound. Mutable globals are exported, as the host
//! restores them after an abort. The maximum of the memory includes what lies behind the module's own: the compiler
//! turns an access at a constant address beyond the maximum into a trap.

use std::fmt;

use wasm_encoder::reencode::{self, Reencode, utils};
use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, GlobalSection, ImportSection,
    Instruction, Module, SectionId, TypeSection, ValType,
};
use wasmparser::{
    ExportSectionReader, FunctionBody, GlobalSectionReader, ImportSectionReader, Imports, Operator,
    Parser, TypeRef, TypeSectionReader,
};

use super::call::{COPY_MEMORY, Call, FILL_MEMORY, MODULE};
use super::{Reason, Rejection};

/// The calls that are added, behind the imports of the module.
const ADDED: [Call; 2] = [COPY_MEMORY, FILL_MEMORY];

/// The result of growing a memory by a number of pages: its size if they are none, or -1.
const GROW: [Instruction<'static>; 6] = [
    Instruction::I32Eqz,
    Instruction::If(BlockType::Result(ValType::I32)),
    Instruction::MemorySize(0),
    Instruction::Else,
    Instruction::I32Const(-1),
    Instruction::End,
];

/// The pages that an address of 32 bits can name.
const MAX_PAGES: u64 = 1 << 16;

/// Returns the name of the `n`th mutable global among the exports of a rewritten module.
pub(crate) fn global_name(n: usize) -> String {
    format!("ash.global {n}")
}

/// Rewrites a module, which imports functions only. `extra` has, for each instruction of each function, the operations that the
/// engine does not count; none if the engine counts nothing, as the module is acyclic.
///
/// # Errors
/// If it cannot be parsed.
pub(crate) fn rewrite(
    wasm: &[u8],
    extra: Option<Vec<Vec<u32>>>,
) -> std::result::Result<Vec<u8>, Rejection> {
    let extra = extra.map(Vec::into_iter);
    let (mut rewriter, mut module) = (Rewriter { extra, ..Rewriter::default() }, Module::new());
    match rewriter.parse_core_module(&mut module, Parser::new(0), wasm) {
        Ok(()) => Ok(module.finish()),
        Err(error) => Err(Reason::Invalid(error.to_string()).into()),
    }
}

/// A part of a module that cannot be rewritten.
#[derive(Debug)]
enum Unsupported {
    /// Imports in the format of a proposal that handlers do not have.
    CompactImports,
    /// A function that no module can have.
    Function(u32),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::CompactImports => f.write_str("compact imports are not enabled"),
            Unsupported::Function(number) => write!(f, "there is no function {number}"),
        }
    }
}

type Result<T> = std::result::Result<T, reencode::Error<Unsupported>>;

#[derive(Debug, Default)]
struct Rewriter {
    /// The type of the added calls, if the module has types.
    ty: Option<u32>,
    /// Number of functions that the module itself imports.
    imported: u32,
    has_imports: bool,
    /// The mutable globals.
    mutable: Vec<u32>,
    /// Operations to add for each instruction of the functions that follow, in a cyclic module.
    extra: Option<std::vec::IntoIter<Vec<u32>>>,
}

impl Rewriter {
    fn add_imports(&mut self, imports: &mut ImportSection) {
        self.has_imports = true;
        if let Some(ty) = self.ty {
            for call in ADDED {
                imports.import(MODULE, call.name, EntityType::Function(ty));
            }
        }
    }
}

impl Reencode for Rewriter {
    type Error = Unsupported;

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: TypeSectionReader<'_>,
    ) -> Result<()> {
        utils::parse_type_section(self, types, section)?;
        self.ty = Some(types.len());
        types.ty().function([ValType::I32; 3], []);
        Ok(())
    }

    fn parse_import_section(
        &mut self,
        imports: &mut ImportSection,
        section: ImportSectionReader<'_>,
    ) -> Result<()> {
        for group in section.clone() {
            match group? {
                Imports::Single(_, import) if matches!(import.ty, TypeRef::Func(_)) => {
                    self.imported += 1;
                }
                Imports::Single(..) => {}
                _ => return Err(reencode::Error::UserError(Unsupported::CompactImports)),
            }
        }
        utils::parse_import_section(self, imports, section)?;
        self.add_imports(imports);
        Ok(())
    }

    fn memory_type(&mut self, ty: wasmparser::MemoryType) -> Result<wasm_encoder::MemoryType> {
        let ty = utils::memory_type(self, ty);
        // It does not grow: see `LinearMemory::grow_to` in `memory`.
        Ok(wasm_encoder::MemoryType { maximum: Some(MAX_PAGES), ..ty })
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: GlobalSectionReader<'_>,
    ) -> Result<()> {
        for (number, global) in (0..).zip(section.clone()) {
            if global?.ty.mutable {
                self.mutable.push(number);
            }
        }
        utils::parse_global_section(self, globals, section)
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        section: ExportSectionReader<'_>,
    ) -> Result<()> {
        utils::parse_export_section(self, exports, section)?;
        for (n, number) in self.mutable.iter().enumerate() {
            exports.export(&global_name(n), ExportKind::Global, *number);
        }
        Ok(())
    }

    /// Adds the imports if the module has none.
    fn intersperse_section_hook(
        &mut self,
        module: &mut Module,
        _: Option<SectionId>,
        before: Option<SectionId>,
    ) -> Result<()> {
        if !self.has_imports && !matches!(before, Some(SectionId::Type | SectionId::Import)) {
            let mut imports = ImportSection::new();
            self.add_imports(&mut imports);
            module.section(&imports);
        }
        Ok(())
    }

    fn function_index(&mut self, function: u32) -> Result<u32> {
        let is_own = function >= self.imported && self.ty.is_some();
        if !is_own {
            return Ok(function);
        }
        let moved = function.checked_add(ADDED.len() as u32);
        moved.ok_or(reencode::Error::UserError(Unsupported::Function(function)))
    }

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: FunctionBody<'_>,
    ) -> Result<()> {
        let is_cyclic = self.extra.is_some();
        let mut extra = self.extra.as_mut().and_then(Iterator::next).into_iter().flatten();
        let mut function = self.new_function_with_parsed_locals(&body)?;
        let mut operators = body.get_operators_reader()?;
        while !operators.eof() {
            (0..extra.next().unwrap_or(0)).for_each(|_| {
                function.instruction(&Instruction::Nop);
            });
            let operator = operators.read()?;
            let is_call = match operator {
                Operator::Call { function_index } => function_index >= self.imported,
                Operator::CallIndirect { .. } => true,
                _ => false,
            };
            if let Operator::MemoryGrow { mem: 0 } = operator {
                GROW.iter().for_each(|instruction| {
                    function.instruction(instruction);
                });
                continue;
            }
            function.instruction(&self.instruction(operator)?);
            if is_call && is_cyclic {
                function.instruction(&Instruction::Loop(BlockType::Empty));
                function.instruction(&Instruction::End);
            }
        }
        code.function(&function);
        Ok(())
    }

    fn instruction<'a>(&mut self, operator: Operator<'a>) -> Result<Instruction<'a>> {
        match operator {
            Operator::MemoryCopy { dst_mem: 0, src_mem: 0 } => Ok(Instruction::Call(self.imported)),
            Operator::MemoryFill { mem: 0 } => Ok(Instruction::Call(self.imported + 1)),
            other => utils::instruction(self, other),
        }
    }
}
