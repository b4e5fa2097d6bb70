#!/usr/bin/env python3
"""Measures a server on this machine end to end: starts nibbled, uploads layers, lets callers multiply one row
(or --rows) a call, and writes end_to_end.json and end_to_end.md. With --load, calls of many rows are measured
against Echo of the same bytes too. Exits 1 when a call fails, or when nibble_bandwidth_ratio is not the bytes over
the device time that the server's own counters and the replies tell."""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

LAYERS = (("nf4", 4096, 4096), ("nf4", 28672, 4096), ("int4", 28672, 4096))
PREFILL = ("int4", 4096, 14336)
RATIO_TOLERANCE = 0.05
START_SECONDS = 120


class Failure(Exception):
    pass


def write_matrix(path, rows, cols, seed):
    """A safetensors file with the random BF16 matrix `w`: magnitudes of 2^-7 to 2, either sign."""
    source = random.Random(seed)
    block = bytearray(2 * 16 * cols)
    block[0::2] = source.randbytes(16 * cols)
    exponents = bytes(0x3C + i % 4 + (0x80 if i & 0x40 else 0) for i in range(256))
    block[1::2] = source.randbytes(16 * cols).translate(exponents)
    header = json.dumps(
        {"w": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [0, 2 * rows * cols]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(rows // 16):
            file.write(block)


class Server:
    """nibbled with its data plane on TCP or on a Unix socket, and the nibble command pointed at it."""

    def __init__(self, options, unix, scratch):
        self._scratch = scratch
        self._ports = os.path.join(scratch, "ports")
        self._log = open(os.path.join(options.output, "end_to_end.server.log"), "ab")
        socket = "unix:" + os.path.join(scratch, "data.sock")
        self._process = subprocess.Popen(
            [options.nibbled, "--listen=" + (socket if unix else "127.0.0.1:0"),
             "--control-listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0",
             "--port-file=" + self._ports, "--backend=" + options.backend, "--drain-grace-ms=0", "--enable-echo",
             *options.server_flag], stderr=self._log, stdout=self._log)
        try:
            ports = self._wait_for_ports()
            self._metrics = f"http://127.0.0.1:{ports['metrics']}/metrics"
            self._command = [
                options.nibble, "--server", socket if unix else f"127.0.0.1:{ports['data']}",
                "--control", f"127.0.0.1:{ports['control']}", "--json"]
            self.addresses = self._command[1:5]
        except Failure:
            self.stop()
            raise

    def _wait_for_ports(self):
        end = time.monotonic() + START_SECONDS
        while not os.path.exists(self._ports):
            if self._process.poll() is not None:
                raise Failure(f"nibbled ended with {self._process.returncode}")
            if time.monotonic() > end:
                raise Failure(f"nibbled does not listen after {START_SECONDS} s")
            time.sleep(0.02)
        return dict(line.split("=") for line in pathlib.Path(self._ports).read_text().split())

    def stop(self):
        self._process.terminate()
        self._process.wait(timeout=60)
        if os.path.exists(self._ports):
            os.unlink(self._ports)
        self._log.close()

    def call(self, *arguments):
        run = subprocess.run(
            self._command + list(arguments), capture_output=True, text=True, timeout=600, check=False)
        if run.returncode != 0:
            raise Failure(f"nibble {' '.join(arguments)}: exit {run.returncode}: {run.stderr.strip()}")
        return json.loads(run.stdout)

    def metrics(self):
        """Sums over labels by metric name, and the parts of a name that has some."""
        with urllib.request.urlopen(self._metrics, timeout=10) as reply:
            text = reply.read().decode()
        values = {}
        for name, labels, value in re.findall(r"^(nibble_\w+)(\{.*\})? (\S+)$", text, re.MULTILINE):
            if name.startswith("nibble_rpc_") and 'method="Matmul"' not in labels:
                continue
            if 'le="' not in labels:
                values[name] = values.get(name, 0.0) + float(value)
        return values


def mean(before, after, name):
    count = after[name + "_count"] - before.get(name + "_count", 0.0)
    return (after[name + "_sum"] - before.get(name + "_sum", 0.0)) / count


def measure(server, weight, callers, rows, seconds):
    """One closed loop: rates and latencies of the callers, and where the time of a call goes."""
    before = server.metrics()
    bench = server.call(
        "bench", "--weight", weight, "--rows", str(rows), "--concurrency", str(callers),
        "--seconds", str(seconds))
    after = server.metrics()
    if bench["errors"]:
        raise Failure(f"{weight}, {callers} callers: {bench['errors']}")
    call_us = 1e6 * callers / bench["calls_per_s"]
    served_us = 1e6 * mean(before, after, "nibble_rpc_duration_seconds")
    batch_us = 1e6 * mean(before, after, "nibble_compute_duration_seconds")
    # Of the replies: a call waits for the whole of its batch.
    queue_us, kernel_us = bench["mean_queue_us"], bench["mean_compute_us"]
    batches = after["nibble_batches_total"] - before.get("nibble_batches_total", 0.0)
    moved = after["nibble_device_bytes_total"] - before.get("nibble_device_bytes_total", 0.0)
    return {
        "weight": weight, "callers": callers, "calls_per_s": bench["calls_per_s"],
        "p50_us": bench["latency_us"]["p50"], "p99_us": bench["latency_us"]["p99"],
        "call_us": call_us, "kernel_us": kernel_us, "queue_us": queue_us,
        "host_us": served_us - queue_us - kernel_us, "transport_us": call_us - served_us,
        "batch_rows": bench["mean_batch_rows"], "batch_kernel_us": batch_us,
        "bytes_per_batch": moved / batches, "kernels": bench["kernels"]}


def measure_prefill(options, server, weight, callers, scratch):
    """Calls of many rows, and Echo with the same bytes both ways."""
    report = os.path.join(scratch, "load.json")
    subprocess.run(
        [options.load, *server.addresses, "--weight", weight, "--rows", str(options.prefill_rows), "--concurrency",
         str(callers), "--seconds", str(options.seconds), "--against-echo", "--json", report],
        stdout=subprocess.DEVNULL, timeout=600, check=True)
    run = json.loads(pathlib.Path(report).read_text())["runs"][0]
    return {
        "weight": weight, "rows": options.prefill_rows, "callers": callers, "calls_per_s": run["answers_per_s"],
        "p50_us": run["latency_us"]["p50"], "echo_calls_per_s": run["echo"]["answers_per_s"],
        "of_echo": run["over_echo"]["rate"]}


def check_ratio(server, weight, alone):
    """nibble_bandwidth_ratio of a server that has only served `alone`, within the ratio's window."""
    metrics = server.metrics()
    peak = metrics["nibble_device_peak_bandwidth_bytes_per_second"]
    ratio = metrics["nibble_bandwidth_ratio"]
    by_counters = (
        metrics["nibble_device_bytes_total"] / metrics["nibble_compute_duration_seconds_sum"] / peak)
    # Replies give whole microseconds: half of one is allowed beside the share.
    by_replies = alone["bytes_per_batch"] / (alone["kernel_us"] * 1e-6) / peak
    slack = RATIO_TOLERANCE + 0.5 / alone["kernel_us"]
    found = {
        "weight": weight, "peak_bytes_per_second": peak, "ratio": ratio,
        "by_counters": by_counters, "by_replies": by_replies}
    if abs(ratio / by_counters - 1) > RATIO_TOLERANCE or abs(ratio / by_replies - 1) > slack:
        raise Failure(f"nibble_bandwidth_ratio: {found}")
    return found


def markdown(results):
    lines = [
        "| transport | layer | callers | calls/s | p50 | p99 | rows in a batch | kernel | queue | host | transport |",
        "|---|---|---|---|---|---|---|---|---|---|---|"]
    for run in results["runs"]:
        lines.append(
            "| {socket} | {weight} | {callers} | {calls_per_s:,.0f} | {p50_us} µs | {p99_us} µs | "
            "{batch_rows:.1f} | {kernel_us:.1f} µs | {queue_us:.0f} µs | {host_us:.0f} µs | "
            "{transport_us:.0f} µs |".format(**run))
    lines.append("")
    for run in results.get("prefill", []):
        lines.append(
            "{rows} rows a call of {weight} over {socket}, {callers} callers: {calls_per_s:,.1f} calls/s, p50 {p50_us:,.0f} "
            "µs; echo of the same bytes {echo_calls_per_s:,.1f}/s; {of_echo:.0%} of its rate.".format(**run))
    for ratio in results["ratios"]:
        lines.append(
            "nibble_bandwidth_ratio of {weight} at one caller: {ratio:.4f}; by the counters {by_counters:.4f}, by the "
            "replies {by_replies:.4f}; peak {tbs:.2f} TB/s.".format(
                tbs=ratio["peak_bytes_per_second"] / 1e12, **ratio))
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def serving(options, layer, unix, scratch):
    """A server that holds `layer`, and the weight's name."""
    form, outputs, inputs = layer
    name = f"{form}_{outputs}x{inputs}"
    matrix = os.path.join(scratch, f"{outputs}x{inputs}.safetensors")
    if not os.path.exists(matrix):
        write_matrix(matrix, outputs, inputs, seed=outputs)
    server = Server(options, unix, scratch)
    try:
        server.call("upload", name, "--matrix", matrix, "--tensor", "w", "--format", form)
        yield server, name
    finally:
        server.stop()


def run_layer(options, layer, unix, scratch, results):
    with serving(options, layer, unix, scratch) as (server, name):
        for callers in options.callers:
            run = measure(server, name, callers, options.rows, options.seconds)
            run["socket"] = "unix" if unix else "tcp"
            results["runs"].append(run)
            print(markdown({"runs": [run], "ratios": []}).splitlines()[2], flush=True)
            if callers == 1 and callers == options.callers[0]:
                results["ratios"].append(check_ratio(server, name, run))


def run_prefill(options, unix, scratch, results):
    with serving(options, options.prefill, unix, scratch) as (server, name):
        for callers in options.prefill_callers:
            run = measure_prefill(options, server, name, callers, scratch)
            run["socket"] = "unix" if unix else "tcp"
            results["prefill"].append(run)
            print(markdown({"runs": [], "prefill": [run], "ratios": []}).splitlines()[-1], flush=True)


def parse_layer(parser, flag, text):
    parts = re.fullmatch(r"(\w+):(\d+)x(\d+)", text)
    if not parts:
        parser.error(f"{flag}: expected format:NxK; received {text}")
    return (parts[1], int(parts[2]), int(parts[3]))


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nibbled", required=True, help="the server")
    parser.add_argument("--nibble", required=True, help="the command")
    parser.add_argument("--load", help="nibble-load: measure calls of many rows too")
    parser.add_argument("--output", required=True, help="directory of the results")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run; at most 8, for the ratio's window")
    parser.add_argument("--rows", type=int, default=1, help="of a call")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--layers", nargs="+", help="format:NxK; default: " + " ".join(
        f"{form}:{n}x{k}" for form, n, k in LAYERS))
    parser.add_argument("--prefill", default="{}:{}x{}".format(*PREFILL), help="layer of calls of many rows")
    parser.add_argument("--prefill-rows", type=int, default=512)
    parser.add_argument("--prefill-callers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--sockets", nargs="+", default=["tcp", "unix"], choices=("tcp", "unix"))
    parser.add_argument("--server-flag", action="append", default=[], help="passed on to nibbled; repeatable")
    options = parser.parse_args()
    options.seconds = min(options.seconds, 8.0)
    options.prefill = parse_layer(parser, "--prefill", options.prefill)
    if options.layers:
        options.layers = [parse_layer(parser, "--layers", layer) for layer in options.layers]
    return options


def main():
    options = parse()
    os.makedirs(options.output, exist_ok=True)
    results = {"seconds": options.seconds, "cores": os.cpu_count(), "runs": [], "prefill": [], "ratios": []}
    status = 0
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for socket in options.sockets:
                for layer in options.layers or LAYERS:
                    run_layer(options, layer, socket == "unix", scratch, results)
                if options.load:
                    run_prefill(options, socket == "unix", scratch, results)
        except (Failure, OSError, KeyError, ZeroDivisionError, subprocess.SubprocessError) as error:
            print(f"end_to_end: {type(error).__name__}: {error}", file=sys.stderr)
            status = 1
    output = pathlib.Path(options.output)
    (output / "end_to_end.json").write_text(json.dumps(results, indent=1) + "\n")
    (output / "end_to_end.md").write_text(markdown(results))
    return status


if __name__ == "__main__":
    sys.exit(main())
