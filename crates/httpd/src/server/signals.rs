//! Running until a signal arrives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::server::running::{Handle, Server};

impl Builder {
    /// Starts the server, and stops it at SIGTERM or SIGINT; see [`Server::wait_until_signal`].
    ///
    /// # Errors
    /// Those of [`Builder::start`] and [`Server::wait_until_signal`].
    pub fn run_until_signal(self) -> Result<(), Error> {
        // Before the start: once clients are served, a signal finishes their responses.
        let signals = StopSignals::new()?;
        match self.start() {
            Ok(server) => server.wait_until(signals),
            Err(error) => {
                signals.raise_received();
                Err(error)
            }
        }
    }
}

impl Server {
    /// At SIGTERM or SIGINT, calls [`Handle::drain`], waits for [`Builder::drain_delay`], calls [`Handle::stop`], and
    /// waits until all connections are closed. A second signal ends the delay. Once no server of the process waits,
    /// the signals have their default action.
    ///
    /// # Errors
    /// If the signals cannot be handled, or a worker failed.
    pub fn wait_until_signal(self) -> Result<(), Error> {
        let signals = StopSignals::new()?;
        self.wait_until(signals)
    }

    fn wait_until(self, signals: StopSignals) -> Result<(), Error> {
        let StopSignals { mut signals, waiting } = signals;
        let (sender, received) = mpsc::channel();
        let (stop, control) = (self.handle(), signals.handle());
        let threads = [
            spawn("drain", move || stop_at(&stop, &received))?,
            spawn("signals", move || {
                let _ = signals.forever().try_for_each(|_| sender.send(()));
            })?,
        ];
        let outcome = self.wait();
        drop(waiting);
        control.close();
        for thread in threads {
            let _ = thread.join();
        }
        outcome.map(drop)
    }
}

/// Stops a server at a signal, unless it ends before.
fn stop_at(stop: &Handle, signals: &Receiver<()>) {
    if signals.recv().is_ok() {
        stop.drain();
        // A second signal and the end of the server end the delay.
        let _ = signals.recv_timeout(stop.drain_delay());
        stop.stop();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(Error::Thread)
}

const STOP: [i32; 2] = [SIGTERM, SIGINT];

/// The signals that stop a server.
struct StopSignals {
    signals: Signals,
    waiting: Waiting,
}

impl StopSignals {
    fn new() -> Result<Self, Error> {
        register_default()?;
        let signals = Signals::new(STOP).map_err(Error::Signals)?;
        // A signal before this has its default action.
        Ok(StopSignals { signals, waiting: Waiting::new() })
    }

    /// Sends the process the signals that it has received, with their default action.
    fn raise_received(self) {
        let StopSignals { mut signals, waiting } = self;
        drop(waiting);
        for signal in signals.pending() {
            let _ = low_level::raise(signal);
        }
    }
}

/// A server that waits for signals. Without one, the signals have their default action: signal-hook keeps its handlers,
/// which would ignore them.
struct Waiting;

static NONE_WAITS: AtomicBool = AtomicBool::new(true);
/// Number of servers that wait, and whether the default action is registered.
static ALL_WAITING: Mutex<(usize, bool)> = Mutex::new((0, false));

fn all_waiting() -> MutexGuard<'static, (usize, bool)> {
    ALL_WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the default action before anything else: of one signal, actions run in the order of their registration, and
/// the server may have ended before the last one runs.
fn register_default() -> Result<(), Error> {
    let (_, is_registered) = &mut *all_waiting();
    if !*is_registered {
        for signal in STOP {
            flag::register_conditional_default(signal, &NONE_WAITS).map_err(Error::Signals)?;
        }
        *is_registered = true;
    }
    Ok(())
}

impl Waiting {
    fn new() -> Self {
        let (servers, _) = &mut *all_waiting();
        *servers += 1;
        NONE_WAITS.store(false, Ordering::SeqCst);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let (servers, _) = &mut *all_waiting();
        *servers -= 1;
        NONE_WAITS.store(*servers == 0, Ordering::SeqCst);
    }
}
