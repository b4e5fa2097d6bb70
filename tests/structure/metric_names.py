#!/usr/bin/env python3
"""Checks that dashboards and alert rules ask for metrics that the server has.

usage: metric_names.py ROOT

The frozen names are the first word of each line of GOLDEN. Prints every name in use that is not one
of them, and every frozen nibble_* name that no dashboard shows.
"""

import json
import os
import re
import sys

import yaml

GOLDEN = "tests/unit/server_leaves/metric_names.golden"
DASHBOARDS = "deploy/grafana/dashboards"
RULES = "deploy/prometheus/rules/nibble.yml"

# Prometheus makes this one itself.
OF_PROMETHEUS = {"up"}
KEYWORDS = {
    "and", "or", "unless", "bool", "offset", "on", "ignoring", "group_left", "group_right", "by",
    "without", "inf", "nan"}


def metrics_of(expression):
    """Names of the metrics of a PromQL expression."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', " ", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    names = re.findall(r"(?<![\w$.:])([a-zA-Z_:][\w:]*)(?!\w)(?!\s*\()", text)
    return {name for name in names if name.lower() not in KEYWORDS}


def frozen_names(golden_text):
    lines = [line.split() for line in golden_text.splitlines()]
    return {words[0] for words in lines if words and not words[0].startswith("#")}


def is_known(name, frozen):
    if name in frozen or name in OF_PROMETHEUS:
        return True
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base != name and base in frozen


def dashboard_expressions(dashboard):
    panels = list(dashboard["panels"])
    for panel in panels:
        panels += panel.get("panels", [])
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            label_values = re.fullmatch(r"label_values\((.+),\s*\w+\)", variable["definition"])
            yield f"variable {variable['name']}", label_values.group(1)


def rule_expressions(rules):
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield f"rule {rule.get('alert') or rule.get('record')}", rule["expr"]


def problems_of(golden_text, dashboards, rules):
    """dashboards: {file: parsed JSON}; rules: parsed YAML."""
    frozen = frozen_names(golden_text)
    if not frozen:
        return [f"{GOLDEN}: no names"]
    shown = set()
    problems = []
    sources = [(file, dashboard_expressions(d)) for file, d in sorted(dashboards.items())]
    sources.append((RULES, rule_expressions(rules)))
    for file, expressions in sources:
        for where, expression in expressions:
            names = metrics_of(expression)
            if not names:
                problems.append(f"{file}: {where}: no metric in: {expression}")
            for name in sorted(names):
                if is_known(name, frozen):
                    shown.add(re.sub(r"_(bucket|sum|count)$", "", name))
                    shown.add(name)
                else:
                    problems.append(f"{file}: {where}: the server has no metric {name}")
    for name in sorted(frozen - shown):
        if name.startswith("nibble_"):
            problems.append(f"{DASHBOARDS}: no panel shows {name}")
    return problems


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = arguments[1]
    with open(os.path.join(root, GOLDEN), encoding="utf-8") as f:
        golden_text = f.read()
    dashboards = {}
    for name in os.listdir(os.path.join(root, DASHBOARDS)):
        with open(os.path.join(root, DASHBOARDS, name), encoding="utf-8") as f:
            dashboards[name] = json.load(f)
    with open(os.path.join(root, RULES), encoding="utf-8") as f:
        rules = yaml.safe_load(f)
    problems = problems_of(golden_text, dashboards, rules)
    for problem in problems:
        print(problem)
    print(f"{len(dashboards)} dashboards, {len(problems)} problems")
    return 1 if problems or not dashboards else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
