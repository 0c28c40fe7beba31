# To be sourced by the scripts of this directory, which then run in the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where cargo builds.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

# need PROGRAM PACKAGE: installs a missing program from Debian.
need() {
    command -v "$1" >/dev/null && return
    [ "$(id -u)" = 0 ] || { echo "${0#./} requires $1: apt-get install $2" >&2; exit 1; }
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}
PATH=$PATH:/usr/sbin
