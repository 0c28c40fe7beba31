# To be sourced: `need PROGRAM PACKAGE` installs a missing program from Debian.
need() {
    command -v "$1" >/dev/null && return
    [ "$(id -u)" = 0 ] || { echo "${0#./} requires $1: apt-get install $2" >&2; exit 1; }
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}
PATH=$PATH:/usr/sbin
