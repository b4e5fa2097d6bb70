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

# The files of an input, in memory where there is a file system for it, and what a fixed run learns.
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

if [[ -n ${NIBBLE_FUZZ_SECONDS:-} ]]; then
  corpus=$place/corpus/$name
  flags+=(-max_total_time="$NIBBLE_FUZZ_SECONDS")
else
  corpus=$scratch/corpus
  flags+=(-seed=1 -runs="$runs")
fi
mkdir -p "$corpus"
"$binary" "${flags[@]}" "$corpus" "$@"
