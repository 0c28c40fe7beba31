//! One server at several rates.

use super::Context;
use crate::failure::Failure;
use crate::measure::{Conditions, Peer, Quota, SOURCES, Trial, Trials};

/// Under what a server runs, and what it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub(super) quota: &'a Quota,
    /// Length of the file.
    pub(super) bytes: usize,
    /// Length of the listener's queue.
    pub(super) backlog: u32,
    /// Whether it has two cores.
    pub(super) spread: bool,
}

/// One server at several rates.
#[derive(Debug)]
pub(super) struct Sweep<'a> {
    pub(super) peer: Peer,
    setting: Setting<'a>,
    /// What it did in a closed loop, once for each round.
    pub(super) saturation: Vec<f64>,
    /// The runs at each multiple of it.
    pub(super) points: Vec<(f64, Vec<Trial>)>,
    /// Why it was given up.
    pub(super) failed: Option<String>,
}

/// Takes all servers through all rates once; at each rate one after the other.
pub(super) fn all(
    cx: &Context,
    trials: &mut Trials<'_>,
    sweeps: &mut [Sweep<'_>],
    multiples: &[f64],
) {
    let closed = [None].into_iter();
    for multiple in closed.chain(multiples.iter().copied().map(Some)) {
        for sweep in sweeps.iter_mut() {
            cx.progress.set_message(match multiple {
                Some(multiple) => format!("{}: {multiple} times saturation", sweep.peer),
                None => format!("{}: saturation", sweep.peer),
            });
            if sweep.failed.is_none()
                && let Err(failure) = sweep.run(cx, trials, multiple)
            {
                sweep.failed = Some(failure.to_string());
            }
            cx.progress.inc(1);
        }
    }
}

impl<'a> Sweep<'a> {
    pub(super) fn new(peer: Peer, setting: Setting<'a>) -> Self {
        Sweep { peer, setting, saturation: Vec::new(), points: Vec::new(), failed: None }
    }

    /// One run: in a closed loop, or at a multiple of what was done there.
    fn run(
        &mut self,
        cx: &Context,
        trials: &mut Trials<'_>,
        multiple: Option<f64>,
    ) -> Result<(), Failure> {
        let setting = self.setting;
        let conditions = Conditions {
            quota: Some(setting.quota),
            backlog: Some(setting.backlog),
            spread: setting.spread,
            ..Conditions::default()
        };
        let file = (&*format!("/{}k.txt", setting.bytes >> 10), setting.bytes);
        let seconds = if cx.quick { "1.5" } else { "4" };
        let usual = ["--deadline", "1", "--warm-up", "1", "--duration", seconds];
        let Some(multiple) = multiple else {
            let words =
                [&usual[..], &SOURCES, &["--connections", "256", "--requests", "1"]].concat();
            let trial = trials.run(self.peer, &conditions, file, &words)?;
            self.saturation.push(trial.goodput());
            return Ok(());
        };
        let Some(saturation) = self.saturation.last() else { return Ok(()) };
        let rate = format!("{:.0}", saturation * multiple);
        let words = [&usual[..], &SOURCES, &["--rate", &rate]].concat();
        let trial = trials.run(self.peer, &conditions, file, &words)?;
        match self.points.iter_mut().find(|(at, _)| *at == multiple) {
            Some((_, all)) => all.push(trial),
            None => self.points.push((multiple, vec![trial])),
        }
        Ok(())
    }

    /// Goodput at a multiple of saturation, once for each round.
    pub(super) fn goodput(&self, multiple: f64) -> Vec<f64> {
        let point = self.points.iter().find(|(at, _)| *at == multiple);
        point.map_or(Vec::new(), |(_, trials)| trials.iter().map(Trial::goodput).collect())
    }

    /// The same over the highest goodput of each round.
    pub(super) fn relative(&self, multiple: f64) -> Vec<f64> {
        let at_round = |round: usize| {
            let all = self.points.iter().filter_map(move |(_, trials)| trials.get(round));
            all.map(Trial::goodput).chain(self.saturation.get(round).copied())
        };
        let goodput = self.goodput(multiple).into_iter().enumerate();
        goodput
            .map(|(round, good)| good / at_round(round).fold(f64::MIN_POSITIVE, f64::max))
            .collect()
    }

    /// Its name in the names of ratios.
    pub(super) fn short_name(&self) -> String {
        match self.peer {
            Peer::Nginx(_) => "nginx".to_owned(),
            peer => peer.to_string().replace(['-', ' '], "_"),
        }
    }
}
