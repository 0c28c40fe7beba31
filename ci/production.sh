#!/usr/bin/env bash
# Follows docs/production.md as a new user does: runs its commands, with systemd as process 1, in namespaces of their own
# over a copy of the file system that is thrown away. Nothing of the machine changes, and no network is reached. Checks the
# unit files, their filter of system calls with and without io_uring, and what the container file says of httpd, too; no
# container is built.
. "$(dirname "$0")/setup.sh"

page=docs/production.md

# --- Process 1 starts this part, in the namespaces.
if [ "${1:-}" = --follow ]; then
    export HOME=/root
    # The user that follows the page; what it says with sudo, and systemctl, runs as root.
    useradd --create-home reader
    chown reader .
    mkdir /tmp/page
    awk '
        /^```/ && block { block = ""; close(file); next }
        /^```/ { block = substr($0, 4); file = sprintf("/tmp/page/%02d.%s", ++n, block); next }
        block { print >> file }' "$page"

    # run COMMAND: runs it as root if it needs to be, else as the reader.
    run() {
        case $1 in
            *sudo* | systemctl*)
                # shellcheck disable=SC2001
                bash -euc "$(sed 's/sudo -u \([a-z]*\) /runuser -u \1 -- /; s/sudo //g' <<<"$1")"
                ;;
            *) runuser -u reader -- bash -euc "$1" ;;
        esac >/tmp/out 2>&1
    }

    # until_true COMMAND...: waits for it, for ten seconds at most.
    until_true() {
        local i
        for i in $(seq 200); do "$@" && return; sleep 0.05; done
        echo "not within 10 s: $*"
        return 1
    }
    is_logged() { run "$1" && grep -q '"GET / HTTP/1.1" 200 18 ' /tmp/out; }

    # check COMMAND: runs it, and asserts what the page promises.
    check() {
        run "$1" || return
        case $1 in
            *--check-config) grep -q "the settings are valid" /tmp/out ;;
            *"systemctl status"*) grep -q "Active: active (running)" /tmp/out ;;
            "curl "*https:*) grep -q "It works" /tmp/out ;;
            "curl "*readyz) grep -q ready /tmp/out ;;
            "curl "*metrics) grep -q '^evring_responses_total{class="2xx"} 1$' /tmp/out ;;
            "sudo journalctl "*) grep -q "listening on https://" /tmp/out ;;
            # A line is written within a tenth of a second.
            "sudo tail "*access.log) until_true is_logged "$1" ;;
        esac
    }

    # commands FILE: prints the commands of a block, each on a line.
    commands() { sed -e ':a' -e '/\\$/ { N; s/ *\\\n */ /; ba }' "$1"; }

    all() {
        local block command
        for block in /tmp/page/*; do
            case $block in
                *.toml) cp "$block" /etc/httpd/httpd.toml ;;
                *.sh)
                    while read -r command <&3; do
                        case $command in
                            # The machine already has these, and this script has built the program.
                            "sudo apt-get "* | curl*sh.rustup.rs* | *.cargo/env\" | "cargo build --profile dist -p evring-httpd")
                                echo "not run: $command"
                                continue
                                ;;
                        esac
                        check "$command" || {
                            cat /tmp/out
                            echo "$page has a command that fails: $command"
                            return 1
                        }
                        echo "ok: $command"
                    done 3< <(commands "$block")
                    ;;
            esac
        done
    }

    # get URL: asks the service as a client that trusts the certificate.
    get() {
        curl --silent --show-error --fail --max-time 10 --cacert cert.pem \
            --resolve example.org:443:127.0.0.1 --resolve example.org:80:127.0.0.1 "$@"
    }
    main_pid() { systemctl show --property=MainPID --value httpd; }

    operate() {
        # IPv4 and IPv6, TLS, the redirect, metrics, logs.
        get https://example.org/ | grep -q "It works"
        get --resolve example.org:443:[::1] https://example.org/ | grep -q "It works"
        [ "$(get --output /dev/null --write-out '%{http_code} %{redirect_url}' http://example.org/a?b)" = \
            "308 https://example.org/a?b" ]
        get http://127.0.0.1:9100/metrics | grep -q '^evring_responses_total{class="2xx"} '
        journalctl --no-pager -u httpd | grep -q "listening on https://"
        echo "ok: TLS, the redirect, metrics and logs"

        local before after
        before=$(main_pid)
        mkdir /srv/other
        echo '<h1>Settings of a reload</h1>' >/srv/other/index.html
        sed -i 's|^root = .*|root = "/srv/other"|; s|^drain-delay = .*|drain-delay = 0|' /etc/httpd/httpd.toml
        # It returns when the signal is sent.
        systemctl reload httpd
        is_reloaded() { get https://example.org/ | grep -q "Settings of a reload"; }
        until_true is_reloaded
        [ "$(main_pid)" = "$before" ]
        echo "ok: systemctl reload httpd"

        mkdir -p /etc/logrotate.d
        install -m 644 crates/httpd/contrib/httpd.logrotate /etc/logrotate.d/httpd
        if command -v logrotate >/dev/null; then
            logrotate --force /etc/logrotate.conf
        else
            echo "not tested: logrotate is not installed"
            mv /var/log/httpd/access.log /var/log/httpd/access.log.1
            systemctl kill --signal=USR1 --kill-whom=main httpd
        fi
        is_rotated() {
            get --output /dev/null https://example.org/rotated 2>/dev/null || true
            grep -q rotated /var/log/httpd/access.log 2>/dev/null
        }
        until_true is_rotated
        echo "ok: log rotation"

        systemctl kill --signal=USR2 --kill-whom=main httpd
        has_successor() { after=$(main_pid) && [ "$after" != "$before" ] && [ ! -e "/proc/$before" ]; }
        until_true has_successor
        get https://example.org/ | grep -q "Settings of a reload"
        echo "ok: a new version"

        systemctl restart httpd
        get https://example.org/ | grep -q "Settings of a reload"
        echo "ok: systemctl restart httpd"
        hardening

        systemctl stop httpd
        get https://example.org/ | grep -q "Settings of a reload"
        systemctl is-active --quiet httpd
        echo "ok: the socket starts the service"
        systemctl stop httpd.socket httpd
        if get https://example.org/ 2>/dev/null; then return 1; fi
        [ "$(systemctl show --property=Result --value httpd)" = success ]
        echo "ok: systemctl stop httpd.socket httpd"
        container

        # Of the README: port 80 without the unit.
        local command
        command=$(grep -o '`setcap [^`]*`' README.md | tr -d '`')
        bash -euc "$command"
        runuser -u reader -- target/dist/httpd /srv/other -p 80 2>/tmp/out &
        until_true get --output /dev/null http://127.0.0.1/ 2>/dev/null
        echo "ok: $command"
    }

    # The last line of the log with the mechanism.
    backend() { journalctl --no-pager --output=cat -u httpd | grep -o '(backend [a-z]*' | tail -n 1; }
    # In the log since a time.
    is_said() { journalctl --no-pager --output=cat --since="@$1" -u httpd | grep -q "$2"; }

    # The unit files, by systemd's own checks, and the filter of system calls: with io_uring and without.
    hardening() {
        if systemd-analyze verify --man=no httpd.service httpd.socket 2>&1 | grep httpd; then return 1; fi
        systemd-analyze security --no-pager --offline=true --threshold=20 \
            /etc/systemd/system/httpd.service >/tmp/security || { cat /tmp/security; return 1; }
        echo "ok: systemd-analyze verify, security"

        local filtered before since directory=/etc/systemd/system/httpd.service.d
        grep -q '^Seccomp:[[:space:]]*2$' "/proc/$(main_pid)/status"
        [ "$(httpd --list-backends | grep -c '^uring .*not available')" = 1 ] || [ "$(backend)" = "(backend uring" ]
        echo "ok: the filter of system calls permits io_uring"

        # As the seccomp profiles of containers: only some calls, and none of io_uring.
        mkdir "$directory"
        printf '[Service]\nSystemCallFilter=~io_uring_setup io_uring_enter io_uring_register\n' >"$directory/filter.conf"
        systemctl daemon-reload
        filtered=$(systemctl show --property=SystemCallFilter --value httpd)
        [[ $filtered != *io_uring* ]]
        since=$(date +%s)
        systemctl restart httpd
        get https://example.org/ | grep -q "Settings of a reload"
        [ "$(backend)" = "(backend epoll" ]
        is_said "$since" "using epoll because uring is unavailable: .*seccomp"
        systemctl reload httpd
        get https://example.org/ | grep -q "Settings of a reload"
        before=$(main_pid)
        systemctl kill --signal=USR2 --kill-whom=main httpd
        until_true has_successor
        get https://example.org/ | grep -q "Settings of a reload"
        rm -r "$directory"
        systemctl daemon-reload
        systemctl restart httpd
        echo "ok: without io_uring it uses epoll, and says why"
    }

    # The container file: its variables are settings, its user can serve with them, and its signal stops it.
    container() {
        local file=crates/httpd/contrib/Containerfile code=0 pid user signal
        grep -qF 'RUN cargo build --profile dist -p evring-httpd' $file
        grep -qF 'COPY --from=build /evring/target/dist/httpd /usr/local/bin/httpd' $file
        mapfile -t variables < <(grep -o 'EVRING_HTTPD_[A-Z_]*=[^ ]*' $file | grep -v -- '-e ' | sort -u)
        user=$(id -un "$(awk '$1 == "USER" { sub(":.*", "", $2); print $2 }' $file)")
        signal=$(awk '$1 == "STOPSIGNAL" { print $2 }' $file)
        cp /srv/www/index.html /srv
        runuser -u "$user" -- env -i "${variables[@]}" /usr/local/bin/httpd >/tmp/container 2>&1 &
        pid=$!
        until_true get --output /dev/null http://127.0.0.1:9100/readyz 2>/dev/null || { cat /tmp/container; return 1; }
        get http://127.0.0.1:8080/ | grep -q "It works"
        kill -s "$signal" "$(pgrep --uid "$user" httpd)"
        wait "$pid" || code=$?
        if [ "$code" != 0 ] || grep -v -e "^listening on http://0.0.0.0:8080 " -e "^using epoll " /tmp/container; then
            cat /tmp/container
            return 1
        fi
        echo "ok: the variables, user and signal of $file"
    }

    exec >/result/log 2>&1
    show_state() {
        systemctl status --no-pager httpd.service httpd.socket || true
        journalctl --no-pager --boot --lines=40 || true
    }
    trap '[ -e /result/done ] || show_state' EXIT
    all
    operate
    touch /result/done
    exit
fi

skip() {
    echo "not tested: $page was not followed, and nothing of it is tested here: $1" >&2
    [ -z "${REQUIRE_ALL:-}" ] || exit 1
    exit
}
[ "$(id -u)" = 0 ] || skip "it needs root"
systemd=/lib/systemd/systemd
[ -x $systemd ] || skip "there is no systemd"
# As below, in short.
unshare --mount --uts --ipc --net --pid --cgroup --fork bash -euc '
    mount --make-rprivate /
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/{upper,work,root,cgroup}
    mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
    mount -t cgroup2 cgroup2 /mnt/cgroup
    mkdir "/mnt/cgroup/probe.$PPID"
    rmdir "/mnt/cgroup/probe.$PPID"' 2>/dev/null || skip "namespaces, overlays or cgroups are not permitted"

need curl curl
need openssl openssl
need ip iproute2
need setcap libcap2-bin
need pgrep procps

# Each command of the page that is not in a block has its place above.
grep -o '`systemctl [^`]*`' "$page" | tr -d '`' | sort -u | while read -r command; do
    grep -qF "$command" ci/production.sh || { echo "$page has a command that is not followed: $command" >&2; exit 1; }
done

# As the tests have built it.
cargo build --quiet -p evring-httpd --bin httpd
httpd=$target/debug/httpd

work=$(mktemp -d)
trap 'umount --quiet --lazy "$work/result" || true; rm -rf "$work"' EXIT
mkdir "$work/result"

# $1: httpd, $2: systemd, $3: a directory for results. In a cgroup of its own, that of process 1.
cat >"$work/outer" <<'OUTER'
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/{upper,work,root,cgroup,repository-upper,repository-work}
mount -t cgroup2 cgroup2 /mnt/cgroup
group=/mnt/cgroup/production.$$
mkdir "$group"
echo $$ >"$group/cgroup.procs"
code=0
timeout --signal=KILL 90 unshare --uts --ipc --net --pid --cgroup --mount --fork --kill-child bash "$(dirname "$0")/inner" "$@" ||
    code=$?
echo $$ >/mnt/cgroup/cgroup.procs
for _ in $(seq 100); do
    grep -q . $(find "$group" -name cgroup.procs) || break
    sleep 0.05
done
find "$group" -depth -type d -exec rmdir {} +
exit "$code"
OUTER
cat >"$work/inner" <<'INNER'
set -euo pipefail
httpd=$1 systemd=$2 result=$3
root=/mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work $root
mkdir $root/result
mount --bind "$result" $root/result
mount -t proc proc $root/proc
# Settings of the kernel are those of the machine.
mount --bind $root/proc/sys $root/proc/sys
mount -o remount,ro,bind $root/proc/sys
mount -t sysfs -o ro sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
for directory in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs $root/$directory; done
chmod 1777 $root/tmp
# The repository may be below one of these, or where only root may go.
mkdir -p "$root$PWD"
directory=$PWD
while [ "$directory" != / ]; do
    chmod a+rx "$root$directory"
    directory=$(dirname "$directory")
done
mount -t overlay overlay -o "lowerdir=$PWD,upperdir=/mnt/repository-upper,workdir=/mnt/repository-work" "$root$PWD"
install -D "$httpd" "$root$PWD/target/dist/httpd"
for device in null zero full random urandom tty; do
    : >$root/dev/$device
    mount --bind /dev/$device $root/dev/$device
done
ln -s /proc/self/fd $root/dev/fd
ln -s pts/ptmx $root/dev/ptmx
mkdir $root/dev/{pts,shm}
mount -t devpts -o newinstance,ptmxmode=666 devpts $root/dev/pts
mount -t tmpfs tmpfs $root/dev/shm
ip link set lo up
# Of the machine's own units, only those that services need.
rm -rf $root/etc/systemd/system
mkdir $root/etc/systemd/system
for unit in timers.target systemd-udevd.service systemd-timesyncd.service getty.target; do
    ln -s /dev/null $root/etc/systemd/system/$unit
done
cat >$root/etc/systemd/system/follow.service <<UNIT
[Unit]
Wants=basic.target
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
WorkingDirectory=$PWD
ExecStart=/bin/bash ci/production.sh --follow
UNIT
cd $root
pivot_root . mnt
umount -l mnt
exec env -i PATH="$PATH" container=other "$systemd" --unit=follow.service --log-target=journal --show-status=no
INNER
timeout --signal=KILL 120 unshare --mount bash "$work/outer" "$httpd" "$systemd" "$work/result" || true
cat "$work/result/log" 2>/dev/null || echo "process 1 did not start" >&2
[ -e "$work/result/done" ]
