//! Virtual hosts in the file of settings: tables `[[host]]`, whose settings have the names and forms of flags.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};
use evring_httpd::options::{AccessLog, BasicAuth, FileOptions, HostName, HostOptions, Options};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::table::{NOT_SETTINGS, Setting, is_given, read_table, reason, with_value};

/// The settings that only virtual hosts have, and those for files. The others are flags of the server, of [`SHARED`].
#[derive(Debug, Parser)]
struct HostArguments {
    /// Name of the host, such as example.org, or *.example.org for all names below; can be repeated
    #[arg(long = "name", value_name = "NAME", required = true)]
    names: Vec<HostName>,

    #[command(flatten)]
    files: FileOptions,
}

/// The identifiers of the server's settings that a host has, too.
const SHARED: [&str; 6] = [ROOT, BASIC_AUTH, ACCESS_LOG, LOG_FORMAT, CERTIFICATE, KEY];
const ROOT: &str = "root";
const BASIC_AUTH: &str = "basic_auth";
const ACCESS_LOG: &str = "access_log";
const LOG_FORMAT: &str = "log_format";
/// A host has one of each.
const CERTIFICATE: &str = "certificates";
const KEY: &str = "keys";

/// Returns the settings of a host: its own, and those that it shares with the server.
fn command() -> Command {
    let server = Options::augment_args(Command::new("server"));
    let shared = server.get_arguments().filter(|arg| SHARED.contains(&arg.get_id().as_str()));
    let one = |arg: Arg| arg.action(ArgAction::Set);
    let command = HostArguments::command().args(shared.cloned().collect::<Vec<_>>());
    command.mut_arg(CERTIFICATE, one).mut_arg(KEY, one).mut_args(with_value)
}

/// Parses the settings of a host.
fn parse<'a>(flags: impl Iterator<Item = &'a String>) -> Result<HostOptions, clap::Error> {
    let flags = flags.map(String::as_str);
    let matches = command().try_get_matches_from(["httpd"].into_iter().chain(flags))?;
    let host = HostArguments::from_arg_matches(&matches)?;
    let mut names = host.names.into_iter();
    let Some(first) = names.next() else {
        return Err(clap::Error::new(clap::error::ErrorKind::MissingRequiredArgument));
    };
    let path = |id: &str| matches.get_one::<PathBuf>(id).cloned();
    let mut options = HostOptions::new(first, PathBuf::new());
    options.names.extend(names);
    options.root = path(ROOT);
    options.files = host.files;
    let basic_auth = matches.get_many::<BasicAuth>(BASIC_AUTH);
    options.basic_auth = basic_auth.map(|all| all.cloned().collect());
    options.access_log = path(ACCESS_LOG).map(|path| {
        let format = matches.get_one(LOG_FORMAT).copied().unwrap_or_default();
        AccessLog::from_setting(path, format)
    });
    options.certificate = path(CERTIFICATE).zip(path(KEY));
    Ok(options)
}

/// Reads the settings of each host. `server` has those of the whole server.
///
/// # Errors
/// The position of a setting or host, and why it cannot be used.
pub(crate) fn read(
    hosts: &Spanned<DeValue<'_>>,
    server: &Command,
) -> Result<Vec<Vec<Setting>>, (Range<usize>, String)> {
    let not_tables = || (hosts.span(), "hosts are tables: `[[host]]`".to_owned());
    let DeValue::Array(tables) = hosts.get_ref() else { return Err(not_tables()) };
    let (command, mut names) = (command(), HashSet::new());
    let mut all = Vec::new();
    for table in tables {
        let DeValue::Table(settings) = table.get_ref() else { return Err(not_tables()) };
        all.push(read_host(settings, table.span(), (&command, server), &mut names)?);
    }
    Ok(all)
}

fn read_host(
    table: &DeTable<'_>,
    span: Range<usize>,
    (command, server): (&Command, &Command),
    all_names: &mut HashSet<HostName>,
) -> Result<Vec<Setting>, (Range<usize>, String)> {
    let has = |command: &Command, name: &str| {
        command.get_arguments().any(|arg| arg.get_long() == Some(name))
    };
    let is_of_server =
        |name: &str| !has(command, name) && has(server, name) && !NOT_SETTINGS.contains(&name);
    if let Some(key) = table.keys().find(|key| is_of_server(key.get_ref())) {
        let reason = format!("`{}` is a setting of the whole server, not of a host", key.get_ref());
        return Err((key.span(), reason));
    }
    let settings = read_table(table, command, &["help"])?;
    let find = |id: &str| settings.iter().find(|setting| setting.id == id);
    if let (Some(format), None) = (find(LOG_FORMAT), find(ACCESS_LOG)) {
        return Err((format.span.clone(), "`log-format`: needs `access-log`".to_owned()));
    }
    let host = parse(settings.iter().flat_map(|setting| &setting.flags))
        .map_err(|error| (span.clone(), format!("host: {}", reason(&error))))?;
    if host.root.is_none() && host.files.redirects.is_empty() {
        return Err((span, "host: it has neither `root` nor `redirect`".to_owned()));
    }
    for name in host.names {
        if let Some(name) = all_names.replace(name) {
            let at = find("names").map_or(span, |setting| setting.span.clone());
            return Err((at, format!("`name`: there are two hosts with the name {name}")));
        }
    }
    Ok(settings)
}

/// Returns a host with its settings, and those for files of the whole server that it does not have.
pub(crate) fn options(
    settings: &[Setting],
    server: &ArgMatches,
) -> Result<HostOptions, clap::Error> {
    let has = |id: &str| settings.iter().any(|setting| setting.id == id);
    let mut flags: Vec<_> = settings.iter().flat_map(|setting| setting.flags.clone()).collect();
    let files = FileOptions::augment_args(Command::new("files"));
    for arg in files.get_arguments() {
        let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        // Pages are below a root.
        let is_page = matches!(id, "fallback" | "error_pages");
        if has(id) || !is_given(server, id) || is_page && !has("root") {
            continue;
        }
        for value in server.get_raw(id).into_iter().flatten() {
            flags.push(format!("--{long}={}", value.to_string_lossy()));
        }
    }
    if !has(LOG_FORMAT)
        && let Some(format) = server.get_raw(LOG_FORMAT).and_then(|mut all| all.next())
    {
        flags.push(format!("--log-format={}", format.to_string_lossy()));
    }
    let mut host = parse(flags.iter())?;
    if has(BASIC_AUTH) {
        // An empty list is one of its own, too.
        host.basic_auth.get_or_insert_default();
    }
    Ok(host)
}
