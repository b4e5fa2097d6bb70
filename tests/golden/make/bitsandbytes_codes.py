#!/usr/bin/env python3
"""Quantizes tricky matrices with bitsandbytes' CPU backend; the codes and scales are what nibble must give.

usage: bitsandbytes_codes.py OUT.safetensors

Tensors of case NAME: NAME.codes, NAME.absmax; nested ones also NAME.nested_absmax and NAME.nested_offset [1]. The
metadata's "cases" says of each its format, block size, [N, K] and the tensor whose first N * K elements are its matrix.
Needs torch and bitsandbytes; the versions go into the metadata.
"""

import json
import sys

import bitsandbytes
import bitsandbytes.functional as bnb
import safetensors.torch
import torch

BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)


def thresholds(quant_type):
    """Midpoints of neighbouring table entries, the values on both sides of each, and zeros, of both signs."""
    table = torch.sort(bnb.get_4bit_type(quant_type, device="cpu")).values
    midpoints = (table[:-1] + table[1:]) / 2
    up = torch.nextafter(midpoints, torch.tensor(2.0))
    down = torch.nextafter(midpoints, torch.tensor(-2.0))
    values = torch.cat([midpoints, up, down, torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e-40, -1e-40])])
    return torch.cat([values, torch.full((64 - len(values) % 64,), 1.0)]).reshape(1, -1)


def subnormals(generator):
    """Blocks of 64 whose absmax lies below, at and just above the smallest that the library divides by."""
    rows = [torch.randn(64, generator=generator) * scale for scale in (1e-42, 1e-39, 1e-38, 1.2e-38, 1e-36)]
    exact = torch.linspace(-1, 1, 64)
    return torch.stack(rows + [exact * 1e-38, exact * 9.9999e-39, exact * 1e-45])


def scaled_ties(quant_type, generator):
    """Table midpoints times an absmax: v * (1 / absmax) and v / absmax fall on different sides of some."""
    table = torch.sort(bnb.get_4bit_type(quant_type, device="cpu")).values
    midpoints = ((table[:-1] + table[1:]) / 2).repeat(5)[:63]
    absmax = torch.rand(8, 1, generator=generator) * 0.1 + 1e-3
    return torch.cat([absmax, midpoints * absmax], dim=1)


def cases():
    """Name, matrix, format, block size, nested, and the input's name where several share one."""
    generator = torch.Generator().manual_seed(20)
    weights = (torch.randn(3, 1367, generator=generator) * 0.02).to(torch.bfloat16)
    flat = weights.reshape(-1)
    halves = (torch.randn(2, 64, generator=generator) * 1e-6).half()
    for quant_type in ("nf4", "fp4"):
        for block_size in BLOCK_SIZES:
            count = min(8 * block_size + 5, 4101)  # an odd count with a partial last block
            yield f"{quant_type}_block_{block_size}", flat[:count].reshape(1, -1), quant_type, block_size, False, "weights"
        yield f"{quant_type}_ties", thresholds(quant_type), quant_type, 64, False
        scaled = scaled_ties(quant_type, generator)
        yield f"{quant_type}_scaled_ties", scaled, quant_type, 64, False
        yield f"{quant_type}_scaled_ties_in_a_tail", scaled[:1], quant_type, 128, False
        yield f"{quant_type}_subnormals", subnormals(generator), quant_type, 64, False
        yield f"{quant_type}_subnormals_f16", halves, quant_type, 64, False
        zeros = torch.zeros(1, 165)
        zeros[0, 70] = -3e38
        yield f"{quant_type}_zeros", zeros, quant_type, 64, False
        yield f"{quant_type}_one_element", torch.tensor([[-0.3]]), quant_type, 64, False
        yield f"{quant_type}_zero_element", torch.tensor([[0.0]]), quant_type, 64, False
    spread = torch.randn(9632, generator=generator) * torch.exp(torch.randn(9632, generator=generator))
    nested = (spread * 0.02).to(torch.bfloat16).reshape(43, 224)
    yield "nf4_nested", nested, "nf4", 32, True, "spread"
    yield "fp4_nested", nested[:20], "fp4", 64, True, "spread"
    yield "nf4_nested_odd", flat[:1001].reshape(7, 143), "nf4", 64, True, "weights"
    yield "nf4_nested_equal_blocks", torch.full((4, 64), 0.25), "nf4", 64, True
    yield "nf4_nested_zeros", torch.zeros(2, 64), "nf4", 64, True


def main():
    tensors, described = {}, {}
    for name, matrix, quant_type, block_size, nested, *shared in cases():
        codes, state = bnb.quantize_4bit(
            matrix, blocksize=block_size, compress_statistics=nested, quant_type=quant_type)
        source = shared[0] if shared else f"{name}.input"
        if source not in tensors or tensors[source].numel() < matrix.numel():
            tensors[source] = matrix.reshape(-1).clone()
        tensors[f"{name}.codes"] = codes.reshape(-1)
        tensors[f"{name}.absmax"] = state.absmax.reshape(-1)
        if nested:
            tensors[f"{name}.nested_absmax"] = state.state2.absmax
            tensors[f"{name}.nested_offset"] = state.offset.reshape(1)
        described[name] = {"format": quant_type, "block_size": block_size, "nested": nested,
                           "shape": list(matrix.shape), "input": source}
    tensors["nested_map"] = bnb.create_dynamic_map()
    versions = f"bitsandbytes {bitsandbytes.__version__} (CPU), torch {torch.__version__}"
    safetensors.torch.save_file(
        tensors, sys.argv[1], metadata={"cases": json.dumps(described), "made_by": versions})
    print(f"{len(described)} cases by {versions}")


if __name__ == "__main__":
    main()
