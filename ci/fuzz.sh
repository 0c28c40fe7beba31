#!/usr/bin/env bash
# Runs every fuzz target for some seconds: ci/fuzz.sh [SECONDS [TARGET...]], 60 by default. Needs a
# nightly compiler and cargo-fuzz (cargo install cargo-fuzz). What it finds is kept in
# fuzz/artifacts; make it a test before you mend it.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(head body range conditions path connection)

for target in "${targets[@]}"; do
    printf '\n== %s\n' "$target"
    mkdir -p "fuzz/corpus/$target"
    cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -print_final_stats=1 -timeout=10
done
