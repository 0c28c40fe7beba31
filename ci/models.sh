#!/usr/bin/env bash
# Checks the concurrency models in every interleaving (loom).
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=target/loom RUSTFLAGS='--cfg loom' LOOM_MAX_PREEMPTIONS=3
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
cargo test --release --quiet -p shared-ring --lib models
cargo test --release --quiet -p send-core --lib models
cargo test --release --quiet -p flexsc-rt --lib models
cargo test --release --quiet -p evring --no-default-features --features epoll --lib models
