#!/usr/bin/env bash
# Builds the release and lays out what a runtime image needs: deploy/stage.sh NIBBLE_CUDA DIRECTORY
#   DIRECTORY/files/        files to copy to /
#   DIRECTORY/packages.txt  packages of this distribution that own the libraries they load
set -euo pipefail
cuda=$1 stage=$2
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cmake --preset release -DNIBBLE_CUDA="$cuda" -DNIBBLE_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/usr/local
cmake --build --preset release
DESTDIR="$stage/files" cmake --install build/release --strip
rm -rf "$stage/files/usr/local/include" "$stage/files/usr/local/lib/cmake"
find "$stage/files/usr/local/lib" -name '*.a' -delete

# dpkg knows libraries of the base system by the path they had before /lib became a link to /usr/lib.
owner_of() {
  local owner
  owner=$(dpkg-query -S "$1" 2>/dev/null || dpkg-query -S "${1#/usr}")
  echo "${owner%%:*}"
}

mapfile -t loaders < <(find "$stage/files/usr/local/bin" "$stage/files/usr/local/lib" -type f \( -perm -u+x -o -name '*.so' \))
libraries=$(ldd "${loaders[@]}")
if grep 'not found' <<<"$libraries"; then
  echo "stage.sh: a library is missing" >&2
  exit 1
fi
sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' <<<"$libraries" | sort -u | while read -r library; do
  owner_of "$(realpath "$library")"
done | sort -u >"$stage/packages.txt"
