#!/usr/bin/env bash
# Compares the public interface of each published crate with docs/public-api: ci/public-api.sh
# [--write]. With --write, updates the lists instead; review the change as part of yours. Installs
# cargo-public-api.
. "$(dirname "$0")/setup.sh"

# A release reads the JSON of compilers of its time.
version=0.52.0
[ "$(cargo public-api --version 2>/dev/null)" = "cargo-public-api $version" ] ||
    cargo install --quiet --debug --locked "cargo-public-api@$version"

# JSON is an unstable output of rustdoc. Only rustdoc gets the variable that permits it, so that cargo uses
# what other steps have built.
rustdoc=$target/rustdoc-unstable
mkdir -p "$target"
printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n' >"$rustdoc"
chmod +x "$rustdoc"

crates=(docs/public-api/*.txt)
crates=("${crates[@]##*/}")
crates=("${crates[@]%.txt}")
# With all features, which only add.
RUSTDOC=$rustdoc RUSTDOCFLAGS='-Zunstable-options --output-format json' \
    cargo doc --quiet --no-deps --lib --all-features "${crates[@]/#/--package=}"

status=0
for crate in "${crates[@]}"; do
    list=docs/public-api/$crate.txt
    # Without blanket, automatic and derived implementations.
    items=$(cargo public-api --rustdoc-json "$target/doc/${crate//-/_}.json" -sss)
    if [ "${1:-}" = --write ]; then
        echo "$items" >"$list"
    elif ! diff -u --label "$list" --label "the sources" "$list" - <<<"$items"; then
        status=1
    fi
done
[ $status -eq 0 ] || echo "the public interface has changed; if that is intended, run ci/public-api.sh --write" >&2
exit $status
