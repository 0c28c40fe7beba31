#!/usr/bin/env bash
# Checks that no file of tests is forgotten: in a package without `autotests`, each is named in Cargo.toml, or is
# a module of such a file.
. "$(dirname "$0")/setup.sh"

status=0
manifests=$(git ls-files '*Cargo.toml' | xargs grep -l '^autotests = false')
[ -n "$manifests" ]
for manifest in $manifests; do
    tests=$(dirname "$manifest")/tests
    named=$(grep -A1 -xF '[[test]]' "$manifest" | sed -n 's/^name = "\(.*\)"/\1/p')
    modules=$(for name in $named; do sed -n 's/^mod \(.*\);/\1/p' "$tests/$name.rs"; done)
    for file in "$tests"/*.rs; do
        grep -qx "$(basename "$file" .rs)" <<<"$named"$'\n'"$modules" || { echo "$file does not run" >&2; status=1; }
    done
done
exit $status
