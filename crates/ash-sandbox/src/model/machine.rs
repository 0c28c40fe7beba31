//! The machine's side of the model, and its equations.

use std::fmt;
use std::str::FromStr;

use super::{ProcessState, Strategy, Workload};

/// Parameters of the machine and its operating system (table 7-2), in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// `t_a,i`: sets up an ASH to run, while its process is scheduled.
    pub ash_setup_us: f64,
    /// `t_a,c`: switches to the ASH's memory, and as long again back.
    pub ash_switch_us: f64,
    /// `t_a,a`: cleans up after an ASH's voluntary abort.
    pub ash_abort_us: f64,
    /// `t_a,s`: cleans up after a successful ASH.
    pub ash_success_us: f64,
    /// `t_u,i`: sets up an upcall to run, while its process is scheduled.
    pub upcall_setup_us: f64,
    /// `t_u,c`: switches to the upcall's memory, and as long again back.
    pub upcall_switch_us: f64,
    /// `t_u,a`: cleans up after an upcall's voluntary abort.
    pub upcall_abort_us: f64,
    /// `t_u,s`: cleans up after a successful upcall.
    pub upcall_success_us: f64,
    /// `t_i,i`: interrupts a process that is scheduled. There is no parameter for its clean-up: what its reply takes more than
    /// that of an ASH belongs to it, too.
    pub interrupt_setup_us: f64,
    /// `t_c`: switches to another process.
    pub context_switch_us: f64,
    /// `t_p,i`: returns to a process that runs and polls; with its reply, as above.
    pub poll_setup_us: f64,
    /// `t_q`: the time quantum of the scheduler.
    pub quantum_us: f64,
}

/// The parameters by their names in table 7-2, separated by spaces, as [`FromStr`] takes them.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = *self;
        for (n, (name, us)) in copy.parameters().into_iter().enumerate() {
            write!(f, "{}{name}={us}", if n == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// The reason why a text has no parameters of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineError {
    /// A word that is no parameter with a finite time of at least 0.
    Parameter(String),
    /// The text lacks the parameter of this name.
    Incomplete(&'static str),
}

impl fmt::Display for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MachineError::Parameter(word) => write!(
                f,
                "`{word}` is no parameter of a machine; use NAME=MICROSECONDS with the names of table 7-2, such as t_a,i=0.05"
            ),
            MachineError::Incomplete(name) => {
                write!(
                    f,
                    "the parameter {name} is missing; `cargo lab recommend` in the repository of evring prints all of a machine"
                )
            }
        }
    }
}

impl std::error::Error for MachineError {}

/// Takes the line that `cargo lab recommend` and `cargo lab run ash-model` print for a machine, in the repository.
impl FromStr for Machine {
    type Err = MachineError;

    fn from_str(text: &str) -> Result<Self, MachineError> {
        let mut machine = Machine::AEGIS;
        let mut parameters = machine.parameters();
        parameters.iter_mut().for_each(|(_, us)| **us = f64::NAN);
        for word in text.split_ascii_whitespace() {
            let bad = || MachineError::Parameter(word.to_owned());
            let (name, number) = word.split_once('=').ok_or_else(bad)?;
            let us = number.parse::<f64>().ok().filter(|us| us.is_finite() && *us >= 0.0);
            let parameter = parameters.iter_mut().find(|(other, _)| *other == name);
            *parameter.ok_or_else(bad)?.1 = us.ok_or_else(bad)?;
        }
        match parameters.iter().find(|(_, us)| us.is_nan()) {
            Some((name, _)) => Err(MachineError::Incomplete(name)),
            None => Ok(machine),
        }
    }
}

impl Machine {
    /// The parameters with their names in table 7-2.
    fn parameters(&mut self) -> [(&'static str, &mut f64); 12] {
        [
            ("t_a,i", &mut self.ash_setup_us),
            ("t_a,c", &mut self.ash_switch_us),
            ("t_a,a", &mut self.ash_abort_us),
            ("t_a,s", &mut self.ash_success_us),
            ("t_u,i", &mut self.upcall_setup_us),
            ("t_u,c", &mut self.upcall_switch_us),
            ("t_u,a", &mut self.upcall_abort_us),
            ("t_u,s", &mut self.upcall_success_us),
            ("t_i,i", &mut self.interrupt_setup_us),
            ("t_c", &mut self.context_switch_us),
            ("t_p,i", &mut self.poll_setup_us),
            ("t_q", &mut self.quantum_us),
        ]
    }

    /// The exokernel Aegis on a DECstation 5000/240 (table 7-5). Section 7.3 gives 8 microseconds for the
    /// context switch, with which the text of the study (7.5) agrees.
    pub const AEGIS: Machine = Machine {
        ash_setup_us: 5.4,
        ash_switch_us: 0.4,
        ash_abort_us: 1.7,
        ash_success_us: 1.7,
        upcall_setup_us: 26.0,
        upcall_switch_us: 0.4,
        upcall_abort_us: 4.9,
        upcall_success_us: 4.9,
        interrupt_setup_us: 22.0,
        context_switch_us: 24.5,
        poll_setup_us: 20.9,
        quantum_us: 15_625.0,
    };

    /// A system like Ultrix on the same machine (table 7-5).
    pub const ULTRIX: Machine = Machine {
        interrupt_setup_us: 30.0,
        context_switch_us: 75.0,
        poll_setup_us: 30.0,
        ..Machine::AEGIS
    };

    /// Returns the time in which a strategy handles a message, in microseconds. It is `None` for the three
    /// combinations that the model leaves out: an interrupt of a process that polls, and polls of a process
    /// that does something else.
    pub fn time_us(
        &self,
        strategy: Strategy,
        workload: &Workload,
        state: ProcessState,
    ) -> Option<f64> {
        match strategy {
            Strategy::Ash => {
                let success = self.ash_scheduled(workload);
                let aborts = workload.ash_abort_probability;
                let abort = self.ash_abort_us + self.after_abort(workload, state);
                Some(success + switches(state, self.ash_switch_us) + aborts * abort)
            }
            Strategy::Upcall => {
                let success = self.upcall_scheduled(workload);
                let aborts = workload.upcall_abort_probability;
                let abort = self.upcall_abort_us + self.after_abort(workload, state);
                Some(success + switches(state, self.upcall_switch_us) + aborts * abort)
            }
            Strategy::Interrupt => self.interrupt(workload, state),
            Strategy::Poll => self.poll(workload, state),
        }
    }

    /// Returns the strategy that takes the least time.
    pub fn recommend(&self, workload: &Workload, state: ProcessState) -> Strategy {
        self.recommend_of(&Strategy::ALL, workload, state).unwrap_or(Strategy::Ash)
    }

    /// Returns the one of these strategies that takes the least time, if one of them is in the model.
    pub(crate) fn recommend_of(
        &self,
        strategies: &[Strategy],
        workload: &Workload,
        state: ProcessState,
    ) -> Option<Strategy> {
        let time = |strategy: &Strategy| self.time_us(*strategy, workload, state);
        let modelled = strategies.iter().filter_map(|strategy| Some((*strategy, time(strategy)?)));
        modelled.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(strategy, _)| strategy)
    }

    /// Equation 7.4, without what follows an abort.
    fn ash_scheduled(&self, workload: &Workload) -> f64 {
        let aborts = workload.ash_abort_probability;
        let handler = workload.handler_us * workload.sandboxing_factor;
        self.ash_setup_us
            + partial(handler, aborts, workload)
            + (1.0 - aborts) * self.ash_success_us
    }

    /// Equation 7.3, without what follows an abort.
    fn upcall_scheduled(&self, workload: &Workload) -> f64 {
        let aborts = workload.upcall_abort_probability;
        let handler = partial(workload.handler_us, aborts, workload);
        self.upcall_setup_us + handler + (1.0 - aborts) * self.upcall_success_us
    }

    /// The application's time after an abort: the second summand of equations 7.7, 7.9, 7.12 and 7.14.
    fn after_abort(&self, workload: &Workload, state: ProcessState) -> f64 {
        let polls = state == ProcessState::Spinning;
        let time = if polls { self.poll(workload, state) } else { self.interrupt(workload, state) };
        time.unwrap_or(0.0)
    }

    /// Equations 7.2, 7.8, 7.11 and 7.13.
    fn interrupt(&self, workload: &Workload, state: ProcessState) -> Option<f64> {
        let scheduled = self.interrupt_setup_us + workload.handler_us;
        match state {
            ProcessState::Spinning => None,
            ProcessState::Busy => Some(scheduled),
            ProcessState::Blocked => Some(self.context_switch_us + scheduled),
            ProcessState::BusySuspended => Some(self.until_scheduled(workload) + scheduled),
        }
    }

    /// Equations 7.1, 7.6 and 7.10.
    fn poll(&self, workload: &Workload, state: ProcessState) -> Option<f64> {
        let scheduled = self.poll_setup_us + workload.handler_us;
        match state {
            ProcessState::Spinning => Some(scheduled),
            ProcessState::Blocked => Some(self.until_scheduled(workload) + scheduled),
            ProcessState::Busy | ProcessState::BusySuspended => None,
        }
    }

    /// Equation 7.5: a round-robin scheduler that gives the process no priority.
    fn until_scheduled(&self, workload: &Workload) -> f64 {
        workload.other_processes / 2.0 * (self.quantum_us + self.context_switch_us)
    }
}

/// The time of a handler of which only a share runs if it aborts.
fn partial(handler_us: f64, aborts: f64, workload: &Workload) -> f64 {
    handler_us * (1.0 - aborts * (1.0 - workload.share_before_abort))
}

/// The switches to the handler's memory and back, if the process is not scheduled.
fn switches(state: ProcessState, switch_us: f64) -> f64 {
    match state {
        ProcessState::Spinning | ProcessState::Busy => 0.0,
        ProcessState::Blocked | ProcessState::BusySuspended => 2.0 * switch_us,
    }
}
