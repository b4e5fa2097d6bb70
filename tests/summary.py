#!/usr/bin/env python3
"""Sums ctest's JUnit reports; the last line is "N passed, N failed".

usage: summary.py [--skipped WHAT]... REPORT...

A test that was skipped is neither and is named. A test that could not start (its program is missing)
has failed, and so has a report that cannot be read. No test at all is an error.
"""

import argparse
import sys
import xml.etree.ElementTree


def main(reports, skipped):
    passed, failed = 0, []
    for report in reports:
        try:
            cases = xml.etree.ElementTree.parse(report).getroot().findall("testcase")
        except (OSError, xml.etree.ElementTree.ParseError) as error:
            cases = []
            failed.append(f"{report}: {error}")
        for case in cases:
            name, status = case.get("name"), case.get("status")
            reason = case.find("skipped")
            message = "" if reason is None else reason.get("message", "")
            if status == "run":
                passed += 1
            elif status == "disabled" or message.startswith("SKIP_"):
                skipped.append(name)
            else:
                failed.append(f"{name}: {message or status}")
    for name in skipped:
        print(f"skipped: {name}")
    for name in failed:
        print(f"failed: {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--skipped", action="append", default=[])
    parser.add_argument("reports", nargs="*")
    arguments = parser.parse_args()
    sys.exit(main(arguments.reports, arguments.skipped))
