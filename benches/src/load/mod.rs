//! `lab load`: generates load on a web server.

mod observation;
mod options;
mod output;
mod target;

use std::fs;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use load_generator::{Generator, LoadModel, Plan, RunEvent, Stats, StopReason};
use shared_ring::poller::Epoll;
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{EngineConfig, Host, Kernel, Linux, PortableKernel};

pub(crate) use observation::{Interval, Observation};
pub(crate) use options::Load;

use crate::failure::Failure;
use crate::measure::{online_cores, pin};
use crate::say::say;

/// Receive buffers: together they fit the second-level cache.
const BUFFERS: u16 = 256;
const BUFFER_SIZE: u32 = 4096;

/// Lines on standard error that mark the measurement period for the parent process.
const MARKS: [(RunEvent, &str); 2] = [
    (RunEvent::MeasurementStart, "measurement start"),
    (RunEvent::MeasurementEnd, "measurement end"),
];

/// Returns the event that a line on standard error marks, if any.
pub(crate) fn parse_mark(line: &str) -> Option<RunEvent> {
    MARKS.iter().find(|(_, mark)| *mark == line).map(|(event, _)| *event)
}

/// Runs the load and writes its results.
pub(crate) fn load(options: &Load) -> Result<(), Failure> {
    let plan = options.plan()?;
    let cores = online_cores()?;
    if let Some(core) = options.core.filter(|core| *core >= cores) {
        return Err(Failure::Request(format!(
            "core {core} does not exist; there are {cores} cores"
        )));
    }
    // Detect unwritable files before the run.
    for path in [&options.json, &options.csv, &options.log].into_iter().flatten() {
        if !is_stdout(path) {
            save(path, "")?;
        }
    }
    if let Some(core) = options.core {
        pin(&[core]).map_err(|e| Failure::new(format_args!("cannot run on core {core}"), e))?;
    }
    let host = Linux::default();
    let before = host.cpu_time();
    let (stats, kernel) = run_on_available_kernel(&plan, options.mark)?;
    let cpu_time = host.cpu_time() - before;
    let of = (options.url.as_str(), description(&plan), kernel);
    let observation = Observation::of(&stats, of, plan.interval, cpu_time);
    write(options, &observation, &stats)?;
    match stats.stop_reason {
        Some(reason) => Err(Failure::Run(stop_failure(reason, &plan))),
        None if observation.due > 0 && observation.replies == 0 => {
            Err(Failure::Run("no request got a successful reply".to_owned()))
        }
        None => Ok(()),
    }
}

/// Runs the load on io_uring or, if that is unavailable, on epoll.
fn run_on_available_kernel(plan: &Plan, mark: bool) -> Result<(Stats, &'static str), Failure> {
    let operations = Generator::<UringKernel>::operations(plan);
    let config = UringConfig::new(Mode::Deferred, operations, BUFFERS, BUFFER_SIZE);
    match UringKernel::new(&config) {
        Ok(kernel) => Ok((run(kernel, plan, mark)?, "io_uring")),
        Err(error) => {
            eprintln!("lab: {error}; using epoll");
            let config = EngineConfig::new(operations, BUFFERS, BUFFER_SIZE);
            Ok((run(PortableKernel::new(Epoll::new()?, &config)?, plan, mark)?, "epoll"))
        }
    }
}

fn run<K: Kernel>(kernel: K, plan: &Plan, mark: bool) -> Result<Stats, Failure> {
    let generator = Generator::new(kernel, plan).map_err(|invalid| Failure::Request(invalid.0))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let display = display(plan);
    let seconds = plan.interval.as_secs_f64();
    let stats = generator.run(|event, stats| {
        match event {
            RunEvent::Poll => {}
            RunEvent::MeasurementStart | RunEvent::MeasurementEnd if mark => {
                let line = MARKS.iter().find(|(marked, _)| *marked == event);
                eprintln!("{}", line.map_or("", |(_, line)| line));
            }
            _ => {
                display.set_position(stats.intervals.len() as u64);
                display.set_message(output::progress(stats, seconds));
            }
        }
        !interrupted.load(Ordering::Relaxed)
    });
    display.finish_and_clear();
    stats.map_err(|error| Failure::Run(error.to_string()))
}

fn display(plan: &Plan) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let total = (plan.warm_up + plan.duration).as_nanos() / plan.interval.as_nanos();
    let bar = ProgressBar::new(u64::try_from(total).unwrap_or(u64::MAX));
    let style = ProgressStyle::with_template("{elapsed:>4} [{bar:20}] {msg}");
    bar.set_style(style.expect("the template is well-formed"));
    bar
}

/// Describes the load in one line.
fn description(plan: &Plan) -> String {
    let model = match plan.model {
        LoadModel::Closed { connections } => format!("closed loop of {connections} clients"),
        LoadModel::OpenSessions { rate, arrivals } => {
            format!("open loop, {rate} sessions per second ({arrivals:?})").to_lowercase()
        }
        LoadModel::OpenRequests { rate, arrivals, connections } => format!(
            "open loop, {rate} requests per second ({arrivals:?}) on {connections} connections"
        )
        .to_lowercase(),
    };
    let (duration, warm_up) = (plan.duration.as_secs_f64(), plan.warm_up.as_secs_f64());
    let burst = match plan.burst {
        1.0 => String::new(),
        factor => format!(" at {factor} times the rate"),
    };
    let busy_poll = if plan.busy_poll { ", busy polling" } else { "" };
    format!("{model}, {duration} s after {warm_up} s of warm-up{burst}{busy_poll}")
}

fn stop_failure(reason: StopReason, plan: &Plan) -> String {
    let message = observation::stop_message(reason);
    match reason {
        StopReason::Interrupted => message,
        _ => format!("{}: {message}", plan.target),
    }
}

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text)
        .map_err(|e| Failure::new(format_args!("cannot write {}", path.display()), e))
}

/// Writes the requested outputs. If one fails, writes the others.
fn write(options: &Load, observation: &Observation, stats: &Stats) -> Result<(), Failure> {
    let json = || serde_json::to_string(observation).map_err(|e| Failure::new("JSON", e));
    let texts: [(_, &dyn Fn() -> Result<String, Failure>); 3] = [
        (&options.json, &|| Ok(json()? + "\n")),
        (&options.csv, &|| Ok(output::csv(observation))),
        (&options.log, &|| Ok(output::log(&stats.log))),
    ];
    let (mut to_stdout, mut written) = (false, Ok(()));
    for (path, text) in texts {
        let Some(path) = path else { continue };
        let result = if is_stdout(path) {
            to_stdout = true;
            say(text()?.trim_end())
        } else {
            save(path, &text()?)
        };
        written = written.and(result);
    }
    if !to_stdout {
        say(output::summary(observation).trim_end())?;
    }
    written
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}
