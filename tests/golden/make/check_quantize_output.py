#!/usr/bin/env python3
"""Loads what `nibble quantize` writes with the libraries whose formats it writes, and compares the weights.

usage: check_quantize_output.py NIBBLED NIBBLE [DIR]

Makes small LLaMA models with random weights, quantizes each to every format, loads the result with transformers
(bitsandbytes and compressed-tensors underneath) on the CPU, and with a nibble server. Every linear layer that either
decodes must agree bit for bit, and the model must run. Needs torch, transformers, bitsandbytes, compressed-tensors
and accelerate. Prints a Markdown table; exits with 1 where anything differs.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.update(CUDA_VISIBLE_DEVICES="", TORCHDYNAMO_DISABLE="1", TQDM_DISABLE="1")

import bitsandbytes.functional as bnb
import bitsandbytes.backends.default.ops as bnb_default
import torch
import transformers
from safetensors.torch import load_file

VARIANTS = {
    "nf4": ["--format", "nf4"],
    "nf4 block 128 nested": ["--format", "nf4", "--block-size", "128", "--nested"],
    "fp4": ["--format", "fp4"],
    "fp4 block 32 nested": ["--format", "fp4", "--block-size", "32", "--nested"],
    "int4 group 32": ["--format", "int4", "--group-size", "32"],
    "int4 group 32 zero-points": ["--format", "int4", "--group-size", "32", "--zero-points"],
    "int4 group 16 zero-points search": ["--format", "int4", "--group-size", "16", "--zero-points", "--search-scale"],
    "int4 channel": ["--format", "int4", "--group-size", "-1"],
    "fp8 tensor": ["--format", "fp8"],
    "fp8 channel": ["--format", "fp8", "--scale-layout", "channel"],
    "fp8 block": ["--format", "fp8", "--scale-layout", "block"],
}
MODELS = {
    "bf16, sharded": (torch.bfloat16, False, "1MB"),
    "f16, tied head": (torch.float16, True, "1GB"),
}


def make_model(directory, dtype, tied, shard_size):
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=320, hidden_size=160, intermediate_size=416, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, tie_word_embeddings=tied, attention_bias=True, torch_dtype=dtype)
    model = transformers.LlamaForCausalLM(config).to(dtype)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_()
    model.save_pretrained(directory, max_shard_size=shard_size)


def decode_4bit(weight):
    """The library's portable decoding. Its AVX-512 code looks scales up by row, which is wrong where the block size
    does not divide K."""
    state = weight.quant_state
    absmax = state.absmax
    if state.nested:
        absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
    return bnb_default._dequantize_4bit_compute(
        weight.data.reshape(-1), absmax, state.code, state.blocksize, state.shape, state.dtype)


def decoded_by_transformers(directory, dtype):
    """Name -> weight of every linear layer, and the logits of one prompt."""
    options = {"dtype": dtype, "device_map": "cpu"}
    if "compressed-tensors" in (directory / "config.json").read_text():
        options["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **options)
    weights = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        if type(module).__name__ == "Linear4bit":
            weights[name] = decode_4bit(module.weight)
        else:
            weights[name] = module.weight.data
    logits = model(torch.arange(8).reshape(1, 8)).logits
    return weights, logits


class Server:
    def __init__(self, nibbled, nibble, directory, scratch):
        ports = scratch / "ports"
        ports.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [nibbled, f"--model=m={directory}", "--listen=127.0.0.1:0", "--control-listen=127.0.0.1:0",
             "--metrics-listen=", "--drain-grace-ms=0", f"--port-file={ports}", "--log-level=error"])
        while not ports.exists():
            time.sleep(0.05)
        lines = dict(line.split("=") for line in ports.read_text().split())
        self.command = [nibble, "--server", f"127.0.0.1:{lines['data']}", "--control", f"127.0.0.1:{lines['control']}"]
        self.scratch = scratch
        while subprocess.run(self.command + ["health"], capture_output=True).returncode != 0:
            time.sleep(0.05)

    def decode(self, layer, dtype):
        out = self.scratch / "weight.safetensors"
        name = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
        subprocess.run(self.command + ["dequant", f"m/{layer}", "--dtype", name, "--out", str(out)],
                       check=True, capture_output=True)
        return next(iter(load_file(out).values()))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def compare(nibbled, nibble, directory, dtype, scratch):
    theirs, logits = decoded_by_transformers(directory, dtype)
    server = Server(nibbled, nibble, directory, scratch)
    layers = differing = 0
    try:
        for name, weight in theirs.items():
            if name == "lm_head":
                continue
            ours = server.decode(name, dtype).reshape(weight.shape)
            layers += 1
            # FP4's code 8 is -0.0 to a GPU and to nibble, +0.0 to the CPU library: equal as numbers.
            equal = torch.equal(ours, weight)
            differing += not equal
    finally:
        server.stop()
    return layers, differing, bool(torch.isfinite(logits).all())


def main():
    nibbled, nibble = sys.argv[1:3]
    keep = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else pathlib.Path(tempfile.mkdtemp())
    keep.mkdir(parents=True, exist_ok=True)
    print("| model | format | layers | differing | logits finite |\n|---|---|---|---|---|")
    failed = False
    for model, (dtype, tied, shard_size) in MODELS.items():
        source = keep / ("tied" if tied else "plain")
        make_model(source, dtype, tied, shard_size)
        for variant, flags in VARIANTS.items():
            target = keep / "quantized"
            subprocess.run([nibble, "quantize", str(source), str(target), "--force", *flags],
                           check=True, capture_output=True)
            layers, differing, finite = compare(nibbled, nibble, target, dtype, keep)
            failed |= differing > 0 or not finite or layers != 14
            print(f"| {model} | {variant} | {layers} | {differing} | {'yes' if finite else 'no'} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
