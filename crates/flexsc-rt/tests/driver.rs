//! The future that has the calls of all executed: it ends, is dropped, or its task waits for something else.

use std::future::Future;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use flexsc_rt::operations::{raw, receive, stat_file};
use flexsc_rt::{Call, Config, Descriptor, Operation, Runtime, Scratch};

/// Time after which a test fails that waits for a task to be woken.
const PATIENCE: Duration = Duration::from_secs(20);

/// A task, which a test polls.
#[derive(Default)]
struct Task {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

impl Task {
    /// Waits until it is woken, and forgets that.
    fn wait(&self) {
        let woken = self.woken.lock().unwrap();
        let waited = self.changed.wait_timeout_while(woken, PATIENCE, |woken| !*woken);
        let (mut woken, _) = waited.unwrap();
        assert!(std::mem::take(&mut *woken), "the task was not woken");
    }

    /// Forgets that it was woken. Returns whether it was.
    fn takes_wake_up(&self) -> bool {
        std::mem::take(&mut *self.woken.lock().unwrap())
    }

    fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }

    fn is_pending<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> bool {
        self.poll(future).is_pending()
    }

    /// Polls a future when the task is woken, until it ends.
    fn run<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> F::Output {
        loop {
            self.wait();
            if let Poll::Ready(output) = self.poll(future) {
                return output;
            }
        }
    }
}

fn socket() -> (Descriptor, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Descriptor::new(ours), theirs)
}

/// A read that occupies a thread.
fn read_on_thread(from: &OwnedFd) -> impl Operation<Output = std::io::Result<usize>> + use<> {
    let fd = from.as_raw_fd() as usize;
    // SAFETY: the operation owns the byte; the test ends the read before it closes the pipe.
    unsafe {
        let prepare = move |byte: &mut Vec<u8>, _: &mut Scratch| {
            Call::new(libc::SYS_read, [fd, byte.as_mut_ptr() as usize, 1, 0, 0, 0])
        };
        raw(vec![0_u8], prepare, |_, result, _| result)
    }
}

#[test]
fn wait_for_something_else_took_the_wake_up_of_the_driver() {
    let runtime = Runtime::new(&Config::default()).unwrap();
    let (ours, _theirs) = socket();
    let task = Arc::new(Task::default());
    let mut first = runtime.call(receive(&ours, Vec::with_capacity(1)));
    assert!(task.is_pending(&mut first));
    assert!(task.takes_wake_up());
    let mut second = runtime.call(stat_file(&ours));
    assert!(task.is_pending(&mut second));
    task.run(&mut second).unwrap();
}

#[test]
fn drop_of_a_sleeping_driver_left_a_call_pending() {
    let runtime = Runtime::new(&Config::default()).unwrap();
    let [(kept_socket, _first_end), (driver_socket, _second_end)] = [socket(), socket()];
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let [of_kept, of_driver, of_other] = [(); 3].map(|()| Arc::new(Task::default()));
    let mut kept = runtime.call(receive(&kept_socket, Vec::with_capacity(1)));
    let mut driver = runtime.call(receive(&driver_socket, Vec::with_capacity(1)));
    let mut other = runtime.call(read_on_thread(&reads));
    assert!(of_kept.is_pending(&mut kept));
    // Takes the turn, and sleeps.
    assert!(of_driver.is_pending(&mut driver) && of_driver.is_pending(&mut driver));
    // Posts its call, which the driver has executed; the driver sleeps again.
    assert!(of_other.is_pending(&mut other) && of_driver.is_pending(&mut driver));
    assert!(of_other.is_pending(&mut other));
    of_other.takes_wake_up();
    drop(driver);
    // The task that is to drive keeps its future, and does not poll it.
    assert!(of_kept.takes_wake_up());
    rustix::io::write(&writes, b"x").unwrap();
    assert_eq!(of_other.run(&mut other).unwrap(), 1);
}

#[test]
fn free_entry_that_neither_its_task_nor_the_driver_used_kept_the_next_one_waiting() {
    let mut config = Config::with_entries(64);
    config.reserve = 0;
    let runtime = Runtime::new(&config).unwrap();
    let [(idle, _first_end), (ours, mut theirs)] = [socket(), socket()];
    let [of_driver, of_ending, of_first, of_next] = [(); 4].map(|()| Arc::new(Task::default()));
    let mut driver = runtime.call(receive(&idle, Vec::with_capacity(1)));
    let mut ending = runtime.call(receive(&ours, Vec::with_capacity(1)));
    let mut full: Vec<_> =
        (0..62).map(|_| runtime.call(receive(&idle, Vec::with_capacity(1)))).collect();
    assert!(of_driver.is_pending(&mut driver) && of_ending.is_pending(&mut ending));
    assert!(full.iter_mut().all(|future| of_driver.is_pending(future)));
    let [mut first, mut next] = [(); 2].map(|()| runtime.call(stat_file(&idle)));
    for _ in 0..2 {
        assert!(of_first.is_pending(&mut first) && of_next.is_pending(&mut next));
        // Sleeps.
        assert!(of_driver.is_pending(&mut driver));
    }
    of_ending.takes_wake_up();
    theirs.write_all(b"x").unwrap();
    while !of_ending.takes_wake_up() {
        assert!(of_driver.is_pending(&mut driver));
    }
    // Sleeps again.
    while of_driver.takes_wake_up() {
        assert!(of_driver.is_pending(&mut driver));
    }
    for task in [&of_first, &of_next] {
        task.takes_wake_up();
    }
    assert!(of_ending.poll(&mut ending).is_ready());
    // Neither polls its future.
    assert!(of_first.takes_wake_up() && of_driver.takes_wake_up());
    of_next.run(&mut next).unwrap();
}
