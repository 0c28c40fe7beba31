#!/usr/bin/env bash
# Checks that each mechanism builds alone, and with the crates that depend on it.
. "$(dirname "$0")/setup.sh"

mechanisms=$(sed -n 's/^mechanisms = \[\(.*\)\]/\1/p' crates/evring/Cargo.toml | tr -d '",')
[ -n "$mechanisms" ]
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
for features in uring uring,sandbox; do
    echo "the tests of httpd with $features"
    cargo check --quiet -p evring-httpd --tests --no-default-features --features "$features"
done
for mechanism in $mechanisms; do
    echo "evring and httpd with $mechanism"
    # Their dependencies have the features that evring requests, so it is checked as if it were alone.
    cargo check --quiet -p evring -p evring-httpd --no-default-features --features "evring/$mechanism,evring-httpd/$mechanism"
done
