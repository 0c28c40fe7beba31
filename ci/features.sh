#!/usr/bin/env bash
# Each mechanism alone, and the crates that depend on them, must build.
set -euo pipefail
cd "$(dirname "$0")/.."

mechanisms=$(sed -n 's/^mechanisms = \[\(.*\)\]/\1/p' crates/multiplex/Cargo.toml | tr -d '",')
for crate in shared-ring multiplex; do
    echo "$crate with sim"
    cargo check --quiet -p "$crate" --features sim
done
for features in multiplex/epoll tls,multiplex/epoll programs; do
    echo "examples with $features"
    cargo check --quiet -p examples --no-default-features --features "$features"
done
echo "kv without its program"
cargo check --quiet -p kv --no-default-features --features multiplex/epoll
for mechanism in $mechanisms; do
    echo "multiplex with $mechanism"
    cargo check --quiet -p multiplex --no-default-features --features "$mechanism"
    echo "httpd with $mechanism"
    cargo check --quiet -p httpd --no-default-features --features "multiplex/$mechanism"
done
