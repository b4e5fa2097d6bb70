#!/usr/bin/env bash
# Runs one fuzz target on its seeds: tests/fuzz/run.sh BINARY SEEDS RUNS [FLAG...]
# A fixed number of inputs, the same every time; with NIBBLE_FUZZ_SECONDS as long as that instead, on top of
# what earlier such runs have found. Inputs that fail are kept beside the binary, in findings/.
set -euo pipefail
binary=$1 seeds=$2 runs=$3
shift 3

name=$(basename "$seeds")
findings=$(dirname "$binary")/findings
mkdir -p "$findings"
# A larger heap for one input than its bytes and 64 MiB is a finding, and so is a single allocation over it.
flags=(-malloc_limit_mb=65 -rss_limit_mb=1024 -timeout=30 -max_len=32768 -print_final_stats=1
       -artifact_prefix="$findings/$name-" "$@")
if [[ -n ${NIBBLE_FUZZ_SECONDS:-} ]]; then
  corpus=$(dirname "$binary")/corpus/$name
  mkdir -p "$corpus"
  exec "$binary" "${flags[@]}" -max_total_time="$NIBBLE_FUZZ_SECONDS" "$corpus" "$seeds"
fi
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
"$binary" "${flags[@]}" -seed=1 -runs="$runs" "$corpus" "$seeds"
