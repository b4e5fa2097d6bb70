#!/usr/bin/env bash
# Tests and measures the CUDA backend on this machine's GPU.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/bench/gpu.sh [--binaries DIR] [--output DIR] [--no-conformance] [--no-sanitizer] [--no-bench]
                          [--no-end-to-end]

  --binaries DIR    where conformance_test, gpu_bench, nibbled, nibble, nibble-load and libnibble_cuda.so are: a directory
                    with all of them, or a build tree; default: build/cuda-release
  --output DIR      where logs and results go; default: build/gpu
  --no-conformance, --no-sanitizer, --no-bench, --no-end-to-end
                    leave a step out

Four steps, each of which fails the script: the conformance suite on the GPU; a reduced suite under
compute-sanitizer (memcheck, racecheck, initcheck, synccheck), which must have run kernels; gpu_bench, which
checks answers and times matmuls in turn with cuBLAS (bench.json); end_to_end.py, which measures a server with 1, 16 and 64 callers over
TCP and a Unix socket, calls of 512 rows against Echo, and checks nibble_bandwidth_ratio (end_to_end.json,
end_to_end.md). cuBLASLt (libcublasLt.so.13) must be where the loader finds it.
END
}

binaries=build/cuda-release output=build/gpu conformance=true sanitizer=true bench=true end_to_end=true
while [[ $# -gt 0 ]]; do
  case $1 in
    --binaries) binaries=${2:?--binaries needs a directory}; shift ;;
    --output) output=${2:?--output needs a directory}; shift ;;
    --no-conformance) conformance=false ;;
    --no-sanitizer) sanitizer=false ;;
    --no-bench) bench=false ;;
    --no-end-to-end) end_to_end=false ;;
    -h | --help) usage; exit 0 ;;
    *) echo "gpu.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

find_binary() { # NAME
  local found
  found=$(find "$binaries" -name "$1" -type f -print -quit)
  [[ -n $found ]] || { echo "gpu.sh: no $1 in $binaries" >&2; exit 1; }
  realpath "$found"
}

NIBBLE_CUDA_MODULE=$(find_binary libnibble_cuda.so)
export NIBBLE_CUDA_MODULE NIBBLE_TEST_BACKEND=cuda
mkdir -p "$output"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader

status=0
if $conformance; then
  echo '== conformance'
  "$(find_binary conformance_test)" > "$output/conformance.log" 2>&1 || status=$?
  grep -E '^\[  (PASSED|FAILED|SKIPPED) ' "$output/conformance.log" || true
  if [[ $status -ne 0 ]]; then
    grep -A4 'Failure' "$output/conformance.log" | head -40
    exit 1
  fi
fi

sanitize() { # TOOL NAME FILTER
  local log="$output/$2.log" status=0
  # Of this project's kernels alone. That they ran shows in the tests: outputs start as NaN, and a sanitizer
  # that cannot attach makes every CUDA call fail.
  compute-sanitizer --tool "$1" --kernel-name kns=nibble --error-exitcode 9 \
    "$(find_binary conformance_test)" --gtest_filter="${3#:}" > "$log" 2>&1 || status=$?
  if [[ $status -ne 0 ]] || ! grep -qE '^\[  PASSED  \] [1-9][0-9]* tests?' "$log" ||
    ! grep -qE '(ERROR|RACECHECK) SUMMARY: 0 ' "$log"; then
    tail -n 20 "$log"
    echo "$2: failed, exit code $status"
    return 1
  fi
  echo "$2: $(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' "$log"), $(grep -oE '[0-9]+ tests?\.$' "$log" | tail -n 1)"
}

if $sanitizer; then
  echo '== compute-sanitizer'
  pids=()
  shapes='' others='' tiles=''
  for variant in int4_group_128 int4_group_32_zp nf4_nested fp8_channel_bias fp8_block; do
    shapes+=":*MatmulTest.MatchesTheOracleForEveryShape/cuda_$variant"
    others+=":*DequantizeTest.*cuda_$variant:*MatmulBitsTest.SpecialRowsStayInTheirRows/cuda_$variant"
    others+=":*MatmulCandidatesTest.RepeatAndKeepRowsApart/cuda_$variant"
  done
  # Of each division of tiles one that is small.
  for tile in 1000x1152_9 4300x200_65 4300x200_66 8600x256_33 66x14336_33 2900x40_900 22600x512_17 20000x512_33; do
    tiles+=":*MatmulSharedTilesTest*/cuda*_$tile"
  done
  rows=':*ARowDependsOnNothingElse*cuda_int4_group_128:*ARowDependsOnNothingElse*cuda_fp8_channel_bias'
  tables=':*ARowDependsOnNothingElse*cuda_nf4_nested'
  rows+=':*GraphTest.EveryReplayReadsTheRowsOfThen*:*UnevenGroups*'
  rows+=':*QuantizesAsTheOutput*cuda_fp8_block:*IdentityActivations*cuda_int4_act_order'
  rows+=':*RowOpsTest.*EqualsNormThenQuantize*:*RowOpsTest.*EqualsSiluMulThenQuantize*'
  for tool in memcheck initcheck synccheck; do
    sanitize $tool $tool "$shapes$others$tiles$rows$tables" & pids+=($!)
  done
  # It takes a hundred times as long: in parts, and without the slowest tests.
  IFS=: read -ra filters <<< "${shapes#:}"
  for filter in "${filters[@]}"; do
    sanitize racecheck "racecheck_${filter##*cuda_}" "$filter" & pids+=($!)
  done
  sanitize racecheck racecheck_tiles "$tiles" & pids+=($!)
  sanitize racecheck racecheck_rows "$rows" & pids+=($!)
  sanitize racecheck racecheck_tables "$tables" & pids+=($!)
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  [[ $status -eq 0 ]] || exit 1
fi

if $bench; then
  echo '== measurements'
  commit=${NIBBLE_COMMIT:-$(git rev-parse HEAD 2> /dev/null || echo unknown)}
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
  "$(find_binary gpu_bench)" --json "$output/bench.json" --driver "$driver" --commit "$commit"
fi

if $end_to_end; then
  echo '== end to end'
  python3 "$(dirname "${BASH_SOURCE[0]}")/end_to_end.py" --nibbled "$(find_binary nibbled)" \
    --nibble "$(find_binary nibble)" --load "$(find_binary nibble-load)" --output "$output"
fi
