#!/usr/bin/env python3
"""Make the goldens of training in lower precisions, with torch on the CPU.

    DS_BUILD_OPS=0 VENV/bin/python regression/golden/make_precisions.py [CASE]...    # prints only, when cases are named

torch 2.15.0, transformers 5.23.0, deepspeed 0.19.8 (its DynamicLossScaler, run as it is).  Written: precisions.json, as
optimizers.json of make_optimizers.py, with scales, the number of skipped steps and fill for fp16 (fill: the largest
gradient as a part of fp16's largest number; above 1 overflows).

The policies, each what DeepSpeed does at ZeRO 1 with AdamW of torch:
fp16, bf16  parameters, activations and gradients in the type, logits and loss in fp32 (and what transformers computes
            in fp32: norms, softmax, rotary angles); masters and moments in fp32.  fp16: the gradient is that of loss x
            scale; a step with an element that is not finite is skipped.  Norm and clipping come after the division.
low         bf16 parameters are the masters, gradients (clipped in bf16) and moments are bf16; torch's AdamW computes
            on bf16 tensors, where every operation rounds: see low_adamw, which is bit-equal.
"""

import json
import math
import sys

import torch
from transformers.utils.logging import disable_progress_bar

import make_goldens as goldens
import make_optimizers as optimizers

# A gentle optimizer: at a small eps the sign of a small gradient, which is noise, moves a weight by the whole rate.
STEPS, LR, BETAS, EPS, DECAY = 20, 3e-3, (0.9, 0.95), 1e-3, 0.1
SCALER = dict(initial_scale_power=16, loss_scale_window=1000, hysteresis=2, consecutive_hysteresis=False,
              min_loss_scale=1)


def case(model, dtype, low=False, **scaler):
    return dict(model=model, dtype=dtype, low=low, scaler=scaler)


CASES = {
    "fp16": case("llama", torch.float16),
    # The largest gradient is never within 1.4 of what overflows, as fill says.
    "fp16_overflow": case("llama", torch.float16, initial_scale_power=21, loss_scale_window=7),
    "fp16_static": case("llama", torch.float16, loss_scale=1024),
    "fp16_gpt2": case("gpt2", torch.float16),
    "bf16": case("llama", torch.bfloat16),
    "bf16_gpt2": case("gpt2", torch.bfloat16),
    "low": case("llama", torch.bfloat16, low=True),
    "low_gpt2": case("gpt2", torch.bfloat16, low=True),
}


# ---- the scaler ----

def loss_scaler(options):
    import deepspeed.runtime.fp16.loss_scaler as module
    module.dist.get_rank = lambda: 1  # no process group, and silent
    module.log_dist = lambda *_, **__: None
    if options.get("loss_scale", 0) > 0:
        return module.LossScaler(options["loss_scale"])
    o = dict(SCALER, **options)
    return module.DynamicLossScaler(init_scale=2 ** o["initial_scale_power"], scale_window=o["loss_scale_window"],
                                    min_scale=o["min_loss_scale"], delayed_shift=o["hysteresis"],
                                    consecutive_hysteresis=o["consecutive_hysteresis"])


# ---- AdamW on tensors of a lower precision ----

def low_adamw(p, g, m, v, t, o):
    """torch.optim.AdamW (not foreach, not fused) on bf16 tensors: each line is one operation, in fp32 with one rounding
    at its end; fma is one operation in fp32; eps is a bf16."""
    def rounded(x):
        return x.bfloat16().float()

    def fma(a, b, c):
        return (a.double() * b.double() + c.double()).float()
    c1, c2 = 1 - o["betas"][0] ** t, 1 - o["betas"][1] ** t
    w, g, m, v = p.float(), g.float(), m.float(), v.float()
    w = rounded(w * (1 - o["lr"] * o["weight_decay"]))
    m = rounded(fma(torch.tensor(1 - o["betas"][0]), g - m, m))
    v = rounded(v * o["betas"][1])
    v = rounded(fma(torch.tensor(1 - o["betas"][1]) * g, g, v))
    d = rounded(v.sqrt())
    d = rounded(d / c2 ** 0.5)
    d = rounded(d + rounded(torch.tensor(o["eps"])))
    w = rounded(w + torch.tensor(-o["lr"] / c1) * m / d)
    return w.bfloat16(), m.bfloat16(), v.bfloat16()


def check_low_adamw():
    for o in (dict(lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY),
              dict(lr=1e-2, betas=BETAS, eps=1e-8, weight_decay=0.1),
              dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-2, weight_decay=0.01),
              dict(lr=2e-2, betas=(0.8, 0.99), eps=1e-4, weight_decay=1.0)):
        torch.manual_seed(0)
        p = torch.nn.Parameter(torch.randn(16384).bfloat16())
        optimizer = torch.optim.AdamW([p], foreach=False, **o)
        w, m, v = p.detach().clone(), torch.zeros_like(p), torch.zeros_like(p)
        for t in range(1, STEPS + 1):
            p.grad = (torch.randn(16384) * 0.1).bfloat16()
            w, m, v = low_adamw(w, p.grad, m, v, t, o)
            optimizer.step()
            state = optimizer.state[p]
            assert torch.equal(w, p) and torch.equal(m, state["exp_avg"]) and torch.equal(v, state["exp_avg_sq"])


# ---- training ----

def masters_of(model, c):
    """Groups as of make_goldens.py, of copies before the model is cast, unless low; parameters with their masters."""
    pairs, groups = [], []
    for group in optimizers.grouped(model, DECAY):
        masters = [p if c["low"] else torch.nn.Parameter(p.detach().float().clone()) for p in group["params"]]
        pairs += zip(group["params"], masters)
        groups.append(dict(group, params=masters))
    return groups, pairs


def backward(c, model, step, micro, scale):
    """Gradients of a step. -> its loss"""
    shape, tokens = optimizers.MODELS[c["model"]], optimizers.read_tokens(c["model"])
    samples, length = shape["micro"], shape["length"]
    epoch, total = (len(tokens) - 1) // length, 0.0
    for p in model.parameters():
        p.grad = None
    for first in range(0, samples, micro):
        x, y = goldens.batch(tokens, (step * samples + first) % epoch, micro, length)
        logits = model(input_ids=x, use_cache=False).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()) * (micro / samples)
        (loss * scale).backward()
        total += loss.item()
    return total


def train(c, model, micro):
    shape = optimizers.MODELS[c["model"]]
    samples, names = shape["micro"], dict(model.named_parameters())
    groups, pairs = masters_of(model, c)
    model.to(c["dtype"])
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, foreach=False)
    half = c["dtype"] == torch.float16
    scaler = loss_scaler(c["scaler"]) if half else None
    losses, norms, scales, margins, skipped = [], [], [], [], 0
    for step in range(STEPS):
        scale = float(scaler.loss_scale) if half else 1.0
        if half:
            backward(c, model, step, samples, 256.0)
            margins.append(max(p.grad.abs().max().item() for p, _ in pairs) / 256 * scale / 65504)
        losses.append(backward(c, model, step, micro, scale))
        scales.append(scale)
        overflow = not all(p.grad.isfinite().all() for p, _ in pairs)
        norm = torch.stack([p.grad.double().norm() for p, _ in pairs]).norm().item() / scale
        norms.append("inf" if overflow else norm)
        if half:
            scaler.update_scale(overflow)
        if overflow:
            skipped += 1
            continue
        divisor = max(1.0, (norm + 1e-6) / shape["clip"]) * scale
        with torch.no_grad():
            for p, master in pairs:
                master.grad = p.grad if c["low"] else p.grad.float()
                master.grad.mul_(1.0 / divisor)
        optimizer.step()
        with torch.no_grad():
            for p, master in pairs:
                p.copy_(master)
    final = {name: next(master for parameter, master in pairs if parameter is p).detach() for name, p in names.items()}
    more = dict(scales=scales, skipped=skipped, fill=margins) if half else {}
    return dict(losses=losses, grad_norms=norms, **more), final


def settings(c):
    words = {True: "true", False: "false"}
    kind = "fp16" if c["dtype"] == torch.float16 else "bf16"
    rows = ["optimizer.type=AdamW", f"optimizer.params.lr={LR}", f"optimizer.params.betas=[{BETAS[0]}, {BETAS[1]}]",
            f"optimizer.params.eps={EPS}", f"optimizer.params.weight_decay={DECAY}", f"{kind}.enabled=true"]
    rows += [f"{kind}.{key}={words.get(value, value) if isinstance(value, bool) else value}"
             for key, value in c["scaler"].items()]
    low = ["bf16.bf16_master_weights_and_grads=true", "bf16.bf16_optimizer_states=true"] if c["low"] else []
    return rows + low


def fp32_losses(name):
    c = optimizers.case("AdamW", optimizers.torchs(torch.optim.AdamW), name, lr=LR, betas=BETAS, eps=EPS,
                        weight_decay=DECAY)
    return optimizers.train(c, optimizers.load(name), optimizers.MODELS[name]["micro"])[0]


def make(name, c):
    expected, final = train(c, optimizers.load(c["model"]), optimizers.MODELS[c["model"]]["micro"])
    single, _ = train(c, optimizers.load(c["model"]), 1)
    losses = expected["losses"]
    print(f"| {name} | {goldens.largest_difference(single['losses'], losses):.1e} "
          f"| {goldens.largest_difference(losses, fp32_losses(c['model'])):.1e} |",
          *(f"{loss:.3f}" for loss in losses[::4]), expected.get("skipped", ""), flush=True)
    if "fill" in expected:
        print("  ", *(f"{math.log2(s):.0f}:{fill:.2f}" for s, fill in zip(expected["scales"], expected["fill"])))
    sums = {key: optimizers.sums(key, p) for key, p in final.items()}
    return dict(model=c["model"], set=settings(c), **expected, sums=sums)


def main():
    disable_progress_bar()
    torch.set_num_threads(1)
    check_low_adamw()
    made = {name: make(name, CASES[name]) for name in sys.argv[1:] or CASES}
    if sys.argv[1:]:
        return
    optimizers.write_cases(goldens.HERE / "precisions.json", made, steps=STEPS)


if __name__ == "__main__":
    main()
