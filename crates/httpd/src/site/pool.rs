//! Threads for calls that block.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};

use crate::message::status::Status;
use crate::site::any_response::{AnyResponse, Response};
use crate::site::handler::{Handler, Request};
use crate::site::into_handler::WaitingHandler;
use crate::site::into_response::IntoResponse;
use crate::site::oneshot::oneshot;
use crate::site::request_body::RequestBody;

/// A bounded number of threads for calls that block, such as those of a database. The threads end when the
/// pool and its clones are dropped and all calls are done.
///
/// ```
/// use evring_httpd::handlers::Pool;
/// use evring_httpd::{Request, Server};
///
/// let pool = Pool::new(4, 100)?;
/// let server = Server::builder()
///     .route("/motd", pool.handler(|_: Request| std::fs::read("/etc/motd").unwrap_or_default()));
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool(SyncSender<Job>);

/// A call; it sends its result itself.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

impl Pool {
    /// Starts a pool of `threads` threads, for which at most `max_queued` calls wait.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: usize, max_queued: usize) -> io::Result<Self> {
        let (sender, jobs) = sync_channel(max_queued);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..threads.max(1) {
            let jobs = Arc::clone(&jobs);
            thread::Builder::new().name("pool".to_owned()).spawn(move || run_all(&jobs))?;
        }
        Ok(Pool(sender))
    }

    /// Calls a function on a thread of the pool. If the future is dropped before the call has begun, there
    /// is no call.
    ///
    /// # Errors
    /// Too many calls wait, or the call panicked.
    pub fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, PoolError>> + 'static {
        let (sender, result) = oneshot();
        let job = Box::new(move || {
            if !sender.is_closed() {
                let _ = sender.send(call());
            }
        });
        let is_queued = self.post(job);
        async move {
            if !is_queued {
                return Err(PoolError::Full);
            }
            result.await.ok_or(PoolError::Panicked)
        }
    }

    /// Calls a function on a thread of the pool, which sends its result itself. Returns false, without a call,
    /// if too many calls wait.
    pub(crate) fn post(&self, job: Job) -> bool {
        self.0.try_send(job).is_ok()
    }

    /// Calls a function on a thread of the pool. Returns its response: 503 if too many calls wait, 500 if it panics.
    pub(crate) fn respond<R: IntoResponse>(
        &self,
        call: impl FnOnce() -> R + Send + 'static,
    ) -> impl Future<Output = Result<AnyResponse, Status>> + 'static {
        let result = self.run(move || call().into_any());
        async {
            match result.await {
                Ok(response) => Ok(response),
                Err(PoolError::Full) => Ok(PoolError::Full.into_any()),
                Err(PoolError::Panicked) => Err(Status::INTERNAL),
            }
        }
    }

    /// Returns a handler that runs on the pool: 503 if too many calls wait, 500 if it panics.
    pub fn handler<R: IntoResponse>(
        &self,
        handler: impl Fn(Request) -> R + Send + Sync + 'static,
    ) -> impl Handler {
        let (pool, handler) = (self.clone(), Arc::new(handler));
        WaitingHandler(move |head, body: RequestBody| {
            let (pool, handler) = (pool.clone(), Arc::clone(&handler));
            async move {
                let body = body.bytes().await.map_err(|_| Status::BAD_REQUEST)?;
                let request = Request::from_parts(head, body);
                pool.respond(move || handler(request)).await
            }
        })
    }
}

#[cfg(test)]
impl Pool {
    /// Keeps all `threads` threads busy until what it returns is dropped.
    pub(crate) fn hold(&self, threads: usize) -> Vec<std::sync::mpsc::Sender<()>> {
        use std::sync::mpsc::channel;

        let (entered, has_entered) = channel();
        let hold = |_| {
            let (end, has_ended) = channel::<()>();
            let entered = entered.clone();
            let job = move || {
                entered.send(()).unwrap();
                let _ = has_ended.recv();
            };
            assert!(self.post(Box::new(job)));
            end
        };
        let held = (0..threads).map(hold).collect();
        // From now on, calls wait.
        (0..threads).for_each(|_| has_entered.recv().unwrap());
        held
    }
}

/// Runs calls until the pool is dropped.
fn run_all(jobs: &Mutex<Receiver<Job>>) {
    loop {
        // Only the thread that waits for the next call has the lock.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
            // Dropping the payload may panic, too.
            std::mem::forget(panic);
        }
    }
}

/// The reason why a call of a [`Pool`] has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolError {
    /// As many calls wait as the pool permits.
    Full,
    /// The call panicked.
    Panicked,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolError::Full => "too many calls wait for the pool; add threads or raise its maximum",
            PoolError::Panicked => "the call panicked on its thread",
        })
    }
}

impl std::error::Error for PoolError {}

impl IntoResponse for PoolError {
    fn into_response(self) -> Response {
        match self {
            PoolError::Full => {
                let mut response = StatusCode::SERVICE_UNAVAILABLE.into_response();
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                response
            }
            PoolError::Panicked => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}
