#!/usr/bin/env bash
# Compares the memcached server with memcached: 10,000 sessions must be identical, and common clients
# must work. ci/kv.sh --model first compares 10 million random operations with a model, without a network
# and on the simulated machine, and one million on each mechanism, which takes an hour.
. "$(dirname "$0")/setup.sh"
need memcached memcached
need memccapable libmemcached-tools
# Debian's interpreter finds Debian's packages, even if others are installed.
python=/usr/bin/python3
tool=/usr/share/memcached/scripts/memcached-tool
$python -c 'import pymemcache' 2>/dev/null || need python3-pymemcache python3-pymemcache

if [ "${1:-}" = --model ]; then
    KV_OPERATIONS=10000000 cargo test --release --quiet -p kv --test session random_operations
    KV_OPERATIONS=10000000 cargo test --release --quiet -p simulate --test simulation operations_of_the_cache
    KV_OPERATIONS=1000000 cargo test --release --quiet -p kv --test mechanisms pipelined_operations
fi

cargo build --release --quiet -p kv
kv=$target/release/kv
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

# start OPTION...: runs our server on a free port, and sets $port.
start() {
    # Before the server opens it, or the loop would find the port of the one before.
    : >"$work/log"
    "$kv" -p 0 "$@" >"$work/log" 2>&1 &
    pids+=($!)
    for _ in $(seq 400); do
        port=$(sed -n 's|^listening on [0-9.]*:\([0-9]*\).*|\1|p' "$work/log" | head -n 1)
        [ -n "$port" ] && return
        kill -0 "${pids[-1]}" 2>/dev/null || break
        sleep 0.05
    done
    cat "$work/log" >&2
    exit 1
}

stop() {
    kill "${pids[-1]}"
    wait "${pids[-1]}" 2>/dev/null || true
    unset 'pids[-1]'
}

# sessions: compares our server with memcached, both newly started.
memcached_port=18111
as=()
[ "$(id -u)" = 0 ] && as=(-u nobody)
sessions() {
    local same=0
    # Without maintenance threads, whose references to values change the bytes that `decr` leaves.
    memcached "${as[@]}" -l 127.0.0.1 -p $memcached_port -B ascii -m 1024 -t 1 -o no_lru_maintainer,no_lru_crawler &
    pids+=($!)
    until (exec 3<>"/dev/tcp/127.0.0.1/$memcached_port") 2>/dev/null; do
        kill -0 "${pids[-1]}" || exit 1
        sleep 0.05
    done
    start -m 1024
    $python ci/kv-sessions.py "$port" $memcached_port "${KV_SESSIONS:-10000}" || same=$?
    stop
    stop
    return $same
}
# On a busy machine memcached may reply differently: it drops the replies that were not yet sent when it finds a
# key too long. A difference that the servers cause is there the second time.
sessions || { echo 'the sessions are repeated, as a difference may be due to timing' >&2; sessions; }

# Two threads: the replies do not depend on how threads share values.
start -m 1024 -t 2
memccapable -a -h 127.0.0.1 -p "$port" >"$work/capable" || { cat "$work/capable" >&2; exit 1; }
echo "memccapable, two threads: $(grep -c '\[pass\]' "$work/capable") tests passed"
stop

for backend in $("$kv" --list-backends); do
    start --backend "$backend"
    memccapable -a -h 127.0.0.1 -p "$port" >"$work/capable" || { cat "$work/capable" >&2; exit 1; }
    if ! grep -q '\[pass\]' "$work/capable" || grep -q '\[FAIL\]' "$work/capable"; then
        cat "$work/capable" >&2
        exit 1
    fi
    echo "some bytes of $backend" >"$work/file"
    memccp --servers="127.0.0.1:$port" "$work/file"
    [ "$(memccat --servers="127.0.0.1:$port" file)" = "some bytes of $backend" ]
    memcping --servers="127.0.0.1:$port"
    memcexist --servers="127.0.0.1:$port" file
    memctouch --servers="127.0.0.1:$port" --expire=100 file
    memcstat --servers="127.0.0.1:$port" | grep 'curr_items: [1-9]' >/dev/null
    # The classes of items: number, size, age, pages, count ...; there is one.
    timeout 20 "$tool" "127.0.0.1:$port" display | grep -E '^ +1 +128B +0s +1 +[1-9]' >/dev/null
    memcrm --servers="127.0.0.1:$port" file
    ! memccat --servers="127.0.0.1:$port" file >/dev/null 2>&1
    memcslap --servers="127.0.0.1:$port" --concurrency=4 --execute-number=200 --test=get >"$work/slap"
    $python ci/kv-client.py "$port"
    echo "kv $backend: memccapable ($(grep -c '\[pass\]' "$work/capable") passed), memccat and others, memcached-tool, memcslap, pymemcache"
    stop
done
echo "ok"
