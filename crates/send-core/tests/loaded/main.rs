//! A signal may arrive at any thread. If this crate is in a library loaded by dlopen(3), a thread's
//! first use of the library's thread-local storage allocates, so the handler must not use it.
//! (dlinfo(3) of the GNU C library reports whether a thread has the storage.)

#![cfg(target_env = "gnu")]

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::{env, mem, ptr, thread};

const RTLD_DI_TLS_DATA: libc::c_int = 10;

/// Builds the library like this program. Returns its path.
fn library() -> PathBuf {
    let program = env::current_exe().unwrap();
    let built = program.parent().and_then(|deps| deps.parent()).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "send-core", "--example", "loaded"]);
    cargo.args(built.ends_with("release").then_some("--release"));
    assert!(cargo.status().unwrap().success());
    built.join("examples/libloaded.so")
}

#[derive(Clone, Copy)]
struct Library(*mut c_void);

// SAFETY: any thread may use a handle of dlopen(3).
unsafe impl Send for Library {}

impl Library {
    fn load() -> Self {
        let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: loading the library runs no code.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path:?} can't be loaded");
        Library(handle)
    }

    fn function(self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is never closed.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null());
        function
    }

    /// Returns whether the calling thread has the library's storage.
    fn has_storage(self) -> bool {
        let mut storage: *mut c_void = ptr::null_mut();
        // SAFETY: the request writes a pointer.
        let result = unsafe { libc::dlinfo(self.0, RTLD_DI_TLS_DATA, (&raw mut storage).cast()) };
        assert_eq!(result, 0);
        !storage.is_null()
    }
}

extern "C" fn nothing(_: libc::c_int) {}

#[test]
fn handler_allocated_thread_local_storage() {
    let former = nothing as extern "C" fn(_) as libc::sighandler_t;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGSEGV, former) };
    let library = Library::load();
    let (begin, count) = (library.function(c"loaded_begin"), library.function(c"loaded_count"));
    // SAFETY: the functions have these types.
    let (begin, count) = unsafe {
        (
            mem::transmute::<*mut c_void, extern "C" fn(i32) -> bool>(begin),
            mem::transmute::<*mut c_void, extern "C" fn() -> u64>(count),
        )
    };
    assert!(begin(libc::SIGUSR1));
    assert!(library.has_storage(), "a thread with a block has it before a signal can arrive");
    let other_thread = move || {
        let library = library;
        assert!(!library.has_storage());
        for signal in [libc::SIGUSR1, libc::SIGIO, libc::SIGSEGV] {
            // SAFETY: the signal is handled.
            unsafe { libc::raise(signal) };
            assert!(!library.has_storage(), "signal {signal}");
        }
    };
    thread::spawn(other_thread).join().unwrap();
    // The thread that claimed the signal gets it.
    while count() == 0 {
        thread::yield_now();
    }
}
