#!/usr/bin/env bash
# Builds the example handlers anew, in Rust and C, compares them with the committed modules, and tests them in the
# sandbox, which compares those in text, and in front of `kv`. ci/handlers.sh --update replaces the committed modules;
# ci/handlers.sh --compare, as in .ci/run, fails where the compilers are others, so that nothing can be compared.
. "$(dirname "$0")/setup.sh"
need clang clang
need wasm-ld lld

rustup target list --installed | grep -qx wasm32-unknown-unknown || rustup target add wasm32-unknown-unknown
handlers=$PWD/examples/handlers
built=$PWD/target/handlers
rm -rf "$built/modules" && mkdir -p "$built/modules"

cargo fmt --manifest-path "$handlers/Cargo.toml" --check
# In its directory, for the flags in its .cargo/config.toml. The bytes of a module depend on cargo's variables, and not on
# the path of the checkout.
(
    unset CARGO_INCREMENTAL RUSTFLAGS CARGO_ENCODED_RUSTFLAGS "${!CARGO_PROFILE_@}" "${!CARGO_BUILD_@}"
    cd "$handlers" && cargo build --quiet --locked --release --examples --target-dir "$built"
)
for source in "$handlers"/*.rs; do
    name=$(basename "$source" .rs)
    cp "$built/wasm32-unknown-unknown/release/examples/$name.wasm" "$built/modules"
done
for source in "$handlers"/*.c; do
    name=$(basename "$source" .c)
    clang --target=wasm32 -O2 -nostdlib -Icrates/ash-guest/include -Wall -Wextra -Werror \
        -Wl,--no-entry,--export=ash_handle,-zstack-size=16384 -Wl,--initial-memory=65536,--max-memory=65536 \
        -Wl,--strip-all -o "$built/modules/$name.wasm" "$source"
done

# Other compilers make other modules.
compilers="$(rustc --version), $(clang --version | sed -n 's/.*\(clang version [0-9.]*\).*/\1/p')"
if [ "${1:-}" = --update ]; then
    export UPDATE_HANDLERS=1 # for the test that compares those in text
    cp "$built/modules"/*.wasm "$handlers"
    echo "$compilers" >"$handlers/compilers"
elif [ "$compilers" = "$(cat "$handlers/compilers")" ]; then
    for module in "$built/modules"/*.wasm; do
        cmp "$module" "$handlers/$(basename "$module")" || { echo "run ci/handlers.sh --update" >&2; exit 1; }
    done
    echo "the committed handlers are those of their sources"
else
    echo "not compared: the committed handlers are of $(cat "$handlers/compilers"), here is $compilers" >&2
    if [ "${1:-}" = --compare ]; then
        echo "install those compilers, or run ci/handlers.sh --update with these" >&2
        exit 1
    fi
fi
# With the features of the workspace, so that cargo builds no dependency again.
export ASH_HANDLERS=$built/modules
cargo test --workspace --quiet --test suite -- example_handlers:: shared_data:: | tee "$built/tests.log"
grep -q 'result: ok. [1-9]' "$built/tests.log"
cargo test --workspace --quiet --test handler | tee "$built/tests.log"
grep -q 'result: ok. [1-9]' "$built/tests.log"
ci/guide.sh
