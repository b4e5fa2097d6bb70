#!/usr/bin/env python3
"""Writes the golden checkpoints that come from the original libraries, run on a CPU.

usage: make.py OUT --autogptq DIR --autoawq DIR

Needs torch, bitsandbytes, compressed-tensors and safetensors. AutoGPTQ and AutoAWQ are not installed (their
extensions need CUDA): DIR holds the unpacked wheel or source archive, whose Python modules are used alone.
Every weight is random with a fixed seed, quantized and packed by the library, and dequantized by it too.
The versions go into each config.json (`nibble_golden`), which readers do not look at.
"""

import argparse
import importlib
import json
import os
import sys
import types

import torch
from safetensors.torch import save_file

LAYER = "model.layers.0.mlp.down_proj"


def version_of(package):
    return importlib.metadata.version(package)


def module_without_package(root, name):
    """Imports module `name` below `root` without running the __init__ of its packages."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        package = types.ModuleType(".".join(parts[:i]))
        package.__path__ = [os.path.join(root, *parts[:i])]
        sys.modules[package.__name__] = package
    return importlib.import_module(name)


def write(out, name, tensors, quantization, weight, libraries, seed, bias=None):
    """tensors: names without the layer's; weight: [N, K] as the library dequantizes it."""
    directory = os.path.join(out, name)
    os.makedirs(directory, exist_ok=True)
    tensors = dict(tensors)
    if bias is not None:
        tensors["bias"] = bias
    save_file({f"{LAYER}.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()},
              os.path.join(directory, "model.safetensors"))
    config = {"model_type": "llama", "quantization_config": quantization,
              "nibble_golden": {"libraries": libraries, "seed": seed}}
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    x = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(seed + 1))
    x = x.to(torch.bfloat16)
    y = x.double() @ weight.double().T
    if bias is not None:
        y += bias.double()
    save_file({"weight": weight.contiguous(), "x": x, "y": y},
              os.path.join(directory, "expected.safetensors"))


def random_weight(n, k, seed):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) / 8


def make_bitsandbytes(out):
    import bitsandbytes.functional as bnb
    libraries = {"bitsandbytes": version_of("bitsandbytes"), "torch": torch.__version__}
    cases = [("bnb_nf4_block_128_nested_bf16_storage", "nf4", 128, True, torch.bfloat16, 48, 256),
             ("bnb_nf4_block_256_f32_storage", "nf4", 256, False, torch.float32, 32, 256)]
    for seed, (name, kind, block, nested, storage, n, k) in enumerate(cases, 100):
        # binary32, so that the library's own product is not rounded again
        weight = random_weight(n, k, seed)
        packed, state = bnb.quantize_4bit(weight, blocksize=block, compress_statistics=nested,
                                          quant_type=kind, quant_storage=storage)
        tensors = {"weight": packed}
        for key, value in state.as_dict(packed=True).items():
            tensors[f"weight.{key}"] = value
        write(out, name, tensors, {"quant_method": "bitsandbytes", "load_in_4bit": True,
                                   "bnb_4bit_quant_type": kind},
              bnb.dequantize_4bit(packed, state), libraries, seed)


def make_compressed_tensors(out):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    libraries = {"compressed-tensors": version_of("compressed-tensors"), "torch": torch.__version__}

    def tiles(weight, args):
        """Smallest and largest element for each scale, in the shape of the scales."""
        n, k = weight.shape
        rows, cols = {"tensor": (n, k), "channel": (1, k)}.get(
            args.strategy, tuple(args.block_structure) if args.block_structure else (1, args.group_size))
        grid_n, grid_k = -(-n // rows), -(-k // cols)
        padded = torch.zeros(grid_n * rows, grid_k * cols, dtype=weight.dtype)
        padded[:n, :k] = weight
        parts = padded.reshape(grid_n, rows, grid_k, cols)
        return parts.amin((1, 3)), parts.amax((1, 3))

    def make(name, fmt, seed, n, k, dtype, targets, bias=None, extra=None, **kwargs):
        args = QuantizationArgs(**kwargs)
        scheme = QuantizationScheme(targets=targets, weights=args)
        weight = random_weight(n, k, seed).to(dtype)
        scale, zero = calculate_qparams(*tiles(weight, args), args)
        scale = scale.to(dtype)
        if args.strategy == "tensor":
            scale, zero = scale.reshape(1), zero.reshape(1)
        compressor = BaseCompressor.get_value_from_registry(fmt)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        packed = compressor.compress(state, scheme)
        plain = compressor.decompress(dict(packed), scheme)["weight"]
        packed |= extra or {}
        write(out, name, packed,
              {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed",
               "ignore": ["lm_head", "re:.*embed.*"],
               "config_groups": {"group_0": {"targets": targets, "weights": args.model_dump(
                   mode="json", exclude_none=True)}}},
              plain, libraries, seed, bias)

    make("ct_int4_group_asymmetric", "pack-quantized", 200, 44, 256, torch.bfloat16, ["re:.*_proj"],
         bias=random_weight(1, 44, 7)[0].to(torch.bfloat16),
         num_bits=4, type="int", symmetric=False, strategy="group", group_size=64)
    make("ct_int4_group_symmetric", "pack-quantized", 201, 24, 384, torch.float16, ["Linear"],
         num_bits=4, type="int", symmetric=True, strategy="group", group_size=128)
    make("ct_int4_channel_ragged", "pack-quantized", 202, 40, 100, torch.float16, [LAYER],
         num_bits=4, type="int", symmetric=True, strategy="channel")
    make("ct_fp8_tensor_static", "float-quantized", 203, 48, 128, torch.bfloat16, ["Linear"],
         extra={"input_scale": torch.tensor([0.0125], dtype=torch.bfloat16)},
         num_bits=8, type="float", symmetric=True, strategy="tensor")
    make("ct_fp8_channel", "float-quantized", 204, 48, 128, torch.float16, ["Linear"],
         num_bits=8, type="float", symmetric=True, strategy="channel")
    make("ct_fp8_block_ragged", "float-quantized", 205, 72, 100, torch.bfloat16, ["Linear"],
         num_bits=8, type="float", symmetric=True, strategy="block", block_structure=[32, 64])


def affine(weight, group, symmetric):
    """Scales and zero points [N, G] of groups of inputs, 4 bits."""
    n, k = weight.shape
    parts = weight.reshape(n, k // group, group)
    if symmetric:
        scale = parts.abs().amax(2) / 7
        return scale.half().float(), torch.full_like(scale, 8)
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scale = ((high - low) / 15).half().float()
    return scale, (-low / scale).round().clamp(1, 15)


def decoded_by(layer, k):
    """The weight [N, K] of a layer: what it makes of the rows of the identity."""
    with torch.no_grad():
        rows = layer(torch.eye(k, dtype=torch.float16))
    return rows.T.contiguous()


def make_autogptq(out, root):
    libraries = {"auto-gptq": os.path.basename(root.rstrip("/")), "torch": torch.__version__}
    old = module_without_package(root, "auto_gptq.nn_modules.qlinear.qlinear_cuda_old")
    new = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda")
    cases = [("gptq_asymmetric", old, 64, 256, 64, False, False),
             ("gptq_act_order", new, 64, 256, 64, True, True),
             ("gptq_act_order_asymmetric", new, 64, 256, 32, False, True),
             ("gptq_whole_column", old, 64, 128, -1, True, False)]
    for seed, (name, module, n, k, group, symmetric, act_order) in enumerate(cases, 300):
        linear = torch.nn.Linear(k, n, bias=name == "gptq_asymmetric")
        weight = random_weight(n, k, seed)
        size = k if group == -1 else group
        order = torch.arange(k)
        if act_order:
            order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
        scale, zero = affine(weight[:, order], size, symmetric)
        g_idx = torch.empty(k, dtype=torch.int32)
        g_idx[order] = (torch.arange(k) // size).to(torch.int32)
        linear.weight.data = weight
        bias = None
        if linear.bias is not None:
            linear.bias.data = random_weight(1, n, seed + 50)[0].half().float()
            bias = linear.bias.data.half()
        layer = module.QuantLinear(4, group, k, n, bias is not None, weight_dtype=torch.float16)
        linear = linear.half() if module is new else linear
        if module is new:
            layer.pack(linear.float(), scale, zero.clone(), g_idx)
        else:
            layer.pack(linear, scale, zero.clone(), None)
        layer.scales = layer.scales.half()
        layer.bias = None
        tensors = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales,
                   "g_idx": g_idx}
        write(out, name, tensors, {"quant_method": "gptq", "bits": 4, "group_size": group,
                                   "desc_act": act_order, "sym": symmetric},
              decoded_by(layer, k), libraries, seed, bias)


def make_autoawq(out, root):
    libraries = {"autoawq": os.path.basename(root.rstrip("/")), "torch": torch.__version__}
    sys.modules["awq.utils.module"] = types.SimpleNamespace(try_import=lambda name: (None, ""))
    sys.modules["awq.utils.utils"] = types.SimpleNamespace(get_best_device=lambda: "cpu")
    gemm = module_without_package(root, "awq.modules.linear.gemm")
    for seed, (name, n, k, group) in enumerate([("awq_group_64_bias", 64, 256, 64)], 400):
        linear = torch.nn.Linear(k, n, bias=True)
        weight = random_weight(n, k, seed)
        scale, zero = affine(weight, group, symmetric=False)
        linear.weight.data = weight
        linear.bias.data = random_weight(1, n, seed + 50)[0].half().float()
        layer = gemm.WQLinear_GEMM.from_linear(linear, 4, group, False, scale.T.contiguous(),
                                               zero.T.contiguous())
        weight = gemm.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, group)
        tensors = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}
        write(out, name, tensors, {"quant_method": "awq", "bits": 4, "group_size": group,
                                   "version": "gemm", "zero_point": True},
              weight.T.contiguous(), libraries, seed, layer.bias)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out")
    parser.add_argument("--autogptq", required=True)
    parser.add_argument("--autoawq", required=True)
    arguments = parser.parse_args()
    for root in (arguments.autogptq, arguments.autoawq):
        sys.path.insert(0, root)
    make_bitsandbytes(arguments.out)
    make_compressed_tensors(arguments.out)
    make_autogptq(arguments.out, arguments.autogptq)
    make_autoawq(arguments.out, arguments.autoawq)


if __name__ == "__main__":
    main()
