#!/usr/bin/env bash
# The packages that are published: complete, and small for a library user of the web server.
. "$(dirname "$0")/setup.sh"

# At most this many crates for `evring-httpd` with two mechanisms.
max=39
crates=$(cargo tree -p evring-httpd --no-default-features --features uring,epoll -e normal --prefix none |
    sed 's/ (\*)$//' | sort -u)
count=$(wc -l <<<"$crates")
[ "$count" -le "$max" ] || {
    printf 'evring-httpd with uring and epoll pulls in %d crates, the maximum is %d:\n%s\n' "$count" "$max" "$crates" >&2
    exit 1
}
echo "evring-httpd with uring and epoll: $count crates"

published=(shared-ring evring-sim send-core flexsc-rt ecem evring evring-tls evring-httpd ash-guest ash-sandbox)
packages=()
for package in "${published[@]}"; do packages+=(-p "$package"); done
# ci/packages.sh --verify also builds each package as its users would.
verify=(--no-verify)
[ "${1:-}" != --verify ] || verify=()
cargo publish --dry-run --quiet --allow-dirty "${verify[@]}" "${packages[@]}"
for package in "${published[@]}"; do
    # Read whole, as cargo does not expect its reader to end early.
    files=$(cargo package --list --quiet --allow-dirty -p "$package")
    for file in LICENSE-APACHE LICENSE-MIT README.md; do
        grep -qx "$file" <<<"$files" || { echo "$package lacks $file" >&2; exit 1; }
    done
done
