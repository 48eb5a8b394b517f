#!/usr/bin/env python3
"""Two models trained from one loss, and gradients of outputs, for regression/engine/test_engines.c: joint.safetensors.

    python3 regression/golden/make_joint.py

torch 2.15.0, safetensors 0.8.0; CPU, in fp64, rounded to fp32 where it is written.

    input/NAME              of all SAMPLES samples
    parameter/MODEL.NAME    before the first step
    joint/MODEL.NAME        after STEPS steps of SGD on the joint loss
    joint/loss              of each step
    seed/OUTPUT             gradients given to outputs of `a`
    from_y/NAME             parameter gradients of `a`: y.backward (seed)
    from_both/NAME          torch.autograd.backward ([y, h], seeds)
"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
SAMPLES, IN, HIDDEN, OUT, OTHER, STEPS, RATE, WEIGHT_A, WEIGHT_B = 8, 6, 16, 4, 12, 3, 0.0625, 0.5, 2.0
torch.manual_seed(11)
torch.set_default_dtype(torch.float64)


def matrix(*shape):
    """Values that fp32 has."""
    return (torch.randn(*shape) * 0.5).float().double().requires_grad_()


def model_a(p, x):
    """y and the hidden values that it is made of."""
    h = F.gelu(x @ p["net.in.weight"].T + p["net.in.bias"])
    return h @ p["net.out.weight"].T + p["net.out.bias"], h


def model_b(p, x):
    """Of the outputs of a, to which no gradient goes back."""
    return F.relu(x @ p["net.in.weight"].T + p["net.in.bias"]) @ p["net.out.weight"].T


a = {"net.in.weight": matrix(HIDDEN, IN), "net.in.bias": matrix(HIDDEN),
     "net.out.weight": matrix(OUT, HIDDEN), "net.out.bias": matrix(OUT)}
b = {"net.in.weight": matrix(OTHER, OUT), "net.in.bias": matrix(OTHER), "net.out.weight": matrix(OUT, OTHER)}
x, target_a, target_b = matrix(SAMPLES, IN), matrix(SAMPLES, OUT), matrix(SAMPLES, OUT)
seed = {"y": matrix(SAMPLES, OUT), "h": matrix(SAMPLES, HIDDEN)}
written = {"input/x": x, "input/target_a": target_a, "input/target_b": target_b}
written |= {f"seed/{name}": value for name, value in seed.items()}
for letter, parameters in ("a", a), ("b", b):
    written |= {f"parameter/{letter}.{name}": p.clone() for name, p in parameters.items()}

y, h = model_a(a, x)
for kind, outputs in ("from_y", {"y": y}), ("from_both", {"y": y, "h": h}):
    gradients = torch.autograd.grad(list(outputs.values()), list(a.values()), [seed[o] for o in outputs],
                                    retain_graph=True, allow_unused=True)
    written |= {f"{kind}/{name}": g for name, g in zip(a, gradients)}

losses = []
for _ in range(STEPS):
    y, _ = model_a(a, x)
    z = model_b(b, y.detach())
    loss = WEIGHT_A * F.mse_loss(y, target_a) + WEIGHT_B * F.mse_loss(z, target_b) + F.mse_loss(y, z)
    losses.append(loss.detach())
    everything = list(a.values()) + list(b.values())
    for p, g in zip(everything, torch.autograd.grad(loss, everything)):
        p.data -= RATE * g
written["joint/loss"] = torch.stack(losses)
for letter, parameters in ("a", a), ("b", b):
    written |= {f"joint/{letter}.{name}": p for name, p in parameters.items()}
save_file({name: value.detach().float().contiguous() for name, value in written.items()}, HERE / "joint.safetensors")
print(written["joint/loss"])
