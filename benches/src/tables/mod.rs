//! `lab tables`: the tables of the Markdown pages, and their plot, made from the committed results.
//!
//! A table stands between the lines `<!-- table: NAME -->` and `<!-- end of table -->`.

mod cells;
mod ecem;
mod file_delivery;
mod floors;
mod goals;
mod overview;
mod peers;
mod plot;
mod slow_clients;

use std::fs;
use std::path::Path;

use crate::command::Tables;
use crate::experiments;
use crate::failure::Failure;
use crate::outcome::{self, Outcome};
use crate::say::say;
use cells::{row, rule};

/// The pages with tables.
const PAGES: [&str; 3] = ["README.md", "BENCHMARKS.md", "docs/file-delivery.md"];
/// The directory of the results: the file of an experiment is `ID.json`.
const RESULTS: &str = "docs/results";

const BEGIN: &str = "<!-- table: ";
const END: &str = "<!-- end of table -->";

/// Makes a table from the results.
type Table = fn(&[Outcome]) -> String;

/// Every table, by name.
const TABLES: [(&str, Table); 11] = [
    ("overview", overview::table),
    ("goals", goals::table),
    ("floors", floors::table),
    ("peers", peers::table),
    ("slow-clients", slow_clients::table),
    ("sources", sources),
    ("file-policies", file_delivery::policies),
    ("file-ways", file_delivery::ways),
    ("unsent-limits", file_delivery::limits),
    ("file-senders", ecem::senders),
    ("file-readers", ecem::readers),
];

/// Writes the tables into the pages, and the plot, or compares them.
///
/// # Errors
/// If a comparison finds a difference.
pub(crate) fn tables(options: &Tables) -> Result<(), Failure> {
    let current = std::env::current_dir()?;
    let root = outcome::workspace(&current);
    let results = results(&root.join(RESULTS))?;
    let mut outdated = Vec::new();
    let mut update = |name: &'static str, old: &str, new: &str| {
        if new == old {
            return Ok(());
        }
        if options.check {
            outdated.push(name);
            return Ok(());
        }
        let path = root.join(name);
        fs::write(&path, new)
            .map_err(|e| Failure::new(format_args!("cannot write {}", path.display()), e))?;
        say(format_args!("{} written", path.display()))
    };
    for page in PAGES {
        let path = root.join(page);
        let unreadable = |e| Failure::new(format_args!("cannot read {}", path.display()), e);
        let old = fs::read_to_string(&path).map_err(unreadable)?;
        let new = filled(&old, &results).map_err(|e| Failure::new(page, e))?;
        update(page, &old, &new)?;
    }
    if let Some(new) = plot::svg(&results)? {
        let old = fs::read_to_string(root.join(plot::FILE)).unwrap_or_default();
        update(plot::FILE, &old, &new)?;
    }
    if outdated.is_empty() {
        return Ok(());
    }
    Err(Failure::Run(format!(
        "{} differ from {RESULTS}; run `cargo lab tables`",
        outdated.join(" and ")
    )))
}

/// Reads the committed results, in the order of the list of experiments.
fn results(directory: &Path) -> Result<Vec<Outcome>, Failure> {
    let files = experiments::ALL.iter().map(|e| directory.join(format!("{}.json", e.id)));
    files.filter(|path| path.exists()).map(|path| Outcome::load(&path)).collect()
}

/// Returns a page with its tables made anew.
fn filled(page: &str, results: &[Outcome]) -> Result<String, Failure> {
    let mut text = String::with_capacity(page.len());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text += line;
        text.push('\n');
        let Some(name) = line.strip_prefix(BEGIN).and_then(|line| line.strip_suffix(" -->")) else {
            continue;
        };
        let table = TABLES.iter().find(|(known, _)| *known == name);
        let (_, table) =
            table.ok_or_else(|| Failure::Run(format!("there is no table `{name}`")))?;
        text += &format!("\n{}\n", table(results).trim_end());
        if !lines.any(|line| line == END) {
            return Err(Failure::Run(format!("the table `{name}` does not end")));
        }
        text += &format!("\n{END}\n");
    }
    Ok(text)
}

/// Lists the results: when and where they were measured, and what disturbed them.
fn sources(results: &[Outcome]) -> String {
    let mut text = row(&["experiment", "date", "commit", "machine", "disturbed by"]) + &rule(5);
    for run in results {
        let m = &run.machine;
        let machine = format!("{}, {} cores, Linux {}", m.cpu, m.cores, m.kernel);
        let id = format!("`{}`", run.id);
        text += &row(&[&id, &run.date, run.commit(), &machine, &run.disturbances()]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_made_between_their_marks() {
        let page = "before\n<!-- table: sources -->\n\nold\n\n<!-- end of table -->\nafter\n";
        let mut run = Outcome::new("floors");
        run.date = "Thu, 26 Nov 2026".to_owned();
        run.machine.versions.insert("commit".to_owned(), "abc123".to_owned());
        let new = filled(page, &[run]).unwrap();
        assert!(new.starts_with("before\n<!-- table: sources -->\n\n| experiment |"), "{new}");
        assert!(new.contains("| `floors` | Thu, 26 Nov 2026 | abc123 |"), "{new}");
        assert!(!new.contains("old"), "{new}");
        assert!(new.ends_with(" |  |\n\n<!-- end of table -->\nafter\n"), "{new}");
    }

    #[test]
    fn source_that_was_disturbed_looked_as_the_others() {
        let mut run = Outcome::new("cold");
        let note = format!("{} used 15 % of a core; repeat it.", outcome::OTHER_PROGRAMS);
        run.notes.push(note);
        run.shows.extend(["2.", "1."].map(|runs| format!("{}{runs}", outcome::UNRELIABLE_RUNS)));
        let table = sources(&[run]);
        assert!(table.ends_with(" | other programs 15 %, 3 unreliable runs |\n"), "{table}");
    }

    #[test]
    fn wrong_marks_are_errors() {
        let error = |page: &str| filled(page, &[]).unwrap_err().to_string();
        assert_eq!(error("<!-- table: moon -->\n"), "there is no table `moon`");
        assert_eq!(error("<!-- table: goals -->\n"), "the table `goals` does not end");
    }
}
