#!/usr/bin/env bash
# Changes the code in one place at a time, and checks whether a test fails (cargo-mutants).
#
#   ci/mutants.sh [--crate NAME] [--sample N --seed S] [--shard K/N] [--names FILE]
#   ci/mutants.sh --table RESULTS...
#
# Without options, tests every mutant that .cargo/mutants.toml permits: thousands, which takes a day.
# --crate selects those of crates/NAME or examples/NAME, --sample N of them by the seed, --shard part K (from 0) of N parts of the
# selection, --names the mutants listed in a file, one per line. Each mutant is tested by its crate, survivors by simulation, and
# the remaining ones by the suites on real sockets. The results are in target/mutants: NAME.results, one
# line per mutant with its outcome and the deciding tests, and NAME.survivors. --table sums the results of
# several parts.
. "$(dirname "$0")/setup.sh"
export LC_ALL=C

# Timeouts for the tests and the build of one mutant, in seconds: many times their usual duration.
test_timeout=180
build_timeout=600

# The crates that have test passes below.
crates=(shared-ring send-core evring httpd flexsc-rt ecem kv walk)

# Prints where a crate is.
directory() { case $1 in kv | walk) echo "examples/$1" ;; *) echo "crates/$1" ;; esac; }

usage() { sed -n '4,5s/^# *//p' "$0" >&2; exit 2; }

# Prints the outcomes by crate.
table() {
    awk -F'\t' -v crates="${crates[*]}" '
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
            last = split(crates, crate, " ")
            for (i = 1; i <= last; i++) line(crate[i], crate[i])
            line("all", "")
        }' "$@"
}

of_crate='' sample='' seed=1 shard='' names=''
while [ $# -gt 0 ]; do
    case $1 in
        --table) shift; [ $# -gt 0 ] || usage; table "$@"; exit ;;
        --crate) of_crate=${2:?} ;;
        --sample) sample=${2:?} ;;
        --seed) seed=${2:?} ;;
        --shard) shard=${2:?} ;;
        --names) names=${2:?} ;;
        *) usage ;;
    esac
    shift 2
done

# The test passes of a crate's mutants, in order, without the lab and slow tests.
passes() {
    case $1 in
        httpd) echo own simulation server ;;
        shared-ring) echo own simulation kernels sockets ;;
        flexsc-rt) echo own slow simulation sockets ;;
        ecem | walk) echo own ;;
        kv) echo own simulation ;;
        *) echo own simulation sockets ;;
    esac
}
suite() {
    case $1:$2 in
        shared-ring:own) echo "--package shared-ring --lib $(all_except shared-ring "${kernels[@]}")" ;;
        send-core:own) echo "--package send-core --lib $(all_except send-core every_instruction)" ;;
        evring:own) echo "--package evring --lib --test mechanisms --test suite" ;;
        httpd:own) echo "--package evring-httpd --features sandbox --lib --test site" ;;
        # The library has the simulation of the pages; the kernel's is one of the next pass.
        flexsc-rt:own) echo "--package flexsc-rt --features green-threads --lib $(all_except flexsc-rt "${slow[@]}")" ;;
        flexsc-rt:slow) echo "--package flexsc-rt --features green-threads $(for_each --test "${slow[@]}")" ;;
        ecem:own) echo "--package ecem --lib $(all_except ecem)" ;;
        kv:own) echo "--package kv --lib $(for_each --test handler memory session)" ;;
        walk:own) echo "--package walk --lib --test trees" ;;
        *:simulation) echo "--package simulate --test simulation" ;;
        shared-ring:kernels) echo "--package shared-ring $(for_each --test "${kernels[@]}")" ;;
        *:sockets) echo "--package examples --test suite" ;;
        *:server) echo "--package evring-httpd --test suite" ;;
    esac
}
# The modules of the tests that run, if not all.
modules() {
    case $1:$2 in
        *:sockets) echo contract:: files:: ;;
        *:server) echo library:: hostile:: ;;
    esac
}
for_each() { local option=$1; shift; printf -- "$option %s " "$@"; }
# all_except CRATE TEST...: the other test programs of the crate.
all_except() {
    local crate=$1 file name; shift
    for file in "$(directory "$crate")"/tests/*.rs; do
        name=$(basename "$file" .rs)
        [[ " $* " == *" $name "* ]] || printf -- '--test %s ' "$name"
    done
}
# Tests of a pass of their own, after the faster ones.
kernels=(full_table kernels signal_overflow signals)
slow=(broken_ring cores forks parallel races server signals)

command -v cargo-mutants >/dev/null || cargo install --quiet --locked cargo-mutants

work=$PWD/target/mutants
tree=$work/tree
mkdir -p "$work"
# One run at a time, as all use the same copy of the sources.
exec 9>"$work/lock"
flock -n 9 || { echo "ci/mutants.sh is already running" >&2; exit 1; }
rm -rf "$tree"
mkdir "$tree"
# tar -m makes the files newer than the build of the last mutant.
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ ! -e "$file" ] || printf '%s\0' "$file"
done | tar --null -T - -c | tar -xm -C "$tree"

# All mutants, and the selected ones. (`exclude_re` does not apply to struct fields, so tests are excluded
# here again.)
all=$work/all
selected=$work/selected
cargo mutants --dir "$tree" --workspace --list | grep -vE '\b(tests|models)::' | sort >"$all"
if [ -n "$names" ]; then
    sort -u "$names" >"$selected"
    unknown=$(comm -23 "$selected" "$all")
    [ -z "$unknown" ] || { printf 'no such mutant:\n%s\n' "$unknown" >&2; exit 1; }
    name=$(basename "$names")
else
    cp "$all" "$selected"
    name=all
fi
if [ -n "$of_crate" ]; then
    grep "^$(directory "$of_crate")/" "$selected" >"$selected.crate" || { echo "no mutant of $of_crate" >&2; exit 1; }
    mv "$selected.crate" "$selected"
    name=$of_crate-$name
fi
# Every crate of .cargo/mutants.toml needs a suite here, or its mutants would be dropped.
without=$(cut -d/ -f1,2 "$selected" | sort -u | grep -vxF -f <(for crate in "${crates[@]}"; do directory "$crate"; done) || true)
[ -z "$without" ] || { printf 'ci/mutants.sh has no tests for:\n%s\n' "$without" >&2; exit 1; }
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
        }' "$selected" >"$selected.sample"
    mv "$selected.sample" "$selected"
    name=${of_crate:+$of_crate-}sample-$sample-seed-$seed
fi
if [ -n "$shard" ]; then
    awk -v k="${shard%/*}" -v n="${shard#*/}" 'NR % n == k' "$selected" >"$selected.shard"
    mv "$selected.shard" "$selected"
    name=$name-shard-${shard%/*}-of-${shard#*/}
fi
results=$work/$name.results
: >"$results"

export CARGO_TARGET_DIR=$work/build
# Limits the memory of a mutant.
ulimit -v $((12 << 20))

# run CRATE PASS FILE: tests the mutants listed in the file, and records the outcomes.
run() {
    local crate=$1 pass=$2 file=$3 begin status=0 outcome out=$work/out/mutants.out args modules
    read -rd '' -a args < <(suite "$crate" "$pass") || true
    read -ra modules < <(modules "$crate" "$pass") || true
    (cd "$tree" && cargo test --quiet --profile mutants "${args[@]}" -- "${modules[@]}") >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; echo "the tests fail on unmutated code: $crate, $pass" >&2; exit 1; }
    begin=$SECONDS
    # Marks unselected mutants as caught, as --re does not filter mutants of fields.
    rm -rf "$work/out"
    mkdir -p "$out"
    cargo mutants --dir "$tree" --workspace --list | sort | comm -23 - <(sort "$file") >"$out/caught.txt"
    # shellcheck disable=SC2046
    cargo mutants --dir "$tree" --in-place --workspace --output "$work/out" --iterate --baseline skip \
        --timeout $test_timeout --build-timeout $build_timeout --colors never \
        --test-package "${args[1]}" $(printf -- '--cargo-arg=%s ' "${args[@]:2}") -- -- "${modules[@]}" \
        >"$work/log" 2>&1 || status=$?
    case $status in
        0 | 2 | 3) ;;
        *) cat "$work/log" >&2; echo "cargo mutants failed with status $status: $crate, $pass" >&2; exit 1 ;;
    esac
    # A linker error is not caused by a mutant.
    ! grep -lE '^error: linking with' "$out"/log/* >&2 || exit 1
    for outcome in caught timeout unviable; do
        sed "s/^/$outcome\t$pass\t/" "$out/$outcome.txt" >>"$results"
    done
    cp "$out/missed.txt" "$work/missed"
    printf '%-12s %-11s %4d mutants, %4d survived, %5d s\n' "$crate" "$pass" "$(wc -l <"$file")" \
        "$(wc -l <"$work/missed")" $((SECONDS - begin))
}

for crate in "${crates[@]}"; do
    grep "^$(directory "$crate")/" "$selected" >"$work/survivors" || continue
    for pass in $(passes "$crate"); do
        [ -s "$work/survivors" ] || break
        run "$crate" "$pass" "$work/survivors"
        mv "$work/missed" "$work/survivors"
    done
    sed "s/^/missed\t-\t/" "$work/survivors" >>"$results"
done
awk -F'\t' '$1 == "missed" { print $3 }' "$results" | sort >"$work/$name.survivors"
table "$results"
echo "survivors: target/mutants/$name.survivors"
