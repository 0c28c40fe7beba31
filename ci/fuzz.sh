#!/usr/bin/env bash
# Runs every fuzz target for some seconds: ci/fuzz.sh [SECONDS [TARGET...]], 60 by default; or builds all
# of them, as fast as can be: ci/fuzz.sh --build. Needs a nightly compiler, and installs cargo-fuzz. What it
# finds is kept in fuzz/artifacts; make it a test before you mend it.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz

if [ "${1:-}" = --build ]; then
    # What they find does not matter here, only that they compile.
    exec cargo +nightly fuzz build --dev --sanitizer none
fi

seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(head body range conditions path connection server)

for target in "${targets[@]}"; do
    printf '\n== %s\n' "$target"
    mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
    cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -print_final_stats=1 -timeout=10
done
