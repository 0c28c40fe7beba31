#!/usr/bin/env bash
# Measures a clean clone of HEAD: the seconds until `cargo run --release` listens, and those of
# `cargo test --workspace`. Dependencies are downloaded before.
. "$(dirname "$0")/setup.sh"

clone=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$clone"' EXIT
git clone --quiet . "$clone"
cd "$clone"
unset CARGO_TARGET_DIR
cargo fetch --quiet

begin=$SECONDS
mkfifo log
cargo run --release -- --listen 127.0.0.1:0 2>log &
server=$!
grep -q -m 1 'listening' log
echo "cargo run --release listens after $((SECONDS - begin)) s"
kill -- "$server"
wait "$server" || true

rm -rf target
begin=$SECONDS
cargo test --workspace --quiet >/dev/null
echo "cargo test --workspace ends after $((SECONDS - begin)) s"
