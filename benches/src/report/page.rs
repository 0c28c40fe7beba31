//! The HTML page: text and tables.

use super::markup::{escape, positions};
use super::{plot, regime};
use crate::experiments;
use crate::failure::Failure;
use crate::outcome::{Outcome, Series};
use crate::ratio::Ratio;
use crate::say::number;

/// Light or dark, according to the reader's system.
const STYLE: &str = "
:root { color-scheme: light dark; --faint: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-top: 1px solid var(--faint); padding-top: 1rem; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0 1rem; }
th, td { padding: .15rem .8rem; text-align: right; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; }
.map td, .map th { text-align: left; vertical-align: top; }
td small { opacity: .6; }
li { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.paper { opacity: .8; font-style: italic; }
.faint { opacity: .7; font-size: .9rem; }
.yes { color: #2a8a4a; } .no { color: #c0392b; font-weight: bold; } .open { color: #b07a10; }
summary { cursor: pointer; }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
";

/// Short names and titles of the papers.
const PAPERS: [&str; 3] = [
    "SEND: M. Ostrowski, A Mechanism for Scalable Event Notification and Delivery in Linux. Thesis, \
     University of Waterloo, 2000. PS1 is its server with events delivered and notified in batches, PS2 \
      with events notified in batches only.",
    "Banga et al.: G. Banga, J. C. Mogul, P. Druschel, A Scalable and Explicit Event Delivery \
     Mechanism for UNIX. USENIX Annual Technical Conference, 1999.",
    "FlexSC: L. Soares, M. Stumm, Exception-Less System Calls for Event-Driven Servers. USENIX \
     Annual Technical Conference, 2011.",
];

/// Returns the page.
pub(super) fn html(runs: &[Outcome]) -> Result<String, Failure> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Lab report</title>\n<style>{STYLE}</style>\n<h1>Lab report</h1>\n"
    );
    page += "<p>Each section is the last run of an experiment on this machine:";
    for run in runs {
        page += &format!(" <a href=\"#{0}\">{0}</a>", escape(&run.id));
    }
    page += ".</p>\n";
    page += &regime::map(runs);
    for run in runs {
        experiment(&mut page, run)?;
    }
    page += "<h2>The papers</h2>\n<ul>\n";
    for paper in PAPERS {
        page += &format!("<li>{}\n", escape(paper));
    }
    page += "</ul>\n";
    Ok(page)
}

fn experiment(page: &mut String, run: &Outcome) -> Result<(), Failure> {
    let description = experiments::named(&run.id)?;
    let m = &run.machine;
    let versions: Vec<_> = m.versions.iter().map(|(k, v)| format!("{k} {v}")).collect();
    *page += &format!(
        "<h2 id=\"{0}\">{0}</h2>\n<p>{1}.</p>\n",
        escape(&run.id),
        escape(&capital(description.title))
    );
    for sentence in &run.shows {
        *page += &format!("<p><b>{}</b></p>\n", prose(sentence));
    }
    *page += &format!(
        "<p class=\"faint\">Source: {}.<br>Repeat: <code>cargo lab run {}{}</code>\
         {}<br>Machine: {}, {} cores, kernel {}, {}, {}. {}</p>\n",
        escape(description.source),
        escape(&run.id),
        if run.quick { " --quick" } else { "" },
        if run.quick { " <b>This was a quick run: individual ratios vary widely.</b>" } else { "" },
        escape(&m.cpu),
        m.cores,
        escape(&m.kernel),
        escape(m.rustc.as_deref().unwrap_or("unknown compiler")),
        escape(&versions.join(", ")),
        escape(&run.date)
    );
    ratios(page, run);
    for name in figures(run) {
        let series: Vec<_> = run.series.iter().filter(|s| s.figure == name).collect();
        figure(page, name, &series, run.papers.get(name))?;
    }
    *page += "<details><summary>Notes</summary>\n<ul>\n";
    for note in &run.notes {
        *page += &format!("<li>{}\n", prose(note));
    }
    *page += "</ul></details>\n";
    Ok(())
}

/// Returns the names of all figures, in order.
pub(super) fn figures(run: &Outcome) -> Vec<&str> {
    let mut figures: Vec<&str> = Vec::new();
    for series in &run.series {
        if !figures.contains(&series.figure.as_str()) {
            figures.push(&series.figure);
        }
    }
    figures
}

/// Adds the ratios: those with goals, and folded the others.
fn ratios(page: &mut String, run: &Outcome) {
    let (goals, others): (Vec<_>, Vec<_>) =
        run.ratios.iter().partition(|(_, ratio)| ratio.goal.is_some());
    if !goals.is_empty() {
        *page += "<h3>Goals</h3>\n";
        ratio_table(page, &goals);
    }
    if !others.is_empty() {
        *page += "<details><summary>Ratios without a goal</summary>\n";
        ratio_table(page, &others);
        *page += "</details>\n";
    }
}

fn ratio_table(page: &mut String, ratios: &[(&String, &Ratio)]) {
    *page += "<table><tr><th>ratio<th>of<th>median<th>95 % interval<th>rounds<th>goal<th>met\n";
    for (name, ratio) in ratios {
        let rounds = ratio.per_round.len();
        let met =
            ratio.met.map_or(String::new(), |met| format!("<span class=\"{met}\">{met}</span>"));
        *page += &format!(
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{rounds}<td>{}<td>{met}\n",
            escape(name),
            escape(&ratio.mechanism),
            number(ratio.value),
            ratio.interval(),
            ratio.goal.map_or(String::new(), |goal| goal.to_string()),
        );
    }
    *page += "</table>\n";
}

fn figure(
    page: &mut String,
    name: &str,
    series: &[&Series],
    paper: Option<&String>,
) -> Result<(), Failure> {
    let unit = &series[0].unit;
    let unit = if unit.is_empty() { String::new() } else { format!(" [{unit}]") };
    let heading = format!("{}{}", escape(name), escape(&unit));
    *page += &format!("<details><summary>{heading}</summary>\n<p class=\"key\">");
    for (s, colour) in series.iter().zip(plot::colours()).filter(|(s, _)| !s.name.is_empty()) {
        let key = format!("<span style=\"background:{colour}\"></span>{}", escape(&s.name));
        *page += &key;
    }
    *page += "</p>\n";
    *page += &plot::svg(series)?;
    if let Some(text) = paper {
        *page += &format!("<p class=\"paper\">{}</p>\n", prose(text));
    }
    table(page, series);
    *page += "</details>\n";
    Ok(())
}

/// Adds a table with a row for each position on the axis, and a column for each series.
fn table(page: &mut String, series: &[&Series]) {
    *page += "<details><summary>Numbers</summary><div class=\"scroll\"><table>\n<tr><th>";
    for s in series {
        *page += &format!("<th>{}", escape(&s.name));
    }
    for x in positions(series) {
        *page += &format!("\n<tr><td>{}", escape(&x.to_string()));
        for s in series {
            *page += "<td>";
            let Some(point) = s.points.iter().find(|p| p.x == *x) else { continue };
            let y = &point.y;
            *page += &number(y.median);
            if y.low != y.high {
                let range = format!(" <small>{} to {}</small>", number(y.low), number(y.high));
                *page += &range;
            }
        }
    }
    *page += "\n</table></div></details>\n";
}

/// Returns the text with an initial capital letter.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or(String::new(), |first| first.to_uppercase().collect::<String>() + letters.as_str())
}

/// Converts text to HTML; text between backticks becomes code.
fn prose(text: &str) -> String {
    let mut html = String::new();
    for (i, part) in text.split('`').enumerate() {
        match i % 2 {
            0 => html += &escape(part),
            _ => html += &format!("<code>{}</code>", escape(part)),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::X;
    use crate::statistics::spread;

    #[test]
    fn goals_are_shown_and_the_rest_is_folded() {
        let mut run = Outcome::new("preempt");
        run.ratio("wait_mode_over_send", "send", vec![9.0, 11.0, 12.0, 9.5, 13.0]);
        run.ratio("epoll_over_send", "send", vec![8.0; 6]);
        run.point("Time", "us", "send", X::Name("here".into()), spread(&[1.0]).unwrap());
        let page = html(&[run]).unwrap();
        let row = page.lines().find(|line| line.contains("wait_mode_over_send")).unwrap();
        assert!(row.contains("<td>send<td>11.000<td>9.000 to 13.000<td>5<td>at least 10"), "{row}");
        assert!(row.ends_with("<span class=\"open\">open</span>"), "{row}");
        let shown = page.split("<details>").next().unwrap();
        assert!(shown.contains("wait_mode_over_send"), "{shown}");
        assert!(!shown.contains("epoll_over_send") && !shown.contains("Time"), "{shown}");
    }
}
