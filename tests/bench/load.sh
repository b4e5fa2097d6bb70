#!/usr/bin/env bash
# Builds the release and measures how it serves many callers on this machine: 64 callers against one, a caller
# beside a flooding one, the highest rate within a latency target, the shares of echo. Writes load.json and load.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  cat <<'USAGE'
usage: tests/bench/load.sh [--output DIR] [--preset NAME] [--no-build] [OPTION...]

  --output DIR    where load.json and load.md go; default: build/load
  --preset NAME   build preset; default: release
  --no-build      use what is built
  OPTION          --n N, --k K, --seconds S, --p99-ms MS, --flag FLAG_OF_NIBBLED: see tests/bench/load.py --help
USAGE
}

output=build/load preset=release build=true options=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --output) output=${2:?--output needs a directory}; shift ;;
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --no-build) build=false ;;
    -h | --help) usage; exit 0 ;;
    *) options+=("$1") ;;
  esac
  shift
done

if $build; then
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" --target nibbled nibble_cli nibble_load
fi
exec python3 tests/bench/load.py --build "build/$preset" --output "$output" "${options[@]}"
