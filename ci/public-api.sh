#!/usr/bin/env bash
# Compares the public interface of each published crate with docs/public-api: ci/public-api.sh
# [--write]. With --write, updates the lists instead; review the change as part of yours. Requires a nightly
# compiler, whose rustdoc writes JSON, and installs cargo-public-api.
set -euo pipefail
cd "$(dirname "$0")/.."

# A release reads the JSON of compilers of its time.
version=0.52.0
[ "$(cargo public-api --version 2>/dev/null)" = "cargo-public-api $version" ] ||
    cargo install --quiet --locked "cargo-public-api@$version"

export CARGO_PROFILE_DEV_DEBUG=0
status=0
for list in docs/public-api/*.txt; do
    crate=$(basename "$list" .txt)
    # Without blanket, automatic and derived implementations.
    items=$(cargo public-api --package "$crate" -sss --target-dir target/public-api 2>target/public-api.log) ||
        { cat target/public-api.log >&2; exit 1; }
    if [ "${1:-}" = --write ]; then
        echo "$items" >"$list"
    elif ! diff -u --label "$list" --label "the sources" "$list" - <<<"$items"; then
        status=1
    fi
done
[ $status -eq 0 ] || echo "the public interface has changed; if that is intended, run ci/public-api.sh --write" >&2
exit $status
