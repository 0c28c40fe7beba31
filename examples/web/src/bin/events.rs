//! Server-sent events: `curl -N http://127.0.0.1:8080/events` shows what others post to `/say`.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use evring_httpd::body::{Body, BodySender};
use evring_httpd::bytes::Bytes;
use evring_httpd::http::{HeaderValue, header};
use evring_httpd::{Config, Error, Request, Response, Server, get, post};

/// The clients that listen.
#[derive(Clone, Debug, Default)]
struct Listeners(Arc<Mutex<Vec<BodySender>>>);

impl Listeners {
    /// Adds a client, and returns the response that it listens to. Drops those that have gone.
    fn add(&self) -> Response {
        let (mut sender, body) = Body::channel();
        let _ = sender.try_send(": welcome\n\n");
        let mut listeners = self.0.lock().unwrap();
        listeners.retain(|listener| !listener.is_closed());
        listeners.push(sender);
        let mut response = Response::new(body);
        let events = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, events);
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Sends an event to all clients. Those that have gone, or do not keep up, are dropped.
    fn send(&self, text: &str) -> String {
        // A lone CR would end a line of the event, and the text after it be a field of its own.
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let lines = text.lines().map(|line| format!("data: {line}\n"));
        let count = self.send_each(lines.collect::<String>() + "\n");
        format!("{count} clients\n")
    }

    /// Sends lines to all clients. Returns how many there are.
    fn send_each(&self, lines: impl Into<Bytes>) -> usize {
        let (lines, mut listeners) = (lines.into(), self.0.lock().unwrap());
        listeners.retain_mut(|listener| listener.try_send(lines.clone()).is_ok());
        listeners.len()
    }
}

/// How often each client gets a comment: proxies end streams that are silent for a minute.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listeners = Listeners::default();
    let (speakers, silent) = (listeners.clone(), listeners.clone());
    thread::spawn(move || {
        loop {
            thread::sleep(COMMENT_EVERY);
            silent.send_each(": no news\n\n");
        }
    });
    let say = move |request: Request| speakers.send(&String::from_utf8_lossy(request.body()));
    // No stream ends by itself: at a stop, clients connect again, to a server that runs.
    let config = Config::default().with(|c| c.drain_timeout = Duration::from_secs(1));
    let server = Server::builder()
        .config(config)
        .listen(address)
        .route("/events", get(move |_: Request| listeners.add()))
        .route("/say", post(say))
        .start()?;
    println!("listening on http://{}", server.addresses()[0]);
    server.wait_until_signal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_had_gone_were_kept_until_the_next_event() {
        let listeners = Listeners::default();
        let present = listeners.add();
        drop(listeners.add());
        let _also_present = listeners.add();
        assert_eq!(listeners.0.lock().unwrap().len(), 2);
        drop(present);
    }
}
