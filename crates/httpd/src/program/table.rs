//! Tables of a file of settings: each setting is a flag of the program.

use std::any::TypeId;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use evring_httpd::options::Addresses;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Flags that are no settings: they cannot be in a file, nor, but for `config`, in a variable.
pub(crate) const NOT_SETTINGS: [&str; 6] =
    ["config", "check-config", "list-backends", "json", "help", "version"];

/// The prefix of environment variables.
pub(crate) const PREFIX: &str = "EVRING_HTTPD_";

/// Returns the name of a flag's variable.
pub(crate) fn variable(long: &str) -> String {
    format!("{PREFIX}{}", long.replace('-', "_").to_uppercase())
}

/// A setting of a file.
pub(crate) struct Setting {
    /// The flag's identifier.
    pub(crate) id: String,
    /// Flags as on a command line.
    pub(crate) flags: Vec<String>,
    /// The position of its value in the file.
    pub(crate) span: Range<usize>,
}

impl Setting {
    /// Returns its name, unless it is an empty list.
    pub(crate) fn name(&self) -> Option<&str> {
        self.flags.first()?.strip_prefix("--")?.split('=').next()
    }
}

/// Returns the settings of a table, each of which is a flag of `command`.
///
/// # Errors
/// The position of a setting, and why it cannot be used.
pub(crate) fn read_table(
    table: &DeTable<'_>,
    command: &Command,
    excluded: &[&str],
) -> Result<Vec<Setting>, (Range<usize>, String)> {
    let mut settings = Vec::new();
    for (key, value) in in_order(table) {
        let name = key.get_ref().as_ref();
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name));
        let arg = arg.filter(|_| !excluded.contains(&name));
        let Some(arg) = arg else {
            let reason = match value.get_ref() {
                DeValue::Table(_) => format!(
                    "settings have no section `{name}`: write them at the top, by the names of flags"
                ),
                _ => unknown(name, command),
            };
            return Err((key.span(), reason));
        };
        let flags = flags(arg, name, value.get_ref());
        let flags = flags.and_then(|flags| check(flags, name, command));
        let flags = flags.map_err(|reason| (value.span(), reason))?;
        settings.push(Setting { id: arg.get_id().to_string(), flags, span: value.span() });
    }
    Ok(settings)
}

/// Returns whether a flag is true or false.
pub(crate) fn is_boolean(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<bool>()
}

/// Lets a setting that is true or false have a value, so that `--listing=false` turns off what a variable or the file
/// turns on. `--listing` is `--listing=true`.
pub(crate) fn with_value(arg: Arg) -> Arg {
    let is_setting = arg.get_long().is_some_and(|long| !NOT_SETTINGS.contains(&long));
    if !(is_setting && is_boolean(&arg)) {
        return arg;
    }
    let arg = arg.action(ArgAction::Set).num_args(0..=1).require_equals(true).value_name("BOOL");
    let arg = arg.default_value("false").default_missing_value("true");
    arg.hide_default_value(true).hide_possible_values(true)
}

/// Lets the variable of a setting that can be repeated have several values: lines, as values may contain anything else,
/// or addresses with commas between them.
pub(crate) fn with_delimiter(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::Append) {
        return arg;
    }
    let are_addresses = arg.get_value_parser().type_id() == TypeId::of::<Addresses>();
    arg.value_delimiter(if are_addresses { ',' } else { '\n' })
}

/// Returns whether a flag or its variable was given.
pub(crate) fn is_given(matches: &ArgMatches, id: &str) -> bool {
    let source = matches.value_source(id);
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// Returns the entries of a table in the order of the file.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Returns the reason why a setting does not exist, if it does in a program with another feature.
pub(crate) fn reason_of_feature(name: &str) -> Option<String> {
    let is_of_sandbox = matches!(name, "handler" | "handler-cache");
    (is_of_sandbox && cfg!(not(feature = "sandbox"))).then(|| {
        format!(
            "`{name}` needs a program with the feature `sandbox`: build it with `--features sandbox`"
        )
    })
}

fn unknown(name: &str, command: &Command) -> String {
    if let Some(reason) = reason_of_feature(name) {
        return reason;
    }
    let is_alias = |arg: &&Arg| arg.get_all_aliases().is_some_and(|all| all.contains(&name));
    if let Some(long) = command.get_arguments().find(is_alias).and_then(Arg::get_long) {
        return format!("there is no setting `{name}`; did you mean `{long}`?");
    }
    let suggestion = command.clone().try_get_matches_from(["httpd", &format!("--{name}")]).err();
    let suggestion = suggestion.and_then(|error| {
        let found = error.get(ContextKind::SuggestedArg)?.to_string();
        found.strip_prefix("--").map(|name| format!("; did you mean `{name}`?"))
    });
    format!("there is no setting `{name}`{}", suggestion.unwrap_or_default())
}

/// Returns a setting as flags.
fn flags(arg: &Arg, name: &str, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let flag = |text: String| format!("--{name}={text}");
    match value {
        DeValue::Boolean(on) if is_boolean(arg) => Ok(vec![flag(on.to_string())]),
        _ if is_boolean(arg) => Err(format!("`{name}` is true or false")),
        DeValue::Array(values) if matches!(arg.get_action(), ArgAction::Append) => {
            values.iter().map(|value| scalar(name, value.get_ref()).map(flag)).collect()
        }
        value => scalar(name, value).map(|text| vec![flag(text)]),
    }
}

fn scalar(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Array(_) => Err(format!("`{name}` has one value")),
        DeValue::Boolean(_) if name == "compress" => Err(
            "`compress` is a text: compress = \"br,zstd,gzip\" for all codings, \"off\" for none"
                .to_owned(),
        ),
        _ => Err(format!("`{name}` is a text or a number")),
    }
}

/// Checks the flags of one setting as if they were all.
fn check(flags: Vec<String>, name: &str, command: &Command) -> Result<Vec<String>, String> {
    let outcome = command
        .clone()
        .try_get_matches_from(["httpd"].into_iter().chain(flags.iter().map(String::as_str)));
    match outcome {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
            ) =>
        {
            Err(format!("`{name}`: {}", reason(&error)))
        }
        _ => Ok(flags),
    }
}

/// Returns the first paragraph of a message as one line, without its prefix.
pub(crate) fn reason(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::MissingRequiredArgument
        && let Some(missing) = error.get(ContextKind::InvalidArg)
    {
        return format!("a setting is missing: {missing}");
    }
    let text = error.render().to_string();
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    let line = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

/// Returns line and column of the start of a span, from 1.
pub(crate) fn position(text: &str, span: &Range<usize>) -> (usize, usize) {
    let before = &text[..span.start.min(text.len())];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Returns the key of the line with a position, or the name of the table that begins there.
pub(crate) fn key_at(text: &str, at: usize) -> Option<&str> {
    let start = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let line = text[start..].lines().next()?;
    let key = match line.split_once('=') {
        Some((key, _)) => key,
        None => line.trim().strip_prefix('[')?.trim_matches(['[', ']']),
    };
    let key = key.trim();
    let is_bare = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    (is_bare && !key.is_empty()).then_some(key)
}

/// The reason why the settings of a file cannot be used.
#[derive(Debug)]
pub(crate) struct FileError {
    pub(crate) path: PathBuf,
    /// Line and column.
    pub(crate) at: Option<(usize, usize)>,
    pub(crate) reason: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for FileError {}
