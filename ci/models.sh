#!/usr/bin/env bash
# Checks the concurrency models in every interleaving (loom).
. "$(dirname "$0")/setup.sh"

export CARGO_TARGET_DIR=target/loom RUSTFLAGS='--cfg loom' LOOM_MAX_PREEMPTIONS=3
cargo test --profile models --quiet --lib -p shared-ring -p send-core -p flexsc-rt -p evring \
    --no-default-features --features evring/epoll,send-core/ring models | tee "$target/models.log"
# A name that matches no test is no error of cargo's.
[ "$(grep -c '^test result: ok\. [1-9]' "$target/models.log")" = 4 ]
