"""Losses of doc/examples/two_tower.c and distill.c by torch, from the same first values on the same data.

    python regression/library/make_examples.py > regression/library/examples.txt      # made with torch 2.15

A line is what the programs print, with the program in front.  fp32, as the programs compute; one thread.
"""
import math

import torch
import torch.nn.functional as F

torch.set_num_threads(1)


def drawn(key, i):
    n = (key * 2654435761 + i * 2246822519) % 2**32
    n = ((n ^ n >> 15) * 2246822519) % 2**32
    n = ((n ^ n >> 13) * 3266489917) % 2**32
    return (n ^ n >> 16) / 2**32 - 0.5


def first_value(name, shape, ones, zeros):
    if any(s in name for s in ones):
        return torch.ones(shape)
    if any(s in name for s in zeros):
        return torch.zeros(shape)
    key = 0
    for c in name:
        key = (31 * key + ord(c)) % 2**32
    values = [3 * drawn(key, k) / math.sqrt(shape[-1]) for k in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).reshape(shape)


def parameters(shapes, ones, zeros):
    return {name: torch.nn.Parameter(first_value(name, shape, ones, zeros)) for name, shape in shapes.items()}


def attention(p, prefix, y, heads, allowed):
    q, k, v = (F.linear(y, p[f"{prefix}.{n}.weight"]).unflatten(-1, (heads, -1)).transpose(1, 2) for n in "qkv")
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return F.linear(o.transpose(1, 2).flatten(2), p[f"{prefix}.o.weight"])


def show(program, step, loss):
    if (step + 1) % 10 == 0 or step < 3:
        print(f"{program} step {step + 1}  loss {loss:.6f}")


def update(p, optimizer):
    torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


# ---- two towers ----

V, T, C, DIM, PAIRS, KNOWN, STEPS = 64, 12, 32, 16, 16, 32, 60


def token_of(pair, tower, t):
    length = T - pair % 4 if tower == 0 else T - pair // 2 % 3
    number = (pair * 2654435761 + t * 40503) % 2**32
    token = (number >> 8) % V
    return -1 if t >= length else token if tower == 0 else V - 1 - token


def tower(p, name, tokens, mask):
    x = p[f"{name}.embed.tokens.weight"][tokens]
    b = f"{name}.block"
    norm = lambda y, n: F.layer_norm(y, (C,), p[f"{b}.{n}.weight"], p[f"{b}.{n}.bias"], 1e-5)
    allowed = (mask[:, :, None] == mask[:, None, :])[:, None]
    x = x + attention(p, b, norm(x, "norm1"), 2, allowed)
    y = F.gelu(F.linear(norm(x, "norm2"), p[f"{b}.up.weight"], p[f"{b}.up.bias"]))
    x = x + F.linear(y, p[f"{b}.down.weight"], p[f"{b}.down.bias"])
    pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return F.normalize(F.linear(pooled, p[f"{b}.vector.weight"]), dim=-1)


def two_tower():
    shapes = {}
    for name in ("query", "text"):
        b = f"{name}.block"
        shapes[f"{name}.embed.tokens.weight"] = (V, C)
        for n in ("norm1", "norm2"):
            shapes[f"{b}.{n}.weight"] = shapes[f"{b}.{n}.bias"] = (C,)
        for n in "qkvo":
            shapes[f"{b}.{n}.weight"] = (C, C)
        shapes.update({f"{b}.up.weight": (2 * C, C), f"{b}.up.bias": (2 * C,), f"{b}.down.weight": (C, 2 * C),
                       f"{b}.down.bias": (C,), f"{b}.vector.weight": (DIM, C)})
    p = parameters(shapes, ("norm1.weight", "norm2.weight"), ("bias",))
    optimizer = torch.optim.AdamW(p.values(), lr=0.003, weight_decay=0.01)
    for step in range(STEPS):
        vectors = []
        for i, name in enumerate(("query", "text")):
            tokens = torch.tensor([[token_of((step * PAIRS + n) % KNOWN, i, t) for t in range(T)] for n in range(PAIRS)])
            vectors.append(tower(p, name, tokens.clamp(min=0), (tokens >= 0).int()))
        logits = vectors[0] @ vectors[1].T / 0.1
        here = torch.arange(PAIRS)
        loss = (F.cross_entropy(logits, here) + F.cross_entropy(logits.T, here)) / 2
        loss.backward()
        update(p, optimizer)
        show("two_tower", step, loss.item())


# ---- distillation ----

WORDS, LENGTH, BATCH, HEAT = 24, 16, 16, 2.0


def text(sample):
    token = [sample % WORDS]
    for t in range(1, LENGTH + 1):
        number = (sample * 2654435761 + t * 40503) % 2**32
        token.append((number >> 8) % WORDS if number % 7 == 0 else (5 * token[-1] + 3) % WORDS)
    return token


def logits_of(p, tokens, width):
    norm = lambda y, n: F.rms_norm(y, (width,), p[f"{n}.weight"], 1e-5)
    x = p["embed.tokens.weight"][tokens]
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    x = x + attention(p, "block", norm(x, "block.norm1"), 2, causal)
    y = norm(x, "block.norm2")
    y = F.silu(F.linear(y, p["block.gate.weight"])) * F.linear(y, p["block.up.weight"])
    x = x + F.linear(y, p["block.down.weight"])
    return norm(x, "head.norm") @ p["head.weight"].T


def train(name, width, teacher):
    shapes = {"embed.tokens.weight": (WORDS, width), "block.gate.weight": (2 * width, width),
              "block.up.weight": (2 * width, width), "block.down.weight": (width, 2 * width), "head.weight": (WORDS, width)}
    shapes.update({f"block.{n}.weight": (width, width) for n in "qkvo"})
    shapes.update({f"{n}.weight": (width,) for n in ("block.norm1", "block.norm2", "head.norm")})
    p = parameters(shapes, ("norm",), ())
    optimizer = torch.optim.AdamW(p.values(), lr=0.01, weight_decay=0.01)
    for step in range(60):
        texts = torch.tensor([text(step * BATCH + i) for i in range(BATCH)])
        logits = logits_of(p, texts[:, :-1], width)
        loss = F.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
        if teacher is not None:
            with torch.no_grad():
                soft = F.softmax(teacher(texts[:, :-1]) / HEAT, dim=-1)
            distance = -HEAT**2 * (soft * F.log_softmax(logits / HEAT, dim=-1)).sum(-1).mean()
            loss = (loss + distance) / 2
        loss.backward()
        update(p, optimizer)
        show(f"distill {name}", step, loss.item())
    return lambda tokens: logits_of(p, tokens, width)


two_tower()
train("student", 12, train("teacher", 32, None))
