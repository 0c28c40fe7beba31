//! The web server compared with others: CPU time, rate and instructions by kind of request.

use super::cells::{median, names, of, row, rule, short, thousands};
use crate::experiments::DEFAULT;
use crate::outcome::Outcome;

const CPU: &str = "Server CPU per request, ";

pub(super) fn table(results: &[Outcome]) -> String {
    let Some(run) = of(results, "peers") else { return String::new() };
    let mut works: Vec<&str> = Vec::new();
    let mut servers: Vec<String> = Vec::new();
    for work in run.series.iter().filter_map(|s| s.figure.strip_prefix(CPU)) {
        works.push(work);
        let new = names(run, &format!("{CPU}{work}"));
        new.into_iter().for_each(|name| {
            if !servers.contains(&name) {
                servers.push(name);
            }
        });
    }
    // The default mechanism has the first column.
    servers.sort_by_key(|name| name != DEFAULT);
    let heads = servers.iter().map(|name| match name.as_str() {
        DEFAULT => format!("**`{DEFAULT}`**, the default"),
        name => name.to_owned(),
    });
    let heads: Vec<_> = ["work".to_owned()].into_iter().chain(heads).collect();
    let mut text = row(&heads.iter().map(String::as_str).collect::<Vec<_>>()) + &rule(heads.len());
    for work in works {
        let cell = |name: &String| {
            let of = |figure: &str, series| median(run, &format!("{figure}{work}"), series, name);
            let cpu = of(CPU, "server").map(short);
            let rate = of("Requests, ", "rate").map(thousands);
            let instructions = of("Instructions per request, ", "server");
            let instructions = instructions.map(|n| super::cells::grouped(n) + " instructions");
            [cpu, rate, instructions].into_iter().flatten().collect::<Vec<_>>().join("; ")
        };
        let cells: Vec<_> = [work.to_owned()].into_iter().chain(servers.iter().map(cell)).collect();
        text += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}
