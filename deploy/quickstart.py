#!/usr/bin/env python3
"""Calls every RPC of a running server through the nibble command, compares the answers with the golden
checkpoints and prints a table. Exits 1 if an answer is wrong. deploy/quickstart.sh runs it."""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import urllib.request

LAYER = "model.layers.0.mlp.down_proj"
ROWS = (1, 5, 64)
SHOWN_METRICS = (
    "nibble_rpc_requests_total", "nibble_batches_total", "nibble_weights_resident_bytes",
    "nibble_bandwidth_ratio")


class Failure(Exception):
    """A command that did not answer, or answered something unusable."""


class Server:
    """The nibble command pointed at one server."""

    def __init__(self, nibble, server, control):
        self._prefix = [nibble, "--server", server, "--control", control, "--json"]
        self.problems = []

    def call(self, *arguments):
        """The command's document. A check that fails (exit 1 with a document) is a problem noted."""
        run = subprocess.run(
            self._prefix + list(arguments), capture_output=True, text=True, timeout=120, check=False)
        try:
            document = json.loads(run.stdout)
        except ValueError:
            raise Failure(
                f"nibble {' '.join(arguments)}: exit {run.returncode}: {run.stderr.strip()}"
            ) from None
        if run.returncode != 0:
            self.problems.append(f"nibble {' '.join(arguments)}: {run.stderr.strip()}")
        return document

    def expect(self, condition, message):
        if not condition:
            self.problems.append(message)


def print_table(title, head, rows):
    widths = [max(len(row[i]) for row in [head] + rows) for i in range(len(head))]
    print(f"\n{title}")
    for row in [head] + rows:
        cells = [
            cell.ljust(width) if i == 0 or not cell[:1].isdigit() else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))]
        print("  " + "  ".join(cells).rstrip())


def times(answer):
    """Device time, and the whole call of a command that has just connected."""
    return [f"{answer['info'][key]} us" for key in ("compute_us", "wall_us")]


def format_text(weight):
    details = {k: v for k, v in weight["format"].items() if k != "name" and v is not False}
    return " ".join([weight["format"]["name"]] + [
        key if value is True else str(value) for key, value in details.items()])


def write_gamma(path, length):
    """A safetensors file with the F32 vector `gamma`."""
    values = struct.pack(f"<{length}f", *(0.5 + i / length for i in range(length)))
    header = json.dumps({
        "gamma": {"dtype": "F32", "shape": [length], "data_offsets": [0, len(values)]}}).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + values)


def check_checkpoint(server, golden, name, table):
    """Loads one checkpoint, multiplies with it and decodes it."""
    expected = os.path.join(golden, name, "expected.safetensors")
    weight = f"{name}/{LAYER}"
    loaded = server.call("load", name, name)
    server.expect(loaded["layers"] == 1, f"load {name}: {loaded['layers']} layers, expected 1")
    described = server.call("describe", weight)
    server.expect(described["state"] == "ready", f"{weight}: state {described['state']}")
    explained = server.call("explain", weight, "--max-m", str(max(ROWS)))
    form = format_text(described)
    decoded = server.call("dequant", weight, "--expect", expected, "--expect-tensor", "weight")
    table.append([
        name, form, "-", "dequantize", f"{decoded['check']['mismatches']} differ", "exact",
        "-", f"{decoded['wall_us']} us"])
    for rows in ROWS:
        answer = server.call(
            "matmul", weight, "--in", expected, "--tensor", "x", "--rows", str(rows), "--expect",
            expected, "--expect-tensor", "y", "--weight-file", expected, "--weight-tensor", "weight")
        kernels = [
            k["kernel"] for k in explained["kernels"] if k["m_begin"] <= rows <= k["m_end"]]
        server.expect(
            kernels == [answer["info"]["kernel"]],
            f"{weight}, M = {rows}: ran {answer['info']['kernel']}, explain says {kernels}")
        worst = answer["check"]["worst"]
        share = worst["error"] / worst["tolerance"] if worst["tolerance"] else float("inf")
        table.append([
            name, form, str(rows), answer["info"]["kernel"], f"{worst['error']:.3g}",
            f"{100 * share:.1f} %", *times(answer)])
    server.call(
        "matmul", weight, "--stream", "--in", expected, "--expect", expected, "--weight-file", expected)
    counters = server.call("describe", weight)["counters"]
    server.expect(
        counters["rows"] >= sum(ROWS), f"{weight}: {counters['rows']} rows counted, sent {sum(ROWS)}")


def check_row_ops(server, x_file, columns, scratch, table):
    """The fused operations, recomputed by the command itself."""
    gamma = os.path.join(scratch, "gamma.safetensors")
    write_gamma(gamma, columns)
    variants = [
        ["--quant", "per-token"], ["--quant", "per-token", "--dtype", "i8"],
        ["--quant", "per-group"], ["--quant", "static", "--static-scale", "0.05"],
        ["--quant", "none"]]
    commands = [
        ("norm-quant", ["--gamma-file", gamma, "--gamma-tensor", "gamma"]),
        ("norm-quant", ["--gamma-file", gamma, "--gamma-tensor", "gamma",
                        "--residual-tensor", "x"]),
        ("silu-mul-quant", [])]
    for command, arguments in commands:
        for variant in variants:
            for rows in ROWS:
                answer = server.call(
                    command, "--in", x_file, "--tensor", "x", "--rows", str(rows), "--check",
                    *arguments, *variant)
                check = answer["check"]
                table.append([
                    command + (" +residual" if "--residual-tensor" in arguments else ""),
                    " ".join(variant[1:2] + variant[3:4]), str(rows), answer["info"]["kernel"],
                    f"{check['wrong']} of {check['compared']}", f"{check['one_step']}",
                    *times(answer)])


def check_upload(server, golden, name):
    """Quantizes a matrix on arrival, uploads a checkpoint, and frees both."""
    matrix = os.path.join(golden, name, "expected.safetensors")
    checkpoint = os.path.join(golden, name, "model.safetensors")
    config = os.path.join(golden, name, "config.json")
    server.call("upload", "quickstart_matrix", "--matrix", matrix, "--format", "nf4")
    uploaded = server.call(
        "upload", "quickstart_checkpoint", "--checkpoint", checkpoint, "--config", config)
    server.expect(
        uploaded["weights"] == [f"quickstart_checkpoint/{LAYER}"],
        f"upload: ready are {uploaded['weights']}")
    # The tolerance is that of the decoded weight: the server's own, asked for by the command.
    server.call(
        "matmul", f"quickstart_checkpoint/{LAYER}", "--in", matrix, "--expect", matrix)
    server.call("dequant", "quickstart_matrix")
    for uploaded_name in ("quickstart_matrix", "quickstart_checkpoint"):
        freed = server.call("unload", uploaded_name)
        server.expect(freed["weights"] == 1 and freed["freed_bytes"] > 0, f"unload: {freed}")


def show_metrics(server, url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    print(f"\nMetrics: {url}")
    for name in SHOWN_METRICS:
        found = [line for line in lines if line.startswith((name + "{", name + " "))]
        server.expect(found, f"{url} has no {name}")
        moved = [line for line in found if not line.endswith(" 0")]
        for line in (moved or found)[:2]:
            print(f"  {line}")


def run(options, server, scratch):
    names = sorted(
        entry for entry in os.listdir(options.golden)
        if os.path.isfile(os.path.join(options.golden, entry, "model.safetensors")))
    health = server.call("health")
    server.expect(health["status"] == "SERVING", f"health: {health['status']}")
    products, row_ops = [], []
    for name in names:
        check_checkpoint(server, options.golden, name, products)
    print_table(
        "Decoded weights and products against the recorded answers",
        ["LAYER", "FORMAT", "M", "KERNEL", "MAX ERROR", "OF TOLERANCE", "COMPUTE", "CALL"], products)

    listed = server.call("list")["weights"]
    ready = {weight["name"] for weight in listed if weight["state"] == "ready"}
    server.expect(
        {f"{name}/{LAYER}" for name in names} <= ready, f"list: ready are {sorted(ready)}")
    even = next(w for w in listed if w["name"].startswith(names[0] + "/") and w["k"] % 2 == 0)
    check_row_ops(
        server, os.path.join(options.golden, names[0], "expected.safetensors"), even["k"], scratch,
        row_ops)
    print_table(
        "Fused operations, recomputed step by step",
        ["OPERATION", "QUANTIZED", "M", "KERNEL", "WRONG", "ONE STEP OFF", "COMPUTE", "CALL"], row_ops)
    check_upload(server, options.golden, names[0])
    show_metrics(server, options.metrics)
    print(f"\n{len(names)} checkpoints, {len(products) + len(row_ops)} answers compared, "
          f"{len(server.problems)} problems")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("nibble", "server", "control", "metrics", "golden"):
        parser.add_argument("--" + flag, required=True)
    options = parser.parse_args()
    server = Server(options.nibble, options.server, options.control)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            run(options, server, scratch)
    except (Failure, OSError, KeyError, subprocess.TimeoutExpired) as error:
        server.problems.append(f"{type(error).__name__}: {error}")
    for problem in server.problems:
        print(f"quickstart: {problem}", file=sys.stderr)
    return 1 if server.problems else 0


if __name__ == "__main__":
    sys.exit(main())
