#!/usr/bin/env python3
"""Runs a nibbled under a steady load and fails when a request fails or the server grows. tests/soak.sh runs it; it
starts the server itself."""

import argparse
import os
import subprocess
import sys
import time

import serving

LAYER = "soak"
SETTLING_S = 300.0      # of a long run; a quarter of a shorter one
RSS_GROWTH = 1.05       # of what it was when the server had settled
LOAD_SHARE = 0.8        # of the highest rate
SAMPLES_OF_A_RUN = 40   # at least, of a short run
LONGEST_INTERVAL_S = 5.0


def sample(pid, seconds):
    """RSS, threads and descriptors of a process."""
    values = {"seconds": round(seconds, 1), "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                values["rss_bytes"] = int(line.split()[1]) * 1024
            elif line.startswith("Threads:"):
                values["threads"] = int(line.split()[1])
    return values


def judge(samples, settled_s):
    """What grew after the server had settled; one sentence each."""
    before = [s for s in samples if s["seconds"] <= settled_s]
    after = [s for s in samples if s["seconds"] > settled_s]
    if not before or not after:
        return ["too short: no samples before or after the server had settled"]
    problems = []
    reference = before[-1]["rss_bytes"]
    largest = max(s["rss_bytes"] for s in after)
    if largest > RSS_GROWTH * reference:
        problems.append(f"RSS grew from {reference} to {largest} bytes")
    for what in ("threads", "descriptors"):
        reference = max(s[what] for s in before)
        largest = max(s[what] for s in after)
        if largest > reference:
            problems.append(f"{what} grew from {reference} to {largest}")
    return problems


def table_of(samples):
    """A dozen lines, evenly spaced, the last one included."""
    step = max(1, len(samples) // 12)
    shown = samples[::step]
    if shown[-1] is not samples[-1]:
        shown.append(samples[-1])
    return serving.markdown_table(
        ["s", "RSS MiB", "threads", "descriptors"],
        [[s["seconds"], f"{s['rss_bytes'] / 2**20:.1f}", s["threads"], s["descriptors"]] for s in shown])


def soak(options, server):
    """The document and the markdown of a run."""
    server.upload_int4(LAYER, options.n, options.k)
    work = ["--weight", LAYER, "--rows", options.rows, "--transport", options.transport]
    search = server.load(*work, "--find-max", "--p99-ms", options.p99_ms, "--seconds", options.search_seconds)
    highest = search["find_max"]["rate"]
    rate = LOAD_SHARE * highest
    seconds = 60.0 * options.minutes
    settled_s = min(SETTLING_S, seconds / 4)
    interval_s = min(LONGEST_INTERVAL_S, seconds / SAMPLES_OF_A_RUN)
    print(f"highest rate {highest:,.0f}/s; {rate:,.0f}/s for {options.minutes:g} min", flush=True)
    load = server.start_load(*work, "--rate", f"{rate:.3f}", "--seconds", seconds, "--window",
                             max(seconds / 20, 0.1), "--max-error-share", 1, "--check", "--check-share", 0.01)
    begin = time.monotonic()
    samples = []
    while load.poll() is None and server.alive():
        samples.append(sample(server.pid, time.monotonic() - begin))
        try:
            load.wait(interval_s)
        except subprocess.TimeoutExpired:
            pass
    report = server.finish_load(load, may_fail=True)
    run = report["runs"][0]
    problems = judge(samples, settled_s)
    if not server.alive():
        problems.append("nibbled ended")
    for code, error in run["errors"].items():
        problems.append(f"{error['count']} requests failed: {code}: {error['message']}")
    if run["mismatches"] > 0:
        problems.append(f"{run['mismatches']} answers were wrong; the first: {run['first_mismatch']}")
    machine = serving.machine()
    document = {"machine": machine, "commit": serving.commit(), "minutes": options.minutes,
                "highest_rate": highest, "rate": rate, "settled_s": settled_s, "problems": problems,
                "samples": samples, "run": run}
    latency = run["latency_us"]
    markdown = (
        f"# Soak of nibbled\n\n{machine['cpu']}, {machine['cores']} cores; INT4 layer {options.n}x{options.k}; "
        f"{options.minutes:g} min at {rate:,.0f} requests a second, 80 % of the highest rate with a p99 within "
        f"{options.p99_ms:g} ms; commit {document['commit']}.\n\n"
        f"{run['requests']:,} requests, p50 {serving.duration(latency['p50'])}, "
        f"p99 {serving.duration(latency['p99'])}, max {serving.duration(latency['max'])}, "
        f"{run['checked']:,} answers checked.\n\n" + table_of(samples) + "\n"
        + ("".join(f"FAILED: {problem}\n" for problem in problems)
           or f"No error; RSS within 5 % of what it was after {settled_s:g} s, no thread and no descriptor more.\n"))
    return document, markdown


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release", help="build directory")
    parser.add_argument("--output", default="build/soak", help="directory of soak.json and soak.md")
    parser.add_argument("--minutes", type=float, required=True, help="length of the steady load")
    parser.add_argument("--n", type=int, default=1024, help="outputs of the layer")
    parser.add_argument("--k", type=int, default=1024, help="inputs of the layer")
    parser.add_argument("--rows", default="1,4,16", help="rows of a request, as nibble-load takes them")
    parser.add_argument("--transport", default="unary", choices=("unary", "stream"))
    parser.add_argument("--p99-ms", type=float, default=100, help="target that gives the highest rate")
    parser.add_argument("--search-seconds", type=float, default=3, help="of each step of that search")
    parser.add_argument("--flag", action="append", default=[], help="a flag for nibbled; repeatable")
    options = parser.parse_args()
    try:
        with serving.Server(options.build, options.flag) as server:
            document, markdown = soak(options, server)
    except serving.Failure as failure:
        print(f"soak.py: {failure}", file=sys.stderr)
        return 1
    serving.write_reports(options.output, "soak", document, markdown)
    print(markdown)
    return 1 if document["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
