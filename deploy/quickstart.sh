#!/usr/bin/env bash
# From a clean clone to a running server: installs what is missing, builds, starts nibbled, loads every
# checkpoint of tests/golden, calls every RPC through the nibble command and compares the answers with
# the recorded ones. Exits 0 only if every answer is right.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'EOF'
usage: deploy/quickstart.sh [--keep] [--port N] [--control-port N] [--metrics-port N] [--no-install] [--jobs N]

  --keep            leave the server running and say where it listens
  --port N, --control-port N, --metrics-port N
                    ports on 127.0.0.1; default: any that are free
  --no-install      do not install packages
  --jobs N          parallel compilations; default: the cores
EOF
}

keep=false install=true port=0 control_port=0 metrics_port=0 jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case $1 in
    --keep) keep=true ;;
    --no-install) install=false ;;
    --port) port=${2:?--port needs a number}; shift ;;
    --control-port) control_port=${2:?--control-port needs a number}; shift ;;
    --metrics-port) metrics_port=${2:?--metrics-port needs a number}; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "quickstart.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

scratch=$(mktemp -d "${TMPDIR:-/tmp}/nibble-quickstart.XXXXXX")
log=$scratch/nibbled.log
server_pid='' kept=false

# Drains the server; its exit status.
stop_server() {
  local pid=$server_pid
  [[ -n $pid ]] || return 0
  server_pid=''
  kill -TERM "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null
}

on_exit() {
  local status=$?
  trap - EXIT
  stop_server || true
  if [[ $status -ne 0 ]]; then
    [[ ! -s $log ]] || { echo "--- the server's log ends:"; tail -n 40 "$log"; } >&2
    echo "quickstart.sh: failed; logs are in $scratch" >&2
  elif ! $kept; then
    rm -rf "$scratch"
  fi
  exit $status
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- packages and build
if $install; then
  deploy/packages.sh build quickstart
fi
preset=release
if command -v nvcc >/dev/null && [[ -d kernels/cuda ]]; then
  preset=cuda-release
fi
echo "building preset $preset"
if ! { cmake --preset "$preset" && cmake --build --preset "$preset" -j "$jobs" --target nibbled nibble_cli; } \
  >"$scratch/build.log" 2>&1; then
  echo "quickstart.sh: the build failed; its last lines:" >&2
  tail -n 40 "$scratch/build.log" >&2
  exit 1
fi
nibbled=build/$preset/server/nibbled
nibble=build/$preset/client/cpp/cli/nibble

# --- server
setsid "$nibbled" --listen="127.0.0.1:$port" --control-listen="127.0.0.1:$control_port" \
  --metrics-listen="127.0.0.1:$metrics_port" --port-file="$scratch/ports" \
  --weights-root=tests/golden >"$log" 2>&1 &
server_pid=$!

port_of() { sed -n "s/^$1=//p" "$scratch/ports"; }

deadline=$((SECONDS + 60))
until [[ -s $scratch/ports ]] && "$nibble" --server "127.0.0.1:$(port_of data)" health >/dev/null 2>&1; do
  if ! kill -0 "$server_pid" 2>/dev/null; then
    echo "quickstart.sh: nibbled ended before it served" >&2
    exit 1
  fi
  if ((SECONDS >= deadline)); then
    echo "quickstart.sh: nibbled does not serve after 60 s" >&2
    exit 1
  fi
  sleep 0.1
done
server=127.0.0.1:$(port_of data)
control=127.0.0.1:$(port_of control)
metrics=http://127.0.0.1:$(port_of metrics)/metrics

# --- every RPC
deploy/quickstart.py --nibble "$nibble" --server "$server" --control "$control" --metrics "$metrics" \
  --golden tests/golden

if $keep; then
  cat <<EOF

nibbled is running, process $server_pid (kill $server_pid stops it)
  data plane     $server
  control plane  $control
  metrics        $metrics
  log            $log

  $nibble --server $server --control $control list
EOF
  server_pid='' kept=true
else
  stop_server || { echo "quickstart.sh: nibbled did not drain cleanly" >&2; exit 1; }
  echo "nibbled drained and ended"
fi
