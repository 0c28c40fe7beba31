#!/usr/bin/env bash
# Plants each bug of benches/planted in a copy of the sources; the simulation has to find it.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --quiet -p planted -- --ignored
