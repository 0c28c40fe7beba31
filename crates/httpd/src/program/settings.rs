//! The program's settings: flags, environment variables and a file, which give the same settings by the same names.
//!
//! A setting on the command line takes precedence over an environment variable, this one over the file, and the
//! file over the default. Values of variables and of the file are parsed as those of flags are, so each setting has
//! one definition.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use evring_httpd::evring::__private::read_input_file;
use evring_httpd::options::{CompressionLevels, PagePath};
use toml::de::DeTable;
use tracing::warn;

use crate::advice::with_path_advice;
use crate::arguments::Arguments;
use crate::positions::Positions;
use crate::table::{
    FileError, NOT_SETTINGS, PREFIX, Setting, is_given, key_at, position, read_table, reason,
    reason_of_feature, variable, with_delimiter, with_value,
};
use crate::{hosts, successor};

/// Maximum bytes of the file.
const MAX_FILE_BYTES: usize = 16 << 20;

/// Returns the settings of the process; `arguments` begin with the program's name.
///
/// # Errors
/// If the flags, variables or the file are wrong, and for `--help` and `--version`.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Arguments, SettingsError> {
    let with_variables = command_for(arguments);
    let of_flags = |error| SettingsError::of_flags(error, arguments);
    // The file may have what they need.
    let alone = with_variables.clone().mut_args(without_requirements);
    let matches = alone.try_get_matches_from(arguments).map_err(of_flags)?;
    let given = Arguments::from_arg_matches(&matches).map_err(of_flags)?;
    let Some(file) = &given.config else {
        with_variables.try_get_matches_from(arguments).map_err(of_flags)?;
        return Ok(given);
    };
    let FileSettings { text, settings, hosts } = FileSettings::read(file)?;
    let settings: Vec<_> = not_given(settings, &matches).collect();
    let from_file = settings.iter().flat_map(|setting| &setting.flags).map(OsString::from);
    // Before the arguments, so that messages name these as the user gave them.
    let (program, rest) = arguments.split_at(1.min(arguments.len()));
    let all = program.iter().cloned().chain(from_file).chain(rest.iter().cloned());
    let whole = |error: clap::Error| match whole_file_error(file, &text, &settings, &error) {
        FileError { at: None, .. } if error.kind() == ErrorKind::MissingRequiredArgument => {
            of_flags(error)
        }
        error => error.into(),
    };
    let matches = with_variables.try_get_matches_from(all).map_err(whole)?;
    let mut arguments = Arguments::from_arg_matches(&matches).map_err(whole)?;
    for table in [&settings].into_iter().chain(&hosts) {
        let root = table.iter().find(|setting| setting.id == "root");
        let root = root.and_then(|root| root.flags.first()?.strip_prefix("--root="));
        for setting in table {
            let at = Some(position(&text, &setting.span));
            let error = |reason| FileError { path: file.clone(), at, reason };
            check_files(setting, root.map(Path::new)).map_err(error)?;
        }
    }
    arguments.positions = Positions::new(file, &text, [&settings].into_iter().chain(&hosts));
    let hosts = hosts.iter().map(|settings| hosts::options(settings, &matches));
    arguments.set_hosts(hosts.collect::<Result<_, _>>().map_err(whole)?);
    Ok(arguments)
}

/// The reason why settings cannot be used.
#[derive(Debug)]
pub(crate) enum SettingsError {
    /// The command line is wrong, or it asks for help.
    Flags(clap::Error),
    /// The command line is wrong, and this is what to do.
    Unexpected(clap::Error, String),
    /// This variable has a wrong value.
    Variable(String, clap::Error),
    File(FileError),
}

impl SettingsError {
    fn of_flags(error: clap::Error, arguments: &[OsString]) -> Self {
        let name = error.get(ContextKind::InvalidArg).map(ToString::to_string);
        let is_of = |definitions: Command| {
            let other = definitions.try_get_matches_from(arguments);
            other.is_err_and(|other| reason(&other) == reason(&error))
        };
        let variable = cause_among_variables(|id| is_of(with_variables(|other| other == id)));
        // The same error without variables is one of the command line.
        let is_of_flags = is_of(definitions());
        let unexpected = name.filter(|_| error.kind() == ErrorKind::UnknownArgument);
        let advice = unexpected.and_then(|name| advice_for_unexpected(&name, arguments));
        match (variable, advice) {
            (Some(variable), _) if !is_of_flags => SettingsError::Variable(variable, error),
            (_, Some(advice)) => SettingsError::Unexpected(error, advice),
            _ => SettingsError::Flags(error),
        }
    }

    /// Prints the error, or the help, and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let code = match self {
            SettingsError::Flags(error) => {
                // Nothing is left to do if the output is closed.
                let _ = error.print();
                error.exit_code()
            }
            SettingsError::Variable(_, error) | SettingsError::Unexpected(error, _) => {
                eprintln!("error: {self}");
                error.exit_code()
            }
            SettingsError::File(error) => {
                eprintln!("httpd: {error}");
                1
            }
        };
        ExitCode::from(u8::try_from(code).unwrap_or(1))
    }
}

impl From<FileError> for SettingsError {
    fn from(error: FileError) -> Self {
        SettingsError::File(error)
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Flags(error) => f.write_str(&reason(error)),
            SettingsError::Unexpected(error, advice) => write!(f, "{}: {advice}", reason(error)),
            SettingsError::Variable(variable, error) => {
                write!(f, "the variable {variable}: {}", reason(error))
            }
            SettingsError::File(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SettingsError {}

/// Returns the first variable that the process has and with whose setting alone an error is the same.
fn cause_among_variables(is_cause: impl Fn(&str) -> bool) -> Option<String> {
    let command = definitions();
    let all = command.get_arguments().filter_map(|arg| {
        let long = arg.get_long().filter(|long| may_be_variable(long))?;
        Some((arg.get_id(), variable(long)))
    });
    let mut given = all.filter(|(_, name)| std::env::var_os(name).is_some());
    given.find(|(id, _)| is_cause(id.as_str())).map(|(_, name)| name)
}

/// Returns what to do about an argument that is no flag, if it was meant for one.
fn advice_for_unexpected(argument: &str, arguments: &[OsString]) -> Option<String> {
    let name = argument.strip_prefix("--").unwrap_or_default();
    if let Some(reason) = reason_of_feature(name) {
        return Some(reason);
    }
    let is_coding = argument.parse::<CompressionLevels>().is_ok();
    let compresses = arguments.iter().any(|argument| argument == "--compress");
    (is_coding && compresses).then(|| format!("write --compress={argument}"))
}

/// Checks that the files and directories that a setting names can be opened, so that the message has a position. Pages
/// are below `root`. The server reads them later.
fn check_files(setting: &Setting, root: Option<&Path>) -> Result<(), String> {
    let values = setting.flags.iter().filter_map(|flag| flag.strip_prefix("--")?.split_once('='));
    for (name, value) in values {
        let page = match name {
            "fallback" => Some(value),
            "error-page" => value.split_once('=').map(|(_, page)| page),
            _ => None,
        };
        let path = match name {
            "root" | "tls-cert" | "tls-key" | "tls-client-ca" => PathBuf::from(value),
            "basic-auth" | "handler" => value.split(',').next().unwrap_or_default().into(),
            _ => match (root, page.and_then(|page| page.parse::<PagePath>().ok())) {
                (Some(root), Some(page)) => root.join(page.to_string().trim_start_matches('/')),
                _ => continue,
            },
        };
        let (what, outcome) = match name {
            // Search permission suffices.
            "root" => ("directory", fs::metadata(path.join(".")).map(drop)),
            _ => ("file", check_file(&path, page.is_some())),
        };
        outcome.map_err(|error| {
            format!("`{name}`: cannot read the {what} {}: {error}", path.display())
        })?;
    }
    Ok(())
}

/// Checks that a file can be read; a page is a regular file. A pipe is not opened: that would wait for its writer.
fn check_file(path: &Path, is_page: bool) -> io::Result<()> {
    let file_type = fs::metadata(path)?.file_type();
    if is_page && !file_type.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    if file_type.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if file_type.is_fifo() {
        return Ok(());
    }
    fs::File::open(path).map(drop)
}

/// Returns whether a flag has a variable. `port` has none: Kubernetes sets `EVRING_HTTPD_PORT` to a URL for a service that
/// is named evring-httpd.
fn may_be_variable(long: &str) -> bool {
    long == "config" || long != "port" && !NOT_SETTINGS.contains(&long)
}

/// Removes a newline at the end of each variable of the program, which a here-document or a block of YAML leaves there.
/// Called first, while the process has one thread.
pub(crate) fn trim_variables() {
    for (name, value) in std::env::vars_os() {
        let is_own = name.as_bytes().starts_with(PREFIX.as_bytes());
        if let Some(value) = value.as_bytes().strip_suffix(b"\n")
            && is_own
        {
            // SAFETY: there is no other thread, which could read the environment.
            unsafe { std::env::set_var(name, OsStr::from_bytes(value)) };
        }
    }
}

/// Warns of environment variables with the program's prefix that are no settings.
pub(crate) fn warn_of_variables() {
    let command = definitions();
    let flags = command.get_arguments().filter_map(|arg| arg.get_long());
    let known: Vec<_> = flags.filter(|long| may_be_variable(long)).map(variable).collect();
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| name.starts_with(PREFIX)) {
        if !known.contains(&name) && name != successor::INHERITED {
            warn!("there is no setting for the variable {name}");
        }
    }
}

/// Returns the definitions of all flags, without environment variables.
fn definitions() -> Command {
    Arguments::command().mut_args(with_value)
}

/// Returns the definitions of all flags, with their environment variables.
pub(crate) fn command() -> Command {
    with_variables(|_| true)
}

/// Returns the definitions of all flags for a command line, with the environment variables that it does not replace.
fn command_for(arguments: &[OsString]) -> Command {
    // What is wrong is found when the definitions are used.
    let flags = definitions().ignore_errors(true).try_get_matches_from(arguments);
    with_variables(|arg| flags.as_ref().map_or(true, |flags| !is_replaced(arg, flags)))
}

/// Lets a setting be given without others that it needs.
fn without_requirements(arg: Arg) -> Arg {
    match arg.get_long() {
        Some(long) if !NOT_SETTINGS.contains(&long) => arg.requires(Resettable::Reset),
        _ => arg,
    }
}

fn with_variables(has_variable: impl Fn(&str) -> bool) -> Command {
    definitions().mut_args(|arg| match arg.get_long() {
        Some(long)
            if long == "config" || may_be_variable(long) && has_variable(arg.get_id().as_str()) =>
        {
            let variable = variable(long);
            // Then neither the command line nor the file has values of it.
            let is_set = std::env::var_os(&variable).is_some();
            let arg = if is_set { with_delimiter(arg) } else { arg };
            arg.env(variable).hide_env(true)
        }
        _ => arg,
    })
}

/// Settings for the same purpose: those of one source replace all of the sources below it.
const ALTERNATIVES: [[&str; 2]; 4] = [
    ["listen", "port"],
    ["root", "directory"],
    ["certificates", "self_signed"],
    ["keys", "self_signed"],
];

/// Returns whether sources of a higher precedence have a setting, or another one for the same purpose.
fn is_replaced(id: &str, higher: &ArgMatches) -> bool {
    // A switch that is off leaves its alternatives in force.
    let is_on = |other: &str| {
        is_given(higher, other) && !matches!(higher.try_get_one::<bool>(other), Ok(Some(false)))
    };
    let alternatives = ALTERNATIVES.iter().filter(|pair| pair.contains(&id)).flatten();
    is_given(higher, id) || alternatives.copied().any(is_on)
}

/// The settings of a file, in its order.
struct FileSettings {
    /// The file's content.
    text: String,
    settings: Vec<Setting>,
    /// Those of each virtual host.
    hosts: Vec<Vec<Setting>>,
}

impl FileSettings {
    /// Reads a file, and checks each setting by itself.
    fn read(path: &Path) -> Result<Self, FileError> {
        let error = |at, reason: String| FileError { path: path.to_owned(), at, reason };
        let bytes = read_input_file(path, MAX_FILE_BYTES).map_err(|e| {
            let message = format!("cannot read the settings: {e}");
            error(None, with_path_advice(message, &e, "the path of --config"))
        })?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let end = e.utf8_error().valid_up_to();
            // As much of it is text.
            let text = String::from_utf8_lossy(&e.as_bytes()[..end]);
            error(Some(position(&text, &(end..end))), "it is not UTF-8 text".to_owned())
        })?;
        let at =
            |(span, reason): (Range<usize>, String)| error(Some(position(&text, &span)), reason);
        let mut table = DeTable::parse(&text).map_err(|e| {
            let key = e.span().and_then(|span| key_at(&text, span.start));
            let key = key.map(|key| format!("`{key}`: ")).unwrap_or_default();
            let at = e.span().map(|span| position(&text, &span));
            error(at, format!("{key}{}", e.message()))
        })?;
        let (tables, command) = (table.get_mut().remove("host"), definitions());
        let hosts = tables.map_or(Ok(Vec::new()), |tables| hosts::read(&tables, &command));
        let hosts = hosts.map_err(at)?;
        let settings = read_table(table.get_ref(), &command, &NOT_SETTINGS).map_err(at)?;
        drop(table);
        Ok(FileSettings { text, settings, hosts })
    }
}

/// Returns the settings that neither the command line nor a variable replaces.
fn not_given(settings: Vec<Setting>, given: &ArgMatches) -> impl Iterator<Item = Setting> {
    settings.into_iter().filter(|setting| !is_replaced(&setting.id, given))
}

/// Returns the error of settings that contradict each other, or the flags.
fn whole_file_error(
    path: &Path,
    text: &str,
    settings: &[Setting],
    error: &clap::Error,
) -> FileError {
    let reason = reason(error);
    let is_cause = |setting: &&Setting| match error.kind() {
        // The one that needs what is missing.
        ErrorKind::MissingRequiredArgument => {
            let alone = ["httpd"].into_iter().chain(setting.flags.iter().map(String::as_str));
            let alone = command().try_get_matches_from(alone);
            alone.is_err_and(|other| other.kind() == error.kind())
        }
        _ => setting.name().is_some_and(|name| reason.contains(&format!("'--{name}"))),
    };
    let at = settings.iter().find(is_cause);
    let at = at.map(|setting| position(text, &setting.span));
    FileError { path: path.to_owned(), at, reason }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
