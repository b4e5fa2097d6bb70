#!/usr/bin/env python3
"""Parses every JSON and YAML file below a directory (templates of a Helm chart aside).

usage: parse_files.py DIRECTORY
"""

import json
import os
import sys

import yaml


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    parsed = failed = 0
    for directory, subdirectories, names in os.walk(arguments[1]):
        subdirectories[:] = [d for d in subdirectories if d != "templates"]
        for name in sorted(names):
            path = os.path.join(directory, name)
            try:
                with open(path, encoding="utf-8") as f:
                    if name.endswith(".json"):
                        document = json.load(f)
                    elif name.endswith((".yml", ".yaml")):
                        document = list(yaml.safe_load_all(f))
                    else:
                        continue
                if not document:
                    raise ValueError("empty")
                parsed += 1
            except (ValueError, yaml.YAMLError) as error:
                failed += 1
                print(f"{path}: {error}")
    print(f"{parsed} files parsed, {failed} failed")
    return 1 if failed or not parsed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
