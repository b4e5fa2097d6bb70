#!/usr/bin/env python3
"""Checks that dashboards and alert rules ask for metrics that the server has.

usage: metric_names.py ROOT

Each line of GOLDEN is a metric: "NAME TYPE [LABEL,...]". Prints every name or label in use that is
not frozen there, and every frozen nibble_* name that nothing shows.
"""

import json
import os
import re
import sys

import yaml

GOLDEN = "tests/unit/server_leaves/metric_names.golden"
DASHBOARDS = "deploy/grafana/dashboards"
RULES = "deploy/prometheus/rules/nibble.yml"

# Prometheus makes these itself.
OF_PROMETHEUS = {"up": ("gauge", set())}
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}
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


def labels_of(expression):
    """Labels that a PromQL expression matches or groups by."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', " ", expression)
    grouped = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", text)
    labels = {label.strip() for group in grouped for label in group.split(",")}
    for matchers in re.findall(r"\{([^}]*)\}", text):
        labels |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    return labels - {""}


def parse_golden(text):
    """{name: (type, labels)}"""
    metrics = {}
    for words in (line.split() for line in text.splitlines()):
        if words and not words[0].startswith("#"):
            metrics[words[0]] = (words[1], set(words[2].split(",")) if len(words) > 2 else set())
    return metrics


def lookup(name, frozen):
    """(frozen name, labels) of a name in an expression, or None."""
    known = {**frozen, **OF_PROMETHEUS}
    if name in known and known[name][0] != "histogram":
        return name, known[name][1]
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    if base != name and known.get(base, ("",))[0] == "histogram":
        return base, known[base][1]
    return None


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
    frozen = parse_golden(golden_text)
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
            labels = set(LABELS_OF_PROMETHEUS)
            for name in sorted(names):
                found = lookup(name, frozen)
                if found is None:
                    problems.append(f"{file}: {where}: the server has no metric {name}")
                else:
                    shown.add(found[0])
                    labels |= found[1]
            for label in sorted(labels_of(expression) - labels):
                problems.append(f"{file}: {where}: no label {label} in: {expression}")
    for name in sorted(frozen.keys() - shown):
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
