#!/usr/bin/env python3
"""Tests of metric_names.py."""

import unittest

import metric_names

GOLDEN = "# name type labels\nnibble_a_total counter code,method\nnibble_b_seconds histogram op\n"


def dashboard(*expressions):
    return {
        "panels": [{"title": "p", "targets": [{"expr": e} for e in expressions]}],
        "templating": {"list": []},
    }


def rules(expression):
    return {"groups": [{"rules": [{"alert": "r", "expr": expression}]}]}


GOOD = [
    'sum by (method, le) (rate(nibble_a_total{code="x y",method=~"$m"}[$__rate_interval]))',
    "histogram_quantile(0.99, sum by (op, le) (rate(nibble_b_seconds_bucket[5m])))",
]


class MetricNamesTest(unittest.TestCase):
    def test_finds_the_metrics_of_an_expression(self):
        self.assertEqual(
            metric_names.metrics_of(
                'sum by (instance) (rate(a_total{x="b_total{"}[5m] offset 1h))'
                " / on (device) group_left(kind) c and d > 1e3 or vector(0)"),
            {"a_total", "c", "d"})

    def test_accepts_frozen_names(self):
        self.assertEqual(
            metric_names.problems_of(GOLDEN, {"d": dashboard(*GOOD)}, rules("up == 0")), [])

    def test_names_an_unknown_metric_of_a_dashboard(self):
        for bad in ("nibble_a", "nibble_a_totals", "nibbled_a_total", "nibble_c_seconds_bucket"):
            problems = metric_names.problems_of(
                GOLDEN, {"d": dashboard(*GOOD, f"rate({bad}[1m])")}, rules("up"))
            self.assertEqual(problems, [f"d: panel p: the server has no metric {bad}"])

    def test_names_an_unknown_metric_of_a_rule(self):
        problems = metric_names.problems_of(
            GOLDEN, {"d": dashboard(*GOOD)}, rules("nibble_gone > 0"))
        self.assertEqual(len(problems), 1)
        self.assertIn("rule r: the server has no metric nibble_gone", problems[0])

    def test_finds_the_labels_of_an_expression(self):
        self.assertEqual(
            metric_names.labels_of('sum by (a, le) (b{c=~"d=1",e!="f"}) / on (g) group_left(h) i{}'),
            {"a", "le", "c", "e", "g", "h"})

    def test_names_an_unknown_label(self):
        for bad in ('nibble_a_total{op="x"}', "sum by (op, le) (nibble_a_total)"):
            problems = metric_names.problems_of(
                GOLDEN, {"d": dashboard(*GOOD, bad)}, rules("up"))
            self.assertEqual(problems, [f"d: panel p: no label op in: {bad}"])

    def test_a_histogram_has_no_series_of_its_bare_name(self):
        for bad in ("nibble_b_seconds", "nibble_a_total_bucket"):
            problems = metric_names.problems_of(
                GOLDEN, {"d": dashboard(*GOOD, bad)}, rules("up"))
            self.assertEqual(problems, [f"d: panel p: the server has no metric {bad}"])

    def test_names_a_metric_that_nothing_shows(self):
        problems = metric_names.problems_of(GOLDEN, {"d": dashboard(GOOD[0])}, rules("up"))
        self.assertEqual(len(problems), 1)
        self.assertIn("no panel shows nibble_b_seconds", problems[0])

    def test_an_empty_golden_file_is_a_problem(self):
        self.assertNotEqual(metric_names.problems_of("", {"d": dashboard()}, rules("up")), [])


if __name__ == "__main__":
    unittest.main()
