"""Writes large checkpoints of random bytes, in shards with an index, for load_bench.py.

The bytes of a block are repeated: how fast they are loaded does not depend on what they are.
"""

import json
import os
import random
import struct

BLOCK = random.Random(7).randbytes(8 << 20)
INTS = {"I32": 4, "I64": 8, "U8": 1, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}

# K inputs and N outputs of the layers, by turns: a model of 8 billion weights.
SHAPES = [(4096, 4096), (14336, 4096), (4096, 14336)]


def count(shape):
    total = 1
    for dim in shape:
        total *= dim
    return total


def raw(values, kind):
    return struct.pack(f"<{len(values)}{kind}", *values)


def bitsandbytes(n, k, nested):
    blocks = n * k // 64
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, k]}
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
    table = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
             -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
             0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
             0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
    text = json.dumps(state).encode()
    tensors = {
        "weight": ("U8", [n * k // 2, 1], None),
        "weight.absmax": ("U8" if nested else "F32", [blocks], None),
        "weight.quant_map": ("F32", [16], raw(table, "f")),
        "weight.quant_state.bitsandbytes__nf4": ("U8", [len(text)], text),
    }
    if nested:
        tensors["weight.nested_absmax"] = ("F32", [blocks // 256], None)
        tensors["weight.nested_quant_map"] = ("F32", [256],
                                              raw([i / 256 for i in range(256)], "f"))
    return tensors


def gptq(n, k, act_order):
    groups = k // 128
    index = [i // 128 for i in range(k)]
    if act_order:
        random.Random(k).shuffle(index)
    return {
        "qweight": ("I32", [k // 8, n], None),
        "qzeros": ("I32", [groups, n // 8], b"\x77" * (groups * n // 2)),
        "scales": ("F16", [groups, n], None),
        "g_idx": ("I32", [k], raw(index, "i")),
    }


def awq(n, k):
    return {
        "qweight": ("I32", [k, n // 8], None),
        "qzeros": ("I32", [k // 128, n // 8], None),
        "scales": ("F16", [k // 128, n], None),
    }


def pack_quantized(n, k):
    return {
        "weight_packed": ("I32", [n, k // 8], None),
        "weight_scale": ("BF16", [n, k // 128], None),
        "weight_shape": ("I64", [2], raw([n, k], "q")),
    }


def block_fp8(n, k):
    return {
        "weight": ("F8_E4M3", [n, k], None),
        "weight_scale_inv": ("F32", [n // 128, k // 128], None),
    }


DIALECTS = {
    "nf4": (lambda n, k: bitsandbytes(n, k, False),
            {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "nf4-nested": (lambda n, k: bitsandbytes(n, k, True),
                   {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "gptq": (lambda n, k: gptq(n, k, False), {"quant_method": "gptq", "bits": 4, "group_size": 128}),
    "gptq-act-order": (lambda n, k: gptq(n, k, True),
                       {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}),
    "pack-quantized": (pack_quantized, {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}}}),
    "fp8": (block_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "dense": (lambda n, k: {"weight": ("BF16", [n, k], None)}, None),
}


def write_shard(path, tensors):
    """tensors: {name: (dtype, shape, bytes or None for random ones)}; returns the bytes of data."""
    header, offset = {}, 0
    for name, (dtype, shape, _) in tensors.items():
        size = count(shape) * INTS[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, (_, _, data) in tensors.items():
            left = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            if data is not None:
                f.write(data)
                continue
            while left > 0:
                left -= f.write(BLOCK[:left])
    return offset


def write_checkpoint(directory, dialect, total_bytes, shards):
    """Returns the paths of the shards."""
    make, quantization = DIALECTS[dialect]
    layers, written = [], 0
    while written < total_bytes:
        k, n = SHAPES[len(layers) % len(SHAPES)]
        tensors = make(n, k)
        layers.append({f"model.layers.{len(layers)}.proj.{suffix}": tensor
                       for suffix, tensor in tensors.items()})
        written += sum(count(shape) * INTS[dtype] for dtype, shape, _ in tensors.values())
    weight_map, paths = {}, []
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = layers[shard * len(layers) // shards:(shard + 1) * len(layers) // shards]
        tensors = {name: tensor for layer in part for name, tensor in layer.items()}
        paths.append(os.path.join(directory, name))
        write_shard(paths[-1], tensors)
        weight_map |= {tensor: name for tensor in tensors}
    with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": written}, "weight_map": weight_map}, f)
    config = {"model_type": "llama", "torch_dtype": "bfloat16"}
    if quantization is not None:
        config["quantization_config"] = quantization
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return paths
