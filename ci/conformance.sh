#!/usr/bin/env bash
# Checks HTTP conformance of the web server: h1spec (strict) on every mechanism, redbot and httplint
# on a file, a range, a conditional request and a content coding. pip installs them from PyPI and
# GitHub into target/conformance; H1SPEC=DIR uses a checkout of h1spec instead.
. "$(dirname "$0")/setup.sh"

need python3 python3-venv
need curl curl

tools=$PWD/target/conformance
[ -x "$tools/bin/redbot" ] || { python3 -m venv "$tools" && "$tools/bin/pip" install --quiet redbot httplint; }
if [ -z "${H1SPEC:-}" ]; then
    "$tools/bin/pip" install --quiet git+https://github.com/dropseed/h1spec
fi
h1spec() {
    PYTHONPATH=${H1SPEC:-} "$tools/bin/python" -c 'import h1spec; h1spec.main()' "$@"
}

cargo build --release --quiet -p evring-httpd
httpd=$target/release/httpd
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/root"
head -c 3000 /dev/zero | tr '\0' x >"$work/root/file.txt"
gzip -k "$work/root/file.txt"
touch -d 2001-02-03 "$work/root"/*

start() {
    : >"$work/log"
    "$httpd" --root "$work/root" --listen 127.0.0.1:0 --max-age 60 --backend "$1" 2>"$work/log" &
    server=$!
    for _ in $(seq 400); do
        address=$(sed -n 's|.*http://\([0-9.:]*\).*|\1|p' "$work/log")
        [ -z "$address" ] || return 0
        sleep 0.05
    done
    cat "$work/log" >&2
    exit 1
}

failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }

# lint NAME CURL-OPTIONS...: fails on errors or warnings of httplint about a reply.
lint() {
    local name=$1 found
    shift
    found=$(curl -sS -i "$@" "http://$address/file.txt" | "$tools/bin/httplint" 2>&1 | grep -E '\[?(BAD|WARN)' || true)
    [ -z "$found" ] || fail "httplint, $name: $found"
}

backends=$("$httpd" --list-backends --json | "$tools/bin/python" -c \
    'import json, sys; print(*(b["name"] for b in json.load(sys.stdin) if b["available"]))')
for backend in $backends; do
    start "$backend"
    echo "== $backend"
    h1spec --strict "$address" | tail -n 1 | tee "$work/h1spec"
    grep -Eq '([0-9]+)/\1 passed' "$work/h1spec" || fail "h1spec on $backend"
    kill "$server" && wait "$server"
done

start auto
echo "== httplint"
etag=$(curl -sSI "http://$address/file.txt" | tr -d '\r' | sed -n 's/^ETag: //p')
lint file
lint range -H 'Range: bytes=0-99'
lint conditional -H "If-None-Match: $etag"
lint coding -H 'Accept-Encoding: gzip'
lint HEAD -I
echo "== redbot"
"$tools/bin/redbot" "http://$address/file.txt" >"$work/redbot"
cat "$work/redbot"
for line in 'Content-Length header is correct' 'negotiation for gzip compression is supported' \
    'If-None-Match conditional requests are supported' 'If-Modified-Since conditional requests are supported' \
    'ranged request returned the correct partial content'; do
    grep -q "$line" "$work/redbot" || fail "missing in the output of redbot: $line"
done
exit $failed
