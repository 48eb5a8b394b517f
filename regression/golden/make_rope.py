#!/usr/bin/env python3
"""Write rope.txt: rotary frequencies as transformers' own functions compute them.

    make_rope.py > rope.txt

Needs torch and transformers 5 (the committed file: transformers 5.23.0, torch 2.15.0).

A line a case, words of the form key=value: the fields of ts_rope that are given (src/model/rope.h), how many elements of a
head turn, the length, and what comes out, `expected`: the factor of sines and cosines, then the frequencies.
"""

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# (head_dim, partial_rotary_factor): whole heads, a quarter, 0.4 of them
HEADS = ((24, 1.0), (64, 0.25), (80, 0.4))


def case(head, partial, length, longest, theta, rope_type, **given):
    config = LlamaConfig(head_dim=head, hidden_size=2 * head, num_attention_heads=2, max_position_embeddings=longest,
                         rope_parameters={"rope_type": rope_type, "rope_theta": theta, "partial_rotary_factor": partial, **given})
    if rope_type == "default":
        config.head_dim = int(head * partial)  # the function for this kind turns whole heads
        frequency, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        frequency, factor = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=length)
    words = {"rope_type": rope_type, "rotated": int(head * partial), "length": length, "max_position_embeddings": longest,
             "theta": theta, **{k: v for k, v in given.items() if v is not None}}
    words["expected"] = [factor, *frequency.tolist()]
    return " ".join(f"{key}={text(value)}" for key, value in words.items())


def text(value):
    if isinstance(value, (list, tuple)):
        return ",".join(text(v) for v in value)
    return f"{value:.9g}" if isinstance(value, float) else str(int(value)) if isinstance(value, bool) else str(value)


def cases():
    for head, partial in HEADS:
        half = int(head * partial) // 2
        every = (head, partial)
        for theta in (10000.0, 500000.0):
            yield case(*every, 100, 100, theta, "default")
        yield case(*every, 100, 100, 10000.0, "linear", factor=3.5)
        for length in (1, 64, 65, 66, 200, 4096):  # around 64
            yield case(*every, length, 64, 10000.0, "dynamic", factor=4.0)
        for original in (64, 8192):
            yield case(*every, 100, 131072, 500000.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=original)
        yield case(*every, 100, 64, 10000.0, "llama3", factor=2.0, low_freq_factor=1.5, high_freq_factor=2.0)
        yarn = {"factor": 4.0, "original_max_position_embeddings": 4096}
        for more in ({}, {"attention_factor": 1.3}, {"beta_fast": 20.0, "beta_slow": 2.0}, {"truncate": False}, {"truncate": True},
                     {"mscale": 0.7, "mscale_all_dim": 1.1}, {"mscale": 0.7}, {"mscale_all_dim": 0.7}, {"factor": None}, {"factor": 0.5},
                     {"original_max_position_embeddings": 7}, {"beta_fast": 3.0, "beta_slow": 3.0, "truncate": False}):
            yield case(*every, 100, 32768, 10000.0, "yarn", **{**yarn, **more})
        short, longer = [1 + 0.25 * i for i in range(half)], [1.5 + i for i in range(half)]
        for length in (1, 4095, 4096, 4097, 100000):  # around 4096
            yield case(*every, length, 131072, 10000.0, "longrope", original_max_position_embeddings=4096, short_factor=short,
                       long_factor=longer)
        for more in ({"attention_factor": 1.19}, {"factor": 16.0}, {"factor": 0.5}, {"original_max_position_embeddings": 131072}):
            yield case(*every, 5000, 131072, 10000.0, "longrope",
                       **{"original_max_position_embeddings": 4096, "short_factor": short, "long_factor": longer, **more})
    yield case(64, 1.0, 100, 2048, 10000.0, "yarn", factor=8.0)  # no original: that of the model


for line in cases():
    print(line)
