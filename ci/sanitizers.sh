#!/usr/bin/env bash
# Runs the tests of the two crates with most `unsafe` code under AddressSanitizer and LeakSanitizer:
# ci/sanitizers.sh [OPTIONS OF cargo test]. Requires a nightly compiler for x86-64.
. "$(dirname "$0")/setup.sh"

export CARGO_TARGET_DIR=target/asan RUSTFLAGS=-Zsanitizer=address
export ASAN_OPTIONS=detect_leaks=1
skipped=(
    # Stops after each instruction; the instrumented code has many more, which would take an hour.
    event_after_any_instruction_is_handled
    # Builds a library without `--target`, so without the sanitizer, and loads it into a program that
    # must load the sanitizer's library first. Its defect is not a memory access.
    handler_allocated_thread_local_storage
)
cargo +nightly test --target x86_64-unknown-linux-gnu -p shared-ring -p send-core \
    --lib --tests --no-fail-fast "$@" -- "${skipped[@]/#/--skip=}"
