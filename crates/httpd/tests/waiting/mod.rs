//! Handlers that wait: on every mechanism, with one defined response whatever they do.

mod answers;
mod bodies;
mod departures;

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use evring_httpd::handlers::Responder;
use evring_httpd::{Builder, Request, Server};

/// Longer than any wait on the slowest machine.
const LONG: Duration = Duration::from_secs(20);

fn builder(backend: &str) -> Builder {
    Server::builder().listen("127.0.0.1:0").backend(backend)
}

/// A handler that leaves the requests, with their responders, to the test.
fn left_to_the_test()
-> (impl Fn(Request, Responder) + Send + Sync + 'static, Receiver<(String, Responder)>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let handler = move |request: Request, responder: Responder| {
        let _ = sender.lock().unwrap().send((request.uri().path().to_owned(), responder));
    };
    (handler, receiver)
}

/// Sends when it is dropped.
struct OnDrop(Sender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A sender for handlers, which threads share.
fn shared_channel<T: Send + 'static>() -> (impl Fn() -> Sender<T> + Send + Sync, Receiver<T>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    (move || sender.lock().unwrap().clone(), receiver)
}
