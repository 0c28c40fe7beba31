//! Threads for calls that block.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use evring::__private::catch_panic;
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};

use crate::message::status::Status;
use crate::site::any_response::{AnyResponse, Response};
use crate::site::guard::Guarded;
use crate::site::handler::{Handler, Request};
use crate::site::into_handler::WaitingHandler;
use crate::site::into_response::IntoResponse;
use crate::site::oneshot::{Receiver, Sender, oneshot};
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
#[derive(Clone)]
pub struct Pool(Arc<Owner>);

/// Ends the threads when it is dropped.
struct Owner(Arc<Queue>);

/// The calls that wait for a thread.
struct Queue {
    calls: Mutex<Calls>,
    /// There is another call, or the pool was dropped.
    changed: Condvar,
    /// Calls whose futures were dropped since the queue was looked through for them.
    abandoned: AtomicUsize,
    max_queued: usize,
}

struct Calls {
    waiting: VecDeque<Box<dyn Call>>,
    /// Threads that have no call. The first of `waiting` are theirs.
    idle: usize,
    is_closed: bool,
}

/// A call; it sends its result itself.
pub(crate) trait Call: Send {
    fn run(self: Box<Self>);

    /// Returns whether nobody waits for its result.
    fn is_abandoned(&self) -> bool {
        false
    }
}

impl<F: FnOnce() + Send> Call for F {
    fn run(self: Box<Self>) {
        self();
    }
}

/// A call whose result goes to a future.
struct CallWithResult<T, F> {
    result: Sender<T>,
    call: F,
}

impl<T: Send, F: FnOnce() -> T + Send> Call for CallWithResult<T, F> {
    fn run(self: Box<Self>) {
        if !self.is_abandoned() {
            let Self { result, call } = *self;
            let _ = result.send(call());
        }
    }

    fn is_abandoned(&self) -> bool {
        self.result.is_closed()
    }
}

/// The wait for a result. The result is given up before that is counted.
struct Waiting<T> {
    result: Receiver<T>,
    abandonment: Abandonment,
}

impl<T> Waiting<T> {
    /// Returns the result, or `None` if there is none.
    async fn end(mut self) -> Option<T> {
        let result = (&mut self.result).await;
        self.abandonment.0 = None;
        result
    }
}

/// Counts a call as abandoned when it is dropped, unless it is empty.
struct Abandonment(Option<Arc<Queue>>);

impl Drop for Abandonment {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.abandoned.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs calls until the pool is dropped.
    fn run_all(&self) {
        let mut calls = self.lock();
        loop {
            let Some(call) = calls.waiting.pop_front() else {
                if calls.is_closed {
                    return;
                }
                calls = self.changed.wait(calls).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            calls.idle -= 1;
            drop(calls);
            catch_panic(|| call.run());
            calls = self.lock();
            calls.idle += 1;
        }
    }
}

impl Calls {
    /// Takes the calls out whose clients have left.
    fn take_abandoned(&mut self) -> VecDeque<Box<dyn Call>> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (abandoned, waiting) = waiting.partition(|call| call.is_abandoned());
        self.waiting = waiting;
        abandoned
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Pool {
    /// Starts a pool of `threads` threads, at least one, for which at most `max_queued` calls wait.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: usize, max_queued: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let calls = Calls { waiting: VecDeque::new(), idle: threads, is_closed: false };
        let (calls, changed) = (Mutex::new(calls), Condvar::new());
        let abandoned = AtomicUsize::new(0);
        let pool = Pool(Arc::new(Owner(Arc::new(Queue { calls, changed, abandoned, max_queued }))));
        for _ in 0..threads {
            let queue = Arc::clone(&pool.0.0);
            thread::Builder::new().name("pool".to_owned()).spawn(move || queue.run_all())?;
        }
        Ok(pool)
    }

    /// Calls a function on a thread of the pool. If the future is dropped before the call has begun, there
    /// is no call, and it takes no place from others.
    ///
    /// # Errors
    /// Too many calls wait, or the call panicked.
    pub fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, PoolError>> + 'static {
        let (sender, result) = oneshot();
        let is_queued = self.post(CallWithResult { result: sender, call });
        let queue = is_queued.then(|| Arc::clone(&self.0.0));
        let waiting = Waiting { result, abandonment: Abandonment(queue) };
        async move {
            if !is_queued {
                return Err(PoolError::Full);
            }
            waiting.end().await.ok_or(PoolError::Panicked)
        }
    }

    /// Runs a call on a thread of the pool. Returns false, without running it, if too many calls wait.
    pub(crate) fn post(&self, call: impl Call + 'static) -> bool {
        let queue = &*self.0.0;
        let mut calls = queue.lock();
        let max = queue.max_queued.saturating_add(calls.idle);
        let is_full = calls.waiting.len() >= max;
        let has_abandoned = is_full && queue.abandoned.swap(0, Ordering::AcqRel) > 0;
        let abandoned = if has_abandoned { calls.take_abandoned() } else { VecDeque::new() };
        let has_room = calls.waiting.len() < max;
        if has_room {
            calls.waiting.push_back(Box::new(call));
        }
        drop(calls);
        // Values of handlers, whose drops may panic.
        abandoned.into_iter().for_each(|call| drop(Guarded::new(call)));
        if has_room {
            queue.changed.notify_one();
        }
        has_room
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

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

#[cfg(all(test, any(feature = "basic-auth", feature = "compression")))]
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
            assert!(self.post(job));
            end
        };
        let held = (0..threads).map(hold).collect();
        // From now on, calls wait.
        (0..threads).for_each(|_| has_entered.recv().unwrap());
        held
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
