//! The JSON API with a database.

mod program;

use program::Program;
use serde_json::{Value, json};

#[test]
fn notes_are_kept_in_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.db");
    let arguments = [path.to_str().unwrap(), "127.0.0.1:0"];
    let json_type = "Content-Type: application/json\r\n";
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let program = Program::start(env!("CARGO_BIN_EXE_json-api"), &arguments);
    assert_eq!(parse(&program.get("/notes").body), json!([]));
    for (n, text) in ["milk", "d'oh"].into_iter().enumerate() {
        let body = json!({ "text": text }).to_string();
        let answer = program.request("POST /notes", json_type, body.as_bytes());
        assert_eq!(answer.status, 201);
        assert_eq!(parse(&answer.body), json!({ "id": n + 1, "text": text }));
    }
    assert_eq!(program.request("POST /notes", json_type, b"{}").status, 400);
    assert_eq!(program.request("POST /notes", "", b"{\"text\": \"x\"}").status, 415);
    let answer = program.request("PUT /notes", "", b"");
    assert_eq!(answer.status, 405);
    assert!(answer.head.contains("allow: get, post, head, options"), "{answer:?}");
    assert_eq!(program.get("/notes/3").status, 404);
    assert_eq!(program.request("DELETE /notes/1", "", b"").status, 204);
    assert_eq!(program.request("DELETE /notes/1", "", b"").status, 404);
    program.stop();
    let program = Program::start(env!("CARGO_BIN_EXE_json-api"), &arguments);
    assert_eq!(parse(&program.get("/notes/2").body), json!({ "id": 2, "text": "d'oh" }));
    assert_eq!(parse(&program.get("/notes").body), json!([{ "id": 2, "text": "d'oh" }]));
    program.stop();
}

#[test]
fn note_was_stored_and_the_request_failed_when_the_log_could_not_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.db");
    let script = "exec \"$0\" \"$1\" 127.0.0.1:0 2>/dev/full";
    let api = env!("CARGO_BIN_EXE_json-api");
    let program = Program::start("/bin/sh", &["-c", script, api, path.to_str().unwrap()]);
    let json_type = "Content-Type: application/json\r\n";
    assert_eq!(program.request("POST /notes", json_type, b"{\"text\": \"x\"}").status, 201);
    assert_eq!(program.get("/notes/1").status, 200);
    program.stop();
}
