//! The list of event mechanisms, as a table or as JSON.

use std::io::{self, Write};
use std::process::ExitCode;

use evring_httpd::evring::StartError;
use evring_httpd::evring::mechanisms::{AutoChoice, NAMES, auto, backends};
use serde_json::json;

pub(crate) fn list(as_json: bool) -> ExitCode {
    let text = if as_json { json_list() } else { table() };
    // A reader that closes the pipe early is not an error.
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn json_list() -> String {
    let list: Vec<_> = backends()
        .into_iter()
        .map(|backend| {
            json!({
                "name": backend.name,
                "family": backend.family.to_string(),
                "summary": backend.summary,
                "available": backend.available.is_ok(),
                "reason": backend.available.err().map(|reason| reason.to_string()),
            })
        })
        .collect();
    format!("{:#}\n", json!(list))
}

fn table() -> String {
    let mut text = String::new();
    for backend in backends() {
        let state = match backend.available {
            Ok(()) => backend.summary.to_owned(),
            Err(reason) => format!("not available: {reason}"),
        };
        let family = backend.family.to_string();
        text += &format!("{:<12} {family:<12} {state}\n", backend.name);
    }
    text
}

/// Returns the mechanism to use and, if a faster one is unavailable, a note with the reasons.
///
/// # Errors
/// If there is no such mechanism, or this machine does not have it.
pub(crate) fn choose(name: &str) -> Result<(String, Option<String>), StartError> {
    if name != "auto" {
        let found = backends().into_iter().find(|backend| backend.name == name);
        let found = found.ok_or_else(|| StartError::Unknown(name.to_owned(), NAMES))?;
        found.available.map_err(StartError::Unavailable)?;
        return Ok((name.to_owned(), None));
    }
    let AutoChoice { name, unavailable, .. } = auto().map_err(StartError::Unavailable)?;
    let unavailable: Vec<String> = unavailable
        .iter()
        .map(|(name, reason)| format!("{name} is unavailable: {reason}"))
        .collect();
    let reason = (!unavailable.is_empty())
        .then(|| format!("using {name} because {}", unavailable.join("; ")));
    Ok((name.to_owned(), reason))
}
