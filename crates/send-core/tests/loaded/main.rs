//! A signal may come to any thread, and where this crate is in a library that was loaded by dlopen(3), the first
//! use of a thread's local storage takes memory from the allocator. That must not be in the handler.
//! (dlinfo(3) of the GNU C library says whether a thread has the library's storage.)

#![cfg(target_env = "gnu")]

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::{env, mem, ptr, thread};

const RTLD_DI_TLS_DATA: libc::c_int = 10;

/// The library, built as this program was.
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
        // SAFETY: the library does nothing when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path:?} can't be loaded");
        Library(handle)
    }

    fn function(self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, for good.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null());
        function
    }

    /// Whether the calling thread has the library's storage.
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
fn the_first_use_of_a_threads_storage_was_in_the_handler() {
    let former = nothing as extern "C" fn(_) as libc::sighandler_t;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGSEGV, former) };
    let library = Library::load();
    let (begin, seen) = (library.function(c"loaded_begin"), library.function(c"loaded_seen"));
    // SAFETY: the functions have these types.
    let (begin, seen) = unsafe {
        (
            mem::transmute::<*mut c_void, extern "C" fn(i32) -> bool>(begin),
            mem::transmute::<*mut c_void, extern "C" fn() -> u64>(seen),
        )
    };
    assert!(begin(libc::SIGUSR1));
    assert!(library.has_storage(), "a thread that has a block has it before a signal can come");
    let stranger = move || {
        let library = library;
        assert!(!library.has_storage());
        for signal in [libc::SIGUSR1, libc::SIGIO, libc::SIGSEGV] {
            // SAFETY: the signal is handled.
            unsafe { libc::raise(signal) };
            assert!(!library.has_storage(), "signal {signal}");
        }
    };
    thread::spawn(stranger).join().unwrap();
    // The thread whose event it is has it.
    while seen() == 0 {
        thread::yield_now();
    }
}
