//! Prints the size of a directory tree, as `du -sb` does.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget};
use walk::{Found, Options, walk};

/// The size of a directory tree: the sum of the sizes of all its files, each counted once
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The tree
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Print each object: type, inode, links, size and path, as `find -printf '%y %i %n %s %p\n'`
    #[arg(long)]
    list: bool,
    /// Leave out the sizes of directories, as du does from version 9.2 on
    #[arg(long)]
    files_only: bool,
    /// Files with several links that it remembers, to count each once; about 40 bytes of memory for each
    #[arg(long, value_name = "NUMBER", default_value_t = Options::default().links)]
    max_links: usize,
}

/// Objects after which the progress line is changed.
const REPORT_EVERY: u64 = 1_000;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // On standard error, and only if that is a terminal. It would be between the lines of a list on the same one.
    let progress = ProgressBar::new_spinner();
    if arguments.list && io::stdout().is_terminal() {
        progress.set_draw_target(ProgressDrawTarget::hidden());
    }
    progress.enable_steady_tick(Duration::from_millis(100));
    let mut out = BufWriter::new(io::stdout().lock());
    let mut written = Ok(());
    let (mut entries, mut bytes) = (0, 0_u64);
    let mut options = Options::default();
    options.links = arguments.max_links;
    let totals = walk(&arguments.path, &options, |found| match found {
        Found::Entry(entry) => {
            (entries, bytes) = (entries + 1, bytes.saturating_add(entry.size));
            if entries % REPORT_EVERY == 0 {
                let (entries, bytes) = (HumanCount(entries), HumanBytes(bytes));
                progress.set_message(format!("{entries} objects, {bytes}"));
            }
            if arguments.list {
                written = list(&mut out, &entry);
            }
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
        Found::Unreadable(path, error) => {
            let message = format!("walk: cannot read {}: {error}", path.display());
            progress.suspend(|| report(&message));
            ControlFlow::Continue(())
        }
    });
    progress.finish_and_clear();
    let totals = match totals {
        Ok(totals) => totals,
        Err(error) => {
            let advice = match error {
                walk::Error::TooManyLinks => "; use --max-links with a larger number",
                _ => "",
            };
            report(&format!("walk: {}: {error}{advice}", arguments.path.display()));
            return ExitCode::FAILURE;
        }
    };
    if !arguments.list {
        let directories = if arguments.files_only { 0 } else { totals.directory_bytes };
        let bytes = totals.file_bytes.saturating_add(directories);
        written = sum(&mut out, bytes, &arguments.path);
    }
    if let Err(error) = written.and_then(|()| out.flush()) {
        report(&format!("walk: cannot write: {error}"));
        return ExitCode::FAILURE;
    }
    if totals.unreadable > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Prints a message. Nothing is left to do if standard error cannot be written.
fn report(message: &str) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// Prints the line of du(1).
fn sum(out: &mut impl Write, bytes: u64, path: &Path) -> io::Result<()> {
    match bytes {
        u64::MAX => write!(out, "Infinity\t")?,
        _ => write!(out, "{bytes}\t")?,
    }
    line(out, path)
}

/// Writes the bytes of a path, and ends the line.
fn line(out: &mut impl Write, path: &Path) -> io::Result<()> {
    out.write_all(path.as_os_str().as_bytes())?;
    out.write_all(b"\n")
}

fn list(out: &mut impl Write, entry: &walk::Entry<'_>) -> io::Result<()> {
    let walk::Entry { path, letter, inode, links, size } = entry;
    write!(out, "{letter} {inode} {links} {size} ")?;
    line(out, path)
}
