#!/usr/bin/env python3
"""Losses and gradients of the models that regression/engine/test_builder.c writes: own_models.safetensors.

    python3 regression/golden/make_own_models.py

torch 2.15.0, safetensors 0.8.0; CPU, in fp64, rounded to fp32 where it is written.  Of each CASE:

    CASE/input/NAME         of all SAMPLES samples, integers as fp32
    CASE/parameter/NAME     before the step
    CASE/gradient/NAME      of the step's loss: the weighted sum over all samples over what the first part counts
    CASE/loss               [sum, what it is divided by], fp64

Two samples are a micro-batch: those of `towers` are each other's negatives, whatever the number of ranks.
"""
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
SAMPLES, EACH, LENGTH, VOCABULARY, WIDTH, HEADS = 4, 2, 6, 11, 8, 2
torch.manual_seed(7)
torch.set_default_dtype(torch.float64)


def matrix(*shape):
    """Values that fp32 has."""
    return (torch.randn(*shape) * 0.5).float().double()


def rope(x, positions, theta):
    """Of x [B, T, WIDTH], as transformers' apply_rotary_pos_emb."""
    head = WIDTH // HEADS
    frequency = theta ** (-torch.arange(0, head, 2) / head)
    angle = positions[..., None, None] * torch.cat([frequency, frequency])
    x = x.unflatten(-1, (HEADS, head))
    turned = torch.cat([-x[..., head // 2:], x[..., : head // 2]], -1)
    return (x * angle.cos() + turned * angle.sin()).flatten(-2)


def attention(x, p, unit, positions, mask):
    """mask [B, T, T]: True where it is seen."""
    q, k, v = (x @ p[f"{unit}.{name}.weight"].T for name in "qkv")
    q, k = rope(q, positions, 100.0), rope(k, positions, 100.0)
    q, k, v = (t.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for t in (q, k, v))
    scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).masked_fill(~mask[:, None], -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)


def towers(p, i):
    """A query's mean against a document's picked token, each way, and its mean near a target."""
    mask, positions = i["mask"], i["positions"].long()
    x = p["query.tokens.weight"][i["query"].long()] + p["query.positions.weight"][positions]
    x = x + attention(x, p, "query", positions, mask[:, :, None] == mask[:, None, :])
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    a = F.normalize(mean @ p["query.out.weight"].T, dim=-1)
    y = p["document.tokens.weight"][i["document"].long()]
    y = F.gelu(y @ p["document.up.weight"].T + p["document.up.bias"]) * (y @ p["document.gate.weight"].T)
    y = y[torch.arange(len(y)), i["index"].long()]
    b = F.normalize(y @ p["document.out.weight"].T, dim=-1)
    logits, labels = 5 * a @ b.T, i["labels"].long()
    near = ((mean - i["target"]) ** 2).sum()
    both = F.cross_entropy(logits, labels, reduction="sum") + F.cross_entropy(logits.T, labels, reduction="sum")
    return both + 0.125 * near, len(a)


def distilled(p, i):
    """alpha x hard + beta x soft labels of a teacher's logits."""
    positions, labels = torch.arange(LENGTH).expand(len(i["ids"]), -1), i["labels"].long()
    x = p["embed.tokens.weight"][i["ids"].long()]
    causal = torch.ones(LENGTH, LENGTH, dtype=bool).tril().expand(len(x), -1, -1)
    x = x + attention(x, p, "block", positions, causal)
    x = x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * p["block.norm.weight"]
    logits = x @ p["head.weight"].T
    hard = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    soft = F.kl_div(F.log_softmax(logits / 2, -1), F.softmax(i["teacher"] / 2, -1), reduction="none")
    soft = soft - torch.xlogy(q := F.softmax(i["teacher"] / 2, -1), q)  # the entropy that kl_div has taken off
    return 0.3 * hard + 0.7 * (4 * soft.sum(-1) * i["mask"]).sum(), (labels != -100).sum()


def rows(p, i):
    """The weights of a sum count; the elements of another part do not."""
    y = i["x"] @ p["net.a.weight"].T + p["net.a.bias"]
    z = F.relu(F.normalize(y, dim=-1) * y)
    error = (z @ p["net.b.weight"].T - i["target"]) ** 2 * i["mask"]
    return error.sum() + 0.5 * (y * y).sum(), i["mask"].sum()


def integers(most, *shape):
    return torch.randint(0, most, shape).double()


def case_of_towers():
    padded = torch.arange(LENGTH) < torch.tensor([6, 3, 1, 4])[:, None]
    inputs = {"query": integers(VOCABULARY, SAMPLES, LENGTH), "document": integers(VOCABULARY, SAMPLES, LENGTH),
              "positions": torch.arange(LENGTH).expand(SAMPLES, -1).clone().double(), "mask": padded.double(),
              "index": torch.tensor([5.0, 0, 2, 3]), "labels": torch.tensor([0.0, 1, 0, 1]),
              "target": matrix(SAMPLES, WIDTH)}
    parameters = {"query.tokens.weight": matrix(VOCABULARY, WIDTH), "query.positions.weight": matrix(LENGTH, WIDTH),
                  "document.tokens.weight": matrix(VOCABULARY, WIDTH), "document.up.bias": matrix(WIDTH)}
    for name in ("query.q", "query.k", "query.v", "query.out", "document.up", "document.gate", "document.out"):
        parameters[f"{name}.weight"] = matrix(WIDTH, WIDTH)
    return towers, parameters, inputs


def case_of_distilled():
    labels = integers(VOCABULARY, SAMPLES, LENGTH)
    labels[0, :2] = labels[1, 3] = labels[3, 1:] = -100
    inputs = {"ids": integers(VOCABULARY, SAMPLES, LENGTH), "labels": labels, "mask": (labels != -100).double(),
              "teacher": 4 * matrix(SAMPLES, LENGTH, VOCABULARY),
              "positions": torch.arange(LENGTH).expand(SAMPLES, -1).clone().double()}
    parameters = {"embed.tokens.weight": matrix(VOCABULARY, WIDTH), "block.norm.weight": 1 + matrix(WIDTH),
                  "head.weight": matrix(VOCABULARY, WIDTH)}
    for name in "qkv":
        parameters[f"block.{name}.weight"] = matrix(WIDTH, WIDTH)
    return distilled, parameters, inputs


def case_of_rows():
    inputs = {"x": matrix(SAMPLES, 5), "target": matrix(SAMPLES, 3), "mask": integers(3, SAMPLES, 3)}
    parameters = {"net.a.weight": matrix(WIDTH, 5), "net.a.bias": matrix(WIDTH), "net.b.weight": matrix(3, WIDTH)}
    return rows, parameters, inputs


def main():
    written = {}
    for name, (model, parameters, inputs) in {"towers": case_of_towers(), "distilled": case_of_distilled(),
                                              "rows": case_of_rows()}.items():
        for p in parameters.values():
            p.requires_grad_()
        loss, count = 0, 0
        for first in range(0, SAMPLES, EACH):
            part, n = model(parameters, {k: v[first : first + EACH] for k, v in inputs.items()})
            loss, count = loss + part, count + n
        (loss / count).backward()
        written[f"{name}/loss"] = torch.tensor([loss.item(), float(count)])
        written |= {f"{name}/input/{k}": v.float().contiguous() for k, v in inputs.items()}
        written |= {f"{name}/parameter/{k}": v.detach().float() for k, v in parameters.items()}
        written |= {f"{name}/gradient/{k}": v.grad.float().contiguous() for k, v in parameters.items()}
        print(name, loss.item(), float(count))
    save_file(written, HERE / "own_models.safetensors")


if __name__ == "__main__":
    main()
