"""A nibbled of a build as a child process, and the nibble and nibble-load commands pointed at it."""

import json
import os
import platform
import random
import signal
import struct
import subprocess
import tempfile
import time

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


class Failure(Exception):
    """A program that did not do what it was started for."""


def write_matrix(path, rows, cols, seed):
    """A safetensors file with the BF16 matrix `weight`: signs and mantissas at random, magnitudes from 2^-8 to
    2^-6, about those of a linear layer."""
    source = random.Random(seed)
    count = rows * cols
    # The upper byte of a BF16 holds the sign and seven bits of the exponent, the lower one the last
    # exponent bit and the mantissa.
    upper = bytes(0x3C | (i & 0x80) if i & 1 else 0x3B | (i & 0x80) for i in range(256))
    header = json.dumps({
        "weight": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [0, 2 * count]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        block = 1 << 20
        for begin in range(0, count, block):
            size = min(block, count - begin)
            data = bytearray(2 * size)
            data[0::2] = source.randbytes(size)
            data[1::2] = source.randbytes(size).translate(upper)
            file.write(data)


def machine():
    """What a reader of numbers has to know of where they come from."""
    cpu = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def commit():
    """The commit of the working directory, or what NIBBLE_COMMIT says where it is no checkout."""
    run = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return os.environ.get("NIBBLE_COMMIT") or run.stdout.strip() or "unknown"


def supports(nibbled, flag):
    """Whether this nibbled knows a flag."""
    run = subprocess.run([nibbled, "--help"], capture_output=True, text=True, check=False)
    return flag in run.stdout + run.stderr


class Server:
    """Starts on free ports; use it as a context."""

    def __init__(self, build, flags=()):
        self.nibbled = os.path.join(build, "server/nibbled")
        self._nibble = os.path.join(build, "client/cpp/cli/nibble")
        self._nibble_load = os.path.join(build, "client/cpp/load/nibble-load")
        self._flags = list(flags)
        self._directory = tempfile.TemporaryDirectory(prefix="nibble-bench-")
        self._process = None
        self._ports = {}
        self._loads = 0

    @property
    def pid(self):
        return self._process.pid

    @property
    def scratch(self):
        return self._directory.name

    def add_flag(self, flag):
        """Before the start."""
        self._flags.append(flag)

    def __enter__(self):
        port_file = os.path.join(self.scratch, "ports")
        with open(os.path.join(self.scratch, "log"), "wb") as log:
            self._process = subprocess.Popen(
                [self.nibbled, "--listen=127.0.0.1:0", "--control-listen=127.0.0.1:0",
                 "--metrics-listen=127.0.0.1:0", f"--port-file={port_file}", "--drain-grace-ms=0"]
                + self._flags, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not os.path.exists(port_file) or os.path.getsize(port_file) == 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise Failure(f"nibbled does not listen; its log ends: {self.log()[-2000:]}")
            time.sleep(0.05)
        with open(port_file, encoding="utf-8") as file:
            self._ports = dict(line.strip().split("=") for line in file)
        return self

    def __exit__(self, *_):
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def log(self):
        with open(os.path.join(self.scratch, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def alive(self):
        return self._process.poll() is None

    def _addresses(self):
        return ["--server", f"127.0.0.1:{self._ports['data']}",
                "--control", f"127.0.0.1:{self._ports['control']}"]

    def upload_int4(self, name, rows, cols, seed=1, extra=()):
        """Quantizes a matrix of random values to INT4, group 128, under `name`."""
        path = os.path.join(self.scratch, "matrix.safetensors")
        write_matrix(path, rows, cols, seed)
        run = subprocess.run(
            [self._nibble, *self._addresses(), "upload", name, "--matrix", path, "--format", "int4", *extra],
            capture_output=True, text=True, check=False)
        os.remove(path)
        if run.returncode != 0:
            raise Failure(f"nibble upload: {run.stderr.strip()}")

    def start_load(self, *arguments, nice=0):
        """nibble-load in the background; finish_load has its report."""
        self._loads += 1
        report = os.path.join(self.scratch, f"load-{self._loads}.json")
        process = subprocess.Popen(
            ["nice", "-n", str(nice), self._nibble_load, *self._addresses(), "--json", report, *map(str, arguments)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        process.report = report
        return process

    @staticmethod
    def finish_load(process, may_fail=False):
        """The report of a nibble-load that start_load started; with may_fail also of one that ended with an error
        after it was written."""
        err = process.communicate()[1]
        written = os.path.exists(process.report)
        if not written or (process.returncode != 0 and not may_fail):
            raise Failure(f"nibble-load: exit code {process.returncode}: {err.strip()}")
        with open(process.report, encoding="utf-8") as file:
            return json.load(file)

    def load(self, *arguments):
        return self.finish_load(self.start_load(*arguments))


def markdown_table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def duration(microseconds):
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1000:.3g} ms"


def write_reports(directory, name, document, markdown):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
    with open(os.path.join(directory, name + ".md"), "w", encoding="utf-8") as file:
        file.write(markdown)
