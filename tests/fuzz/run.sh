#!/usr/bin/env bash
# Runs a fuzz target: tests/fuzz/run.sh NAME BINARY RUNS SEEDS... [FLAG...]
# A fixed number of inputs, the same every time; with NIBBLE_FUZZ_SECONDS set for as long as that instead, on
# top of what earlier such runs have found. Inputs that fail are kept beside the binary, in findings/.
set -euo pipefail
name=$1 binary=$2 runs=$3
shift 3

place=$(dirname "$binary")
mkdir -p "$place/findings"
# One allocation of more than 64 MiB over the largest input is a finding here; the sum of them is the
# targets' own affair.
flags=(-max_len=32768 -malloc_limit_mb=65 -rss_limit_mb=1024 -timeout=30 -print_final_stats=1
       -artifact_prefix="$place/findings/$name-")

if [[ -n ${NIBBLE_FUZZ_SECONDS:-} ]]; then
  corpus=$place/corpus/$name
  mkdir -p "$corpus"
  exec "$binary" "${flags[@]}" -max_total_time="$NIBBLE_FUZZ_SECONDS" "$corpus" "$@"
fi
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
"$binary" "${flags[@]}" -seed=1 -runs="$runs" "$corpus" "$@"
