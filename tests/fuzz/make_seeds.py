#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: make_seeds.py [DIRECTORY], by default seeds/ beside this file.

Configurations are those of tests/golden, tensors are small ones of the same layouts, as recipes
(checkpoint_recipe.h). The result is committed; it changes only where this file does.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
LAYER = "model.layers.0.mlp.down_proj"
NORM = "model.norm.weight BF16 64 v1,0.5"


def golden_config(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    config.pop("nibble_golden", None)
    return json.dumps(config, indent=1)


def compressed(fmt, weights, **extra):
    group = {"targets": ["Linear"], "weights": weights}
    quantization = {"quant_method": "compressed-tensors", "format": fmt, "ignore": ["lm_head", "re:.*embed.*"],
                    "config_groups": {"group_0": group}}
    return json.dumps({"model_type": "llama", "torch_dtype": "bfloat16",
                       "quantization_config": quantization | extra}, indent=1)


def gptq(**values):
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    return json.dumps({"torch_dtype": "float16", "quantization_config": quantization | values}, indent=1)


def recipe(config, *lines, container="model.safetensors", more=""):
    text = "" if config is None else f"@config.json\n{config}\n"
    return text + f"@{container}\n" + "".join(line + "\n" for line in lines) + more


def bitsandbytes(kind, n, k, block, nested=None, bias=False, layer=LAYER):
    blocks = -(-n * k // block)
    state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [n, k]}
    lines = [f"{layer}.weight U8 {-(-n * k // 2)},1 r1", f"{layer}.weight.quant_map F32 16 {kind}"]
    if nested:
        state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": 0.04}
        lines += [f"{layer}.weight.absmax U8 {blocks} r2",
                  f"{layer}.weight.nested_absmax F32 {-(-blocks // nested)} v0.02,0.5",
                  f"{layer}.weight.nested_quant_map F32 256 v-1,-0.5,0,0.25,0.5,1"]
    else:
        lines.append(f"{layer}.weight.absmax F32 {blocks} v0.5,1.5,2")
    lines.append(f"{layer}.weight.quant_state.bitsandbytes__{kind} U8 - t{json.dumps(state)}")
    if bias:
        lines.append(f"{layer}.bias F16 {n} v1,-1")
    return lines


def gptq_layer(k, n, groups, zeros="v2004318071", layer=LAYER, index=True):
    lines = [f"{layer}.qweight I32 {-(-k // 8)},{n} r1", f"{layer}.qzeros I32 {groups},{-(-n // 8)} {zeros}",
             f"{layer}.scales F16 {groups},{n} v0.5,0.25"]
    if index:
        per_group = -(-k // groups)
        entries = ",".join(str(i // per_group) for i in range(k))
        lines.append(f"{layer}.g_idx I32 {k} v{entries}")
    return lines


def packed_layer(n, k, groups, zeros=False, layer=LAYER):
    lines = [f"{layer}.weight_packed I32 {n},{-(-k // 8)} r1", f"{layer}.weight_scale BF16 {n},{groups} v0.5,0.125",
             f"{layer}.weight_shape I64 2 v{n},{k}"]
    if zeros:
        lines.append(f"{layer}.weight_zero_point I32 {-(-n // 8)},{groups} r2")
    return lines


def fp8_layer(n, k, scale, shape, dtype="BF16", layer=LAYER):
    return [f"{layer}.weight F8_E4M3 {n},{k} r1", f"{layer}.{scale} {dtype} {shape} v0.5,0.0625"]


def qkv(make):
    return [line for part in ("q_proj", "k_proj", "v_proj") for line in make(f"model.layers.0.self_attn.{part}")]


def checkpoints():
    bnb = golden_config("bnb_odd_elements")
    yield "bitsandbytes", {
        "nf4": recipe(bnb, *bitsandbytes("nf4", 4, 64, 64), NORM),
        "fp4_bias": recipe(golden_config("bnb_llama_1b_fp4"), *bitsandbytes("fp4", 3, 40, 32, bias=True)),
        "nested": recipe(golden_config("bnb_rows_cross_blocks"), *bitsandbytes("nf4", 24, 100, 64, nested=32)),
        "parts": recipe(bnb, *qkv(lambda layer: bitsandbytes("nf4", 4, 32, 64, layer=layer))),
        "no_config": recipe(None, *bitsandbytes("nf4", 7, 11, 32)),
    }
    yield "gptq", {
        "v1": recipe(golden_config("gptq_falcon3_1b_int4"), *gptq_layer(128, 16, 1)),
        "ragged": recipe(gptq(group_size=-1), *gptq_layer(20, 12, 1)),
        "v2_zeros": recipe(gptq(sym=False, checkpoint_format="gptq_v2"), *gptq_layer(64, 8, 2, "r3", index=False)),
        "act_order": recipe(gptq(desc_act=True), *gptq_layer(64, 8, 2)[:-1],
                            f"{LAYER}.g_idx I32 64 v1,0,0,1", f"{LAYER}.bias F16 8 v1"),
        "dynamic": recipe(gptq(dynamic={"-:.*lm_head": {}, "+:.*down.*": {"bits": 4, "group_size": 64}}),
                          *gptq_layer(64, 8, 1), "lm_head.weight F16 4,8 r2"),
        "parts": recipe(gptq(), *qkv(lambda layer: gptq_layer(32, 8, 1, layer=layer))),
        "quantize_config": recipe('{"torch_dtype": "float16"}', *gptq_layer(32, 8, 1),
                                  more='@quantize_config.json\n{"bits": 4, "group_size": 32, "desc_act": false}\n'),
    }
    awq = golden_config("awq_llama_3_2_1b_awq").replace("128", "32")
    awq_lines = [f"{LAYER}.qweight I32 64,2 r1", f"{LAYER}.qzeros I32 2,2 r2", f"{LAYER}.scales F16 2,16 v0.5,0.25"]
    yield "awq", {
        "gemm": recipe(awq, *awq_lines, f"{LAYER}.bias F16 16 v1"),
        "gemv": recipe(awq.replace("gemm", "gemv"), f"{LAYER}.qweight I32 16,8 r1",
                       f"{LAYER}.qzeros I32 16,1 r2", f"{LAYER}.scales F16 16,2 v0.5"),
        "quant_config": recipe('{"torch_dtype": "float16"}', *awq_lines,
                               more='@quant_config.json\n{"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}\n'),
    }
    int4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    fp8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    yield "compressed_tensors", {
        "int4_group": recipe(compressed("pack-quantized", int4), *packed_layer(8, 64, 2)),
        "int4_zeros": recipe(compressed("pack-quantized", int4 | {"symmetric": False}), *packed_layer(10, 64, 2, True)),
        "int4_channel": recipe(compressed("pack-quantized", int4 | {"strategy": "channel", "group_size": None}),
                               *packed_layer(6, 20, 1)),
        "int4_act_order": recipe(compressed("pack-quantized", int4 | {"actorder": "group"}), *packed_layer(8, 64, 2),
                                 f"{LAYER}.weight_g_idx I32 64 v1,0"),
        "int4_parts": recipe(compressed("pack-quantized", int4), *qkv(lambda layer: packed_layer(8, 32, 1, layer=layer))),
        "fp8_channel": recipe(golden_config("fp8_llama_dynamic_per_channel"), *fp8_layer(8, 32, "weight_scale", "8,1")),
        "fp8_tensor_static": recipe(compressed("float-quantized", fp8 | {"strategy": "tensor"}),
                                    *fp8_layer(8, 32, "weight_scale", "1"), f"{LAYER}.input_scale BF16 1 v0.5"),
        "fp8_block": recipe(compressed("float-quantized", fp8 | {"strategy": "block", "block_structure": [8, 16]}),
                            *fp8_layer(20, 40, "weight_scale", "3,3")),
        "preset": recipe(json.dumps({"quantization_config": {"quant_method": "compressed-tensors",
                                                             "config_groups": {"W4A16": ["Linear"]}}}),
                         *packed_layer(8, 128, 1)),
    }
    yield "fp8", {
        "static": recipe(golden_config("fp8_llama_static_per_tensor"), *fp8_layer(8, 32, "weight_scale", "1"),
                         f"{LAYER}.input_scale F32 1 v0.25"),
        "auto": recipe('{"quantization_config": {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}}',
                       *fp8_layer(4, 16, "weight_scale", "", "F32"), "lm_head.weight BF16 4,16 r2"),
        "parts": recipe('{"quantization_config": {"quant_method": "fp8"}}',
                        *qkv(lambda layer: fp8_layer(4, 16, "weight_scale", "1", layer=layer))),
    }
    block = golden_config("fp8_exaone_fine_grained").replace("128", "16")
    yield "block_fp8", {
        "exact": recipe(block, *fp8_layer(32, 32, "weight_scale_inv", "2,2", "F32")),
        "ragged": recipe(block, *fp8_layer(40, 20, "weight_scale_inv", "3,2"), f"{LAYER}.bias BF16 40 v1"),
        "parts": recipe(block, *qkv(lambda layer: fp8_layer(16, 32, "weight_scale_inv", "1,2", layer=layer))),
    }
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": {
        "model.layers.0.mlp.down_proj.weight": "a.safetensors", "model.norm.weight": "b.safetensors"}}, indent=1)
    shards = f"@b.safetensors\n{NORM}\n@model.safetensors.index.json\n{index}\n"
    header = json.dumps({"__metadata__": {"format": "pt"}, "a.weight": {"dtype": "F32", "shape": [2, 4],
                                                                        "data_offsets": [0, 32]}})
    yield "dense", {
        "single": recipe('{"torch_dtype": "bfloat16"}', f"{LAYER}.weight BF16 8,16 r1", f"{LAYER}.bias BF16 8 r2", NORM),
        "sharded": recipe(None, f"{LAYER}.weight F16 4,8 r1", container="a.safetensors", more=shards),
        "tied": recipe('{"model_type": "gemma", "tie_word_embeddings": true}', "model.embed_tokens.weight BF16 8,16 r1", NORM),
        "parts": recipe("{}", *qkv(lambda layer: [f"{layer}.weight F32 4,8 r1"]),
                        "model.layers.0.mlp.gate_proj.weight F32 4,8 r2", "model.layers.0.mlp.up_proj.weight F32 4,8 r3"),
        "header": f"@header model.safetensors 32 r1\n{header}\n",
        "other_name": recipe(None, "a.weight F32 2,2 r1", container="weights.safetensors"),
    }


def container(header, data):
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors():
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return {
        "empty": container({}, b""),
        "two": container({"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 3], 0, 24),
                          "b": entry("U8", [5], 24, 29)}, bytes(range(29))),
        "dtypes": container({"s": entry("F64", [], 0, 8), "e": entry("I64", [0, 9], 8, 8), "h": entry("F16", [2], 8, 12),
                             "q": entry("F8_E4M3", [4], 12, 16), "f": entry("F4", [2, 1], 16, 17)}, bytes(17)),
        "ignored": container('{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1],"x":[{"y":[1,null]}]}}  ', b"\1"),
    }


CONFIG_KEYS = """listen: 127.0.0.1:50051
control_listen: "[::1]:0"
metrics_listen: ""
backend: cpu
device: [cpu:0]
cpu_devices: 2
cpu_threads: 3
cpu_memory_bytes: 1GiB
model:
  llama: /models/llama
quantize: [llama=int4+group=64+sym]
max_message_bytes: 64MiB
max_batch_rows: 256
max_queue_delay_us: 50
log_level: debug
"""


def configuration():
    return {
        "flags": "--listen=127.0.0.1:1234\n--backend\ncpu\n--model=a=/m/a\n--model=b=/m/b\n--quantize=a=nf4\n"
                 "--max-batch-rows=64\n--log-level=warn\n",
        "file": "---\n" + CONFIG_KEYS,
        "both": "--max-batch-rows=8\n--device=cpu:1\n---\n" + CONFIG_KEYS,
        "json": '---\n{"listen": "unix:/run/n.sock", "device": ["cpu:0"], "model": {"m": "/m"}, "max_queue_rows": 9}\n',
        "tls": "---\ntls_cert: /a.pem\ntls_key: /k.pem\ntls_client_ca: /ca.pem\ndata_token_file: /t\n",
        "help": "--help\n",
        "wrong": "--max-batch-row=64\n--listen\n---\nmax_batch_rows: [1]\nlisten: &a x\nmodel: {a: *a}\n",
    }


def varint(number):
    number &= (1 << 64) - 1
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(dtype, shape, data):
    return field(1, dtype) + field(2, b"".join(map(varint, shape))) + field(15, data)


def matmul(weight, x, *fields):
    return field(1, weight) + b"".join(fields) + field(15, x)


F32, F16, BF16, F8, I8 = 1, 2, 3, 4, 5
PER_TOKEN, PER_GROUP, STATIC = 1, 2, 3


def requests():
    x = tensor(BF16, [2, 64], bytes(256))
    codes = tensor(F8, [2, 160], bytes(320))
    quant = field(1, PER_TOKEN) + field(2, I8)
    methods = {
        "matmul": (0, [matmul("nf4", x, field(5, "id")), matmul("int4", tensor(F32, [1, 64], bytes(256)), field(2, F16)),
                       matmul("fp8", codes, field(4, tensor(F32, [2, 1], bytes(8)))),
                       matmul("fp8", codes, field(4, tensor(F32, [2, 2], bytes(16)))),
                       matmul("fp8", tensor(F16, [1, 1, 160], bytes(320)), field(3, STATIC)),
                       matmul("nf4", tensor(BF16, [0, 64], b""))]),
        "norm": (1, [field(1, "norm") + field(4, quant) + field(15, x) + field(14, x),
                     field(2, tensor(F32, [64], bytes(256))) + field(3, 1e-5) + field(15, x),
                     field(1, "norm") + field(4, field(1, PER_GROUP)) + field(15, x)]),
        "silu": (2, [field(15, x), field(1, field(1, STATIC) + field(3, 0.5)) + field(15, x)]),
        "dequantize": (3, [field(1, "nf4") + field(2, 1) + field(3, 2) + field(4, F16),
                           field(1, "int4") + field(5, 100)]),
    }
    # The second byte cuts the message into pieces of as many bytes; 0 leaves it whole.
    return {f"{name}_{i}": bytes([method, 7 * (i % 3)]) + wire
            for name, (method, wires) in methods.items() for i, wire in enumerate(wires)}


def part(message):
    return struct.pack("<H", len(message)) + message


def uploads():
    NF4, INT4, FP8 = 2, 4, 5
    st = container({"a.weight": {"dtype": "F32", "shape": [4, 32], "data_offsets": [0, 512]}}, struct.pack("<128f", *range(128)))
    checkpoint = field(2, field(1, field(1, NF4)) + field(2, "a*"))
    header = field(1, "m") + field(3, len(st)) + field(4, checkpoint)
    out = {"checkpoint": part(field(1, header)) + part(field(2, st[:300])) + part(field(2, st[300:]))}
    for name, target in {"int4": field(1, INT4) + field(4, 16) + field(5, 1), "fp8": field(1, FP8), "nf4": field(1, NF4)}.items():
        matrix = field(1, F32) + field(2, varint(4) + varint(16)) + field(3, target)
        header = field(1, "m") + field(3, 256) + field(5, matrix)
        out[name] = part(field(1, header)) + part(field(2, struct.pack("<64f", *range(64))))
    return out


def tuning_cache():
    def weight(**values):
        spec = {"format": "int4", "n": 64, "k": 256, "dtype": "BF16", "block_size": 64, "nested": False,
                "nested_block_size": 256, "group_size": 128, "zero_points": True, "group_index": False,
                "scale_dtype": "F16", "scale_layout": "tensor", "scale_block_n": 128, "scale_block_k": 128,
                "input_scale": False, "bias": False, "bias_dtype": "BF16"}
        return spec | values

    def entry(spec, rows, input="BF16", activation="none"):
        return {"weight": spec, "input": input, "output": "BF16", "activation": activation,
                "rows": [{"m": m, "us": us} for m, us in rows.items()]}

    def cache(kind, capability, *entries):
        device = {"name": "a device", "kind": kind, "cores": 2, "compute_capability": capability, "driver": "",
                  "weights": entries}
        return json.dumps({"format": 1, "build": "0.1.0", "devices": [device]}, separators=(",", ":"))

    return {
        "cpu": cache("cpu", 0, entry(weight(), {1: {"cpu_gemv": 10.5, "cpu_gemm": 20}, 4: {"cpu_gemv": 11, "cpu_gemm": 9},
                                                16: {"cpu_gemm": 30}})),
        "cuda": cache("cuda", 90, entry(weight(), {1: {"cuda_gemv": 10.5, "cuda_wgmma": 20}, 64: {"cuda_wgmma": 9, "cuda_gemv": 90}}),
                      entry(weight(format="fp8", scale_layout="block", scale_dtype="F32", group_size=128, zero_points=False),
                            {8: {"cuda_fp8_gemm": 5, "cuda_gemm_f32": 90}}, "F8_E4M3", "per_group")),
        "empty": cache("cuda", 80),
    }


def main(out):
    groups = dict(checkpoints()) | {"safetensors": safetensors(), "config": configuration(), "request": requests(),
                                    "upload": uploads(), "tuning_cache": tuning_cache()}
    for group, seeds in groups.items():
        directory = out / group
        directory.mkdir(parents=True, exist_ok=True)
        for stale in directory.iterdir():
            stale.unlink()
        for name, seed in seeds.items():
            (directory / name).write_bytes(seed.encode() if isinstance(seed, str) else seed)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "seeds")
