//! A JSON API with a database: notes in SQLite. Threads of a pool make the queries.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use evring_httpd::body::RequestBody;
use evring_httpd::handlers::{Json, JsonError, Next, Pool, from_json, param};
use evring_httpd::http::StatusCode;
use evring_httpd::{IntoResponse, Request, Response, Server, get};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
struct NewNote {
    text: String,
}

#[derive(Debug, Serialize)]
struct Note {
    id: i64,
    text: String,
}

impl Note {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Note { id: row.get(0)?, text: row.get(1)? })
    }
}

/// The reasons why a request fails.
#[derive(Debug)]
enum Failure {
    Json(JsonError),
    NotFound,
    Database(rusqlite::Error),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Failure::Json(error) => error.into_response(),
            Failure::NotFound => (StatusCode::NOT_FOUND, "no such note\n").into_response(),
            Failure::Database(error) => {
                log(format_args!("database: {error}"));
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Database(error)
    }
}

fn list(db: &Connection, _: &Request) -> Result<Response, Failure> {
    let mut query = db.prepare_cached("SELECT id, text FROM notes ORDER BY id LIMIT 100")?;
    let notes: Vec<_> = query.query_map([], Note::of)?.collect::<Result<_, _>>()?;
    Ok(Json(notes).into_response())
}

fn add(db: &Connection, request: &Request) -> Result<Response, Failure> {
    let NewNote { text } = from_json(request).map_err(Failure::Json)?;
    db.prepare_cached("INSERT INTO notes (text) VALUES (?)")?.execute([&text])?;
    let note = Note { id: db.last_insert_rowid(), text };
    Ok((StatusCode::CREATED, Json(note)).into_response())
}

fn show(db: &Connection, request: &Request) -> Result<Response, Failure> {
    let mut query = db.prepare_cached("SELECT id, text FROM notes WHERE id = ?")?;
    let note = query.query_row([param(request, "id")], Note::of).optional()?;
    note.map(|note| Json(note).into_response()).ok_or(Failure::NotFound)
}

fn remove(db: &Connection, request: &Request) -> Result<Response, Failure> {
    let count = db.execute("DELETE FROM notes WHERE id = ?", params![param(request, "id")])?;
    if count == 0 { Err(Failure::NotFound) } else { Ok(StatusCode::NO_CONTENT.into_response()) }
}

/// Writes a line to standard error, if that can be written: `eprintln!` would panic. A pipe that is full delays all clients
/// of a worker; `Builder::access_log` does not.
fn log(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(database) = arguments.next() else {
        eprintln!("usage: json-api DATABASE [ADDRESS]");
        std::process::exit(2);
    };
    let db = Connection::open(database)?;
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    )?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let (pool, db) = (Pool::new(1, 1000)?, Arc::new(Mutex::new(db)));
    let handler = |query: fn(&Connection, &Request) -> Result<Response, Failure>| {
        let db = Arc::clone(&db);
        pool.handler(move |request: Request| query(&db.lock().unwrap(), &request))
    };
    let server = Server::builder()
        .listen(address)
        .route("/notes", get(handler(list)).post(handler(add)))
        .route("/notes/{id}", get(handler(show)).delete(handler(remove)))
        .wrap(async |request: Request<RequestBody>, next: Next| {
            let line = format!("{} {}", request.method(), request.uri());
            let response = next.run(request).await;
            log(format_args!("{line} {}", response.status()));
            response
        })
        .start()?;
    println!("listening on http://{}", server.addresses()[0]);
    Ok(server.wait_until_signal()?)
}
