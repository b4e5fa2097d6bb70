#!/usr/bin/env python3
"""Measures the transport: the server's own services over an executor that answers at once.

usage: tests/bench/transport.py [--build DIR] [--seconds S] [--repeats N] [--json FILE]

Every number is the median over the repeats, which take turns, so that a busy moment of the machine meets
all of them; so is every ratio, of two that follow one another. Servers and callers are processes of their own; those called *_malloc run on the C library's
allocator. Build the two peers first: cmake --build --preset release --target transport_peer
transport_peer_malloc
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SMALL_ROWS = 1    # 8 KiB in and out
LARGE_ROWS = 512  # 4 MiB in and out


class Server:
    def __init__(self, peer, mode, addresses):
        self.process = subprocess.Popen([peer, "serve", mode, ",".join(addresses)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"transport.py: the {mode} server did not start")

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def call(server, peer, mode, address, rows, clients, seconds):
    before = server.cpu_seconds()
    done = subprocess.run([peer, "call", mode, address, str(rows), str(clients), str(seconds)],
                          stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    # Also of the calls before the measurement began.
    result["server_cpu_us"] = (server.cpu_seconds() - before) * 1e6 / result.pop("all_calls")
    return result


def median_of(runs):
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--build", default=os.path.join(root, "build", "release"))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", help="where the numbers are written")
    options = parser.parse_args()
    bench = os.path.join(options.build, "tests", "bench")
    ours, malloc = (os.path.join(bench, name) for name in ("transport_peer", "transport_peer_malloc"))

    directory = tempfile.mkdtemp(prefix="nibble-transport-")
    address = {name: f"unix:{directory}/{name}" for name in ("nibble", "bare", "bare_malloc")}
    tcp = {name: f"127.0.0.1:{47310 + i}" for i, name in enumerate(address)}
    servers = {"nibble": Server(ours, "nibble", [tcp["nibble"], address["nibble"]]),
               "bare": Server(ours, "bare", [tcp["bare"], address["bare"]]),
               "bare_malloc": Server(malloc, "bare", [tcp["bare_malloc"], address["bare_malloc"]])}

    # name: (server, peer of the caller, mode, address, rows, clients)
    plan = {}
    nibble = servers["nibble"]
    for clients in (1, 16, 64):
        for name, mode, where in (("matmul", "matmul", "nibble"), ("echo", "echo", "nibble"),
                                  ("bare_echo", "echo", "bare"), ("stream", "stream", "nibble")):
            plan[f"{name}_8KiB_{clients}"] = (
                servers[where], ours, mode, tcp[where], SMALL_ROWS, clients)
    plan["matmul_8KiB_1_unix"] = (nibble, ours, "matmul", address["nibble"], SMALL_ROWS, 1)
    plan["shared_8KiB_1"] = (nibble, ours, "shared", address["nibble"], SMALL_ROWS, 1)
    plan["matmul_4MiB_1"] = (nibble, ours, "matmul", tcp["nibble"], LARGE_ROWS, 1)
    plan["matmul_4MiB_1_unix"] = (nibble, ours, "matmul", address["nibble"], LARGE_ROWS, 1)
    plan["echo_4MiB_1"] = (nibble, ours, "echo", tcp["nibble"], LARGE_ROWS, 1)
    plan["shared_4MiB_1"] = (nibble, ours, "shared", address["nibble"], LARGE_ROWS, 1)
    plan["protobuf_malloc_4MiB_1"] = (
        servers["bare_malloc"], malloc, "protobuf", tcp["bare_malloc"], LARGE_ROWS, 1)

    runs = {name: [] for name in plan}
    try:
        for _ in range(options.repeats):
            for name, arguments in plan.items():
                runs[name].append(call(*arguments, options.seconds))
    finally:
        for server in servers.values():
            server.stop()
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)

    results = {name: median_of(some) for name, some in runs.items()}
    for name, result in results.items():
        print(f"{name:24} {result['calls_per_s']:10.1f} calls/s   p50 {result['p50_us']:10.1f} us   "
              f"p99 {result['p99_us']:10.1f} us   server CPU {result['server_cpu_us']:8.1f} us/call")

    def ratio(key, over, under):
        return statistics.median(a[key] / b[key] for a, b in zip(runs[over], runs[under]))

    # (what, value, bound, whether the value may be at most the bound or at least)
    targets = []
    for clients in (1, 16, 64):
        targets.append((f"matmul / echo, calls/s, 8 KiB, {clients} clients",
                        ratio("calls_per_s", f"matmul_8KiB_{clients}", f"echo_8KiB_{clients}"), 0.85, "at least"))
        targets.append((f"echo / bare echo, calls/s, 8 KiB, {clients} clients",
                        ratio("calls_per_s", f"echo_8KiB_{clients}", f"bare_echo_8KiB_{clients}"), 1.0, "at least"))
    targets.append(("matmul / echo, p50, 8 KiB, 1 client",
                    ratio("p50_us", "matmul_8KiB_1", "echo_8KiB_1"), 1.15, "at most"))
    targets.append(("matmul / protobuf echo on malloc, p50, 4 MiB, 1 client",
                    ratio("p50_us", "matmul_4MiB_1", "protobuf_malloc_4MiB_1"), 0.1, "at most"))
    best_socket = min(("matmul_4MiB_1", "matmul_4MiB_1_unix"), key=lambda name: results[name]["p50_us"])
    targets.append(("shared memory / best socket, p50, 4 MiB, 1 client",
                    ratio("p50_us", "shared_4MiB_1", best_socket), 1 / 3, "at most"))
    for what, value, bound, direction in targets:
        met = value <= bound if direction == "at most" else value >= bound
        print(f"{what:56} {value:7.3f}   {direction} {bound:.3f}   {'met' if met else 'MISSED'}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"results": results,
                       "targets": [dict(zip(("what", "value", "bound", "direction"), target))
                                   for target in targets]}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
