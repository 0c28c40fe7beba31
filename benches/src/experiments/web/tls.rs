//! TLS: new connections, and requests on open ones.

use std::sync::Arc;

use evring_httpd::evring_tls::rustls::ClientConfig;

use super::super::contestants::{Contestant, bars, ratio, run_rounds};
use super::super::{Context, DEFAULT, Experiment, servers};
use super::client::{Client, Stream, get, tls_13};
use super::{start, us_each};
use crate::command::ServerKind;
use crate::failure::Failure;
use crate::measure::{CERTIFICATE, CLIENT_CORE, KEY, OtherPrograms, Server, Site, pin};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "tls",
    title: "TLS 1.3 in our web server and in nginx: new connections, and requests on open ones",
    source: "goal of this project: at least as many handshakes per second of CPU time as nginx, and at most \
             0.8 of its CPU time for a file of 1 KiB",
    own_network: false,
    run,
};

const CONNECTIONS: usize = 64;
/// Rounds, new connections in a round, and requests on each open connection.
const QUICK: (usize, u64, u64) = (5, 200, 40);
const FULL: (usize, u64, u64) = (15, 1_000, 300);
const WARM_UP: u64 = 10;

const HANDSHAKE: &str = "CPU time of the server per connection with one request";
const REQUEST: &str = "CPU time of the server per request, 1 KiB";

const NOTES: [&str; 2] = [
    "Each server has one worker on core 0, in a new process in each round, and the client core 1. The certificate has a key of ECDSA P-256. The client \
     speaks TLS 1.3 with X25519 and AES-256-GCM, offers no session, and checks each response. nginx has OpenSSL, our \
     server rustls with ring; both send two tickets after a handshake.",
    "A new connection ends after one response of 1 KiB, with `Connection: close`. Open connections: 64, one request at \
     a time on each.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    servers::note(servers::NGINX, false, &mut outcome)?;
    pin(&[CLIENT_CORE])?;
    let (rounds, connections, requests) = if cx.quick { QUICK } else { FULL };
    let site = Site::bare(b"")?;
    let config = certificate(&site)?;
    let others = OtherPrograms::watch()?;
    let ours = format!("{DEFAULT}/tls");
    let all = [("nginx", ServerKind::Nginx, "tls"), (DEFAULT, ServerKind::Variant, &*ours)];
    let started = |what, setting: &str| {
        let mut server = start(what, setting, &site)?;
        connect(&server, &config, WARM_UP)?;
        server.count_children()?;
        Ok::<_, Failure>(server)
    };
    let (started, config) = (&started, &config);
    let mut handshakes = all.map(|(name, what, setting)| {
        Contestant::new(name, move || {
            let server = started(what, setting)?;
            us_each(&server, connections, || connect(&server, config, connections))
        })
    });
    run_rounds(cx, rounds, &mut handshakes)?;
    let mut open = all.map(|(name, what, setting)| {
        Contestant::new(name, move || {
            let server = started(what, setting)?;
            let all = vec![get("/1k.txt", ""); CONNECTIONS];
            let field = "content-length: 1024";
            let mut client = Client::new(server.address(), Some(config), all, field)?;
            client.requests(WARM_UP)?;
            let pieces = requests * CONNECTIONS as u64;
            us_each(&server, pieces, || client.requests(requests))
        })
    });
    run_rounds(cx, rounds, &mut open)?;
    bars(&mut outcome, HANDSHAKE, "us", "server", &handshakes);
    bars(&mut outcome, REQUEST, "us", "server", &open);
    // Connections per second of CPU time are the inverse of its time per connection.
    ratio(&mut outcome, "handshakes_vs_nginx", DEFAULT, &handshakes, ("nginx", DEFAULT));
    ratio(&mut outcome, "file1k_tls_vs_nginx_cpu", DEFAULT, &open, (DEFAULT, "nginx"));
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Writes a certificate for localhost and its key to the site. Returns the settings of clients that trust it.
pub(super) fn certificate(site: &Site) -> Result<Arc<ClientConfig>, Failure> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .map_err(|e| Failure::new("the certificate", e))?;
    site.write(CERTIFICATE, made.cert.pem())?;
    site.write(KEY, made.signing_key.serialize_pem())?;
    tls_13(made.cert.der().clone())
}

/// Opens connections one after the other, with one request on each.
fn connect(server: &Server, config: &Arc<ClientConfig>, times: u64) -> Result<(), Failure> {
    let (request, mut reply) = (get("/1k.txt", "Connection: close\r\n"), Vec::new());
    for _ in 0..times {
        let mut stream = Stream::connect(server.address(), Some(config))?;
        stream.send(&request)?;
        stream.receive(&mut reply, "content-length: 1024")?;
    }
    Ok(())
}
