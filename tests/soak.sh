#!/usr/bin/env bash
# Builds the release, starts a server, finds the highest rate it serves and runs it at 80 % of that, watching its
# memory, threads and descriptors. Exit code 0 only when no request failed, no answer that was checked was wrong and
# nothing grew. Writes soak.json and soak.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'USAGE'
usage: tests/soak.sh --minutes N [--preset NAME] [--no-build] [OPTION...]

  --minutes N     length of the steady load; fractions are fine
  --preset NAME   build preset; default: release
  --no-build      use what is built
  OPTION          --output DIR, --transport unary|stream, --rows SPEC, --p99-ms MS, --flag FLAG_OF_NIBBLED:
                  see tests/bench/soak.py --help
USAGE
}

preset=release build=true options=()
while [[ $# -gt 0 ]]; do
  case $1 in
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
exec python3 tests/bench/soak.py --build "build/$preset" "${options[@]}"
