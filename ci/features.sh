#!/usr/bin/env bash
# Checks that each mechanism builds alone, and with the crates that depend on it.
set -euo pipefail
cd "$(dirname "$0")/.."

mechanisms=$(sed -n 's/^mechanisms = \[\(.*\)\]/\1/p' crates/evring/Cargo.toml | tr -d '",')
for crate in shared-ring send-core; do
    echo "$crate without io_uring"
    cargo check --quiet -p "$crate" --no-default-features
done
for features in evring/epoll programs; do
    echo "examples with $features"
    cargo check --quiet -p examples --no-default-features --features "$features"
done
echo "evring with handlers in a sandbox"
cargo check --quiet -p evring --no-default-features --features epoll,sandbox
echo "kv without its binary"
cargo check --quiet -p kv --no-default-features --features evring/epoll
echo "kv without handlers"
cargo check --quiet -p kv --no-default-features --features model,program
for mechanism in $mechanisms; do
    echo "evring with $mechanism"
    cargo check --quiet -p evring --no-default-features --features "$mechanism"
    echo "httpd with $mechanism"
    cargo check --quiet -p evring-httpd --no-default-features --features "$mechanism"
done
