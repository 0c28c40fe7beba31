//! Downloads of large files, by the policies for sending them and by other servers.

use super::cells::{grouped, of, row, rule};
use crate::outcome::{Outcome, X};

/// Number of concurrent downloads.
const DOWNLOADS: X = X::Number(120.0);

const RATE: &str = "Rate";
const CPU: &str = "Server CPU";
const MEMORY: &str = "Peak memory";

/// Files and clients: a label, and how the titles of their figures end.
type Case = (&'static str, &'static str);
const CACHED: Case = ("cached, fast", "");
const COLD: Case = ("not cached, fast", ", files not cached");
const SLOW: Case = ("cached, 400 KB per second", ", clients with a limited rate");

/// The servers of `ecem-dns`: their series and labels. Some are measured in some cases only.
const SENDERS: [(&str, &str); 7] = [
    ("uring dns", "`uring`, `dns`"),
    ("uring ded", "`uring`, `ded`"),
    ("epoll plain", "`epoll`, `plain`"),
    ("process sendfile", "a blocking process each, sendfile(2)"),
    ("nginx downloads", "nginx, `sendfile on`"),
    ("nginx aio", "nginx, `aio threads`"),
    ("nginx directio", "nginx, `directio`"),
];

/// Those of `ecem-ded`.
const READERS: [(&str, &str); 4] = [
    ("process read-write", "a blocking process each, read(2) and write(2)"),
    ("uring ded", "`uring`, `ded`"),
    ("epoll ded", "`epoll`, `ded`"),
    ("nginx copy", "nginx, `sendfile off`"),
];

/// Returns the median of a figure.
fn value(run: &Outcome, figure: &str, case: Case, server: &str) -> Option<String> {
    let figure = format!("{figure} against concurrent downloads{}", case.1);
    let series = run.series.iter().find(|s| s.figure == figure && s.name == server)?;
    let point = series.points.iter().find(|point| point.x == DOWNLOADS)?;
    Some(grouped(point.y.median))
}

/// Returns the rate, the CPU time and the memory of each server that sends files.
pub(super) fn senders(results: &[Outcome]) -> String {
    let heads = [
        "files, clients",
        "server",
        "rate, MB/s",
        "server CPU, us per MB",
        "memory per download, KiB",
    ];
    let mut text = row(&heads) + &rule(heads.len());
    let Some(run) = of(results, "ecem-dns") else { return text };
    for case in [CACHED, COLD, SLOW] {
        let mut label = case.0;
        for (series, server) in SENDERS {
            let cells = [RATE, CPU, MEMORY].map(|figure| value(run, figure, case, series));
            let [Some(rate), Some(cpu), Some(memory)] = &cells else { continue };
            text += &row(&[label, server, rate, cpu, memory]);
            label = "";
        }
    }
    text
}

/// Returns the same of each server that reads files into memory.
pub(super) fn readers(results: &[Outcome]) -> String {
    let servers = READERS.map(|(_, server)| server);
    let heads: Vec<_> = ["files, clients"].into_iter().chain(servers).collect();
    let mut text = row(&heads) + &rule(heads.len());
    let Some(run) = of(results, "ecem-ded") else { return text };
    let rows: [(&str, &[(&str, Case)]); 4] = [
        ("cached, fast: MB/s; us of CPU time per MB", &[(RATE, CACHED), (CPU, CACHED)]),
        ("not cached, fast", &[(RATE, COLD), (CPU, COLD)]),
        ("cached, 400 KB per second: us per MB", &[(CPU, SLOW)]),
        ("KiB of memory per download, cached; not cached", &[(MEMORY, CACHED), (MEMORY, COLD)]),
    ];
    for (label, figures) in rows {
        let cells = READERS.map(|(series, _)| {
            let values =
                figures.iter().filter_map(|(figure, case)| value(run, figure, *case, series));
            values.collect::<Vec<_>>().join("; ")
        });
        let cells = cells.iter().map(String::as_str);
        text += &row(&[label].into_iter().chain(cells).collect::<Vec<_>>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::spread;

    fn add(run: &mut Outcome, figure: &str, series: &str, value: f64) {
        run.point(figure, "", series, DOWNLOADS, spread(&[value]).unwrap());
    }

    #[test]
    fn row_has_the_figures_of_its_files_and_clients() {
        let (mut dns, mut ded) = (Outcome::new("ecem-dns"), Outcome::new("ecem-ded"));
        for (end, times) in [("", 1.0), (", files not cached", 2.0)] {
            for (figure, value) in [(RATE, 3_655.0), (CPU, 201.0), (MEMORY, 7.0)] {
                let figure = format!("{figure} against concurrent downloads{end}");
                add(&mut dns, &figure, "uring dns", times * value);
                add(&mut dns, &figure, "nginx aio", value);
                add(&mut ded, &figure, "epoll ded", times * value);
            }
        }
        let results = [dns, ded];
        let senders = senders(&results);
        let cached =
            "| cached, fast | `uring`, `dns` | 3,655 | 201 | 7 |\n|  | nginx, `aio threads` |";
        assert!(senders.contains(cached), "{senders}");
        assert!(senders.contains("| not cached, fast | `uring`, `dns` | 7,310 | 402 | 14 |"));
        assert!(!senders.contains(SLOW.0), "{senders}");
        let readers = readers(&results);
        assert!(readers.contains("| not cached, fast |  |  | 7,310; 402 |  |"), "{readers}");
        assert!(readers.ends_with("|  |  | 7; 14 |  |\n"), "{readers}");
    }
}
