#!/usr/bin/env bash
# Installs the packages of the named groups that are missing: deploy/packages.sh GROUP...
# A group is a list deploy/packages/GROUP.txt, or `promtool`. For Debian 12, Ubuntu 24.04 and later;
# asks for root (or sudo) only if there is something to install.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools="$here/../build/tools"

as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "packages.sh: needs root or sudo to run: $*" >&2
    return 1
  fi
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 "$@"
}

index_is_fresh=false
refresh_index() {
  $index_is_fresh || apt update
  index_is_fresh=true
}

is_installed() {
  [[ $(dpkg-query -W -f='${Status}' "$1" 2>/dev/null) == "install ok installed" ]]
}

install_group() {
  local list="$here/packages/$1.txt" missing=() package
  [[ -r $list ]] || { echo "packages.sh: no group '$1': $list does not exist" >&2; return 1; }
  while read -r package; do
    is_installed "$package" || missing+=("$package")
  done <"$list"
  [[ ${#missing[@]} -eq 0 ]] && return
  echo "packages.sh: installing ${missing[*]}"
  refresh_index
  apt install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# The tests want promtool alone. Installing its package would leave a Prometheus server running on a
# machine with systemd, so the one program is taken out of the package instead.
fetch_promtool() {
  if command -v promtool >/dev/null || [[ -x $tools/promtool ]]; then
    return
  fi
  echo "packages.sh: unpacking promtool into build/tools"
  local scratch
  scratch=$(mktemp -d)
  refresh_index
  (cd "$scratch" && apt-get -qq -o APT::Sandbox::User=root download prometheus && dpkg-deb -x prometheus_*.deb .)
  install -D "$scratch/usr/bin/promtool" "$tools/promtool"
  rm -rf "$scratch"
}

for group in "$@"; do
  if [[ $group == promtool ]]; then
    fetch_promtool
  else
    install_group "$group"
  fi
done
