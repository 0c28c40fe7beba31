#!/usr/bin/env bash
# Tests the servers with other programs: curl fetches a directory of 1,000 files from every mechanism,
# through the proxy from nginx, and over TLS, and compares the bytes; curl is a client of the library's examples;
# testssl.sh scans the TLS in the background. Runs ci/kv.sh for the cache.
. "$(dirname "$0")/setup.sh"
need curl curl
need openssl openssl
need nginx nginx-light
need testssl testssl.sh

# The debug builds, with the features that they have in the tests. They check for overflows.
cargo build --workspace --quiet --bin httpd --bin proxy
bin=$target/debug
cargo test --workspace --features web-examples/sqlite --quiet --no-run --test json_api --test programs
work=$(mktemp -d)
pids=()
scan=
listener=
# timeout runs the scan in a process group of its own.
trap 'kill -- "${pids[@]}" $listener ${scan:+-$scan} 2>/dev/null || true; rm -rf "$work"' EXIT

# 1,000 files of 0 bytes to 10 MB: mostly small, with sizes around multiples of buffers and pages.
root=$work/root
mkdir -p "$root"
sizes=(0 1 12 100 1023 1024 4095 4096 4097 8191 8192 16384 65535 65536 65537 262143 262144 262145 1000000 10000000)
for i in $(seq 0 999); do
    if [ "$i" -lt ${#sizes[@]} ]; then size=${sizes[$i]}; else size=$(( (i * 7919) % 40000 )); fi
    head -c "$size" /dev/urandom >"$root/$i.bin"
done
chmod 755 "$work" "$root"

# start NAME COMMAND...: runs a server, waits for its first line, and sets $address.
start() {
    local log=$work/$1.log
    : >"$log"
    shift
    "$@" >"$log" 2>&1 &
    pids+=($!)
    for _ in $(seq 100); do
        address=$(sed -n 's|.*https\{0,1\}://\([0-9.:]*\).*|\1|p; s|^listening on \([0-9.:]*\).*|\1|p' "$log" | head -n 1)
        [ -n "$address" ] && return
        kill -0 "${pids[-1]}" 2>/dev/null || break
        sleep 0.05
    done
    cat "$log" >&2
    echo "cannot start: $*" >&2
    exit 1
}

stop() {
    kill -TERM "${pids[-1]}"
    wait "${pids[-1]}" || true
    unset 'pids[-1]'
}

# within COMMAND...: repeats a command for at most 20 s until it succeeds.
within() {
    for _ in $(seq 400); do
        "$@" && return
        kill -0 "${pids[-1]}" || break
        sleep 0.05
    done
    echo "still fails: $*" >&2
    return 1
}

# fetch NAME BASE [OPTION...]: fetches all files below BASE with curl, and compares them with the originals.
fetch() {
    local name=$1 base=$2 into=$work/fetched
    shift 2
    rm -rf "$into" && mkdir "$into"
    for i in $(seq 0 999); do
        printf 'url = "%s/%s.bin"\noutput = "%s/%s.bin"\n' "$base" "$i" "$into" "$i"
    done >"$work/list"
    curl --silent --show-error --fail --no-progress-meter --parallel --parallel-max 32 "$@" --config "$work/list"
    diff -r "$root" "$into" >/dev/null || { diff -rq "$root" "$into" | head >&2; echo "$name: files differ" >&2; exit 1; }
    echo "$name: 1000 identical files"
}

# The whole scan of testssl.sh, which mostly waits, while the other tests run. It finds nothing above "low": the
# certificate is from an authority for tests, with the extensions of a public one, and the site has the field of
# docs/production.md.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 200 -subj "/CN=authority for tests" \
    -addext keyUsage=critical,keyCertSign -keyout "$work/ca-key.pem" -out "$work/ca.pem" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost \
    -keyout "$work/site-key.pem" -out "$work/request.pem" 2>/dev/null
cat >"$work/extensions" <<EXTENSIONS
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost
crlDistributionPoints = URI:http://localhost/crl
EXTENSIONS
openssl x509 -req -in "$work/request.pem" -CA "$work/ca.pem" -CAkey "$work/ca-key.pem" -CAcreateserial -days 200 \
    -extfile "$work/extensions" -out "$work/site.pem" 2>/dev/null
mkdir "$work/site"
echo "its index" >"$work/site/index.html"
start tls-scan "$bin/httpd" --listen 127.0.0.1:0 --root "$work/site" --tls-cert "$work/site.pem" --tls-key "$work/site-key.pem" \
    --header "always X-Content-Type-Options: nosniff"
timeout --kill-after 5 900 testssl --quiet --warnings off --color 0 --add-ca "$work/ca.pem" --severity MEDIUM \
    --jsonfile "$work/testssl.json" "localhost:${address##*:}" >"$work/testssl" 2>&1 &
scan=$!

backends=$("$bin/httpd" --list-backends --json | grep -o '"name": *"[^"]*"\|"available": *[a-z]*' |
    sed 's/.*: *//; s/"//g' | paste -d' ' - - | awk '{ if ($1 == "true") print $2; else if ($2 == "true") print $1 }')
echo "mechanisms:" $backends

for backend in $backends; do
    start "httpd-$backend" "$bin/httpd" --root "$root" --listen 127.0.0.1:0 --backend "$backend"
    fetch "httpd $backend" "http://$address"
    stop
done

cat >"$work/nginx.conf" <<CONF
daemon off;
pid $work/nginx.pid;
error_log $work/nginx-error.log;
events { worker_connections 1024; }
http { access_log off; server { listen 127.0.0.1:18099; root $root; } }
CONF
nginx -c "$work/nginx.conf" -p "$work" -e "$work/nginx-error.log" &
pids+=($!)
within curl --silent --output /dev/null "http://127.0.0.1:18099/1.bin" || { cat "$work/nginx-error.log" >&2; exit 1; }
for backend in $backends; do
    start "proxy-$backend" "$bin/proxy" --listen 127.0.0.1:0 --backend "$backend" --upstream 127.0.0.1:18099
    fetch "proxy $backend before nginx" "http://$address"
    stop
done
stop

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
    -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
for backend in $backends; do
    start "tls-$backend" "$bin/httpd" --listen 127.0.0.1:0 --backend "$backend" --root "$root" --status \
        --tls-cert "$work/cert.pem" --tls-key "$work/key.pem"
    fetch "TLS $backend" "https://$address" --insecure
    for version in 1.2 1.3; do
        curl --silent --show-error --fail --insecure --tlsv$version --tls-max $version --output /dev/null \
            "https://$address/4.bin"
    done
    openssl s_client -connect "$address" -alpn http/1.1 -servername localhost </dev/null >"$work/s_client" 2>&1
    grep -q 'ALPN protocol: http/1.1' "$work/s_client" || { cat "$work/s_client" >&2; exit 1; }
    # The line asks for a renegotiation. The server refuses it with a warning, which it does not count; the client's answer
    # is a fatal alert, which it does.
    if echo R | timeout 20 openssl s_client -connect "$address" -tls1_2 >"$work/s_client" 2>&1 ||
        ! grep -q 'no renegotiation' "$work/s_client"; then
        cat "$work/s_client" >&2
        exit 1
    fi
    curl --silent --show-error --fail --insecure "https://$address/.httpd/status.json" >"$work/status"
    grep -q '"tls_errors":1,' "$work/status" || { cat "$work/status" >&2; exit 1; }
    stop
done
# curl as the client of the examples. ask [OPTION...] URL: prints the body, then the status.
ask() { curl --silent --show-error --max-time 20 --write-out ' %{http_code}' "$@" || true; }
# gives WANTED OPTION...: compares what a request gives.
gives() {
    local given
    given=$(ask "${@:2}")
    [ "$given" = "$1" ] || { printf 'curl %s\ngives: %s\nnot:   %s\n' "${*:2}" "$given" "$1" >&2; exit 1; }
}
examples=$target/debug

start json-api "$examples/json-api" "$work/notes.db" 127.0.0.1:0
gives '[] 200' "http://$address/notes"
gives '{"id":1,"text":"milk"} 201' --json '{"text": "milk"}' "http://$address/notes"
gives '[{"id":1,"text":"milk"}] 200' "http://$address/notes"
gives ' 204' --request DELETE "http://$address/notes/1"
gives $'no such note\n 404' "http://$address/notes/1"
stop

mkdir "$work/uploads"
start upload "$examples/upload" "$work/uploads" 127.0.0.1:0
# curl waits for 100 Continue; from a pipe, it sends chunks.
gives $'10000000 bytes\n 201' --upload-file "$root/19.bin" "http://$address/files/long"
gives $'65537 bytes\n 201' --upload-file - "http://$address/files/piped" < <(cat "$root/14.bin")
cmp "$work/uploads/long" "$root/19.bin"
curl --silent --show-error --fail "http://$address/piped" | cmp - "$root/14.bin"
gives $'bad name\n 400' --upload-file "$root/2.bin" "http://$address/files/.hidden"
stop

start events "$examples/events" 127.0.0.1:0
: >"$work/events"
curl --silent --no-buffer "http://$address/events" >"$work/events" &
listener=$!
within grep -q '^: welcome$' "$work/events"
gives $'1 clients\n 200' --data-binary $'hello\nthere' "http://$address/say"
within grep -q '^data: there$' "$work/events"
kill "$listener"
wait "$listener" || true
listener=
diff "$work/events" - <<<$': welcome\n\ndata: hello\ndata: there\n'
stop

for backend in $backends; do
    start "axum-$backend" "$examples/axum-router" 127.0.0.1:0 "$backend"
    gives $'Hello, Ada! (greeting 1)\n 200' --get --data name=Ada "http://$address/greet"
    gives '{"x":3.0,"y":-4.0} 200' --json '{"x": 1.5, "y": -2}' "http://$address/scale/2"
    gives $'event: count\ndata: 1\n\nevent: count\ndata: 2\n\nevent: count\ndata: 3\n\n 200' "http://$address/count"
    gives $'2 ms later\n 200' "http://$address/wait/2"
    curl --silent --show-error --fail --data-binary "@$root/18.bin" "http://$address/echo" | cmp - "$root/18.bin"
    stop
done
echo "examples: curl exchanges JSON, files and events with them"

wait "$scan" || true
scan=
stop
if grep -Eq '"(MEDIUM|HIGH|CRITICAL|FATAL)"' "$work/testssl.json" || ! grep -q ' Done ' "$work/testssl"; then
    cat "$work/testssl.json" "$work/testssl" >&2
    echo "TLS: findings above low" >&2
    exit 1
fi
echo "TLS: testssl.sh has no finding above low; it ran for $(sed -n 's/.* Done .*\[ *\([0-9]*s\)\].*/\1/p' "$work/testssl")"

ci/kv.sh
