#!/usr/bin/env python3
"""Plants violations in a small tree and expects arrows.py to name each."""

import os
import tempfile
import unittest

import arrows

CLEAN = {
    "proto/nibble/v1/linear.proto": 'syntax = "proto3";\n',
    "kernels/include/nibble/ops.h": "#include <cstdint>\n",
    "kernels/core/format.h": '#include "nibble/ops.h"\n',
    "kernels/core/format.cc": '#include "kernels/core/format.h"\n#include "fmt/format.h"\n',
    "kernels/cpu/matmul.cc": '#include "kernels/core/format.h"\n#include "nibble/ops.h"\n',
    "kernels/cuda/backend.cc": '#include "kernels/cuda/launch/matmul.h"\n#include <cuda.h>\n',
    "kernels/cuda/launch/matmul.h": '#include "kernels/core/format.h"\n',
    "kernels/cuda/launch/matmul.cu": '#include "kernels/cuda/device/tile.cuh"\n',
    "kernels/cuda/device/tile.cuh": "#include <cuda_bf16.h>\n#include <cstdint>\n",
    "kernels/CMakeLists.txt": "target_sources(k PRIVATE format.cc)\n",
    "server/clock/clock.h": "#include <chrono>\n",
    "server/metrics/metrics.cc": "#include <prometheus/counter.h>\n",
    "server/batcher/batcher.h": '#include "server/clock/clock.h"\n',
    "server/checkpoint/safetensors.h": "#include <span>\n",
    "server/checkpoint/checkpoint.h": '#include "nibble/ops.h"\n#include "safetensors.h"\n',
    "server/tools/inspect.h": "#include <string>\n",
    "server/tools/inspect.cc": '#include "nibble/ops.h"\n#include "server/checkpoint/checkpoint.h"\n',
    "server/service/service.cc":
        '#include "nibble/v1/linear.grpc.pb.h"\n#include "server/batcher/batcher.h"\n',
    "client/cpp/include/nibble/client.h": '#include "nibble/v1/linear.pb.h"\n',
    "client/cpp/cli/cli.cc":
        '#include "nibble/client.h"\n#include "server/checkpoint/safetensors.h"\n'
        '#include "server/tools/inspect.h"\n',
    "tests/unit/any_test.cc":
        '#include <gtest/gtest.h>\n#include "kernels/core/format.h"\n'
        '#include "server/batcher/batcher.h"\n#include "nibble/client.h"\n',
}

# what is planted, where, and what must be said of it
PLANTED = [
    ("kernels/cpu/bad.cc", "#include <grpcpp/grpcpp.h>", "a header of gRPC"),
    ("kernels/cpu/bad.cc", '#include "nibble/v1/linear.pb.h"', "a header of protobuf"),
    ("kernels/cpu/bad.cc", "#include <cuda_runtime.h>", "a header of CUDA"),
    ("kernels/cpu/bad.cc", '#include "server/clock/clock.h"', "no arrow kernels/cpu -> server/clock"),
    ("kernels/core/bad.cc", '#include "kernels/cpu/pool.h"', "kernels/cpu/pool.h is not in the tree"),
    ("kernels/core/bad.cc", '#include "../cpu/matmul.cc"', "no arrow kernels/core -> kernels/cpu"),
    ("kernels/include/nibble/bad.h", '#include "kernels/core/format.h"',
     "no arrow kernels/include -> kernels/core"),
    ("kernels/cuda/bad.cc", '#include "kernels/cuda/device/tile.cuh"',
     "no arrow kernels/cuda -> kernels/cuda/device"),
    ("kernels/cuda/device/bad.cuh", '#include "nibble/ops.h"',
     "no arrow kernels/cuda/device -> kernels/include"),
    ("kernels/cuda/device/bad.cuh", "#include <vector>", "not CUDA's: vector"),
    ("server/batcher/bad.cc", "#include <grpcpp/server.h>", "a header of gRPC"),
    ("server/batcher/bad.cc", "# include <prometheus/counter.h>", "a header of prometheus-cpp"),
    ("server/batcher/bad.cc", '#include "nibble/ops.h"', "no arrow server/batcher -> kernels/include"),
    ("server/clock/bad.cc", '#include "server/batcher/batcher.h"',
     "no arrow server/clock -> server/batcher"),
    ("server/checkpoint/bad.cc", '#include "kernels/core/format.h"',
     "no arrow server/checkpoint -> kernels/core"),
    ("server/service/bad.cc", '#include "kernels/core/format.h"',
     "no arrow server/service -> kernels/core"),
    ("server/service/bad.cc", '#include "nibble/client.h"', "no arrow server/service -> client/cpp"),
    ("client/cpp/bad.cc", '#include "server/checkpoint/safetensors.h"',
     "no arrow client/cpp -> server/checkpoint"),
    ("client/cpp/cli/bad.cc", '#include "server/checkpoint/checkpoint.h"',
     "no arrow client/cpp/cli -> server/checkpoint"),
    ("client/cpp/bad.cc", '#include "server/tools/inspect.h"',
     "no arrow client/cpp -> server/tools"),
    ("client/cpp/cli/bad.cc", '#include "nibble/ops.h"',
     "no arrow client/cpp/cli -> kernels/include"),
    ("server/new_room/a.cc", "int a;", "in no room"),
    ("server/batcher/long.cc", "\n" * 400 + "int a;", "401 lines, at most 400"),
    ("kernels/cuda/device/long.cuh", "\n" * 700 + "int a;", "701 lines, at most 700"),
    ("server/CMakeLists.txt", "file( GLOB sources *.cc)", "not globbed"),
    ("deploy/a.sh", "cd /" + "home/someone/nibble", "a path of one machine"),
    ("deploy/a.yaml", "path: /" + "root/models", "a path of one machine"),
]


def problems_of(tree):
    with tempfile.TemporaryDirectory() as root:
        for path, text in tree.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        return arrows.check_tree(root)


class ArrowsTest(unittest.TestCase):
    def test_clean_tree_has_no_violation(self):
        self.assertEqual(problems_of(CLEAN), [])

    def test_device_code_may_take_700_lines(self):
        self.assertEqual(problems_of({"kernels/cuda/device/loop.cuh": "\n" * 700}), [])

    def test_names_each_planted_violation(self):
        for path, text, expected in PLANTED:
            with self.subTest(path=path, text=text.strip()):
                problems = problems_of({**CLEAN, path: text + "\n"})
                self.assertTrue(problems)
                for problem in problems:
                    self.assertTrue(problem.startswith(path), problem)
                self.assertTrue(any(expected in problem for problem in problems), problems)

    def test_an_empty_tree_is_a_violation(self):
        self.assertNotEqual(problems_of({}), [])


if __name__ == "__main__":
    unittest.main()
