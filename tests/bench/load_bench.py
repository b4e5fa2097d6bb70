#!/usr/bin/env python3
"""Loads a large synthetic checkpoint with the real server, and compares with reading its bytes.

usage: load_bench.py [--build DIR] [--dialect NAME,...] [--gib 2] [--shards 3] [--rounds 5] [--dir DIR]

Each round reads the shards from the page cache (one thread, read() of 1 MiB), loads the checkpoint twice,
and unloads it each time. The second load counts: a virtual machine may have to fetch memory that was not in
use from its host, which is no work of the loader. Speeds are of the bytes of the files; that of a load is
what the server logs for the whole call, opening the checkpoint included. "beside weights" is the peak of
resident memory above the start, less what the weights take. Speeds are the best of the rounds, memory is
the worst.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import load_checkpoint

MIB = 1 << 20


def status_bytes(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(rf"{field}:\s+(\d+) kB", f.read()).group(1)) * 1024


def read_seconds(paths):
    buffer = bytearray(MIB)
    begin = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as f:
            while f.readinto(buffer):
                pass
    return time.perf_counter() - begin


class Server:
    def __init__(self, build, root):
        self.nibble = os.path.join(build, "client/cpp/cli/nibble")
        ports = os.path.join(root, "ports")
        self.log_path = os.path.join(root, "log")
        self.process = subprocess.Popen(
            [os.path.join(build, "server/nibbled"), "--backend=cpu", "--listen=127.0.0.1:0",
             "--control-listen=127.0.0.1:0", "--metrics-listen=", f"--port-file={ports}",
             f"--weights-root={root}"], stderr=open(self.log_path, "wb"))
        while not os.path.exists(ports):
            if self.process.poll() is not None:
                sys.exit(f"nibbled ended; its log is {self.log_path}")
            time.sleep(0.02)
        with open(ports, encoding="ascii") as f:
            self.control = re.search(r"control=(\d+)", f.read()).group(1)

    def call(self, *arguments):
        out = subprocess.run([self.nibble, f"--control=127.0.0.1:{self.control}", "--json",
                              *arguments], capture_output=True, check=True)
        return json.loads(out.stdout)

    def load_seconds(self, name):
        self.call("load", name, name)
        with open(self.log_path, encoding="utf-8") as f:
            return int(re.findall(r"load_done.*?\bms=(\d+)", f.read())[-1]) / 1000

    def stop(self):
        self.process.terminate()
        self.process.wait()


def measure(arguments, dialect, root):
    directory = os.path.join(root, dialect)
    os.mkdir(directory)
    paths = load_checkpoint.write_checkpoint(directory, dialect, int(arguments.gib * (1 << 30)),
                                             arguments.shards)
    size = sum(os.path.getsize(path) for path in paths)
    server = Server(arguments.build, root)
    pid = server.process.pid
    rows = []
    try:
        start = status_bytes(pid, "VmRSS")
        for _ in range(arguments.rounds):
            read = read_seconds(paths)
            server.load_seconds(dialect)
            server.call("unload", dialect)
            with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as f:
                f.write("5")  # forgets the peak
            load = server.load_seconds(dialect)
            peak = status_bytes(pid, "VmHWM")
            weights = sum(w["device_bytes"] for w in server.call("list")["weights"])
            server.call("unload", dialect)
            rows.append((size / read / 1e9, size / load / 1e9, (peak - start) / MIB, (peak - start - weights) / MIB,
                         (status_bytes(pid, "VmRSS") - start) / MIB))
    finally:
        server.stop()
        for path in paths:
            os.remove(path)
    read, load, peak, beside, after = [max(column) for column in zip(*rows)]
    print(f"{dialect:<16}{read:>10.2f}{load:>10.2f}{load / read:>8.0%}{peak:>12.0f}{beside:>16.0f}"
          f"{after:>15.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--dialect", default=",".join(load_checkpoint.DIALECTS))
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", help="where the checkpoint is written; default: the system's temporary")
    arguments = parser.parse_args()
    print(f"{'dialect':<16}{'read GB/s':>10}{'load GB/s':>10}{'ratio':>8}{'peak MiB':>12}"
          f"{'beside weights':>16}{'after unload':>15}")
    for dialect in arguments.dialect.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as root:
            measure(arguments, dialect, root)


if __name__ == "__main__":
    main()
