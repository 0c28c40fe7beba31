#!/usr/bin/env bash
# Checks that no file of tests is forgotten: in a package without `autotests`, each is named in Cargo.toml, or is
# a module of such a file. Also checks that each file that .cargo/mutants.toml names exists.
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
shopt -s globstar
while read -r list; do
    # Without expansion of names, only that of braces.
    for file in $(set -f && eval "echo $list"); do
        compgen -G "$file" >/dev/null || { echo ".cargo/mutants.toml: there is no $file" >&2; status=1; }
    done
done < <(sed -n '/^examine_globs/,/^]/s/^ *"\(.*\)",$/\1/p' .cargo/mutants.toml)
exit $status
