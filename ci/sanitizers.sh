#!/usr/bin/env bash
# Runs the tests of the two crates that are made of `unsafe` under AddressSanitizer, with its leak check:
# ci/sanitizers.sh [OPTIONS OF cargo test]. Needs a nightly compiler for x86-64.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=target/asan RUSTFLAGS=-Zsanitizer=address
export ASAN_OPTIONS=detect_leaks=1
skipped=(
    # It stops behind each instruction, of which there are many times as many here: it would take an hour.
    event_after_any_instruction_is_handled
    # It builds a library without `--target`, that is to say elsewhere, and loads it into a program that has to
    # have the sanitizer's own library first. What it looks for is no access to memory.
    handler_allocated_thread_local_storage
)
cargo +nightly test --target x86_64-unknown-linux-gnu -p shared-ring -p send-core --features shared-ring/sim \
    --lib --tests --no-fail-fast "$@" -- "${skipped[@]/#/--skip=}"
