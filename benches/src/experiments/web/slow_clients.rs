//! Clients that are as slow as a server lets them be, a thousand at a time.

mod attack;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evring::mechanisms::backends;
use evring_httpd::evring_tls::rustls::ClientConfig;

use super::super::{Context, DEFAULT, Experiment, servers};
use super::client::{Stream, get};
use super::start;
use super::tls::certificate;
use crate::command::ServerKind;
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, OtherPrograms, Site, pin, raise_descriptors};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;
use attack::{Attack, Attackers};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "slow-clients",
    title: "1,000 clients that send a head, send a body, receive a response or shake hands slowly",
    source: "goal of this project: the 99th percentile of another client below 100 ms, and no slow client left \
             after its time-out",
    own_network: false,
    run,
};

const CLIENTS: usize = 1_000;

/// Time after the last connect at which a client counts as left: the time-out of the servers, and a second.
const DEADLINE: Duration = Duration::from_millis(3_500);

/// Slow clients that connect at a time, and the time between.
const CONNECTS: usize = 10;
const TICK: Duration = Duration::from_millis(20);

/// The number of ticks between two bytes of a slow client.
const TICKS_PER_BYTE: u32 = 10;

/// Time between the requests of the other client.
const PROBE_STEP: Duration = Duration::from_millis(5);

/// Mechanisms of a quick run.
const QUICK: [&str; 2] = [DEFAULT, "epoll"];
const ROUNDS: usize = 6;

const NOTES: [&str; 3] = [
    "Two servers of one mechanism, without TLS and with it, each with one worker, on core 0; the clients are on core 1. The \
     servers have time-outs of 2.5 s, and 4 KiB/s as the minimum rate. There are 1,000 slow clients of each kind at \
     once, those that shake hands at the server with TLS. Each moves a byte each 200 ms.",
    "The slow clients connect within two seconds. One other client of each server connects every 5 ms and makes one \
     request; its time counts from the moment it was due. It begins before the slow clients connect.",
    "A slow client is gone when its connection has ended. The time is that from the connect of the last one of its kind \
     until all are gone, to 0.2 s; those that are there after 3.5 s count as left.",
];

/// The other clients, by their servers.
const PROBES: [&str; 2] = ["without TLS", "with TLS"];

/// The results of the attacks on one mechanism, one value per round.
#[derive(Default)]
struct Observed {
    mechanism: &'static str,
    /// As [`PROBES`].
    p99_ms: [Vec<f64>; PROBES.len()],
    /// As [`Attack::ALL`].
    left: [Vec<f64>; Attack::ALL.len()],
    seconds: [Vec<f64>; Attack::ALL.len()],
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    pin(&[CLIENT_CORE])?;
    raise_descriptors();
    let site = Site::bare(b"")?;
    let config = certificate(&site)?;
    let others = OtherPrograms::watch()?;
    let mechanisms = if cx.quick {
        servers::available(&QUICK)
    } else {
        backends().iter().filter(|b| b.available.is_ok()).map(|b| b.name).collect()
    };
    let mut all: Vec<_> =
        mechanisms.iter().map(|mechanism| Observed { mechanism, ..Observed::default() }).collect();
    let rounds = if cx.quick { 1 } else { ROUNDS };
    cx.progress.set_length((rounds * all.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for i in round.order(all.len()) {
            cx.progress.set_message(all[i].mechanism);
            observe(&mut all[i], &site, &config)?;
            cx.progress.inc(1);
        }
    }
    report(&all, &mut outcome);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Runs all attacks on a mechanism once.
fn observe(
    observed: &mut Observed,
    site: &Site,
    config: &Arc<ClientConfig>,
) -> Result<(), Failure> {
    let server =
        |setting| start(ServerKind::Variant, &format!("{}/{setting}", observed.mechanism), site);
    let (plain, with_tls) = (server("slow")?, server("slow-tls")?);
    let servers = [(plain.address(), None), (with_tls.address(), Some(config))];
    let is_over = AtomicBool::new(false);
    let panicked = |_| Failure::Run("a client panicked".to_owned());
    thread::scope(|scope| {
        let is_over = &is_over;
        let probes = servers.map(|(to, tls)| scope.spawn(move || probe(to, tls, is_over)));
        let attacks = Attack::ALL.map(|attack| {
            let (to, _) = servers[usize::from(attack == Attack::Handshake)];
            scope.spawn(move || slow_clients(to, attack, config))
        });
        let attacked = attacks.map(|attack| attack.join().map_err(panicked)?);
        is_over.store(true, Ordering::Relaxed);
        for (p99_ms, probe) in observed.p99_ms.iter_mut().zip(probes) {
            p99_ms.push(percentile_99(probe.join().map_err(panicked)?));
        }
        for (n, attacked) in attacked.into_iter().enumerate() {
            let (left, time) = attacked?;
            observed.left[n].push(left as f64);
            observed.seconds[n].push(time.as_secs_f64());
        }
        Ok(())
    })
}

/// Runs the slow clients of one kind until they have gone. Returns how many are left, and the time.
fn slow_clients(
    to: SocketAddr,
    attack: Attack,
    config: &Arc<ClientConfig>,
) -> Result<(usize, Duration), Failure> {
    let mut clients = Attackers::new(attack, config)?;
    let (mut due, mut connected, mut complete) = (Instant::now(), 0, None);
    let mut tick = 0_u32;
    loop {
        let more = CONNECTS.min(CLIENTS - connected);
        clients.connect(to, more)?;
        connected += more;
        let left =
            if tick.is_multiple_of(TICKS_PER_BYTE) { clients.step() } else { clients.count() };
        if connected == CLIENTS {
            let since = complete.get_or_insert_with(Instant::now).elapsed();
            if left == 0 || since >= DEADLINE {
                return Ok((left, since));
            }
        }
        tick += 1;
        due += TICK;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Makes requests until the slow clients have gone. Returns their times in milliseconds; a request that fails has
/// none.
fn probe(to: SocketAddr, tls: Option<&Arc<ClientConfig>>, is_over: &AtomicBool) -> Vec<f64> {
    let (request, mut reply) = (get("/hello", "Connection: close\r\n"), Vec::new());
    let (mut times, mut due) = (Vec::new(), Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        let outcome = Stream::connect(to, tls).and_then(|mut stream| {
            stream.send(&request)?;
            stream.receive(&mut reply, "content-length: 12")
        });
        times.push(match outcome {
            Ok(()) => due.elapsed().as_secs_f64() * 1e3,
            Err(_) => f64::INFINITY,
        });
        due += PROBE_STEP;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    times
}

fn percentile_99(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = (times.len() * 99).div_ceil(100).saturating_sub(1);
    times.get(at).copied().unwrap_or(f64::INFINITY)
}

fn report(all: &[Observed], outcome: &mut Outcome) {
    let attacks = Attack::ALL.map(Attack::name);
    for observed in all {
        let x = X::Name(observed.mechanism.to_owned());
        for (figure, unit, names, values) in [
            ("99th percentile of another client", "ms", &PROBES[..], &observed.p99_ms[..]),
            ("Slow clients left", "", &attacks, &observed.left),
            ("Time until the last slow client is gone", "s", &attacks, &observed.seconds),
        ] {
            for (name, values) in names.iter().zip(values) {
                if let Some(y) = spread(values) {
                    outcome.point(figure, unit, name, x.clone(), y);
                }
            }
        }
    }
    // A round stands for the worst of all mechanisms, and for those that are left of any kind.
    let worst = |of: fn(&Observed) -> &[Vec<f64>]| {
        let values = || all.iter().flat_map(of);
        let rounds = values().map(Vec::len).min().unwrap_or(0);
        (0..rounds).map(|n| values().map(|of| of[n]).fold(0.0, f64::max)).collect()
    };
    outcome.ratio("probe_p99_ms_worst", "every mechanism", worst(|o| &o.p99_ms));
    outcome.ratio("attackers_left", "every mechanism", worst(|o| &o.left));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_time_that_one_in_a_hundred_exceeds() {
        assert_eq!(percentile_99((1..=100).map(f64::from).collect()), 99.0);
        assert_eq!(percentile_99((1..=200).map(f64::from).rev().collect()), 198.0);
        assert_eq!(percentile_99(vec![7.0]), 7.0);
        assert_eq!(percentile_99(Vec::new()), f64::INFINITY);
    }

    #[test]
    fn result_with_a_client_that_got_no_reply_could_not_be_read() {
        let mut observed = Observed { mechanism: "epoll", ..Observed::default() };
        observed.p99_ms = [vec![2.0, f64::INFINITY, f64::INFINITY], vec![3.0; 3]];
        let mut outcome = Outcome::new(EXPERIMENT.id);
        report(&[observed], &mut outcome);
        let text = serde_json::to_string(&outcome).unwrap();
        let read: Outcome = serde_json::from_str(&text).unwrap();
        let y = read.series[0].points[0].y;
        assert_eq!((y.low, y.median, y.high), (2.0, f64::INFINITY, f64::INFINITY));
        assert_eq!(read.median("probe_p99_ms_worst"), Some(f64::INFINITY));
    }
}
