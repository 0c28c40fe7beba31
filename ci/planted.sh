#!/usr/bin/env bash
# Plants each bug of benches/planted in a copy of the sources; the simulation has to find it.
. "$(dirname "$0")/setup.sh"

# With the features of the workspace, so that cargo builds no dependency again.
cargo test --workspace --quiet --test planted -- --ignored
