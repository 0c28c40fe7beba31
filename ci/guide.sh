#!/usr/bin/env bash
# Follows docs/handlers.md: writes its files, runs its commands, and compares what they print with their
# comments.
. "$(dirname "$0")/setup.sh"
need curl curl

repository=$PWD
# As the tests have built it, so that cargo builds no dependency again; with `sandbox`.
cargo test --workspace --quiet --no-run --test processes
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

# Blocks whose first line is a comment with a path are files; those of `sh` are commands.
sed "s|/path/to/evring|$repository|g" docs/handlers.md | awk -v work="$work" '
    /^```/ && !block { block = substr($0, 4); file = ""; first = 1; next }
    /^```/ { close(file); block = ""; next }
    !block { next }
    first && block == "sh" { file = work "/commands" }
    first && block != "sh" {
        file = work "/" $2
        directory = file
        sub("/[^/]*$", "", directory)
        system("mkdir -p " directory)
    }
    { first = 0; print >> file }'
# The server is that of the tests. Of its installation, cargo checks the path, the features and the lock file.
sed 's|^cargo install --locked --path \([^ ]*\)|cargo tree --quiet --locked --manifest-path \1/Cargo.toml|' \
    "$work/commands" >"$work/script"
if grep '^cargo install' "$work/script"; then exit 1; fi

# Each command with a comment prints it.
cd "$work"
PATH=$target/debug:$PATH
export CARGO_TARGET_DIR=$work/target
while read -r line <&3; do
    command=${line%%#*} expected=$(sed -n 's/.*# *//p' <<<"$line")
    case $command in
        *"&"*)
            : >log
            eval "${command%&*} 2>log &"
            until grep -q '^listening' log; do kill -0 $! || { cat log >&2; exit 1; }; sleep 0.05; done
            ;;
        curl*)
            printed=$(eval "${command/curl/curl --silent --show-error --fail}")
            case $expected in
                [0-9]*) [ "$printed" = "$expected" ] || { echo "$line: $printed" >&2; exit 1; } ;;
                *) grep -q evring <<<"$printed" ;;
            esac
            ;;
        *) eval "$command" >output 2>&1 || { cat output >&2; exit 1; } ;;
    esac
    echo "ok: $line"
done 3<script
