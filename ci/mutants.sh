#!/usr/bin/env bash
# Changes the code in one place at a time, and sees whether a test fails (cargo-mutants).
#
#   ci/mutants.sh [--sample N --seed S] [--shard K/N] [--names FILE]
#   ci/mutants.sh --table RESULTS...
#
# Without an option, every mutant that .cargo/mutants.toml permits: thousands, for a day. --sample takes N
# of them, decided by the seed; --shard the part K (from 0) of N parts of what is chosen; --names those that a
# file names, a line each. Each mutant is given to the tests of its own crate, what survives to simulation,
# and what survives that to the suites on real sockets. What comes of it is in target/mutants:
# NAME.results, a line for each mutant with its outcome and the tests that decided, and NAME.survivors.
# --table adds up the results of several parts.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

# Seconds for the tests of one mutant, and for its build: many times what they take.
test_timeout=180
build_timeout=600

usage() { sed -n '4,5s/^# *//p' "$0" >&2; exit 2; }

# Outcomes by crate.
table() {
    awk -F'\t' '
        function line(name, c) {
            viable = n[c, "caught"] + n[c, "timeout"] + n[c, "missed"]
            rate = viable ? sprintf("%.1f %%", 100 * (n[c, "caught"] + n[c, "timeout"]) / viable) : "-"
            printf "| %s | %d | %d | %d | %d | %s |\n", name, n[c, "caught"], n[c, "missed"], \
                n[c, "timeout"], n[c, "unviable"], rate
        }
        { split($3, path, "/"); n[path[2], $1]++; n["", $1]++ }
        END {
            print "| crate | caught | missed | timeout | unviable | caught of those that build |"
            print "|---|---|---|---|---|---|"
            line("shared-ring", "shared-ring"); line("send-core", "send-core")
            line("evring", "evring"); line("httpd", "httpd"); line("all", "")
        }' "$@"
}

sample='' seed=1 shard='' names=''
while [ $# -gt 0 ]; do
    case $1 in
        --table) shift; [ $# -gt 0 ] || usage; table "$@"; exit ;;
        --sample) sample=${2:?} ;;
        --seed) seed=${2:?} ;;
        --shard) shard=${2:?} ;;
        --names) names=${2:?} ;;
        *) usage ;;
    esac
    shift 2
done

# The tests that a crate's mutants are given to, in turn. No lab, nothing that takes long.
passes() {
    case $1 in
        httpd) echo own simulation server ;;
        shared-ring) echo own simulation kernels sockets ;;
        *) echo own simulation sockets ;;
    esac
}
suite() {
    case $1:$2 in
        shared-ring:own) echo "--package shared-ring --features sim --lib $(for_each --test counters \
            interest memory refusals regressions)" ;;
        # All but every_instruction.
        send-core:own) echo "--package send-core --lib $(for_each --test critical descriptors kernel masks \
            notifier sockets wrong broken_rules)" ;;
        evring:own) echo "--package evring --features sim --lib --test mechanisms --test regressions" ;;
        httpd:own) echo "--package evring-httpd --lib $(for_each --test exchange vectors directories selection)" ;;
        *:simulation) echo "--package simulate --test simulation" ;;
        shared-ring:kernels) echo "--package shared-ring --features sim $(for_each --test full_table kernels \
            signal_overflow signals)" ;;
        *:sockets) echo "--package examples $(for_each --test contract files)" ;;
        *:server) echo "--package evring-httpd $(for_each --test handlers library hostile)" ;;
    esac
}
for_each() { local option=$1; shift; printf -- "$option %s " "$@"; }

command -v cargo-mutants >/dev/null || cargo install --quiet --locked cargo-mutants

work=$PWD/target/mutants
tree=$work/tree
mkdir -p "$work"
# One at a time: it is done in a copy of the sources, which is built again and again.
exec 9>"$work/lock"
flock -n 9 || { echo "ci/mutants.sh is running already" >&2; exit 1; }
rm -rf "$tree"
mkdir "$tree"
# Newer than whatever was built of the last mutant.
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ ! -e "$file" ] || printf '%s\0' "$file"
done | tar --null -T - -c | tar -xm -C "$tree"

# What there is, and what is chosen of it. (`exclude_re` does not reach the fields of structs, so tests are
# left out here again.)
all=$work/all
chosen=$work/chosen
cargo mutants --dir "$tree" --workspace --list | grep -vE '\b(tests|models)::' | sort >"$all"
if [ -n "$names" ]; then
    sort -u "$names" >"$chosen"
    gone=$(comm -23 "$chosen" "$all")
    [ -z "$gone" ] || { printf 'there is no such mutant now:\n%s\n' "$gone" >&2; exit 1; }
    name=$(basename "$names")
else
    cp "$all" "$chosen"
    name=all
fi
if [ -n "$sample" ]; then
    # Shuffled by the "minimal standard" generator of Park and Miller.
    awk -v n="$sample" -v state="$((seed % 2147483646 + 1))" '
        function random(below) { state = state * 16807 % 2147483647; return state % below }
        { line[NR] = $0 }
        END {
            for (i = 0; i < 10; i++) random(1)
            for (i = 1; i <= n && i <= NR; i++) {
                other = i + random(NR - i + 1)
                print line[other]
                line[other] = line[i]
            }
        }' "$chosen" >"$chosen.sample"
    mv "$chosen.sample" "$chosen"
    name=sample-$sample-seed-$seed
fi
if [ -n "$shard" ]; then
    awk -v k="${shard%/*}" -v n="${shard#*/}" 'NR % n == k' "$chosen" >"$chosen.shard"
    mv "$chosen.shard" "$chosen"
    name=$name-shard-${shard%/*}-of-${shard#*/}
fi
results=$work/$name.results
: >"$results"

export CARGO_TARGET_DIR=$work/build
# A mutant may want memory without end.
ulimit -v $((12 << 20))

# run CRATE PASS FILE: gives the mutants that the file names to the tests, and notes what came of them.
run() {
    local crate=$1 pass=$2 file=$3 begin status=0 outcome out=$work/out/mutants.out args=()
    for arg in $(suite "$crate" "$pass"); do args+=("$arg"); done
    (cd "$tree" && cargo test --quiet --profile mutants "${args[@]}") >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; echo "without a mutant the tests fail: $crate, $pass" >&2; exit 1; }
    begin=$SECONDS
    # Those that are not chosen are said to be caught, as --re lets mutants of fields through.
    rm -rf "$work/out"
    mkdir -p "$out"
    cargo mutants --dir "$tree" --workspace --list | sort | comm -23 - <(sort "$file") >"$out/caught.txt"
    # shellcheck disable=SC2046
    cargo mutants --dir "$tree" --in-place --workspace --output "$work/out" --iterate --baseline skip \
        --timeout $test_timeout --build-timeout $build_timeout --colors never \
        --test-package "${args[1]}" $(printf -- '--cargo-arg=%s ' "${args[@]:2}") \
        >"$work/log" 2>&1 || status=$?
    case $status in
        0 | 2 | 3) ;;
        *) cat "$work/log" >&2; echo "cargo mutants fails with $status: $crate, $pass" >&2; exit 1 ;;
    esac
    # A linker that fails has nothing to do with a mutant.
    ! grep -lE '^error: linking with' "$out"/log/* >&2 || exit 1
    for outcome in caught timeout unviable; do
        sed "s/^/$outcome\t$pass\t/" "$out/$outcome.txt" >>"$results"
    done
    cp "$out/missed.txt" "$work/missed"
    printf '%-12s %-11s %4d mutants, %4d left, %5d s\n' "$crate" "$pass" "$(wc -l <"$file")" \
        "$(wc -l <"$work/missed")" $((SECONDS - begin))
}

for crate in shared-ring send-core evring httpd; do
    grep "^crates/$crate/" "$chosen" >"$work/left" || continue
    for pass in $(passes "$crate"); do
        [ -s "$work/left" ] || break
        run "$crate" "$pass" "$work/left"
        mv "$work/missed" "$work/left"
    done
    sed "s/^/missed\t-\t/" "$work/left" >>"$results"
done
awk -F'\t' '$1 == "missed" { print $3 }' "$results" | sort >"$work/$name.survivors"
table "$results"
echo "survivors: target/mutants/$name.survivors"
