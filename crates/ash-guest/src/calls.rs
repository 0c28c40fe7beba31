//! The host calls, as `ash-sandbox` defines them (the module `sandbox`).
//!
//! Bytes of the handler go to the host as pointers, as a number would not show the compiler that the host accesses them.
//! Numbers are offsets of what lies behind the handler's own memory.

#[cfg(target_arch = "wasm32")]
#[link(wasm_import_module = "ash")]
unsafe extern "C" {
    pub(crate) safe fn clock() -> i64;
    pub(crate) safe fn id() -> i64;
    pub(crate) fn send(bytes: *const u8, length: usize) -> i32;
    pub(crate) fn copy(to: *mut u8, from: *const u8, length: usize) -> i32;
    pub(crate) fn read_apply(pipes: u32, from: *const u8, length: usize) -> i32;
    pub(crate) fn write_apply(pipes: u32, from: *const u8, to: *mut u8, length: usize) -> i32;
    pub(crate) safe fn export(pipes: u32, register: u32, value: i64) -> i32;
    pub(crate) fn key(pipes: u32, keystream: u32, key: *const u8, first_block: u32) -> i32;
    pub(crate) safe fn import(pipes: u32, register: u32) -> i64;
    pub(crate) safe fn post(kind: i64, value: i64) -> i32;
    pub(crate) safe fn upcall() -> i32;
    pub(crate) safe fn count(counter: u32, by: i64) -> i32;
    pub(crate) safe fn reply(length: usize) -> i32;
    pub(crate) safe fn keep() -> i32;
    pub(crate) safe fn give_back(slot: u32) -> i32;
    pub(crate) safe fn table() -> i32;
    pub(crate) safe fn lock(section: u32) -> i32;
    pub(crate) fn store(to: usize, from: *const u8, length: usize) -> i32;
    pub(crate) safe fn abort();
}

/// Elsewhere there is no host; a handler can be checked and documented, but not run.
#[cfg(not(target_arch = "wasm32"))]
mod absent {
    macro_rules! absent {
        ($(fn $name:ident($($parameter:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
            $(pub(crate) fn $name($(_: $type),*) $(-> $result)? {
                panic!(concat!("`", stringify!($name), "` needs the host of a sandbox"))
            })*
        };
    }

    absent! {
        fn clock() -> i64;
        fn id() -> i64;
        fn export(_pipes: u32, _register: u32, _value: i64) -> i32;
        fn import(_pipes: u32, _register: u32) -> i64;
        fn post(_kind: i64, _value: i64) -> i32;
        fn upcall() -> i32;
        fn count(_counter: u32, _by: i64) -> i32;
        fn reply(_length: usize) -> i32;
        fn keep() -> i32;
        fn give_back(_slot: u32) -> i32;
        fn table() -> i32;
        fn lock(_section: u32) -> i32;
        fn abort();
    }

    macro_rules! absent_unsafe {
        ($(fn $name:ident($($type:ty),*) -> $result:ty;)*) => {
            $(pub(crate) unsafe fn $name($(_: $type),*) -> $result {
                panic!(concat!("`", stringify!($name), "` needs the host of a sandbox"))
            })*
        };
    }

    absent_unsafe! {
        fn send(*const u8, usize) -> i32;
        fn copy(*mut u8, *const u8, usize) -> i32;
        fn store(usize, *const u8, usize) -> i32;
        fn key(u32, u32, *const u8, u32) -> i32;
        fn read_apply(u32, *const u8, usize) -> i32;
        fn write_apply(u32, *const u8, *mut u8, usize) -> i32;
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use absent::*;
