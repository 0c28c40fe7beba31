//! `lab load`: load on a web server.

mod options;
mod seen;
mod show;
mod target;

use std::fs;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use indicatif::{ProgressBar, ProgressStyle};
use load_generator::{Generator, Moment, Pace, Plan, Stopped, Tally};
use shared_ring::poller::Epoll;
use shared_ring::{
    EngineConfig, Host, Kernel, Linux, Mode, PortableKernel, UringConfig, UringKernel,
};

pub(crate) use options::Load;
pub(crate) use seen::{Interval, Observation};

use crate::failure::Failure;
use crate::measure::pin;
use crate::say::say;

/// Receive buffers: they fit the second-level cache.
const BUFFERS: u16 = 256;
const BUFFER_SIZE: u32 = 4096;

/// The lines on standard error by which whoever measures the server knows when to read its counts.
const MARKS: [(Moment, &str); 2] =
    [(Moment::Counts, "counts"), (Moment::CountsNoMore, "counts no more")];

/// The moment that a line on standard error tells of, if it is a mark.
pub(crate) fn marked(line: &str) -> Option<Moment> {
    MARKS.iter().find(|(_, mark)| *mark == line).map(|(moment, _)| *moment)
}

/// Makes the load and tells what it came to.
pub(crate) fn load(options: &Load) -> Result<(), Failure> {
    let plan = options.plan()?;
    let cores = available_parallelism().map_or(1, usize::from);
    if let Some(core) = options.core.filter(|core| *core >= cores) {
        return Err(Failure::Request(format!("there is no core {core}; there are {cores}")));
    }
    // Better now than when the load was made.
    for path in [&options.json, &options.csv, &options.log].into_iter().flatten() {
        if !is_stdout(path) {
            save(path, "")?;
        }
    }
    if let Some(core) = options.core {
        pin(&[core]).map_err(|e| Failure::new(format_args!("can't run on core {core}"), e))?;
    }
    let host = Linux::default();
    let before = host.cpu_time();
    let (tally, kernel) = on_some_kernel(&plan, options.mark)?;
    let processor = host.cpu_time() - before;
    let of = (options.url.as_str(), words(&plan), kernel);
    let seen = Observation::of(&tally, of, plan.interval, processor);
    write(options, &seen, &tally)?;
    match tally.stopped {
        Some(stopped) => Err(Failure::Run(early(stopped, &plan))),
        None if seen.due > 0 && seen.replies == 0 => {
            Err(Failure::Run("not one request got a good reply".to_owned()))
        }
        None => Ok(()),
    }
}

/// On io_uring, or by epoll where that is refused.
fn on_some_kernel(plan: &Plan, mark: bool) -> Result<(Tally, &'static str), Failure> {
    let operations = Generator::<UringKernel>::operations(plan);
    let config = UringConfig {
        mode: Mode::Deferred,
        operations,
        buffers: BUFFERS,
        buffer_size: BUFFER_SIZE,
    };
    match UringKernel::new(&config) {
        Ok(kernel) => Ok((on(kernel, plan, mark)?, "io_uring")),
        Err(missing) => {
            eprintln!("lab: {missing}; using epoll");
            let config = EngineConfig { operations, buffers: BUFFERS, buffer_size: BUFFER_SIZE };
            Ok((on(PortableKernel::new(Epoll::new()?, &config)?, plan, mark)?, "epoll"))
        }
    }
}

fn on<K: Kernel>(kernel: K, plan: &Plan, mark: bool) -> Result<Tally, Failure> {
    let generator = Generator::new(kernel, plan).map_err(|invalid| Failure::Request(invalid.0))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let display = display(plan);
    let seconds = plan.interval.as_secs_f64();
    let tally = generator.run(|moment, tally| {
        match moment {
            Moment::Turn => {}
            Moment::Counts | Moment::CountsNoMore if mark => {
                let line = MARKS.iter().find(|(marked, _)| *marked == moment);
                eprintln!("{}", line.map_or("", |(_, line)| line));
            }
            _ => {
                display.set_position(tally.series.len() as u64);
                display.set_message(show::progress(tally, seconds));
            }
        }
        !interrupted.load(Ordering::Relaxed)
    });
    display.finish_and_clear();
    tally.map_err(|fault| Failure::Run(fault.to_string()))
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

/// The load in words.
fn words(plan: &Plan) -> String {
    let pace = match plan.pace {
        Pace::Closed { clients } => format!("closed loop of {clients} clients"),
        Pace::Sessions { rate, arrivals } => {
            format!("open loop, {rate} sessions per second ({arrivals:?})").to_lowercase()
        }
        Pace::Requests { rate, arrivals, connections } => format!(
            "open loop, {rate} requests per second ({arrivals:?}) on {connections} connections"
        )
        .to_lowercase(),
    };
    let (duration, warm_up) = (plan.duration.as_secs_f64(), plan.warm_up.as_secs_f64());
    let burst = match plan.burst {
        1.0 => String::new(),
        times => format!(" with {times} times as much"),
    };
    let awake = if plan.busy { ", never asleep" } else { "" };
    format!("{pace}, {duration} s after {warm_up} s of warm-up{burst}{awake}")
}

fn early(stopped: Stopped, plan: &Plan) -> String {
    let what = seen::sentence(stopped);
    match stopped {
        Stopped::Asked => what,
        _ => format!("{}: {what}", plan.to),
    }
}

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text)
        .map_err(|e| Failure::new(format_args!("can't write {}", path.display()), e))
}

/// Writes what was asked for, all of it that can be written.
fn write(options: &Load, seen: &Observation, tally: &Tally) -> Result<(), Failure> {
    let json = || serde_json::to_string(seen).map_err(|e| Failure::new("JSON", e));
    let texts: [(_, &dyn Fn() -> Result<String, Failure>); 3] = [
        (&options.json, &|| Ok(json()? + "\n")),
        (&options.csv, &|| Ok(show::csv(seen))),
        (&options.log, &|| Ok(show::log(&tally.log))),
    ];
    let (mut quiet, mut written) = (false, Ok(()));
    for (path, text) in texts {
        let Some(path) = path else { continue };
        let done = if is_stdout(path) {
            quiet = true;
            say(text()?.trim_end())
        } else {
            save(path, &text()?)
        };
        written = written.and(done);
    }
    if !quiet {
        say(show::summary(seen).trim_end())?;
    }
    written
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}
