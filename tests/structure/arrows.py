#!/usr/bin/env python3
"""Checks the arrows between rooms and the limits on files; prints every violation.

usage: arrows.py ROOT

A room is a directory of the source tree. An include that crosses rooms must be an arrow of ARROWS;
headers of the libraries in EXTERNAL may be included only in the rooms listed there.
"""

import os
import re
import subprocess
import sys

# room: rooms that it may include. The longest prefix of a file's path is its room; files of server/
# itself, which put the rooms together, are the room server/main.
ARROWS = {
    "proto": [],
    "kernels/include": [],
    "kernels/core": ["kernels/include"],
    "kernels/cpu": ["kernels/include", "kernels/core"],
    "kernels/quantize": ["kernels/include", "kernels/core", "kernels/cpu"],
    "kernels/cuda": ["kernels/include", "kernels/core", "kernels/cuda/launch"],
    "kernels/cuda/launch": ["kernels/include", "kernels/core", "kernels/cuda/device"],
    "kernels/cuda/device": [],
    "server/allocator": [],
    "server/clock": [],
    "server/log": [],
    "server/metrics": [],
    "server/status": [],
    "server/config": ["kernels/include", "server/log"],
    "server/checkpoint": ["kernels/include"],
    "server/batcher": ["server/clock"],
    "server/tools": ["kernels/include", "server/checkpoint"],
    "server/weight_store": [
        "kernels/include", "server/checkpoint", "server/clock", "server/log", "server/metrics"],
    "server/executor": [
        "kernels/include", "server/batcher", "server/clock", "server/log", "server/metrics",
        "server/weight_store"],
    "server/autotune": [
        "kernels/include", "server/checkpoint/strict_json.h", "server/clock", "server/executor",
        "server/log", "server/weight_store"],
    "server/loader": [
        "kernels/include", "server/checkpoint", "server/log", "server/weight_store"],
    "server/health": ["proto", "server/clock", "server/log", "server/status"],
    "server/service": [
        "proto", "kernels/include", "server/batcher", "server/checkpoint", "server/clock",
        "server/executor", "server/loader", "server/log", "server/metrics", "server/status",
        "server/weight_store"],
    "server/main": [
        "proto", "kernels/include", "server/allocator", "server/autotune", "server/batcher",
        "server/checkpoint", "server/clock", "server/config", "server/executor", "server/health", "server/loader", "server/log",
        "server/metrics", "server/service", "server/status", "server/weight_store"],
    "client/cpp": ["proto"],
    "client/cpp/cli": ["proto", "client/cpp", "server/checkpoint/safetensors.h", "server/tools"],
    "client/cpp/load": ["proto", "client/cpp", "client/cpp/cli"],
    "tests": [
        "proto", "kernels", "server", "client"],
}

GRPC_ROOMS = [
    "server/main", "server/service", "server/status", "server/health", "client", "tests"]

# (pattern of the header's name, what it is, rooms that may include it)
EXTERNAL = [
    (r"^(grpcpp|grpc)/|\.grpc\.pb\.h$", "gRPC", GRPC_ROOMS),
    (r"\.pb\.h$|^google/protobuf/", "protobuf", GRPC_ROOMS),
    (r"^(cuda|cublas|cusparse|cutlass|cute|cub|thrust|nvml)|^mma\.h$", "CUDA",
     ["kernels/cuda", "tests"]),
    (r"^prometheus/", "prometheus-cpp", ["server/metrics"]),
]

# Device code sees CUDA, itself and the names of integer types.
DEVICE_ROOM = "kernels/cuda/device"
DEVICE_HEADERS = r"^(cuda|cute/|cutlass/|cub/|mma\.h$|cstdint$|stdint\.h$)"

INCLUDE_ROOTS = ["", "kernels/include/", "client/cpp/include/", "proto/"]
SOURCE_ENDS = (".h", ".cc", ".cu", ".cuh")
LINE_LIMITED_ENDS = SOURCE_ENDS + (".proto", ".py", ".sh", ".cmake", "CMakeLists.txt")
MAX_LINES = 400
MAX_DEVICE_LINES = 700

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
MACHINE_PATH = re.compile(r'(?<![\w.$}*-])/(?:work|root|home|Users)/[\w.-]')
CMAKE_GLOB = re.compile(r"\bfile\s*\(\s*GLOB", re.IGNORECASE)


def list_files(root):
    """Paths below root, relative to it: git's where root is a checkout, else all but build output."""
    if os.path.exists(os.path.join(root, ".git")):
        git = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"], capture_output=True, check=True)
        paths = set(git.stdout.decode().split("\0"))
        return sorted(p for p in paths if p and os.path.isfile(os.path.join(root, p)))
    found = []
    for directory, subdirectories, names in os.walk(root):
        if directory == root:
            subdirectories[:] = [d for d in subdirectories if d != "build"]
        found += [os.path.relpath(os.path.join(directory, name), root) for name in names]
    return sorted(found)


def is_under(path, prefix):
    return path == prefix or path.startswith(prefix + "/")


def room_of(path):
    if re.fullmatch(r"server/[^/]+", path):
        return "server/main"
    rooms = [room for room in ARROWS if is_under(path, room)]
    return max(rooms, key=len) if rooms else None


def resolve(including, name, files):
    """The file of the tree that `name` means in `including`, or None for a library's header."""
    candidates = [os.path.normpath(os.path.join(os.path.dirname(including), name))]
    candidates += [prefix + name for prefix in INCLUDE_ROOTS]
    for candidate in candidates:
        if candidate in files:
            return candidate
    generated = re.fullmatch(r"(.+?)(\.grpc)?\.pb\.h", name)
    if generated and "proto/" + generated.group(1) + ".proto" in files:
        return "proto/" + name
    return None


def reaches(arrow, target):
    """An arrow names a room, one header, or a directory of rooms."""
    return arrow == room_of(target) or arrow not in ARROWS and is_under(target, arrow)


def check_include(path, line, name, files):
    room = room_of(path)
    where = f"{path}:{line}"
    problems = []
    for pattern, library, rooms in EXTERNAL:
        if re.search(pattern, name) and not any(is_under(room, r) for r in rooms):
            problems.append(f"{where}: {room} includes a header of {library}: {name}")
    target = resolve(path, name, files)
    if target is None:
        if room == DEVICE_ROOM and not re.search(DEVICE_HEADERS, name):
            problems.append(f"{where}: {room} includes a header that is not CUDA's: {name}")
        if re.match(r"(server|kernels|client|tests|nibble)/", name):
            problems.append(f"{where}: {name} is not in the tree")
        return problems
    target_room = room_of(target)
    if target_room != room and not any(reaches(arrow, target) for arrow in ARROWS[room]):
        problems.append(f"{where}: no arrow {room} -> {target_room or target} ({name})")
    return problems


def check_file(root, path, files):
    with open(os.path.join(root, path), "rb") as f:
        data = f.read()
    if b"\0" in data:
        return []
    text = data.decode("utf-8", "replace")
    lines = text.splitlines()
    problems = []
    if path.endswith(LINE_LIMITED_ENDS):
        limit = MAX_DEVICE_LINES if is_under(path, DEVICE_ROOM) else MAX_LINES
        if len(lines) > limit:
            problems.append(f"{path}: {len(lines)} lines, at most {limit}")
    if path.endswith(("CMakeLists.txt", ".cmake", ".cmake.in")) and CMAKE_GLOB.search(text):
        problems.append(f"{path}: sources are listed, not globbed")
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            problems.append(f"{path}:{number}: a path of one machine: {line.strip()}")
    if path.endswith(SOURCE_ENDS):
        if room_of(path) is None:
            return problems + [f"{path}: in no room"]
        for number, line in enumerate(lines, 1):
            include = INCLUDE.match(line)
            if include:
                problems += check_include(path, number, include.group(1) or include.group(2), files)
    return problems


def check_tree(root):
    files = list_files(root)
    if not files:
        return [f"{root}: no files"]
    known = set(files)
    return [problem for path in files for problem in check_file(root, path, known)]


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    problems = check_tree(arguments[1])
    for problem in problems:
        print(problem)
    print(f"{len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
