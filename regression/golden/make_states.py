#!/usr/bin/env python3
"""Make the goldens of 8-bit optimizer states, from the arithmetic of bitsandbytes' CUDA kernels written in numpy.

    VENV/bin/python regression/golden/make_states.py

bitsandbytes 0.50.2 (whose maps are taken as they are), torch 2.15.0, numpy 2.4, safetensors 0.8.0.  Written:
states_8bit.txt, a line a code: the value of the signed and of the unsigned map, and above which value the next code is
nearer; states_8bit.safetensors:

    VALUES/in              fp32, blocks of 256 from the begin, the last one may be short
    VALUES/KIND, VALUES/KIND_absmax    codes and largest magnitudes as KIND: signed, moment (signed, with the repair of
                                       signs), unsigned (of magnitudes)
    RULE/NAME              after 20 steps on a [64, 128] matrix: of the first 8 rows m, v (codes), m_absmax, v_absmax
                           and p; sums (of p and p squared, fp64); RULE: adamw, lion, momentum

adamw_kernel, of which is only printed how often that happens, is the CUDA kernel to the letter: the weights decay after the update, and a second moment may become 0,
which a first moment over eps then turns into a step of any size (40 here, at a rate of 0.01).  adamw decays before, as
torch does, and a second moment above 0 has no lower code than 1.

Nearest code, of a tie the even one: what the kernels' search comes to.  Divisions are exact, where the kernels' are
approximate; a block of zeros has the code of zero (bitsandbytes: 255), by a largest magnitude of 0.
"""

import pathlib

import numpy as np
from bitsandbytes.functional import create_dynamic_map
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
BLOCK, ROWS, COLUMNS, STEPS = 256, 64, 128, 20
F = np.float32
MAPS = {signed: create_dynamic_map(signed).numpy() for signed in (True, False)}
MIDDLES = {signed: (m[1:] + m[:-1]) * F(0.5) for signed, m in MAPS.items()}


# ---- quantization ----

def search(x, signed):
    """quantize_2D of csrc/kernels.cu, to show that nearest is what it is."""
    code_map = MAPS[signed]
    pivot = np.full(x.shape, 127)
    lower_pivot, upper_pivot = np.zeros_like(pivot), np.full_like(pivot, 255)
    lower, upper = np.full(x.shape, F(-1 if signed else 0)), np.full(x.shape, F(1))
    value = code_map[pivot]
    for i in (64, 32, 16, 8, 4, 2, 1):
        above = x > value
        lower_pivot, lower = np.where(above, pivot, lower_pivot), np.where(above, value, lower)
        upper_pivot, upper = np.where(above, upper_pivot, pivot), np.where(above, upper, value)
        pivot = np.where(above, pivot + i, pivot - i)
        value = code_map[pivot]
    above = x > value
    up = np.where(x > (upper + value) * F(0.5), upper_pivot, pivot)
    down = np.where(x < (lower + value) * F(0.5), lower_pivot, pivot)
    return np.where(above, up, down).astype(np.uint8)


def nearest(x, signed):
    middles = MIDDLES[signed]
    code = np.searchsorted(middles, x, side="left")  # a tie: the lower
    tie = (code < 255) & (x == middles[np.minimum(code, 254)])
    return (code + (tie & (code % 2 == 1))).astype(np.uint8)


def by_blocks(values):
    """[blocks, 256], with zeros at the end."""
    padded = np.zeros(-(-values.size // BLOCK) * BLOCK, F)
    padded[:values.size] = values.reshape(-1)
    return padded.reshape(-1, BLOCK)


def quantize(values, signed, repair=False, least=0):
    """least: the lowest code of what is above 0"""
    blocks = by_blocks(values)
    largest = np.abs(blocks).max(1)
    with np.errstate(all="ignore"):
        x = np.where(largest[:, None] > 0, blocks / largest[:, None], F(0))
    codes = nearest(x, signed)
    if repair:
        wrong = (np.signbit(MAPS[True][codes]) != np.signbit(blocks)) & (largest[:, None] > 0)
        codes = np.where(wrong, np.where(blocks > 0, codes + 1, codes - 1), codes).astype(np.uint8)
    codes = np.where((blocks > 0) & (codes < least), least, codes).astype(np.uint8)
    return codes.reshape(-1)[:values.size], largest


def dequantize(codes, largest, signed):
    scales = np.repeat(largest, BLOCK)[:codes.size]
    return MAPS[signed][codes] * scales


def check_search():
    rng = np.random.default_rng(0)
    for signed in (True, False):
        x = np.concatenate([MAPS[signed], MIDDLES[signed], np.nextafter(MIDDLES[signed], F(2)),
                            np.nextafter(MIDDLES[signed], F(-2)), rng.uniform(-1 if signed else 0, 1, 100000),
                            10 ** rng.uniform(-9, 0, 100000)]).astype(F)
        assert np.array_equal(search(x, signed), nearest(x, signed))


# ---- values ----

def examples():
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(3 * BLOCK).astype(F)
    wide = (normal[:2 * BLOCK] * 10 ** rng.uniform(-8, 0, 2 * BLOCK)).astype(F)
    single = np.full(BLOCK, F(1e-3))
    single[77] = F(-1e6)
    signs = np.where(np.arange(BLOCK) % 3 == 0, F(-1), F(1))
    return dict(normal=normal, wide=wide, zeros=np.zeros(BLOCK, F), single=single,
                denormal=(signs * np.arange(BLOCK) * F(1e-41)).astype(F), short=normal[:BLOCK + 44],
                map=MAPS[True] * F(2), middles=np.append(MIDDLES[True], F(1)).astype(F),
                unsigned_middles=np.append(MIDDLES[False], F(1)).astype(F),
                small=(signs * 10 ** rng.uniform(-8, -6, BLOCK) + (np.arange(BLOCK) == 9)).astype(F),
                negative_zero=np.where(np.arange(BLOCK) == 5, F(1), F(-0.0)))


# ---- twenty steps ----

class Numbers:
    """x = 1664525 x + 1013904223 mod 2^32, from x = 1; the numbers are exact in fp32."""

    def __init__(self):
        self.x = 1

    def next(self):
        self.x = (1664525 * self.x + 1013904223) % 2 ** 32
        return self.x

    def weight(self):
        """In [-1/8, 1/8)"""
        return F(((self.next() >> 8) - 2 ** 23) * 2.0 ** -26)

    def gradient(self):
        """One in eight is 0; the others are in [-1, 1) by 2^0 to 2^-7."""
        size = self.next() >> 26  # of 64
        value = ((self.next() >> 8) - 2 ** 23) * 2.0 ** -23
        return F(0 if size < 8 else value * 2.0 ** -(size % 8))


LR, DECAY, B1, B2, EPS = F(1e-2), F(0.1), F(0.9), F(0.99), F(1e-8)


class Matrix:
    def __init__(self):
        self.numbers = Numbers()
        self.p = np.array([self.numbers.weight() for _ in range(ROWS * COLUMNS)], F)
        blocks = self.p.size // BLOCK
        self.m, self.m_absmax = np.zeros(self.p.size, np.uint8), np.zeros(blocks, F)
        self.v, self.v_absmax = np.zeros(self.p.size, np.uint8), np.zeros(blocks, F)
        self.lost = 0  # second moments that became 0

    def gradients(self):
        return np.array([self.numbers.gradient() for _ in range(self.p.size)], F)

    def decay(self):
        self.p = self.p * (F(1) - LR * DECAY)


def adamw(s, t, kernel=False):
    """kOptimizerStatic8bit2StateBlockwise"""
    g = s.gradients()
    c1, c2 = 1 - float(B1) ** t, np.sqrt(1 - float(B2) ** t)
    v = dequantize(s.v, s.v_absmax, False) * B2 + (F(1) - B2) * g * g
    m = dequantize(s.m, s.m_absmax, True) * B1 + (F(1) - B1) * g
    if not kernel:
        s.decay()
    s.p = s.p + F(-LR * c2 / c1) * (m / (np.sqrt(v) + F(c2) * EPS))
    if kernel:
        s.decay()
    s.m, s.m_absmax = quantize(m, True, repair=True)
    s.v, s.v_absmax = quantize(v, False, least=0 if kernel else 1)
    s.lost += np.count_nonzero((v > 0) & (s.v == 0))


def adamw_kernel(s, t):
    adamw(s, t, kernel=True)


def lion(s, t):
    """kOptimizerStatic8bit1StateBlockwise"""
    g = s.gradients()
    m = dequantize(s.m, s.m_absmax, True)
    s.decay()
    s.p = s.p - LR * np.sign(m * B1 + (F(1) - B1) * g)
    s.m, s.m_absmax = quantize(m * B2 + (F(1) - B2) * g, True, repair=True)


def momentum(s, t):
    g = s.gradients() + DECAY * s.p
    m = g if t == 1 else dequantize(s.m, s.m_absmax, True) * B1 + g
    s.p = s.p - LR * m
    s.m, s.m_absmax = quantize(m, True, repair=True)


def twenty_steps(update):
    s = Matrix()
    for t in range(1, STEPS + 1):
        update(s, t)
    assert s.p.dtype == F
    kept = 8 * COLUMNS
    out = dict(m=s.m[:kept], m_absmax=s.m_absmax[:kept // BLOCK], p=s.p[:kept],
               sums=np.array([s.p.astype(float).sum(), (s.p.astype(float) ** 2).sum()]))
    if s.v.any():
        out |= dict(v=s.v[:kept], v_absmax=s.v_absmax[:kept // BLOCK])
        print(f"{update.__name__}: {s.lost / STEPS / s.p.size:.2%} of the second moments become 0 in a step")
    return out


# ---- files ----

def write_maps():
    above = {signed: [*MIDDLES[signed], np.inf] for signed in MAPS}
    rows = [" ".join([str(code)] + [float(value).hex() for signed in (True, False)
                                    for value in (MAPS[signed][code], above[signed][code])]) for code in range(256)]
    (HERE / "states_8bit.txt").write_text("# Written by make_states.py: code, signed value, the middle to the next, "
                                          "unsigned value, the middle to the next\n" + "\n".join(rows) + "\n")


def main():
    check_search()
    write_maps()
    tensors = {}
    for name, values in examples().items():
        tensors[f"{name}/in"] = values
        for kind, signed, repair in (("signed", True, False), ("moment", True, True), ("unsigned", False, False)):
            codes, largest = quantize(values if signed else np.abs(values), signed, repair)
            tensors[f"{name}/{kind}"], tensors[f"{name}/{kind}_absmax"] = codes, largest
    twenty_steps(adamw_kernel)
    for update in (adamw, lion, momentum):
        tensors |= {f"{update.__name__}/{key}": value for key, value in twenty_steps(update).items()}
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, HERE / "states_8bit.safetensors")


if __name__ == "__main__":
    main()
