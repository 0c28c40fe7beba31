#!/usr/bin/env bash
# Runs the fuzz targets: ci/fuzz.sh [SECONDS [TARGET...]], by default each for 60 s; or builds all of
# them, without optimization: ci/fuzz.sh --build. Requires a nightly compiler, and installs cargo-fuzz.
# Failing inputs are kept in fuzz/artifacts; add a regression test before fixing the defect.
. "$(dirname "$0")/setup.sh"

command -v cargo-fuzz >/dev/null || cargo install --quiet --debug --locked cargo-fuzz

if [ "${1:-}" = --build ]; then
    # Only checks that they compile.
    exec cargo +nightly fuzz build --dev --sanitizer none
fi

seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(head body range conditions path connection server kv)

for target in "${targets[@]}"; do
    printf '\n== %s\n' "$target"
    mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
    # A kernel that ends while a file operation hangs leaves its memory to the operation.
    leaks=1
    [ "$target" != server ] || leaks=0
    # Of the fuzzer, and of the sanitizer at the end.
    ASAN_OPTIONS=detect_leaks=$leaks cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -print_final_stats=1 -timeout=60 -detect_leaks=$leaks
done
