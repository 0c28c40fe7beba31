#!/usr/bin/env bash
# Runs the tests of the crates with most `unsafe` code under AddressSanitizer, and of those that leak nothing under
# LeakSanitizer: ci/sanitizers.sh [OPTIONS OF cargo test]. Requires a nightly compiler for x86-64.
. "$(dirname "$0")/setup.sh"

export CARGO_TARGET_DIR=target/asan RUSTFLAGS=-Zsanitizer=address
skipped=(
    # Stops after each instruction; the instrumented code has many more, which would take an hour.
    event_after_any_instruction_is_handled
    # Builds a library without `--target`, so without the sanitizer, and loads it into a program that
    # must load the sanitizer's library first. Its defect is not a memory access.
    handler_allocated_thread_local_storage
    # Leak the operations of kernels that end while a file does not answer, as is documented.
    file_that_was_opened_in_the_last_wait_of_a_kernel_stayed_open
    hanging_file_job_blocked_the_drop_of_a_kernel
    # Leaks the payload of a panic in the drop of another one, as is documented.
    payloads_whose_drops_panic_do_not_panic_here
)
sanitized() { cargo +nightly test --target x86_64-unknown-linux-gnu --lib --tests --no-fail-fast "$@"; }
# A test measures the address space, which freed memory of at most 16 MiB enlarges.
ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=16 sanitized -p shared-ring -p send-core "$@" -- "${skipped[@]/#/--skip=}"
# Its tests leak what the crate says that it leaks: memory that the kernel may still use, and that of threads that are gone.
# Those of green threads look at stacks, which the sanitizer moves.
ASAN_OPTIONS=detect_leaks=0 sanitized -p flexsc-rt "$@"
