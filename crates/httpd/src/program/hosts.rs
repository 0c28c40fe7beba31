//! Virtual hosts in the file of settings: tables `[[host]]`, whose settings have the names and forms of flags.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};
use evring_httpd::{Compression, FileOptions, HostName, HostOptions};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::settings::{Setting, is_given, read_table, reason};

/// The settings of a virtual host. Those for files are as for the whole server, unless the host has its own.
#[derive(Debug, Parser)]
struct HostArguments {
    /// Name of the host, such as example.org, or *.example.org for all names below; can be repeated
    #[arg(long = "name", value_name = "NAME", required = true)]
    names: Vec<HostName>,

    /// Directory to serve
    #[arg(long, value_name = "DIR")]
    root: PathBuf,

    #[command(flatten)]
    files: FileOptions,

    /// File of a certificate chain, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// File of the private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// Reads the settings of each host.
///
/// # Errors
/// The position of a setting or host, and why it cannot be used.
pub(crate) fn read(
    hosts: &Spanned<DeValue<'_>>,
) -> Result<Vec<Vec<Setting>>, (Range<usize>, String)> {
    let not_tables = || (hosts.span(), "hosts are tables: `[[host]]`".to_owned());
    let DeValue::Array(tables) = hosts.get_ref() else { return Err(not_tables()) };
    let (command, mut names) = (HostArguments::command(), HashSet::new());
    let mut all = Vec::new();
    for table in tables {
        let DeValue::Table(settings) = table.get_ref() else { return Err(not_tables()) };
        all.push(read_host(settings, table.span(), &command, &mut names)?);
    }
    Ok(all)
}

fn read_host(
    table: &DeTable<'_>,
    span: Range<usize>,
    command: &Command,
    all_names: &mut HashSet<HostName>,
) -> Result<Vec<Setting>, (Range<usize>, String)> {
    let of_server = Compression::augment_args(Command::new("compression"));
    let of_server: Vec<_> = of_server.get_arguments().filter_map(|arg| arg.get_long()).collect();
    let excluded: Vec<_> = of_server.iter().copied().chain(["help"]).collect();
    let found = table.keys().find(|key| of_server.contains(&key.get_ref().as_ref()));
    if let Some(key) = found {
        let reason = format!("`{}` is a setting of the whole server, not of a host", key.get_ref());
        return Err((key.span(), reason));
    }
    let settings = read_table(table, command, &excluded)?;
    let flags = settings.iter().flat_map(|setting| &setting.flags).map(String::as_str);
    let host = HostArguments::try_parse_from(["httpd"].into_iter().chain(flags))
        .map_err(|error| (span.clone(), format!("host: {}", whole_reason(&error))))?;
    for name in host.names {
        if let Some(name) = all_names.replace(name) {
            return Err((span, format!("host: there are two hosts with the name {name}")));
        }
    }
    Ok(settings)
}

/// Returns the reason of an error with the settings that are missing.
fn whole_reason(error: &clap::Error) -> String {
    let missing = error.get(clap::error::ContextKind::InvalidArg);
    match missing {
        Some(names) if error.kind() == clap::error::ErrorKind::MissingRequiredArgument => {
            format!("a setting is missing: {names}")
        }
        _ => reason(error),
    }
}

/// Returns a host with its settings, and those for files of the whole server that it does not have.
pub(crate) fn options(
    settings: &[Setting],
    server: &ArgMatches,
) -> Result<HostOptions, clap::Error> {
    let mut flags: Vec<_> = settings.iter().flat_map(|setting| setting.flags.clone()).collect();
    let files = FileOptions::augment_args(Command::new("files"));
    for arg in files.get_arguments() {
        let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        if settings.iter().any(|setting| setting.id == id) || !is_given(server, id) {
            continue;
        }
        if !arg.get_action().takes_values() {
            // A variable can also say that it is off.
            flags.extend(server.get_flag(id).then(|| format!("--{long}")));
            continue;
        }
        for value in server.get_raw(id).into_iter().flatten() {
            flags.push(format!("--{long}={}", value.to_string_lossy()));
        }
    }
    let matches = HostArguments::command()
        .try_get_matches_from(["httpd"].into_iter().chain(flags.iter().map(String::as_str)))?;
    let host = HostArguments::from_arg_matches(&matches)?;
    let mut names = host.names.into_iter();
    let Some(first) = names.next() else {
        return Err(clap::Error::new(clap::error::ErrorKind::MissingRequiredArgument));
    };
    let mut options = HostOptions::new(first, host.root);
    options.names.extend(names);
    options.files = host.files;
    options.certificate = host.tls_cert.zip(host.tls_key);
    Ok(options)
}
