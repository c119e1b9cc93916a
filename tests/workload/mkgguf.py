#!/usr/bin/env python3
"""Writes a random-weight llama model (GGUF, Q8_0) that llama.cpp loads and decodes.

Standard library only. The same arguments write the same bytes. Sizes:
  the defaults                                1.7 MB   placement, thread counts
  --layers 16 --width 1024 --ffn 4096         260 MB   speed, huge pages, page cache
"""

import argparse
import os
import random
import struct
import sys

ALIGNMENT = 32           # of every tensor in the file
BLOCK = 34               # one Q8_0 block: a half-float scale and 32 signed bytes
POOL_BLOCKS = 1 << 15    # random blocks made once; a tensor is a walk through them
SCALE = struct.pack("<e", 0.0008)
F32, Q8_0 = 0, 8         # ggml tensor types
U32, FLOAT, I32, STRING, ARRAY = 4, 6, 5, 8, 9  # GGUF value types


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pack(kind, value):
    if kind == STRING:
        return string(value)
    return struct.pack({U32: "<I", FLOAT: "<f", I32: "<i"}[kind], value)


def entry(key, kind, value):
    """One key of the header; a list becomes an array of its kind."""
    if not isinstance(value, list):
        return string(key) + struct.pack("<I", kind) + pack(kind, value)
    items = b"".join(pack(kind, item) for item in value)
    return string(key) + struct.pack("<IIQ", ARRAY, kind, len(value)) + items


def metadata(args, heads, kv_heads):
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tokens += [f"\u2581t{i}" for i in range(len(tokens), args.vocab)]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (args.vocab - 259)
    return [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, "random"),
        entry("general.file_type", U32, 7),  # mostly Q8_0
        entry("llama.context_length", U32, args.context),
        entry("llama.embedding_length", U32, args.width),
        entry("llama.block_count", U32, args.layers),
        entry("llama.feed_forward_length", U32, args.ffn),
        entry("llama.attention.head_count", U32, heads),
        entry("llama.attention.head_count_kv", U32, kv_heads),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT, 1e-5),
        entry("llama.rope.dimension_count", U32, args.width // heads),
        entry("llama.vocab_size", U32, args.vocab),
        entry("tokenizer.ggml.model", STRING, "llama"),
        entry("tokenizer.ggml.tokens", STRING, tokens),
        entry("tokenizer.ggml.scores", FLOAT, [-float(i) for i in range(args.vocab)]),
        entry("tokenizer.ggml.token_type", I32, kinds),
        entry("tokenizer.ggml.unknown_token_id", U32, 0),
        entry("tokenizer.ggml.bos_token_id", U32, 1),
        entry("tokenizer.ggml.eos_token_id", U32, 2),
    ]


def tensors(args, kv_width):
    """(name, shape, type) in file order."""
    width, ffn = args.width, args.ffn
    yield "token_embd.weight", (width, args.vocab), Q8_0
    yield "output_norm.weight", (width,), F32
    yield "output.weight", (width, args.vocab), Q8_0
    for layer in range(args.layers):
        for name, shape in (
            ("attn_norm", (width,)), ("attn_q", (width, width)), ("attn_k", (width, kv_width)),
            ("attn_v", (width, kv_width)), ("attn_output", (width, width)), ("ffn_norm", (width,)),
            ("ffn_gate", (width, ffn)), ("ffn_up", (width, ffn)), ("ffn_down", (ffn, width)),
        ):
            yield f"blk.{layer}.{name}.weight", shape, F32 if len(shape) == 1 else Q8_0


def elements(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def byte_size(shape, kind):
    return elements(shape) * 4 if kind == F32 else elements(shape) // 32 * BLOCK


def padding(size):
    return b"\0" * (-size % ALIGNMENT)


def random_pool(rng):
    pool = bytearray(rng.randbytes(POOL_BLOCKS * BLOCK))
    pool[0::BLOCK] = SCALE[0:1] * POOL_BLOCKS
    pool[1::BLOCK] = SCALE[1:2] * POOL_BLOCKS
    return memoryview(bytes(pool))


def write_weights(out, rng, pool, shape, kind):
    size = byte_size(shape, kind)
    if kind == F32:
        out.write(struct.pack("<f", 1.0) * elements(shape))
    else:
        start, left = rng.randrange(POOL_BLOCKS) * BLOCK, size
        while left:
            piece = pool[start:start + left]
            out.write(piece)
            left -= len(piece)
            start = 0
    out.write(padding(size))


def write_model(path, args):
    heads = max(4, args.width // 64)
    kv_heads = 4
    header = metadata(args, heads, kv_heads)
    table = list(tensors(args, kv_heads * (args.width // heads)))
    index, offset = [], 0
    for name, shape, kind in table:
        index.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        size = byte_size(shape, kind)
        offset += size + len(padding(size))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(header)) + b"".join(header + index)
    rng = random.Random(args.seed)
    pool = random_pool(rng)
    partial = f"{path}.partial"  # a reader never sees half a model
    with open(partial, "wb") as out:
        out.write(head + padding(len(head)))
        for _, shape, kind in table:
            write_weights(out, rng, pool, shape, kind)
    os.replace(partial, path)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the file to write")
    for name, default, what in (
        ("layers", 2, "number of layers"), ("width", 256, "embedding width, a multiple of 256"),
        ("ffn", 512, "feed-forward width, a multiple of 32"), ("vocab", 512, "number of tokens, 259 or more"),
        ("context", 512, "context the model says it was trained on"), ("seed", 0, "of the random weights"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    args = parser.parse_args()
    if args.layers < 1 or args.context < 1:
        parser.error("--layers and --context must be 1 or more")
    if args.width < 256 or args.width % 256:
        parser.error(f"--width {args.width}: must be a multiple of 256")
    if args.ffn < 32 or args.ffn % 32:
        parser.error(f"--ffn {args.ffn}: must be a multiple of 32")
    if args.vocab < 259:
        parser.error(f"--vocab {args.vocab}: must be 259 or more (256 of them are the bytes)")
    return args


def main():
    args = arguments()
    try:
        write_model(args.out, args)
        print(args.out, os.path.getsize(args.out))
    except OSError as error:
        sys.exit(f"mkgguf.py: {args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
