#!/usr/bin/env python3
"""How a nibbled serves many callers: batching, fairness, the highest rate, and the share of the transport's own
limit. tests/bench/load.sh runs it; it starts the server itself."""

import argparse
import os
import sys
import time

import serving

LAYER = "layer"
FLOOD_FACTOR = 10   # of the victim's load
FLOOD_LEAD_S = 2    # the flood has begun when the victim starts
FLOOD_NICE = 10
# What both offer together, of what 64 callers reach.
LOADS = (("within capacity", 0.4), ("beyond capacity", 1.1))


class Bench:
    def __init__(self, options, server, tokens, echo):
        self.options = options
        self.server = server
        self.tokens = tokens
        self.echo = echo
        self.document = {"machine": serving.machine(), "commit": serving.commit(),
                         "layer": {"format": "int4 group 128", "n": options.n, "k": options.k},
                         "seconds": options.seconds}
        self.markdown = ""

    def load(self, *arguments, caller="one"):
        return self.server.load("--weight", LAYER, "--caller-token", self.tokens[caller], *arguments)

    def say(self, text):
        print(text, flush=True)
        self.markdown += text + "\n"

    def callers(self):
        """One row a request: what callers reach together, and what the transport alone would allow."""
        arguments = ["--concurrency", "1,16,64", "--rows", 1, "--seconds", self.options.seconds]
        if self.echo:
            arguments.append("--against-echo")
        runs = self.load(*arguments)["runs"]
        head = ["callers", "rows/s", "p50", "p99", "rows in a batch", "queue", "compute", "stable"]
        if self.echo:
            head += ["of echo's rate", "p50 over echo's", "p99 over echo's"]
        rows = []
        for run in runs:
            latency = run["latency_us"]
            row = [run["callers"], f"{run['rows_per_s']:,.0f}", serving.duration(latency["p50"]),
                   serving.duration(latency["p99"]), f"{run['batch_rows']['mean']:.1f}",
                   serving.duration(run["queue_us"]["mean"]),
                   serving.duration(run["compute_us"]["mean"]), "yes" if run["stable"] else "no"]
            if self.echo:
                over = run["over_echo"]
                row += [f"{100 * over['rate']:.0f} %", f"{over['p50']:.2f}", f"{over['p99']:.2f}"]
            rows.append(row)
        ratio = runs[-1]["rows_per_s"] / runs[0]["rows_per_s"]
        self.document.update(callers=runs, rows_ratio_64_to_1=round(ratio, 3))
        self.say("\n## Callers of one row\n\n" + serving.markdown_table(head, rows))
        self.say(f"64 callers reach {ratio:.2f} times the rows of one.")
        if not self.echo:
            self.say("The shares of echo are not measured: this nibbled has no --enable-echo.")
        return runs

    def highest_rate(self, lone_p50_us):
        target_ms = self.options.p99_ms or max(5.0, round(5 * lone_p50_us / 1000, 1))
        report = self.load("--find-max", "--p99-ms", target_ms, "--seconds", self.options.seconds)
        found = report["find_max"]
        self.document["find_max"] = {"p99_ms": target_ms, **found}
        rows = [[f"{step['rate']:,.0f}", f"{step['achieved_per_s']:,.0f}", f"{step['p99_ms']:.3g} ms",
                 "passed" if step["passed"] else step["reason"]] for step in found["steps"]]
        self.say(f"\n## Highest rate with a p99 within {target_ms:g} ms\n")
        self.say(serving.markdown_table(["offered/s", "answered/s", "p99", ""], rows))
        self.say(f"{found['rate']:,.0f} requests of one row a second.")
        return found["rate"]

    def fairness(self, capacity):
        """The p99 of a caller alone and beside a flood: together within what the server can do, and beyond it."""
        self.say(f"\n## A caller beside one of {FLOOD_FACTOR} times its load\n\nOne row a request; each with a token "
                 f"of its own; together they offer {LOADS[0][1]:g} and {LOADS[1][1]:g} times what 64 callers reach. "
                 f"The flood's generator runs at nice {FLOOD_NICE}, so that the other, who measures, does not wait for "
                 "the processor behind it. Queue and compute are the caller's, as the server reports them.\n")
        rows = []
        self.document["fairness"] = {}
        for name, share in LOADS:
            rate = max(share * capacity / (1 + FLOOD_FACTOR), 1.0)
            case = self.beside_flood(rate)
            self.document["fairness"][name] = case
            for who in ("alone", "beside the flood", "the flood"):
                run = case[who]
                latency = run["latency_us"]
                rows.append([f"{name}: {who}", f"{run['requests']:,}", f"{run['offered_per_s']:,.0f}",
                             f"{run['answers_per_s']:,.0f}", serving.duration(latency["p50"]),
                             serving.duration(latency["p99"]), serving.duration(run["queue_us"]["p99"]),
                             serving.duration(run["compute_us"]["p99"]), f"{run['batch_rows']['mean']:.1f}",
                             f"{100 * run['error_share']:.2g} %"])
        self.say(serving.markdown_table(["", "requests", "offered/s", "answered/s", "p50", "p99", "queue p99",
                                         "compute p99", "rows in a batch", "errors"], rows))
        for name, case in self.document["fairness"].items():
            self.say(f"{name}: the flood multiplies the caller's p99 by {case['p99_ratio']:.2f}.")

    def beside_flood(self, rate):
        """The medians of a few turns, each alone and beside the flood, so that both see the same machine."""
        turns = []
        victim = ["--rate", f"{rate:.3f}", "--rows", 1, "--seconds", self.options.seconds, "--max-error-share", 1]
        for _ in range(self.options.turns):
            alone = self.load(*victim)["runs"][0]
            flood = self.server.start_load(
                "--weight", LAYER, "--caller-token", self.tokens["two"], "--rate", f"{FLOOD_FACTOR * rate:.3f}",
                "--rows", 1, "--warmup", 0, "--seconds", self.options.seconds + 2 * FLOOD_LEAD_S,
                "--max-error-share", 1, nice=FLOOD_NICE)
            time.sleep(FLOOD_LEAD_S)
            beside = self.load(*victim)["runs"][0]
            flooder = self.server.finish_load(flood)["runs"][0]
            ratio = beside["latency_us"]["p99"] / max(alone["latency_us"]["p99"], 1.0)
            turns.append({"alone": alone, "beside the flood": beside, "the flood": flooder,
                          "p99_ratio": round(ratio, 3)})
        turns.sort(key=lambda turn: turn["p99_ratio"])
        return {**turns[len(turns) // 2], "p99_ratios": [turn["p99_ratio"] for turn in turns]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release", help="build directory")
    parser.add_argument("--output", required=True, help="directory of load.json and load.md")
    parser.add_argument("--n", type=int, default=4096, help="outputs of the layer")
    parser.add_argument("--k", type=int, default=14336, help="inputs of the layer")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--turns", type=int, default=3, help="measurements beside a flood; the median is reported")
    parser.add_argument("--p99-ms", type=float, default=0,
                        help="target of the search; default: 5 times the p50 of a lone caller, at least 5 ms")
    parser.add_argument("--flag", action="append", default=[], help="a flag for nibbled; repeatable")
    options = parser.parse_args()
    echo = serving.supports(os.path.join(options.build, "server/nibbled"), "--enable-echo")
    try:
        server = serving.Server(options.build, options.flag + (["--enable-echo"] if echo else []))
        # Two callers, each with a token of its own.
        tokens = {name: os.path.join(server.scratch, name) for name in ("one", "two")}
        for name, path in tokens.items():
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"token-{name}\n")
        both = os.path.join(server.scratch, "tokens")
        with open(both, "w", encoding="utf-8") as file:
            file.write("token-one\ntoken-two\n")
        server.add_flag(f"--data-token-file={both}")
        with server:
            server.upload_int4(LAYER, options.n, options.k)
            bench = Bench(options, server, tokens, echo)
            machine = bench.document["machine"]
            bench.say(f"# Load on nibbled\n\n{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; "
                      f"INT4 layer {options.n}x{options.k}, group 128; server and load generator on the same "
                      f"machine, loopback TCP; {options.seconds:g} s a measurement; commit {bench.document['commit']}.")
            runs = bench.callers()
            bench.fairness(runs[-1]["rows_per_s"])
            bench.highest_rate(runs[0]["latency_us"]["p50"])
    except serving.Failure as failure:
        print(f"load.py: {failure}", file=sys.stderr)
        return 1
    serving.write_reports(options.output, "load", bench.document, bench.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
