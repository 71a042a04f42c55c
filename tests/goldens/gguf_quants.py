#!/usr/bin/env python3
"""Golden values of the block formats, from the PyPI package `gguf` (0.19.0).

Writes tests/data/model/quants/<type>.bin: random blocks and the package's values of them; uint32
number of blocks, the blocks, then their values as float32. Scales cover the extremes of half
precision (zero, subnormal, smallest normal, largest, both signs). Also quantize_<type>.bin: random
values and the package's blocks of them; uint32 number of values, the values, then the blocks.

    pip install gguf==0.19.0 numpy && python3 tests/goldens/gguf_quants.py
"""
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

# type, block bytes, blocks, byte offsets of the half-precision fields
FORMATS = [
    (Type.F16, 2, 512, []),
    (Type.BF16, 2, 512, []),
    (Type.Q4_0, 18, 48, [0]),
    (Type.Q4_1, 20, 48, [0, 2]),
    (Type.Q5_0, 22, 48, [0]),
    (Type.Q5_1, 24, 48, [0, 2]),
    (Type.Q8_0, 34, 48, [0]),
    (Type.Q4_K, 144, 16, [0, 2]),
    (Type.Q5_K, 176, 16, [0, 2]),
    (Type.Q6_K, 210, 16, [208]),
    (Type.Q2_K, 84, 16, [80, 82]),
    (Type.Q3_K, 110, 16, [108]),
    (Type.IQ4_NL, 18, 48, [0]),
    (Type.IQ4_XS, 136, 16, [0]),
    (Type.MXFP4, 17, 256, []),
]
EXTREMES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x3C00], np.uint16)


def random_scales(rng, count):
    ordinary = rng.normal(0, 0.05, count).astype(np.float16).view(np.uint16)
    extreme = rng.choice(EXTREMES, count)
    return np.where(rng.random(count) < 0.4, extreme, ordinary).astype("<u2")


# Blocks of ordinary weights, of values halfway between steps, of equal peaks of both signs, of
# zeros, and of values so small or large that the scale leaves the range of normal half precision.
def values_to_quantize(rng):
    blocks = rng.normal(0, 0.05, (64, 32)).astype(np.float32)
    blocks[8:16] = rng.integers(-254, 255, (8, 32)) / 2
    blocks[8:16, 0] = 127
    blocks[16:24] = rng.choice(np.float32([-1, -0.5, 0.25, 1]), (8, 32))
    blocks[24] = 0
    blocks[25] = -0.0
    for row, scale in zip(range(26, 40), np.logspace(-34, 5, 14)):
        blocks[row] *= np.float32(scale)
    return blocks


def main():
    folder = pathlib.Path(__file__).resolve().parents[2] / "tests/data/model/quants"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20240607)
    for kind, block_bytes, count, scales in FORMATS:
        blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
        for offset in scales:
            blocks[:, offset : offset + 2] = random_scales(rng, count).view(np.uint8).reshape(count, 2)
        if kind == Type.MXFP4:  # every exponent with a finite largest value
            blocks[:, 0] = np.minimum(np.arange(count), 251)
        elif not scales:  # every bit pattern of a 16-bit type except NaN, which does not compare
            halves = blocks.reshape(-1).view(np.uint16)
            halves[: len(EXTREMES)] = EXTREMES
            top = 0x7C00 if kind == Type.F16 else 0x7F80
            halves[(halves & top) == top] &= 0x8FFF
            blocks = blocks.reshape(1, -1)
        values = dequantize(blocks, kind).astype("<f4").reshape(-1)
        assert np.isfinite(values).all(), kind
        with open(folder / f"{kind.name.lower()}.bin", "wb") as out:
            out.write(np.uint32(count).astype("<u4").tobytes() + blocks.tobytes() + values.tobytes())
        print(f"{kind.name}: {count} blocks, {values.size} values, |max| {np.abs(values).max():g}")
    values = values_to_quantize(np.random.default_rng(20261123))
    for kind in (Type.Q8_0, Type.Q4_0):
        blocks = quantize(values, kind)
        with open(folder / f"quantize_{kind.name.lower()}.bin", "wb") as out:
            out.write(np.uint32(values.size).astype("<u4").tobytes() + values.astype("<f4").tobytes() + blocks.tobytes())


if __name__ == "__main__":
    main()
