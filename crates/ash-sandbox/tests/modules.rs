//! Modules: the rules that they have to follow, and the cache of compiled ones.
#![cfg(feature = "sandbox")]

use crate::sandbox::{handler_with, module, module_with, run, sandboxer, sent};

use ash_sandbox::sandbox::{Outcome, Policy, Reason, Rejection, Sandboxer};

#[test]
fn module_with_a_data_segment_panicked() {
    let wasm = module_with(
        r#"(data (i32.const 100) "constant")"#,
        "(drop (call $send (i32.const 100) (i32.const 8)))
         (i32.const 1)",
    );
    let mut handler = handler_with(Policy::default(), &wasm);
    assert_eq!(run(&mut handler, b""), Outcome::Handled);
    assert_eq!(sent(&handler), [b"constant"]);
}

#[test]
fn body_that_nothing_reaches_had_any_length() {
    let long = format!("(func $spare {})", "(drop (i32.const 1)) ".repeat(60_000));
    let rejection = sandboxer().load(&module_with(&long, "(i32.const 1)")).unwrap_err();
    assert_eq!(rejection.reason, Reason::BodyTooLong(120_001, 20_000));
    let text = rejection.to_string();
    assert!(text.contains("spare") && text.contains("permits 20000 in a function"), "{text}");
}

#[test]
fn table_took_memory_beyond_the_policy() {
    let load = |table: &str| sandboxer().load(&module_with(table, "(i32.const 1)"));
    let rejection = load("(table 10000000 funcref)").unwrap_err();
    assert_eq!(rejection.reason, Reason::TableTooLarge(10_000_000, 1000));
    assert!(rejection.to_string().contains("the policy permits 1000"), "{rejection}");
    // A table cannot grow, so its maximum takes no memory.
    for table in ["(table 1000 funcref)", "(table 1 10000000 funcref)"] {
        assert!(load(table).is_ok(), "{table}");
    }
}

fn rejection(text: &str) -> Rejection {
    sandboxer().load(&wat::parse_str(text).unwrap()).unwrap_err()
}

#[test]
fn debug_text_of_a_rejection_was_no_message() {
    let rejection = rejection("(module)");
    assert_eq!(format!("{rejection:?}"), rejection.to_string());
}

#[test]
fn module_in_text_was_rejected_with_the_advice_to_build_it_by_cargo() {
    let text = b";; Answers nothing.\n(module)";
    let rejected = sandboxer().load(text).unwrap_err();
    assert_eq!(rejected.reason, Reason::Text);
    assert!(rejected.to_string().contains("wat2wasm"), "{rejected}");
}

#[test]
fn modules_that_break_a_rule_are_rejected_with_the_reason() {
    let entry =
        r#"(func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (i32.const 1))"#;
    let memory = r#"(memory (export "memory") 1 1)"#;
    let reason = |fields: &str| rejection(&format!("(module {fields})")).reason;
    assert_eq!(reason(memory), Reason::NoEntry);
    assert_eq!(reason(&format!(r#"{memory} (func (export "ash_handle"))"#)), Reason::NoEntry);
    assert_eq!(reason(entry), Reason::NoMemory);
    assert_eq!(reason(&format!("{entry} (memory 1 1)")), Reason::NoMemory);
    let memory_of = |size| reason(&format!(r#"{entry} (memory (export "memory") {size})"#));
    assert_eq!(memory_of("1"), Reason::GrowingMemory);
    assert_eq!(memory_of("1 2"), Reason::GrowingMemory);
    assert_eq!(memory_of("0 0"), Reason::NoMemory);
    assert_eq!(memory_of("65 65"), Reason::MemoryTooLarge(65 << 16, 64 << 16));
    let with = |fields: &str| reason(&format!("{fields} {memory} {entry}"));
    let globals = "(global (mut i32) (i32.const 0))".repeat(65);
    assert_eq!(reason(&format!("{memory} {globals} {entry}")), Reason::TooManyGlobals(65, 64));
    for (module, name) in [("env", "send"), ("ash", "open"), ("wasi_snapshot_preview1", "fd_write")]
    {
        let import = format!(r#"(import "{module}" "{name}" (func))"#);
        assert_eq!(with(&import), Reason::Import(module.into(), name.into()));
    }
    let import = r#"(import "ash" "send" (func (param i64)))"#;
    assert_eq!(with(import), Reason::ImportType("send".into()));
    let import = r#"(import "ash" "send" (global i32))"#;
    assert_eq!(with(import), Reason::Import("ash".into(), "send".into()));
    assert_eq!(with(r#"(data (i32.const 65535) "xy")"#), Reason::DataOutsideMemory);
    let sum = r#"(data (offset (i32.add (i32.const 1) (i32.const 65534))) "xy")"#;
    assert_eq!(with(sum), Reason::DataOutsideMemory);
    assert!(matches!(with("(func (result f32) (f32.const 1))"), Reason::Invalid(_)));
    assert!(matches!(with("(memory 1)"), Reason::Invalid(_)));
    let start = rejection(&format!("(module (func $begin) (start $begin) {memory} {entry})"));
    assert_eq!(start.reason, Reason::Start);
    assert_eq!(start.function.as_deref(), Some("begin"));
    assert!(start.to_string().starts_with("function begin: "));
    let data = r#"(data $d "x")"#;
    let init = "(memory.init $d (i32.const 0) (i32.const 0) (i32.const 1)) (i32.const 1)";
    let init = sandboxer().load(&module_with(data, init)).unwrap_err();
    assert!(matches!(init.reason, Reason::Invalid(_)));
    assert!(matches!(
        with(
            "(func (param i32) (result i32) (table.grow 0 (ref.null func) (local.get 0))) (table 1 funcref)"
        ),
        Reason::Invalid(_)
    ));
    assert!(matches!(
        with("(table 1 funcref) (elem (table 0) (i32.const 0) funcref (ref.func 0))"),
        Reason::Invalid(_)
    ));
    let many = "(func)".repeat(1001);
    assert_eq!(with(&many), Reason::TooManyFunctions(1002, 1000));
    let long = module(&("(drop (i32.const 1))".repeat(60_000) + "(i32.const 1)"));
    let long = sandboxer().load(&long).unwrap_err();
    assert!(matches!(long.reason, Reason::TooLong(120_002.., 100_000)));
    assert_eq!(long.function.as_deref(), Some("handle"));
    let size = Policy::default().with(|p| p.max_module_bytes = 10);
    let size = Sandboxer::new(size).unwrap().load(&module("(i32.const 1)")).unwrap_err();
    assert!(matches!(size.reason, Reason::TooLarge(_, 10)));
    assert!(matches!(sandboxer().load(b"no module").unwrap_err().reason, Reason::NoModule));
    let area = Policy::default().with(|p| p.message_area_bytes = 1000);
    assert!(matches!(Sandboxer::new(area).unwrap_err().reason, Reason::Memory(_)));
}

#[test]
fn names_of_a_hostile_module_were_printed_as_they_are() {
    // Colours, a line of its own, and the direction of the text.
    let name = r"\1b[31m\n\e2\80\ae".to_owned() + &"x".repeat(10_000);
    let import = format!(r#"(import "{name}" "{name}" (func))"#);
    let export = format!(r#"(export "{name}" (memory 0)) (export "{name}" (memory 0))"#);
    let too_long = "(drop (i32.const 1))".repeat(60_000);
    for (what, fields, body) in
        [("import", &*import, ""), ("export", &export, ""), ("function", "", &too_long)]
    {
        let text = format!(
            r#"(module {fields} (memory (export "memory") 1 1)
                (func $"{name}" (export "ash_handle") (param i32 i32 i64 i32) (result i32)
                    {body} (i32.const 1)))"#
        );
        let error = sandboxer().load(&wat::parse_str(text).unwrap()).unwrap_err();
        for printed in [error.to_string(), format!("{error:?}")] {
            assert!(!printed.contains(|c: char| c.is_control() || c == '\u{202e}'), "{what}");
            assert!(printed.contains(r"\u{1b}[31m\n"), "{what}: {printed}");
            assert!(printed.len() < 500, "{what}: {} bytes", printed.len());
        }
    }
}

#[test]
fn elements_beyond_the_table_were_found_at_instantiation() {
    let load = |fields: &str| sandboxer().load(&module_with(fields, "(i32.const 1)"));
    for (fields, segment, elements) in [
        ("(table 1 funcref) (elem (i32.const 1) $handle)", 0, 1),
        ("(table 1 funcref) (elem (i32.const -1) $handle)", 0, 1),
        // Without an element it has an end, too.
        ("(table 1 funcref) (elem (i32.const 2))", 0, 1),
        (
            "(table 2 funcref) (elem (i32.const 0) $handle) (elem (i32.const 1) $handle $handle)",
            1,
            2,
        ),
        ("(table 9 funcref) (elem (offset (i32.add (i32.const 1) (i32.const 1))) $handle)", 0, 9),
    ] {
        let reason = load(fields).unwrap_err().reason;
        assert_eq!(reason, Reason::ElementsOutsideTable(segment, elements), "{fields}");
    }
    let within = "(table 2 funcref) (elem (i32.const 0) $handle) (elem (i32.const 1) $handle) (elem (i32.const 2))";
    let mut handler = load(within).unwrap().instantiate(1).unwrap();
    assert_eq!(run(&mut handler, b""), Outcome::Handled);
}

#[test]
fn floats_are_permitted_by_the_policy() {
    let wasm = module("(i32.trunc_f32_s (f32.const 1.5))");
    assert!(sandboxer().load(&wasm).is_err());
    let mut handler = handler_with(Policy::default().with(|p| p.allows_floats = true), &wasm);
    assert_eq!(run(&mut handler, b""), Outcome::Handled);
}

#[test]
fn cache_is_used_and_must_be_trusted() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let cached = || sandboxer().with_cache(directory.path());
    let wasm = module("(i32.const 1)");
    let files = || std::fs::read_dir(directory.path()).unwrap().map(|f| f.unwrap().path());
    for _ in 0..2 {
        let mut handler = cached().unwrap().load(&wasm).unwrap().instantiate(1).unwrap();
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
        assert_eq!(files().count(), 1);
    }
    // A file that is not as it was written is replaced.
    let path = files().next().unwrap();
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[1000] ^= 1;
    for content in [&bad[..], b"", b"short"] {
        std::fs::write(&path, content).unwrap();
        let mut handler = cached().unwrap().load(&wasm).unwrap().instantiate(1).unwrap();
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
        assert_eq!(std::fs::read(&path).unwrap(), good);
    }
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(directory.path(), mode(0o777)).unwrap();
    let error = cached().unwrap_err().to_string();
    assert!(error.contains("no one else can write"), "{error}");
    std::fs::set_permissions(directory.path(), mode(0o700)).unwrap();
    assert!(sandboxer().with_cache(&path).is_err());
    assert!(sandboxer().with_cache(&directory.path().join("missing")).is_err());
}

#[test]
fn directory_in_the_place_of_the_cache_was_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = tempfile::tempdir().unwrap();
    let of = |name: &str| parent.path().join(name);
    let make = |name: &str| {
        std::fs::create_dir(of(name)).unwrap();
        std::fs::set_permissions(of(name), std::fs::Permissions::from_mode(0o700)).unwrap();
    };
    let only_file = |name: &str| {
        let mut files = std::fs::read_dir(of(name)).unwrap().map(|file| file.unwrap().path());
        let file = files.next().expect("a compiled module");
        assert_eq!(files.next(), None);
        file
    };
    let [handles, discards] = ["(i32.const 1)", "(i32.const 2)"].map(module);
    for (name, wasm) in [("handles", &handles), ("discards", &discards)] {
        make(name);
        sandboxer().with_cache(&of(name)).unwrap().load(wasm).unwrap();
    }
    make("cache");
    let sandboxer = sandboxer().with_cache(&of("cache")).unwrap();
    std::fs::rename(of("cache"), of("moved")).unwrap();
    make("cache");
    // A file that is right but for its name.
    let planted = of("cache").join(only_file("handles").file_name().unwrap());
    std::fs::copy(only_file("discards"), &planted).unwrap();
    for _ in 0..2 {
        let mut handler = sandboxer.load(&handles).unwrap().instantiate(1).unwrap();
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
    }
    assert_eq!(only_file("moved").file_name(), planted.file_name());
    let read = |path| std::fs::read(path).unwrap();
    assert_eq!(read(only_file("cache")), read(only_file("discards")));
}

#[test]
fn index_at_the_end_of_its_range_overflowed_when_it_was_rewritten() {
    let mut wasm = module("(i32.const 1)");
    // A section of names: the function 2^32 - 1 is `x`.
    let names = [1, 8, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, b'x'];
    wasm.extend([0, 5 + names.len() as u8, 4]);
    wasm.extend(b"name");
    wasm.extend(names);
    let rejected = sandboxer().load(&wasm).unwrap_err();
    assert!(matches!(rejected.reason, Reason::Invalid(_)), "{rejected}");
}

#[test]
fn error_was_reported_at_the_place_in_the_rewritten_module() {
    let text = r#"(module
        (import "ash" "send" (func (param i32 i32) (result i32)))
        (memory (export "memory") 1 1)
        (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
            (memory.copy (i32.const 0) (i32.const 8) (i32.const 8)) (i32.const 1))
        (func (drop (f32.const 1.5))))"#;
    let wasm = wat::parse_str(text).unwrap();
    let at = wasm.windows(5).rposition(|bytes| bytes == [0x43, 0, 0, 0xc0, 0x3f]).unwrap();
    let rejected = sandboxer().load(&wasm).unwrap_err();
    assert_eq!(rejected.function.as_deref(), Some("2"), "{rejected}");
    let Reason::Invalid(reason) = &rejected.reason else { panic!("{rejected}") };
    assert!(reason.contains(&format!("(at offset {at:#x})")), "{reason}, not at {at:#x}");
}
