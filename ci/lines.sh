#!/usr/bin/env bash
# Counts the lines in src of each package: all, those of tests and models, comments, empty ones, and the rest.
. "$(dirname "$0")/setup.sh"

format='%-14s %7s %7s %9s %7s %7s\n'
# shellcheck disable=SC2059
printf "$format" package lines tests comments empty code
for package in crates/* benches benches/* examples examples/*; do
    [ -f "$package/Cargo.toml" ] || continue
    git ls-files "$package/src/*.rs" | xargs -r awk -v name="$(basename "$package")" -v format="$format" '
        FNR == 1 { is_test = FILENAME ~ /(_tests|\/tests|\/models)\.rs$/ ? "file" : "" }
        { lines++ }
        is_test == "" && /^#\[cfg\((all\()?test/ { is_test = "item" }
        is_test != "" {
            tests++
            # An item ends with its brace, or is a module in another file.
            if (is_test == "item" && /^}|^(pub(\(crate\))? )?mod .*;$/) is_test = ""
            next
        }
        /^ *\/\// { comments++; next }
        /^ *$/ { empty++; next }
        { code++ }
        END { printf format, name, lines, tests + 0, comments + 0, empty + 0, code }'
done
