#!/usr/bin/env bash
# Checks that each mechanism builds alone, and with the crates that depend on it, without a warning.
. "$(dirname "$0")/setup.sh"

check() {
    local messages
    messages=$(cargo check --quiet "$@" 2>&1) || { echo "$messages"; return 1; }
    [ -z "$messages" ] || { echo "$messages"; return 1; }
}

mechanisms=$(sed -n 's/^mechanisms = \[\(.*\)\]/\1/p' crates/evring/Cargo.toml | tr -d '",')
[ -n "$mechanisms" ]
for crate in shared-ring send-core; do
    echo "$crate without io_uring"
    check -p "$crate" --no-default-features
done
for features in evring/epoll programs; do
    echo "examples with $features"
    check -p examples --no-default-features --features "$features"
done
for features in epoll,sandbox epoll,signals; do
    echo "evring with $features"
    check -p evring --no-default-features --features "$features"
done
echo "kv without its binary"
check -p kv --no-default-features --features evring/epoll
echo "kv without handlers"
check -p kv --no-default-features --features model,program
for features in uring uring,sandbox; do
    echo "the tests of httpd with $features"
    check -p evring-httpd --tests --no-default-features --features "$features"
done
for mechanism in $mechanisms; do
    echo "evring and httpd with $mechanism"
    # Their dependencies have the features that evring requests, so it is checked as if it were alone.
    check -p evring -p evring-httpd --no-default-features --features "evring/$mechanism,evring-httpd/$mechanism"
done
