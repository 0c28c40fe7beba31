//! The application's side of the model: tables 7-1 and 7-3.

/// How a message reaches its handler (7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// A handler in the sandbox, where the message arrives.
    Ash,
    /// A native handler across a protection boundary.
    Upcall,
    /// The application, which the message interrupts or wakes.
    Interrupt,
    /// The application, which polls.
    Poll,
}

impl Strategy {
    /// All strategies; of two that take the same time, the model recommends the first.
    pub const ALL: [Strategy; 4] =
        [Strategy::Ash, Strategy::Upcall, Strategy::Interrupt, Strategy::Poll];

    /// Returns whether a handler runs before the application, and may abort.
    pub fn may_abort(self) -> bool {
        matches!(self, Strategy::Ash | Strategy::Upcall)
    }
}

/// The state of the application's process when a message arrives (table 7-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessState {
    /// `rp`, spinning: it runs and polls for a message.
    Spinning,
    /// `rb`, busy: it runs other code.
    Busy,
    /// `sw`, blocked: it is suspended and waits for a message.
    Blocked,
    /// `sb`, busy-suspended: it is suspended and does not wait for a message.
    BusySuspended,
}

impl ProcessState {
    /// All states.
    pub const ALL: [ProcessState; 4] = [
        ProcessState::Spinning,
        ProcessState::Busy,
        ProcessState::Blocked,
        ProcessState::BusySuspended,
    ];
}

/// Parameters of the application and of its processor's load (table 7-3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// `t_h`: the time of the handler without a sandbox, in microseconds.
    pub handler_us: f64,
    /// `s`: the factor by which the sandbox lengthens the handler.
    pub sandboxing_factor: f64,
    /// `p_a,a`: the probability that an ASH aborts.
    pub ash_abort_probability: f64,
    /// `p_u,a`: the probability that an upcall aborts.
    pub upcall_abort_probability: f64,
    /// `f`: the share of the handler that runs before it aborts.
    pub share_before_abort: f64,
    /// `n_p`: the number of other active processes.
    pub other_processes: f64,
}

impl Default for Workload {
    /// The study's fixed parameters (7.3.2), for a handler of 20 microseconds that never aborts.
    fn default() -> Self {
        Workload {
            handler_us: 20.0,
            sandboxing_factor: 1.0,
            ash_abort_probability: 0.0,
            upcall_abort_probability: 0.0,
            share_before_abort: 1.0 / 8.0,
            other_processes: 1.0,
        }
    }
}

impl Workload {
    /// Returns the workload with an abort probability for ASHs and upcalls, which the model assumes to be
    /// the same (7.2.2).
    #[must_use]
    pub fn aborting(self, probability: f64) -> Self {
        Workload {
            ash_abort_probability: probability,
            upcall_abort_probability: probability,
            ..self
        }
    }
}
