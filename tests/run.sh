#!/usr/bin/env bash
# Builds everything and runs every test on a fresh Debian 12 or Ubuntu 24.04; packages that are missing
# are installed (root or sudo). The last line is a summary: "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'EOF'
usage: tests/run.sh [--sanitize] [--filter REGEX] [--build-only] [--no-install] [--jobs N]

  (no option)     preset release, every test
  --sanitize      preset cpu-debug (AddressSanitizer with leak checking, UndefinedBehaviorSanitizer), every
                  test; then preset cpu-tsan (ThreadSanitizer), the tests with the label threads
  --filter REGEX  only tests whose name matches
  --build-only    configure and build
  --no-install    do not install packages
  --jobs N        parallel compilations and tests; default: the cores
EOF
}

sanitize=false build_only=false install=true filter='' jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case $1 in
    --sanitize) sanitize=true ;;
    --build-only) build_only=true ;;
    --no-install) install=false ;;
    --filter) filter=${2:?--filter needs a regular expression}; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/run.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

if $install; then
  deploy/packages.sh build test promtool
fi

build() { # PRESET TARGET
  cmake --preset "$1" -DNIBBLE_BUILD_TESTS=ON
  cmake --build --preset "$1" -j "$jobs" --target "$2"
}

reports=() status=0
test_preset() { # PRESET [CTEST_OPTION...]
  local preset=$1 report="$PWD/build/$1/tests.xml"
  shift
  rm -f "$report"
  ctest --preset "$preset" -j "$jobs" --no-tests=ignore --output-junit "$report" "$@" || status=1
  reports+=("$report")
}

if $sanitize; then
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export TSAN_OPTIONS=second_deadlock_stack=1
  presets=(cpu-debug cpu-tsan)
else
  presets=(release)
fi

for preset in "${presets[@]}"; do
  target=all
  [[ $preset != cpu-tsan ]] || target=thread_tests
  build "$preset" $target
done
if $build_only; then
  exit 0
fi
for preset in "${presets[@]}"; do
  selection=()
  [[ -z $filter ]] || selection+=(-R "$filter")
  [[ $preset != cpu-tsan ]] || selection+=(-L threads)
  test_preset "$preset" "${selection[@]}"
done

python3 tests/summary.py "${reports[@]}" || status=1
exit $status
