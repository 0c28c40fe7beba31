//! Applies the model to a handler while it runs.

use super::{Machine, ProcessState, Strategy, Workload};

/// Chooses the strategy for the messages of a handler, by the share of them that it aborts.
///
/// It measures the abort probability over windows of messages. A handler that aborts so often that the
/// model prefers another strategy is no longer invoked. After a number of messages, the governor tries the
/// handler again for one window. This number doubles with each such trial that fails.
#[derive(Clone, Debug)]
pub struct Governor {
    machine: Machine,
    workload: Workload,
    state: ProcessState,
    strategies: Vec<Strategy>,
    /// The best strategy, for the current workload and state.
    best: Strategy,
    window: u32,
    /// Invocations in this window, and those that aborted.
    invocations: u32,
    aborts: u32,
    /// Messages until the next trial, while the handler is not invoked.
    until_trial: u32,
    /// Messages from the last trial to the next.
    trial_interval: u32,
    is_trial: bool,
}

impl Governor {
    /// Invocations over which the abort probability is measured.
    pub const WINDOW: u32 = 64;
    /// Windows of messages before the first trial.
    pub const FIRST_TRIAL: u32 = 16;
    /// Windows of messages between two trials, at most.
    pub const MAX_TRIAL: u32 = 1024;

    /// Creates a governor for a handler that is an ASH, for an application that waits for messages. The
    /// abort probabilities of the workload are those of the first window.
    pub fn new(machine: Machine, workload: Workload) -> Self {
        let mut governor = Governor {
            machine,
            workload,
            state: ProcessState::Blocked,
            strategies: vec![Strategy::Ash, Strategy::Interrupt, Strategy::Poll],
            best: Strategy::Ash,
            window: Self::WINDOW,
            invocations: 0,
            aborts: 0,
            until_trial: 0,
            trial_interval: 0,
            is_trial: false,
        };
        governor.choose_best();
        governor.leave_trial();
        governor
    }

    /// Adds upcalls to the strategies: the handler also has a native form in another process. In
    /// `evring::hooks::Landing`, the next hook gets the messages for which the model prefers them, so put `evring::hooks::Upcalls` there.
    #[must_use]
    pub fn with_upcalls(mut self) -> Self {
        if !self.strategies.contains(&Strategy::Upcall) {
            self.strategies.push(Strategy::Upcall);
        }
        self.choose_best();
        self
    }

    /// Sets the number of invocations over which the abort probability is measured, at least one.
    #[must_use]
    pub fn with_window(mut self, invocations: u32) -> Self {
        self.window = invocations.max(1);
        self.leave_trial();
        self
    }

    /// Sets what the application's process does from now on.
    pub fn set_state(&mut self, state: ProcessState) {
        self.state = state;
        self.choose_best();
    }

    /// Returns the workload, with the abort probability of the last window.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Returns the strategy for the next message. After [`Strategy::Ash`], [`record`](Self::record) has to follow.
    #[inline]
    pub fn next_strategy(&mut self) -> Strategy {
        // Not before, as the last outcome may be corrected.
        if self.invocations >= self.window {
            self.end_window();
        }
        if self.best == Strategy::Ash {
            return self.best;
        }
        if !self.is_trial {
            if self.until_trial > 0 {
                self.until_trial -= 1;
                return self.best;
            }
            self.is_trial = true;
        }
        Strategy::Ash
    }

    /// Records an invocation of the handler, and whether its message went to the application. One that the handler gave to an
    /// upcall did not.
    #[inline]
    pub fn record(&mut self, is_abort: bool) {
        self.invocations += 1;
        self.aborts += u32::from(is_abort);
    }

    /// Records that the last invocation, which was recorded as none, is an abort.
    #[cfg(feature = "sandbox")]
    pub(crate) fn correct(&mut self) {
        self.aborts = self.invocations.min(self.aborts + 1);
    }

    fn end_window(&mut self) {
        let share = f64::from(self.aborts) / f64::from(self.invocations);
        (self.invocations, self.aborts) = (0, 0);
        self.workload = self.workload.aborting(share);
        self.choose_best();
        if self.best == Strategy::Ash {
            self.leave_trial();
        } else if self.is_trial {
            let max = self.window.saturating_mul(Self::MAX_TRIAL);
            self.trial_interval = self.trial_interval.saturating_mul(2).min(max);
            self.until_trial = self.trial_interval;
            self.is_trial = false;
        }
    }

    /// Begins with the shortest interval between trials.
    fn leave_trial(&mut self) {
        self.trial_interval = self.window.saturating_mul(Self::FIRST_TRIAL);
        self.until_trial = self.trial_interval;
        self.is_trial = false;
    }

    fn choose_best(&mut self) {
        let best = self.machine.recommend_of(&self.strategies, &self.workload, self.state);
        self.best = best.unwrap_or(Strategy::Ash);
    }
}
