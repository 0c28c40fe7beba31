//! The command line of the lab.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().expect("the lab runs")
}

#[test]
fn list_as_json_has_id_title_and_source() {
    let output = lab(&["list", "--json"]);
    assert!(output.status.success());
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let floors = list.as_array().unwrap().iter().find(|e| e["id"] == "floors").unwrap();
    assert!(floors["title"].is_string() && floors["source"].is_string());
}

#[test]
fn list_as_text_names_the_experiments() {
    let text = String::from_utf8(lab(&["list"]).stdout).unwrap();
    assert!(text.contains("floors"), "{text}");
}

#[test]
fn unknown_experiment_fails_with_exit_code_2() {
    let output = lab(&["run", "no-such-thing"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("lab: there is no experiment `no-such-thing`"), "{text}");
    assert!(text.contains("floors"), "{text}");
}

#[test]
fn internal_commands_are_hidden_in_help() {
    let text = String::from_utf8(lab(&["--help"]).stdout).unwrap();
    let commands = || text.lines().filter_map(|line| line.split_ascii_whitespace().next());
    assert!(commands().any(|word| word == "load"), "{text}");
    assert!(!commands().any(|word| word == "serve" || word == "client"), "{text}");
}

#[test]
fn missing_load_generator_is_reported_with_its_package() {
    let empty = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["run", "peers", "--quick"])
        .env("PATH", empty.path())
        .output()
        .expect("the lab runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("wrk is not installed (Debian package: wrk)"), "{text}");
}

#[test]
fn missing_memcached_is_reported_with_its_package() {
    let empty = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["run", "flexsc-kv", "--quick"])
        .env("PATH", empty.path())
        .output()
        .expect("the lab runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("memcached is not installed (Debian package: memcached)"), "{text}");
}

#[test]
fn send_dequeue_compares_send_with_every_method() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("outcome.json");
    let output = lab(&["run", "send-dequeue", "--quick", "--json", json.to_str().unwrap()]);
    let outcome: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    // The exit code says whether a goal was missed, which a loaded machine may cause.
    let missed = outcome["ratios"].as_object().unwrap().values().any(|ratio| ratio["met"] == "no");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(if missed { 3 } else { 0 }), "{text}");
    for other in ["handler_signals", "sigtimedwait", "signalfd", "epoll", "read_epoll"] {
        let ratio = &outcome["ratios"][format!("{other}_over_send")];
        assert!(ratio["value"].as_f64().is_some_and(|value| value > 0.0), "{other}: {ratio}");
        assert_eq!(ratio["per_round"].as_array().map(Vec::len), Some(10), "{other}: {ratio}");
        assert_eq!(ratio["mechanism"], "send");
    }
    let series = outcome["series"].as_array().unwrap();
    let whole = |s: &&Value| s["points"].as_array().unwrap().iter().any(|p| p["x"] == 100.0);
    assert_eq!(series.iter().filter(whole).count(), 3 * 6);
}

/// Runs one quick round of an experiment, and returns its outcome. It has these ratios.
fn quick_run(id: &str, ratios: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("outcome.json");
    let one_round = ["run", id, "--quick", "--max-time", "0", "--json", json.to_str().unwrap()];
    let output = lab(&one_round);
    let text = String::from_utf8_lossy(&output.stderr);
    // A loaded machine, and a build without optimisation, miss goals.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{text}");
    let outcome: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for name in ratios {
        let ratio = &outcome["ratios"][name];
        assert!(ratio["value"].as_f64().is_some_and(|value| value > 0.0), "{name}: {ratio}");
    }
    outcome
}

#[test]
fn ash_rtt_compares_the_places_that_answer() {
    quick_run("ash-rtt", &["dispatch_ns", "idle_user_over_ash", "suspended_user_over_ash"]);
}

#[test]
fn ash_copies_compares_one_copy_with_two() {
    quick_run("ash-copies", &["double_over_single", "uncached_over_single"]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn ash_dilp_compares_fused_pipes_with_separate_passes_and_a_loop_by_hand() {
    if std::arch::is_x86_feature_detected!("avx2") {
        quick_run(
            "ash-dilp",
            &["fused_over_separate", "fused_over_hand_256", "fused_over_hand_4096"],
        );
    }
}

#[test]
fn ash_sandbox_compares_remote_writes() {
    quick_run("ash-sandbox", &["factor_40", "factor_4096"]);
}

#[test]
fn ash_procs_compares_policies_and_stops_a_runaway() {
    let ratios = ["rtt_10_over_1", "rtt_10_over_1_slice", "runaway_stopped_ms"];
    quick_run("ash-procs", &ratios);
}

#[test]
fn ash_web_compares_a_handler_with_a_file() {
    quick_run("ash-web", &["handler_over_file"]);
}

#[test]
fn ash_model_shows_twelve_parameters() {
    let outcome = quick_run("ash-model", &["predicted_user_over_ash"]);
    let series = outcome["series"].as_array().unwrap();
    let parameters = series.iter().find(|s| s["figure"] == "Machine parameters").unwrap();
    assert_eq!(parameters["points"].as_array().unwrap().len(), 12);
}

#[test]
fn ecem_ded_compares_with_a_blocking_server() {
    quick_run("ecem-ded", &["context_switches_over_plain", "rate_over_plain"]);
}

#[test]
fn ecem_dns_compares_with_a_blocking_server_and_epoll() {
    let ratios = ["context_switches_over_plain", "context_switches_over_epoll"];
    quick_run("ecem-dns", &[ratios[0], ratios[1], "memory_per_download_kb"]);
}

#[test]
fn flexsc_syscalls_compares_executors() {
    let over = ["adaptive_over_best_worst", "adaptive_over_direct_worst"];
    quick_run(
        "flexsc-syscalls",
        &["null_direct_over_posted", over[0], over[1], "completion_10000_over_100"],
    );
}

#[test]
fn flexsc_interference_measures_what_calls_add() {
    // The time that a call adds may be less than the noise, so ratios can have any sign.
    let outcome = quick_run("flexsc-interference", &[]);
    let names = [
        "null_direct_over_posted",
        "pwrite_direct_over_posted",
        "pwrite_beyond_null_over_own_time",
    ];
    for name in names {
        assert!(outcome["ratios"][name]["value"].is_number(), "{name}");
    }
}

#[test]
fn flexsc_files_compares_with_std_and_tokio() {
    let ratios = ["stat_over_tokio_fs", "stat_over_std", "read_warm_std_over_flexsc"];
    let outcome = quick_run("flexsc-files", &ratios);
    // CPU time shows what a contestant gets from another core.
    let series = outcome["series"].as_array().unwrap();
    for task in ["stat", "read"] {
        let figure = format!("CPU time of a file, {task}, warm");
        assert_eq!(series.iter().filter(|s| s["figure"] == *figure).count(), 5, "{figure}");
    }
}

#[test]
fn flexsc_threads_compares_with_threads_of_the_kernel() {
    quick_run("flexsc-threads", &["green_over_os"]);
}

/// Returns the parent of a process that has not ended.
fn parent(id: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
    (fields.next()? != "Z").then(|| fields.next()?.parse().ok()).flatten()
}

#[test]
fn workers_of_nginx_outlived_a_run_that_a_signal_ended() {
    if !std::path::Path::new("/usr/sbin/nginx").exists() {
        return println!("not tested: nginx is not installed (Debian package: nginx)");
    }
    let run = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["run", "compress", "--quick"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut run = run.unwrap();
    // Its first server is nginx, whose worker is a child of the process that was started.
    let worker = loop {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let mut ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        if let Some(worker) = ids.find(|id| parent(*id).and_then(parent) == Some(run.id())) {
            break worker;
        }
        assert!(run.try_wait().unwrap().is_none(), "the run ended before a server had a child");
    };
    let process = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(parent(worker), None);
}

/// Runs `lab tables` in a directory.
fn tables(directory: &std::path::Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.arg("tables").args(arguments).current_dir(directory).output().expect("the lab runs")
}

#[test]
fn tables_of_the_pages_are_those_of_the_results() {
    let output = tables(std::path::Path::new(env!("CARGO_MANIFEST_DIR")), &["--check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn changed_results_are_noticed_and_written() {
    let checkout = tempfile::tempdir().unwrap();
    let file = |name: &str| checkout.path().join(name);
    std::fs::create_dir_all(file("docs/results")).unwrap();
    let page = "<!-- table: goals -->\n<!-- end of table -->\n";
    let pages = [("README.md", page), ("BENCHMARKS.md", page), ("docs/file-delivery.md", "")];
    for (name, text) in pages.into_iter().chain([("Cargo.lock", "")]) {
        std::fs::write(file(name), text).unwrap();
    }
    // The goal is newer.
    let result = r#"{"id": "preempt", "quick": false, "date": "Fri, 27 Nov 2026 16:14:19 GMT",
        "machine": {"cpu": "", "cores": 2, "kernel": "6.18", "versions": {}}, "series": [],
        "ratios": {"wait_mode_over_send": {"value": 11.5, "low": 11.5, "high": 11.5,
        "per_round": [11.5, 11.5, 11.5], "mechanism": "send"}}, "shows": [], "papers": {}, "notes": []}"#;
    std::fs::write(file("docs/results/preempt.json"), result).unwrap();
    let output = tables(checkout.path(), &["--check"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("README.md and BENCHMARKS.md differ from docs/results"), "{text}");
    assert!(tables(checkout.path(), &[]).status.success());
    assert!(tables(checkout.path(), &["--check"]).status.success());
    let table = std::fs::read_to_string(file("README.md")).unwrap();
    let row = "| `preempt` | `wait_mode_over_send` | 11.500 | 3 | at least 10 | open |";
    assert!(table.contains(row), "{table}");
}

#[test]
fn simulate_with_a_seed_makes_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("outcome.json");
    let output = lab(&[
        "run",
        "simulate",
        "--seed",
        "5",
        "--steps",
        "300",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{output:?}");
    let outcome: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert!(outcome["ratios"]["completions_per_min_millions"]["value"].as_f64().unwrap() > 0.0);
    let notes = outcome["notes"].to_string();
    assert!(notes.contains("1 seeds from 5 on") && notes.contains("injected faults:"), "{notes}");
}

#[test]
fn invalid_simulate_options_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let nonsense = file("nonsense", "once upon a time\n");
    let steps = file("steps", "kv uring seed=1 steps=0\n");
    let cases: [(&[&str], &str, i32); 9] = [
        (&["simulate", "--seed", "x"], "invalid value 'x' for '--seed", 2),
        (&["simulate", "--seed", "-1"], "'-1'", 2),
        (&["simulate", "--steps", "0"], "steps must be between 1 and", 2),
        (&["simulate", "--steps", "99999999999"], "steps must be between 1 and", 2),
        (&["simulate", "--trace", "/no/such/file"], "cannot read /no/such/file", 1),
        (&["simulate", "--trace", &nonsense], "is not a trace: the first line is not a case", 2),
        (&["simulate", "--trace", &steps], "steps must be between 1 and", 2),
        (&["simulate", "--trace", &steps, "--quick"], "--trace repeats one run", 2),
        (&["floors", "--steps", "1"], "--steps and --trace require the experiment", 2),
    ];
    for (arguments, message, code) in cases {
        let output = lab(&[&["run"], arguments].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(message), "{arguments:?}: {text}");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    }
}

#[test]
fn trace_repeats_the_run_in_its_first_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    std::fs::write(&path, "echo edge seed=3 steps=50 clients=1 faults=none\nsomething else\n")
        .unwrap();
    let output = lab(&["run", "simulate", "--trace", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("accept at fd") && text.ends_with("The run did not fail.\n"), "{text}");
    assert!(text.contains("differs from the file from line 2 on"), "{text}");
}

#[test]
fn runs_were_kept_in_the_checkout_where_the_lab_was_built() {
    let report = |here: &std::path::Path, target: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.arg("report").current_dir(here).env_remove("CARGO_TARGET_DIR");
        if let Some(target) = target {
            command.env("CARGO_TARGET_DIR", target);
        }
        // A new checkout has no runs to report.
        assert_eq!(command.output().unwrap().status.code(), Some(1));
    };
    let checkout = tempfile::tempdir().unwrap();
    let inner = checkout.path().join("benches/src");
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::write(checkout.path().join("Cargo.lock"), "").unwrap();
    report(&inner, None);
    assert!(checkout.path().join("target/lab").is_dir());
    report(&inner, Some("elsewhere"));
    assert!(inner.join("elsewhere/lab").is_dir());
    let plain = tempfile::tempdir().unwrap();
    report(plain.path(), None);
    assert!(plain.path().join("target/lab").is_dir());
}

#[test]
fn recommendation_is_that_of_the_model_for_a_measured_handler() {
    let handlers = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/handlers/");
    let directory = tempfile::tempdir().unwrap();
    let (one, long) = (directory.path().join("one"), directory.path().join("long"));
    std::fs::write(&one, [0, 0, 0, 1]).unwrap();
    std::fs::write(&long, [0; 5]).unwrap();
    let recommend = |handler: &str, more: &[&str]| {
        let handler = format!("{handlers}{handler}");
        let one = one.to_str().unwrap();
        lab(&[&["recommend", "--handler", &handler, "--message", one], more].concat())
    };
    let output = recommend("increment.wasm", &["--message", long.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // It passes the message of five bytes on.
    assert!(text.contains("passes on 50 % of the messages"), "{text}");
    let fastest = |text: &str| -> Vec<_> {
        text.lines()
            .skip_while(|line| !line.starts_with("process"))
            .skip(1)
            .map(|line| line.rsplit("   ").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(fastest(&text).len(), 4, "{text}");
    // A process that sleeps is woken by every other strategy.
    let output = recommend("echo.wat", &["--state", "blocked"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(fastest(&text), ["ASH"], "{text}");
    let output = recommend("echo.wat", &["--state", "blocked", "--abort-probability", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(fastest(&text), ["interrupt"], "{text}");
    assert_eq!(recommend("echo.wat", &["--abort-probability", "2"]).status.code(), Some(2));
    let output = recommend("none.wasm", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("none.wasm"));
}
