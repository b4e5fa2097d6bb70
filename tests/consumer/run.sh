#!/usr/bin/env bash
# Installs a build into a prefix of its own, then configures, builds and runs project/ against it.
# usage: run.sh CMAKE BUILD_DIR SCRATCH_DIR [CMAKE_ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cmake=$1 build=$2 scratch=$3
shift 3

rm -rf "$scratch"
mkdir -p "$scratch"
"$cmake" --install "$build" --prefix "$scratch/prefix" >"$scratch/install.log"
"$cmake" -S "$here/project" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" "$@"
"$cmake" --build "$scratch/build" -j 2
for program in "$scratch"/build/use_*; do
  "$program"
done
