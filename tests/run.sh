#!/usr/bin/env bash
# Builds everything and runs every test on a fresh Debian 12 or Ubuntu 24.04; packages that are missing
# are installed (root or sudo). The last line is a summary: "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'EOF'
usage: tests/run.sh [--sanitize | --fuzz SECONDS] [--filter REGEX] [--build-only] [--no-install] [--jobs N]

  (no option)     preset release, every test; then preset cpu-fuzz, a short and repeatable run of every
                  fuzz target, where there is a clang++ with libFuzzer (else it is reported as skipped)
  --sanitize      preset cpu-debug (AddressSanitizer with leak checking, UndefinedBehaviorSanitizer), every
                  test; then preset cpu-tsan (ThreadSanitizer), the tests with the label threads
  --fuzz SECONDS  preset cpu-fuzz alone, every fuzz target for as long, on top of what earlier such runs
                  have found
  --filter REGEX  only tests whose name matches
  --build-only    configure and build
  --no-install    do not install packages
  --jobs N        parallel compilations and tests; default: the cores
EOF
}

sanitize=false fuzz_seconds='' build_only=false install=true filter='' jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case $1 in
    --sanitize) sanitize=true ;;
    --fuzz) fuzz_seconds=${2:?--fuzz needs a number of seconds}; shift ;;
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
  deploy/packages.sh fuzz || echo "tests/run.sh: cannot install what the fuzz targets need" >&2
fi

# The fuzz targets need a compiler of their own.
has_libfuzzer() {
  local scratch status=0
  scratch=$(mktemp -d)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o "$scratch/probe" &>"$scratch/log" || status=1
  rm -rf "$scratch"
  return $status
}

build() { # PRESET TARGET
  local tests=ON
  [[ $1 != cpu-fuzz ]] || tests=OFF
  cmake --preset "$1" -DNIBBLE_BUILD_TESTS=$tests
  cmake --build --preset "$1" -j "$jobs" --target "$2"
}

reports=() skipped=() status=0
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
  export TSAN_OPTIONS="second_deadlock_stack=1 suppressions='$PWD/tests/thread_sanitizer.supp'"
  presets=(cpu-debug cpu-tsan)
elif [[ -n $fuzz_seconds ]]; then
  export NIBBLE_FUZZ_SECONDS=$fuzz_seconds
  presets=(cpu-fuzz)
else
  presets=(release)
  # Their names begin with "fuzz."; nothing else is worth the build.
  if [[ -z $filter || $filter == *fuzz* ]]; then
    if has_libfuzzer; then
      presets+=(cpu-fuzz)
    else
      skipped+=(--skipped "the fuzz targets: no clang++ with libFuzzer")
    fi
  fi
fi

for preset in "${presets[@]}"; do
  target=all
  [[ $preset != cpu-tsan ]] || target=thread_tests
  [[ $preset != cpu-fuzz ]] || target=fuzzers
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

python3 tests/summary.py "${skipped[@]}" "${reports[@]}" || status=1
exit $status
