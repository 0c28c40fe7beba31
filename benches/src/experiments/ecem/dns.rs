//! Disk-to-network splicing.

use super::super::servers::{self, DEFAULT};
use super::super::{Context, Experiment};
use super::{COMPARED, COUNTED, Cache, Case, Entry, NUMBERS, Setting, Speed, beside};
use crate::failure::Failure;
use crate::measure::{Peer, Trial};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ecem-dns",
    title: "downloads of 10 MB, in the page cache and not, with disk-to-network splicing: rate, response times, \
            context switches; small requests beside them",
    source: "ECEM, section 6, figures 13b and 14, table 3",
    own_network: false,
    run,
};

const DNS: Peer = Peer::Delivery(DEFAULT, "dns");
const EPOLL: Peer = Peer::Delivery("epoll", "plain");
const PLAIN: Peer = Peer::Plain("sendfile");
const NGINX: [Peer; 3] = [NGINX_SENDFILE, NGINX_AIO, NGINX_DIRECTIO];
const NGINX_SENDFILE: Peer = Peer::Nginx("downloads");
const NGINX_AIO: Peer = Peer::Nginx("aio");
const NGINX_DIRECTIO: Peer = Peer::Nginx("directio");
/// For clients with a limited rate, it needs less CPU time than sendfile(2) on some machines.
const NGINX_COPY: Peer = Peer::Nginx("copy");

const CACHED: Case = Case::new(COMPARED, Cache::Cached, Speed::Fast);
const COLD: Case = Case::new(COMPARED, Cache::Cold, Speed::Fast);
const LIMITED: Case = Case::new(COMPARED, Cache::Cached, Speed::Limited);

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let mut nginx = NGINX.to_vec();
    if let Err(failure) = servers::note(NGINX_SENDFILE, false, &mut outcome) {
        outcome.notes.push(format!("{failure}."));
        nginx.clear();
    }
    let all = [&[PLAIN, EPOLL, DNS][..], &nginx].concat();
    // nginx as its experts set it up for each case: the fewest that the ratios need, in every round.
    let sendfile: Vec<_> = nginx.iter().copied().filter(|peer| *peer == NGINX_SENDFILE).collect();
    let aio: Vec<_> = nginx.iter().copied().filter(|peer| *peer != NGINX_DIRECTIO).collect();
    let copy: Vec<_> = sendfile.iter().map(|_| NGINX_COPY).collect();
    let entry = |case: Case, peers: &[&[Peer]]| Entry { case, peers: peers.concat() };
    let mut setting = Setting {
        id: EXPERIMENT.id,
        compared: vec![
            entry(CACHED, &[&[PLAIN, EPOLL, DNS], &sendfile]),
            entry(COLD, &[&[PLAIN, DNS], &aio]),
            entry(LIMITED, &[&[EPOLL, DNS], &sendfile, &copy]),
        ],
        more: Vec::new(),
        counted: Vec::new(),
    };
    if !cx.quick {
        let others = [
            Peer::Delivery("epoll", "dns"),
            Peer::Delivery(DEFAULT, "ded"),
            Peer::Delivery(DEFAULT, "plain"),
        ];
        setting.more = vec![
            entry(LIMITED, &[&[PLAIN], &nginx[sendfile.len()..], &others]),
            entry(CACHED, &[&nginx[sendfile.len()..], &others]),
            entry(COLD, &[&[EPOLL], &nginx[aio.len()..], &others]),
        ];
        setting.more.push(Entry::new(COMPARED, Cache::Cold, Speed::Limited, &all));
        // nginx with other numbers of clients: its best settings for the case.
        let few = [&[PLAIN, EPOLL, DNS][..], &sendfile].concat();
        let cold = [&[PLAIN, EPOLL, DNS][..], &aio].concat();
        for (cache, speed, peers) in [
            (Cache::Cached, Speed::Fast, &few),
            (Cache::Cold, Speed::Fast, &cold),
            (Cache::Cached, Speed::Limited, &few),
            (Cache::Cold, Speed::Limited, &few),
        ] {
            setting.more.extend(NUMBERS.map(|n| Entry::new(n, cache, speed, peers)));
            setting.counted.extend(COUNTED.map(|n| Entry::new(n, cache, speed, peers)));
        }
        setting.counted.push(Entry::new(COMPARED, Cache::Cold, Speed::Limited, &few));
    }
    let site = super::site(cx.quick)?;
    // Before the downloads, which may use all the time.
    let servers = [&[DNS][..], &sendfile].concat();
    let beside = beside::run(cx, &site, &servers, &mut outcome);
    let mut downloads = super::run(cx, &site, &setting, outcome)?;
    let switches = Trial::switches_per_megabyte;
    downloads.ratio("context_switches_over_plain", (DNS, PLAIN), CACHED, switches);
    downloads.ratio("context_switches_over_epoll", (DNS, EPOLL), CACHED, switches);
    downloads.ratio("context_switches_over_epoll_limited", (DNS, EPOLL), LIMITED, switches);
    let rate: super::results::Figure = |trial| Some(trial.received_megabytes());
    downloads.ratio("rate_over_plain", (DNS, PLAIN), CACHED, rate);
    downloads.ratio("cold_rate_over_plain", (DNS, PLAIN), COLD, rate);
    let cpu = Trial::cpu_us_per_megabyte;
    downloads.ratio("cpu_per_mb_over_nginx_fast", (DNS, NGINX_SENDFILE), CACHED, cpu);
    // Those of them that run in every round.
    let better = downloads.lowest(&[NGINX_SENDFILE, NGINX_COPY], LIMITED, cpu);
    let best = downloads.lowest(&[&nginx[..], &copy].concat(), LIMITED, cpu);
    if let Some((better, best)) = better.zip(best) {
        downloads.ratio("cpu_per_mb_over_nginx", (DNS, better), LIMITED, cpu);
        downloads.outcome.notes.push(format!(
            "`cpu_per_mb_over_nginx` compares with {better}, the better of {NGINX_SENDFILE} and {NGINX_COPY}. Of all of \
             nginx's settings, {best} needs the least CPU time for clients with a limited rate."
        ));
    }
    if !nginx.is_empty() {
        downloads.ratio("cold_rate_over_nginx_sendfile", (DNS, NGINX_SENDFILE), COLD, rate);
        downloads.ratio("cold_rate_over_nginx_aio", (DNS, NGINX_AIO), COLD, rate);
    }
    downloads.memory("memory_per_download_kb", DNS, &[CACHED, COLD]);
    let mut outcome = downloads.outcome;
    beside.report(DNS, &mut outcome);
    outcome.paper(
        "Voluntary context switches against concurrent downloads",
        "ECEM, figure 13b: up to 17 % fewer context switches with disk-to-network splicing.",
    );
    outcome.paper(
        "Mean response time against concurrent downloads",
        "ECEM, figure 14 and table 3: 8.1, 7.2, 7.0 and 6.9 % less with 10, 30, 60 and 120 connections.",
    );
    Ok(outcome)
}
