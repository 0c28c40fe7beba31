#!/usr/bin/env bash
# Checks the servers that the lab compares: each serves the same files and greeting, closes a
# connection on request, and causes no failures in the load generator; the caches send replies of the
# same lengths. Before that, checks the tables of measurements in the pages. ci/lab.sh --build only builds the
# servers that are libraries.
. "$(dirname "$0")/setup.sh"

for library in hyper axum may-minihttp; do
    manifest=benches/peers/$library/Cargo.toml
    cargo fmt --manifest-path "$manifest" --check
    cargo build --quiet --release --locked --manifest-path "$manifest" --target-dir "$target/lab/peers"
done
[ "${1:-}" != --build ] || exit 0

need curl curl
need nginx nginx-light
need lighttpd lighttpd
need haproxy haproxy
need h2o h2o
need memcached memcached

# As the tests have built it, so that cargo builds no dependency again.
cargo test --workspace --quiet --no-run --test command
# Instructions of our server and of nginx, by callgrind where valgrind is installed.
cargo test --workspace --quiet --bin lab -- --ignored
lab=$target/debug/lab
# The tables of the pages are those of the committed results.
"$lab" tables --check
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir "$work/root" "$work/empty"
echo "Hello world" >"$work/root/hello.txt"
head -c 1024 /dev/urandom >"$work/root/1k.txt"
head -c 8192 /dev/urandom >"$work/root/8k.txt"

for server in "httpd epoll" "nginx tuned" "nginx shipped" \
    "lighttpd select" "lighttpd poll" "lighttpd epoll" "haproxy epoll" "h2o epoll" \
    "hyper tokio" "axum tokio" "may-minihttp may"; do
    read -r what mechanism <<<"$server"
    # The server stops at the end of its standard input.
    mkfifo "$work/in"
    "$lab" serve --what "$what" --mechanism "$mechanism" --root "$work/root" \
        <"$work/in" >"$work/out" 2>"$work/err" &
    pid=$!
    exec 3>"$work/in"
    rm "$work/in"
    for _ in $(seq 100); do
        address=$(head -n 1 "$work/out")
        [ -n "$address" ] && curl --silent --output /dev/null "http://$address/hello" && break
        kill -0 "$pid" || { cat "$work/err" >&2; exit 1; }
        sleep 0.05
    done
    path=/1k.txt expect=1024 files="1k 8k"
    # Libraries serve no files.
    case $what in hyper | axum | may-minihttp) path=/hello expect=12 files= ;; esac
    for name in $files; do
        curl --silent --show-error --fail "http://$address/$name.txt" | cmp - "$work/root/$name.txt"
    done
    curl --silent --show-error --fail "http://$address/hello" | cmp - "$work/root/hello.txt"
    "$lab" load "http://$address$path" -c 8 --expect "$expect" --warm-up 0 --duration 0.2 --json "$work/seen" >/dev/null
    grep -q '"failed":{}' "$work/seen" || { cat "$work/seen" >&2; exit 1; }
    # may_minihttp never closes a connection.
    if [ "$what" != may-minihttp ]; then
        "$lab" load "http://$address$path" -c 8 -n 1 --expect "$expect" --warm-up 0 --duration 0.2 \
            --json "$work/seen" >/dev/null
        replies=$(grep -o '"replies":[0-9]*' "$work/seen" | head -n 1)
        connects=$(grep -o '"connects":[0-9]*' "$work/seen" | head -n 1)
        grep -q '"failed":{}' "$work/seen" && [ "${replies#*:}" = "${connects#*:}" ] ||
            { echo "$server: $replies $connects" >&2; exit 1; }
    fi
    exec 3>&-
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    pid=
    echo "$server: identical bytes, no failures"
done

# The client knows the length of each reply, and waits for a missing byte until it fails.
for server in "app epoll" "memcached epoll"; do
    read -r what mechanism <<<"$server"
    for load in "kv 1" "kv-gets 16" "kv-multiget 16"; do
        read -r requests batch <<<"$load"
        mkfifo "$work/in"
        "$lab" serve --what "$what" --mechanism "$mechanism" --work "$requests" --root "$work/empty" \
            <"$work/in" >"$work/out" 2>"$work/err" &
        pid=$!
        exec 3>"$work/in"
        rm "$work/in"
        for _ in $(seq 100); do
            address=$(head -n 1 "$work/out")
            [ -n "$address" ] && (exec 4<>"/dev/tcp/${address%:*}/${address#*:}") 2>/dev/null && break
            kill -0 "$pid" || { cat "$work/err" >&2; exit 1; }
            sleep 0.05
        done
        echo $((12000 * batch)) | "$lab" client --connect "$address" --work "$requests" --batch "$batch" \
            --connections 8 --reply-bytes 0 >/dev/null
        exec 3>&-
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
        pid=
    done
    echo "$server: the expected replies"
done
