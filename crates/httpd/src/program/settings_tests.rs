//! Tests of the settings of the program.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::{Arg, ArgAction};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::table::is_boolean;

/// Options that are true or false, and that only libraries set.
const OF_LIBRARIES: usize = 1;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn check_opened_pipes_and_waited_for_their_writers() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (done, result) = mpsc::channel();
    thread::spawn(move || {
        let text = format!("tls-cert = '/dev/null'\ntls-key = '{}'", pipe.display());
        let _ = done.send(parsed(&text, &[]).err());
    });
    assert_eq!(result.recv_timeout(Duration::from_secs(20)), Ok(None));
}

fn parsed(text: &str, arguments: &[&str]) -> Result<Arguments, String> {
    let file = file(text);
    let arguments = ["httpd", "--config", file.path().to_str().unwrap()]
        .iter()
        .chain(arguments)
        .map(OsString::from)
        .collect::<Vec<_>>();
    parse(&arguments).map_err(|error| {
        let text = error.to_string();
        text.replace(file.path().to_str().unwrap(), "FILE")
    })
}

#[test]
fn file_gives_settings_and_the_command_line_takes_precedence() {
    let text = "root = '/'\nlisting = true\nworkers = 3\nheader-timeout = 2.5\nreload-timeout = 1.5\n\
                listen = ['127.0.0.1:1', '127.0.0.1:2']\nfollow-symlinks = false\n";
    let options = parsed(text, &[]).unwrap().into_options();
    assert_eq!(options.root.as_deref(), Some(Path::new("/")));
    assert!(options.files.listing && !options.follow_symlinks);
    assert_eq!((options.workers, options.listen.len()), (3, 2));
    assert_eq!(options.limits.header_timeout.as_millis(), 2500);
    assert_eq!(options.connections.reload_timeout.as_millis(), 1500);
    let options = parsed(text, &["--workers", "2", "--listen", "127.0.0.1:3"]).unwrap();
    let options = options.into_options();
    assert_eq!((options.workers, options.listen.len()), (2, 1));
    let options = parsed(text, &["/other", "-p", "4"]).unwrap().into_options();
    assert_eq!(options.root.as_deref(), Some(Path::new("/other")));
    assert_eq!(options.listen[0].to_string(), "127.0.0.1:4");
}

/// Returns the settings that are true or false.
fn booleans() -> Vec<Arg> {
    settings().into_iter().filter(is_boolean).collect()
}

/// In a process with the variable, prints the settings that a command line gives.
#[test]
#[ignore = "a part of `no_flag_turned_off_what_the_file_or_a_variable_turns_on`"]
fn options_of_a_process() {
    let arguments = std::env::var("ARGUMENTS").unwrap();
    let arguments: Vec<_> = arguments.split(' ').map(OsString::from).collect();
    println!("{:?}", parse(&arguments).unwrap().into_options());
}

/// Returns the settings of a process with a variable.
fn options_with(name: &str, value: &str, arguments: &str) -> String {
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    process.args(["--ignored", "--nocapture", "options_of_a_process"]);
    process.env("ARGUMENTS", format!("httpd{arguments}")).env(variable(name), value);
    let output = String::from_utf8(process.output().unwrap().stdout).unwrap();
    let options = output.lines().find(|line| line.contains("Options {"));
    let options = options.unwrap_or_else(|| panic!("{name} {arguments}: {output}"));
    options[options.find("Options {").unwrap()..].to_owned()
}

#[test]
fn no_flag_turned_off_what_the_file_or_a_variable_turns_on() {
    let options =
        |text: &str, flags: &[&str]| format!("{:?}", parsed(text, flags).unwrap().into_options());
    let off = options("", &[]);
    let found = off.matches(": false").count();
    assert_eq!(booleans().len() + OF_LIBRARIES, found, "each is a flag: {off}");
    for arg in booleans() {
        let name = arg.get_long().unwrap();
        let (of_true, of_false) = (format!("--{name}=true"), format!("--{name}=false"));
        let [file_on, file_off] = ["true", "false"].map(|value| format!("{name} = {value}"));
        let on = options(&file_on, &[]);
        assert_ne!(on, off, "{name}");
        assert_eq!(options(&file_off, &[]), off, "{name}");
        assert_eq!(options(&file_on, &[&of_false]), off, "{name}");
        for flag in [format!("--{name}"), of_true] {
            assert_eq!(options("", &[&flag]), on, "{flag}");
            assert_eq!(options(&file_off, &[&flag]), on, "{flag}");
        }
        assert_eq!(options_with(name, "true", ""), on, "{name}");
        assert_eq!(options_with(name, "true", &format!(" {of_false}")), off, "{name}");
        assert_eq!(options_with(name, "false", &format!(" --{name}")), on, "{name}");
    }
}

#[test]
fn flag_without_a_value_leaves_the_next_argument() {
    for arg in booleans() {
        let flag = format!("--{}", arg.get_long().unwrap());
        let options = parsed("", &[&flag, "/dir"]).unwrap().into_options();
        assert_eq!(options.root.as_deref(), Some(Path::new("/dir")), "{flag}");
    }
}

#[test]
fn self_signed_certificate_that_is_off_excluded_others() {
    let files = "tls-cert = '/dev/null'\ntls-key = '/dev/null'\n";
    let tls = |text: &str, flags: &[&str]| parsed(text, flags).unwrap().into_options().tls;
    let on = format!("tls-self-signed = true\n{files}");
    let of_files = tls(&on, &["--tls-self-signed=false"]);
    assert!(!of_files.self_signed && of_files.certificates.len() == 1);
    let flags = ["--tls-self-signed=false", "--tls-cert", "a", "--tls-key", "b"];
    let of_flags = tls("tls-self-signed = true", &flags);
    assert!(!of_flags.self_signed && of_flags.certificates == [Path::new("a")]);
}

#[test]
fn certificate_and_key_could_not_come_from_different_sources() {
    let tls = |text: &str, flags: &[&str]| {
        parsed(text, flags).map(|given| {
            let tls = given.into_options().tls;
            (tls.certificates, tls.keys)
        })
    };
    let [certificate, key, other] = ["/dev/null", "/dev/zero", "b"].map(PathBuf::from);
    let expected = Ok((vec![certificate.clone()], vec![key.clone()]));
    assert_eq!(tls("tls-cert = '/dev/null'", &["--tls-key", "/dev/zero"]), expected);
    assert_eq!(tls("tls-key = '/dev/zero'", &["--tls-cert", "/dev/null"]), expected);
    let both = "tls-cert = '/dev/null'\ntls-key = '/dev/zero'";
    assert_eq!(tls(both, &["--tls-key", "b"]), Ok((vec![certificate], vec![other.clone()])));
    assert_eq!(tls(both, &["--tls-cert", "b"]), Ok((vec![other], vec![key])));
    let file = file("tls-cert = '/dev/null'");
    let flags = format!(" --config {}", file.path().display());
    let of_variable = options_with("tls-key", "/dev/zero", &flags);
    assert!(of_variable.contains(r#"certificates: ["/dev/null"], keys: ["/dev/zero"]"#));
    // What none has is missing still.
    let missing = |text: &str, flags: &[&str]| tls(text, flags).unwrap_err();
    assert_eq!(missing("", &["--tls-key", "b"]), "a setting is missing: --tls-cert <FILE>");
    assert_eq!(
        missing("workers = 1", &["--tls-cert", "b"]),
        "a setting is missing: --tls-key <FILE>"
    );
    let arguments = ["httpd", "--tls-cert", "b"].map(OsString::from);
    let alone = parse(&arguments).unwrap_err();
    assert_eq!(alone.to_string(), "a setting is missing: --tls-key <FILE>");
}

#[test]
fn errors_name_line_column_and_reason() {
    let cases = [
        (
            "workers = 1\nlisen = 'a'\n",
            "FILE:2:1: there is no setting `lisen`; did you mean `listen`?",
        ),
        ("config = 'a'", "FILE:1:1: there is no setting `config`"),
        (
            "workers = 0",
            "FILE:1:11: `workers`: invalid value '0' for '--workers <N>': expected a number from 1",
        ),
        ("\n  workers = 'x'", "FILE:2:13: `workers`: invalid value 'x'"),
        ("workers = [1, 2]", "FILE:1:11: `workers` has one value"),
        ("listing = 1", "FILE:1:11: `listing` is true or false"),
        ("listen = [[1]]", "FILE:1:10: `listen` has one value"),
        ("root = 1979-05-27", "FILE:1:8: `root` is a text or a number"),
        ("workers = ", "FILE:1:11: `workers`: "),
        ("workers = 1\nroot = '/\n", "FILE:2:10: `root`: "),
        ("workers = 1\nworkers = 2", "FILE:2:1: `workers`: duplicate key"),
        ("[[host]]\nname = 'a'\n  name = 'b'", "FILE:3:3: `name`: duplicate key"),
        ("[[host]]\n[host]", "FILE:2:2: `host`: duplicate key"),
        ("workers = 1\ntls-cert = 'a'", "FILE:2:12: a setting is missing: --tls-key <FILE>"),
        (
            "header = [\"X: a\\nY: b\"]",
            "FILE:1:10: `header`: invalid value 'X: a Y: b' for '--header <[PATH ]NAME: VALUE>': ",
        ),
        ("host = 1", "FILE:1:8: hosts are tables: `[[host]]`"),
        ("[host]\nname = 'a'", "FILE:1:1: hosts are tables: `[[host]]`"),
        ("[[host]]\nname = 'a'", "FILE:1:1: host: it has neither `root` nor `redirect`"),
        ("[[host]]\nroot = 'a'", "FILE:1:1: host: a setting is missing: --name <NAME>"),
        ("[[host]]\nname = 'a:1'\nroot = 'a'", "FILE:2:8: `name`: invalid value 'a:1'"),
        (
            "[[host]]\nlistin = true",
            "FILE:2:1: there is no setting `listin`; did you mean `listing`?",
        ),
        ("[[host]]\nworkers = 1", "FILE:2:1: `workers` is a setting of the whole server"),
        (
            "[[host]]\nname = 'a'\ncompress-memory = 1",
            "FILE:3:1: `compress-memory` is a setting of the whole server, not of a host",
        ),
        ("[[host]]\nconfig = 'a'", "FILE:2:1: there is no setting `config`"),
        (
            "[[host]]\ncompress = true",
            "FILE:2:12: `compress` is a text: compress = \"br,zstd,gzip\"",
        ),
        ("[[host]]\ncompress = 'deflate'", "FILE:2:12: `compress`: invalid value 'deflate'"),
        (
            "[[host]]\nname = 'a'\nbasic-auth = ['f', 'g,path=x']",
            "FILE:3:14: `basic-auth`: invalid value 'g,path=x'",
        ),
        (
            "log-format = 'json'\n[[host]]\nname = 'a'\nroot = 'b'\nlog-format = 'json'",
            "FILE:5:14: `log-format`: needs `access-log`",
        ),
        (
            "[[host]]\nname = 'a'\nroot = 'b'\n[[host]]\nname = 'A'\nroot = 'c'",
            "FILE:5:8: `name`: there are two hosts with the name a",
        ),
        (
            "root = '/does/not/exist'",
            "FILE:1:8: `root`: cannot read the directory /does/not/exist: No such file",
        ),
        (
            "root = '/'\n[[host]]\nname = 'a'\n  root = '/does/not/exist'",
            "FILE:4:10: `root`: cannot read the directory /does/not/exist: No such file",
        ),
        (
            "[[host]]\nname = 'a'\nroot = 'b'\ntls-cert = 'c'",
            "FILE:1:1: host: a setting is missing: --tls-key <FILE>",
        ),
        (
            "[[host]]\nname = 'a'\nroot = '/'\ntls-cert = '/dev/null'\ntls-key = '/none.key'",
            "FILE:5:11: `tls-key`: cannot read the file /none.key: No such file",
        ),
        (
            "basic-auth = ['/dev/null', '/none.users,path=/a']",
            "FILE:1:14: `basic-auth`: cannot read the file /none.users: No such file",
        ),
        (
            "[[host]]\nname = 'a'\nroot = '/'\nerror-page = ['404=/none.html']",
            "FILE:4:14: `error-page`: cannot read the file /none.html: No such file",
        ),
        (
            "root = '/dev'\nfallback = 'none.html'",
            "FILE:2:12: `fallback`: cannot read the file /dev/none.html: No such file",
        ),
    ];
    for (text, expected) in cases {
        let error = parsed(text, &[]).unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

/// Returns the flags that are settings, sorted as in the help.
fn settings() -> Vec<Arg> {
    let is_setting = |arg: &Arg| {
        arg.get_long().is_some_and(|long| !NOT_SETTINGS.contains(&long) && long != "port")
    };
    command().get_arguments().filter(|arg| is_setting(arg)).cloned().collect()
}

/// Returns a setting as a line of TOML: its default, or else the name of its value.
fn line(arg: &Arg) -> String {
    let name = arg.get_long().unwrap();
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_str().unwrap()).collect();
    let value = match (arg.get_action(), &defaults[..]) {
        (_, ["false"]) => "false".to_owned(),
        (ArgAction::Append, []) => "[]".to_owned(),
        (ArgAction::Append, values) => format!("{values:?}"),
        (_, [value]) if value.parse::<f64>().is_ok() => (*value).to_owned(),
        (_, [value]) => format!("{value:?}"),
        _ => "".to_owned(),
    };
    format!("#{name} = {value}")
}

#[test]
fn example_has_every_setting_with_its_default() {
    let (example, hosts) =
        include_str!("../../httpd.toml").split_once("#[[host]]").expect("an example of a host");
    let lines = hosts.lines().filter_map(|line| line.strip_prefix('#'));
    let lines: Vec<_> = lines.filter(|line| !line.starts_with(' ')).collect();
    let mut hosts = format!("[[host]]\n{}", lines.join("\n")).replace("/srv/docs", "/");
    for file in ["/etc/ssl/docs.pem", "/etc/ssl/docs.key", "/etc/docs.users"] {
        hosts = hosts.replace(file, "/dev/null");
    }
    let hosts = parsed(&hosts, &[]).unwrap().into_options().hosts;
    assert_eq!(hosts.len(), 2);
    let missing: Vec<_> = settings()
        .iter()
        .map(line)
        .filter(|line| !example.lines().any(|other| other.starts_with(line)))
        .collect();
    assert!(missing.is_empty(), "httpd.toml lacks:\n{}", missing.join("\n"));
    let mut lines = 0;
    for (number, text) in example.lines().enumerate() {
        // A comment has a space behind its sign, a setting that is not in use has none.
        let setting =
            text.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with(' '));
        let Some(setting) = setting else {
            assert!(
                text.is_empty() || text.starts_with('#'),
                "line {} is in use: {text}",
                number + 1
            );
            continue;
        };
        if setting.starts_with("handler") && cfg!(not(feature = "sandbox")) {
            continue;
        }
        if let Err(error) = parsed(setting, &[]) {
            let absent = "cannot read the file authority.pem";
            let is_expected = ["a setting is missing", "the directory /srv/www", absent]
                .iter()
                .any(|reason| error.contains(reason));
            assert!(is_expected, "line {}: {error}", number + 1);
        }
        lines += 1;
    }
    assert_eq!(lines, settings().len(), "settings that do not exist");
}
