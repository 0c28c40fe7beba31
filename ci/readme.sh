#!/usr/bin/env bash
# Runs the commands of the pages: the lines of their `sh` blocks, and what stands in backquotes as
# `cargo ...` or `ci/...`. A command without a line in `check` below is an error. Cargo resolves the dependencies of
# their `toml` blocks. The Rust code of the pages runs with the documentation tests.
. "$(dirname "$0")/setup.sh"
need curl curl

# Other scripts run the commands of docs/handlers.md and docs/production.md.
pages=(README.md ARCHITECTURE.md BENCHMARKS.md CONTRIBUTING.md crates/*/README.md docs/features.md docs/file-delivery.md)
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
work=$(mktemp -d)
pid=
command=
end() {
    local status=$?
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    rm -rf "$work"
    [ $status -eq 0 ] || [ -z "$command" ] || echo "a page has a command that fails: $command" >&2
}
trap end EXIT

# The lab as users build it takes minutes to link. This is that of the tests.
cargo test --workspace --quiet --no-run --test command
lab() { "$target/debug/lab" "$@"; }

# The address of a server's metrics, if it has some.
metrics=
# served SECONDS COMMAND...: runs a server until it prints its address, and fetches its first page.
served() {
    local limit=$1 address=
    shift
    "$@" >"$work/out" 2>&1 &
    pid=$!
    for _ in $(seq $((limit * 10))); do
        address=$(grep -o 'https\{0,1\}://[0-9.]*:[0-9]*' "$work/out" | head -n 1) || true
        [ -z "$address" ] || break
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    [ -n "$address" ] || { cat "$work/out" >&2; return 1; }
    curl --silent --show-error --fail --insecure "$address/" >"$work/page"
    [ -z "$metrics" ] || curl --silent --show-error --fail "$metrics" >"$work/metrics"
    kill "$pid"
    wait "$pid" || true
    pid=
}

# benchmarks PACKAGE: prints the names of its benchmarks, of which there is at least one.
benchmarks() {
    awk -v package="name = \"$1\"" '
        /^\[/ { section = $0 }
        section == "[package]" && /^name = / { found = $0 == package }
        found && section == "[[bench]]" && /^name = / { gsub(/^name = "|"$/, ""); print }' \
        crates/*/Cargo.toml benches/Cargo.toml | grep .
}

# check COMMAND: runs it, or a shorter form of it.
check() {
    case $1 in
        "cargo run --release")
            served 300 cargo run --release
            grep -q evring "$work/page"
            ;;
        "cargo run --release -- DIR")
            mkdir -p "$work/root"
            echo "its index" >"$work/root/index.html"
            served 60 cargo run --release -- "$work/root"
            cmp "$work/page" "$work/root/index.html"
            ;;
        "target/dist/httpd DIR --listen :8443 "*)
            # Runs the release build, on other ports; `:0` is of the same form as `:8443`.
            local flags=${1#*:8443 } metrics=http://127.0.0.1:19100/metrics
            flags=${flags/access.log/"$work/access.log"}
            # shellcheck disable=SC2086
            served 60 "$target/release/httpd" "$work/root" --listen :0 ${flags/:9100/:19100}
            cmp "$work/page" "$work/root/index.html"
            grep -q '^evring_responses_total' "$work/metrics"
            grep -q '"GET / HTTP/1.1" 200 10 ' "$work/access.log"
            ;;
        "cargo run -p examples --bin "*) # built with the tests; on another port
            local program=${1#*--bin } flags=${1#* -- }
            # shellcheck disable=SC2086
            timeout 60 "$target/debug/${program%% *}" ${flags/:7000/:0} >"$work/out" 2>&1 &
            pid=$!
            until grep -q '^listening on ' "$work/out"; do
                kill -0 "$pid" || { cat "$work/out" >&2; return 1; }
                sleep 0.05
            done
            kill "$pid"
            wait "$pid" || true
            pid=
            ;;
        "cargo run -p web-examples --bin "*) # .ci/run tests them
            local program=${1#*--bin }
            [ -f "examples/web/src/bin/${program%% *}.rs" ] || { echo "${program%% *}: no example" >&2; return 1; }
            ;;
        "cargo run --release -p kv -- -p 11211")
            cargo build --release --quiet -p kv
            # On another port: a memcached may have this one.
            timeout 60 "$target/release/kv" -p 0 >"$work/out" 2>&1 &
            pid=$!
            local port=
            until [ -n "$port" ]; do
                kill -0 "$pid" || { cat "$work/out" >&2; return 1; }
                sleep 0.05
                port=$(sed -n 's|^listening on [0-9.]*:\([0-9]*\).*|\1|p' "$work/out")
            done
            exec 3<>"/dev/tcp/127.0.0.1/$port"
            printf 'version\r\nquit\r\n' >&3
            grep -q '^VERSION' <&3
            exec 3>&-
            kill "$pid"
            wait "$pid" || true
            pid=
            ;;
        "cargo build --release -p evring-httpd --no-default-features --features cli,uring,epoll") $1 --quiet ;;
        "cargo build --profile dist -p evring-httpd") ;; # takes minutes
        "cargo install --locked --git $repository evring-httpd" | "httpd DIR") ;; # ci/packages.sh
        "cargo lab list") lab list >"$work/experiments" ;;
        "cargo lab tables" | "cargo lab" | "cargo lab run") ;; # ci/lab.sh
        "cargo lab load "*) lab load --help >/dev/null ;; # ci/lab.sh
        "cargo lab report"*) lab report --help >/dev/null ;;
        "cargo lab recommend"*) lab recommend --help >/dev/null ;;
        "cargo +nightly fuzz run "*) # ci/fuzz.sh
            local target_name=${1#* run }
            [ -f "fuzz/fuzz_targets/${target_name%% *}.rs" ] || { echo "${target_name%% *}: no fuzz target" >&2; return 1; }
            ;;
        "cargo lab run simulate --trace FILE" | "cargo lab run ID"*) ;; # tests of the lab
        "cargo lab run "*)
            local name=${1#cargo lab run }
            lab list | grep -q "^ *${name%% *}\b" || { echo "${name%% *}: no experiment" >&2; return 1; }
            ;;
        "cargo bench -p "*) # .ci/run compiles them: clippy --all-targets
            local word flag='' names=''
            for word in $1; do
                case $flag in
                    -p) names=$(benchmarks "$word") ;;
                    --bench) names=$(grep -x "$word" <<<"$names") ;;
                esac || { echo "$word: no such benchmark" >&2; return 1; }
                flag=$word
            done
            ;;
        "cargo test"* | *" cargo test"* | "bash .ci/run") ;; # .ci/run
        ci/*)
            local script=${1%% *}
            [ -x "$script" ] || { echo "$script: no program" >&2; return 1; }
            case $script in
                ci/kv.sh) ;;    # ci/peers.sh
                ci/guide.sh) ;; # ci/handlers.sh
                ci/lines.sh) "$script" >/dev/null ;;
                ci/clean.sh | ci/mutants.sh | ci/sanitizers.sh | ci/conformance.sh) ;; # take too long
                *) grep -q "^ *step $script" .ci/run || { echo "$script: not in .ci/run" >&2; return 1; } ;;
            esac
            ;;
        *)
            echo "no check for it in ci/readme.sh" >&2
            return 1
            ;;
    esac
}

# commands PAGE...: prints each command once.
commands() {
    {
        awk '/^```/ { block = $0 == "```sh"; next } block' "$@"
        # shellcheck disable=SC2016
        grep -ho '`\(cargo\|ci/\)[^`]*`' "$@" | tr -d '`'
    } | sed 's/ *\( #.*\)\?$//' | awk '!seen[$0]++'
}

# dependencies PAGE: checks that cargo resolves the dependencies in the `toml` blocks of a page, with their features, in
# this tree instead of the repository that they name. Prints their names.
dependencies() {
    local package=$work/dependent root=$PWD crate name
    mkdir -p "$package/src"
    touch "$package/src/lib.rs"
    cp Cargo.lock "$package"
    awk '/^```/ { block = $0 == "```toml"; next } block && /^[a-z-]* = \{.*features = /' "$1" >"$work/dependencies"
    for crate in crates/*; do
        name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$crate/Cargo.toml" | head -n 1)
        sed -i "/^$name = /s|git = \"$repository\"|path = \"$root/$crate\"|" "$work/dependencies"
    done
    {
        printf '[workspace]\n[package]\nname = "dependent"\nedition = "2024"\n[dependencies]\n'
        cat "$work/dependencies"
    } >"$package/Cargo.toml"
    cargo tree --offline --quiet --manifest-path "$package/Cargo.toml" >"$work/tree"
    sed -n 's/ = .*//p' "$work/dependencies"
}

for page in "${pages[@]}"; do
    command="the dependencies of $page"
    dependencies "$page" >"$work/names"
    sed "s|.*|ok: $page depends on &|" "$work/names"
done

commands "${pages[@]}" >"$work/commands"
[ -s "$work/commands" ]
while read -r command <&4; do
    check "$command"
    echo "ok: $command"
done 4<"$work/commands"
