#!/usr/bin/env python3
"""Make the goldens of the optimizers: torch's own, and DeepSpeed's arithmetic written in torch where its classes need a
GPU.  fp32, CPU, one thread, twenty steps on the models and tokens of make_goldens.py (two epochs of these).

    VENV/bin/python regression/golden/make_optimizers.py [CASE]...     # prints only, when cases are named

torch 2.15.0, transformers 5.23.0; the formulas are those of DeepSpeed 0.19.8, whose files are named
below.  Written: optimizers.json (per case the deck's overrides, losses, gradient norms before clipping, both in fp64
too, and of every parameter after the last step its sum and sum of squares), optimizers_MODEL.cfg (the decks that the
overrides are for).
"""

import json
import math
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

import make_goldens as goldens

STEPS = 20
MODELS = {"llama": dict(length=17, micro=3, clip=2.5), "gpt2": dict(length=24, micro=3, clip=1.5)}
HEADS = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads", "v_proj": "num_key_value_heads"}


# ---- arithmetic: each updates p from g; s is the parameter's state, o the options, t the step from 1 ----

def moments(p, g, s, o):
    """m, v of FusedAdam and FusedLamb: multi_tensor_adam.cu, fused_lamb_cuda_kernel.cu."""
    b1, b2 = o["betas"]
    s["m"] = b1 * s.get("m", torch.zeros_like(p)) + (1 - b1) * g
    s["v"] = b2 * s.get("v", torch.zeros_like(p)) + (1 - b2) * g * g
    return s["m"], s["v"]


def corrections(o, t):
    return [1 - b ** t for b in o["betas"]] if o.get("bias_correction", True) else [1.0, 1.0]


def fused_adam(p, g, s, o, t):
    """csrc/adam/multi_tensor_adam.cu"""
    decay, decoupled = o["weight_decay"], o.get("adam_w_mode", True)
    m, v = moments(p, g if decoupled else g + decay * p, s, o)
    c1, c2 = corrections(o, t)
    update = (m / c1) / ((v / c2).sqrt() + o["eps"])
    p.sub_(o["lr"] * (update + decay * p if decoupled else update))


def lion(p, g, s, o, t):
    """csrc/lion/multi_tensor_lion.cu, where a zero moves by +lr; zero = 0: by nothing, as the paper has it."""
    b1, b2 = o["betas"]
    m = s.get("m", torch.zeros_like(p))
    c = b1 * m + (1 - b1) * g
    direction = torch.where(c > 0, -1.0, 1.0).to(p.dtype) if o["zero"] else -c.sign()
    p.mul_(1 - o["lr"] * o["weight_decay"]).add_(o["lr"] * direction)
    s["m"] = b2 * m + (1 - b2) * g


def lamb(p, g, s, o, t):
    """csrc/lamb/fused_lamb_cuda_kernel.cu"""
    m, v = moments(p, g, s, o)
    denominator = (v + o["eps"]).sqrt() if o.get("eps_inside_sqrt") else v.sqrt() + o["eps"]
    update = m / denominator + o["weight_decay"] * p
    weights, updates = p.norm().item(), update.norm().item()
    trust = 1.0
    if weights != 0 and updates != 0:
        trust = max(min(weights / updates, o.get("max_coeff", 10.0)), o.get("min_coeff", 0.01))
    c1, c2 = corrections(o, t)
    p.sub_(o["lr"] * math.sqrt(c2) / c1 * trust * update)


# runtime/zero/muon/original_muon.py

A, B, C = 3.4445, -4.7750, 2.0315


def newton_schulz(u, dtype):
    x = u.to(dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = A * x + (B * a + C * a @ a) @ x
    return x


def newton_schulz_gram(u, dtype):
    if u.size(-2) == u.size(-1):
        return newton_schulz(u, dtype)
    x = (u / (u.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    r, q = x @ x.mT, None
    one = torch.eye(r.size(-1), dtype=dtype)
    for i in range(5):
        if i == 2:
            x = q @ x
            r, q = x @ x.mT, None
        z = B * r + C * r @ r
        q = z + A * one if q is None else A * q + z @ q
        if i < 4 and i != 1:
            rz = A * r + z @ r
            r = A * rz + z @ rz
    return q @ x


def orthogonal(u, o):
    dtype = {"fp32": u.dtype, "bf16": torch.bfloat16, "fp16": torch.float16}[o.get("compute", "fp32")]
    wide = u if u.size(-2) <= u.size(-1) else u.mT
    x = (newton_schulz_gram if o["ns_method"] == "gram" else newton_schulz)(wide, dtype)
    x = x if wide is u else x.mT
    return (x * math.sqrt(max(1.0, u.size(-2) / u.size(-1)))).to(u.dtype)


def muon_direction(g, s, o, heads):
    m = s["m"] = torch.lerp(s.get("m", torch.zeros_like(g)), g, 1 - o.get("momentum", 0.95))
    u = torch.lerp(g, m, o.get("momentum", 0.95))
    return orthogonal(u.view(heads, -1, u.size(-1)), o).view_as(u) if heads > 1 else orthogonal(u, o)


def muon_apply(p, g, s, o, t):
    p.mul_(1 - o["lr"] * o["weight_decay"]).add_(g, alpha=-o["lr"])


# ---- cases ----

class Rule:
    """An optimizer of one function above, in torch's clothes."""

    def __init__(self, groups, function, **options):
        self.groups = [dict(options, **group) for group in groups]
        self.function, self.state, self.t = function, {}, 0

    def zero_grad(self):
        for group in self.groups:
            for p in group["params"]:
                p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.groups:
            for p in group["params"]:
                self.function(p, p.grad, self.state.setdefault(p, {}), group, self.t)


def rule(function, **more):
    return lambda groups, options, model: Rule(groups, function, **dict(options, **more))


def torchs(kind):
    """adam_w_mode is in the choice of the class."""
    return lambda groups, options, model: kind(groups, foreach=False,
                                               **{key: options[key] for key in options if key != "adam_w_mode"})


def is_muon(name, p):
    """deepspeed/__init__.py, set_optimizer_flags"""
    return p.ndim >= 2 and "embed" not in name.lower() and "lm_head" not in name.lower()


class Muon:
    """muon_optimizer.py, with torch's AdamW for the rest.  after: clipping sees what is orthogonal, as at ZeRO 1 to 3,
    and not the gradient, as at stage 0."""

    def __init__(self, groups, options, model, after=False, compute="fp32"):
        names = {p: name for name, p in model.named_parameters()}
        heads = options.get("per_head_muon", False)
        self.heads = {p: getattr(model.config, HEADS[name.split(".")[-2]])
                      for p, name in names.items() if heads and name.split(".")[-2] in HEADS}
        shared = {key: options[key] for key in ("lr", "weight_decay") if key in options}
        own = dict(lr=options.get("muon_lr", shared.get("lr", 0.02)), momentum=options.get("momentum", 0.95),
                   ns_method=options.get("ns_method", "gram"), compute=compute)
        self.own = [dict(own, params=[p for p in group["params"] if is_muon(names[p], p)],
                         weight_decay=group["weight_decay"]) for group in groups]
        self.rest = torch.optim.AdamW(
            [dict(params=[p for p in group["params"] if not is_muon(names[p], p)], weight_decay=group["weight_decay"])
             for group in groups], lr=options.get("adam_lr", shared.get("lr", 3e-4)),
            betas=options.get("betas", (0.9, 0.95)), eps=options.get("eps", 1e-10), foreach=False)
        self.state, self.after = {}, after

    def zero_grad(self):
        self.rest.zero_grad()
        for group in self.own:
            for p in group["params"]:
                p.grad = None

    @torch.no_grad()
    def orthogonalize(self):
        for group in self.own:
            for p in group["params"]:
                p.grad = muon_direction(p.grad, self.state.setdefault(p, {}), group, self.heads.get(p, 1))

    @torch.no_grad()
    def step(self):
        if not self.after:
            self.orthogonalize()
        for group in self.own:
            for p in group["params"]:
                muon_apply(p, p.grad, None, group, None)
        self.rest.step()


def muon(**more):
    return lambda groups, options, model: Muon(groups, options, model, **more)


def case(kind, make, model="llama", note=None, **params):
    """note: why a program may well not have these numbers, with the same deck as another case."""
    return dict(kind=kind, make=make, model=model, params=params, note=note)


BETAS = (0.9, 0.95)
CASES = {
    # eps so large that its place beside the corrections is seen
    "adamw": case("AdamW", torchs(torch.optim.AdamW), lr=1e-2, betas=BETAS, eps=1e-4, weight_decay=0.1),
    "adam_l2": case("Adam", torchs(torch.optim.Adam), adam_w_mode=False, lr=1e-2, betas=BETAS, eps=1e-4,
                    weight_decay=0.1),
    "adamw_uncorrected": case("AdamW", rule(fused_adam), bias_correction=False, lr=1e-2, betas=BETAS, eps=1e-4,
                              weight_decay=0.1),
    "adam_l2_uncorrected": case("Adam", rule(fused_adam), adam_w_mode=False, bias_correction=False, lr=1e-2,
                                betas=BETAS, eps=1e-4, weight_decay=0.1),
    "lion": case("Lion", rule(lion, zero=0), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1),
    "lion_fused": case("Lion", rule(lion, zero=1), note="as DeepSpeed's kernel, where a zero moves by +lr", lr=2e-3,
                       betas=(0.9, 0.99), weight_decay=0.1),
    "adagrad": case("Adagrad", torchs(torch.optim.Adagrad), lr=1e-2, eps=1e-10),
    "adagrad_decay": case("Adagrad", torchs(torch.optim.Adagrad), lr=1e-2, eps=1e-10, weight_decay=0.1),
    "adagrad_start": case("Adagrad", torchs(torch.optim.Adagrad), lr=3e-2, eps=1e-3, lr_decay=0.05,
                          initial_accumulator_value=0.1),
    "adagrad_gpt2": case("Adagrad", torchs(torch.optim.Adagrad), "gpt2", lr=1e-2, eps=1e-3),
    "sgd": case("SGD", torchs(torch.optim.SGD), lr=0.2),
    "sgd_momentum": case("SGD", torchs(torch.optim.SGD), lr=0.05, momentum=0.9),
    "sgd_nesterov": case("SGD", torchs(torch.optim.SGD), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd_dampening": case("SGD", torchs(torch.optim.SGD), lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1),
    "sgd_gpt2": case("SGD", torchs(torch.optim.SGD), "gpt2", lr=0.05, momentum=0.9, weight_decay=0.1),
    "lamb": case("Lamb", rule(lamb), lr=2e-2, betas=BETAS, eps=1e-4, weight_decay=0.1),
    "lamb_inside": case("Lamb", rule(lamb), lr=2e-2, betas=BETAS, eps=1e-4, eps_inside_sqrt=True, weight_decay=0.1),
    "lamb_uncorrected": case("Lamb", rule(lamb), lr=2e-2, betas=BETAS, eps=1e-4, weight_decay=0.1,
                             bias_correction=False),
    "lamb_clamped": case("Lamb", rule(lamb), lr=2e-2, betas=BETAS, eps=1e-4, weight_decay=0.1, max_coeff=0.4,
                         min_coeff=0.2),
    "muon": case("Muon", muon(), muon_lr=2e-2, adam_lr=1e-2, ns_method="standard", weight_decay=0.1),
    "muon_gram": case("Muon", muon(), muon_lr=2e-2, adam_lr=1e-2, weight_decay=0.1),
    "muon_heads": case("Muon", muon(), muon_lr=2e-2, adam_lr=1e-2, per_head_muon=True, weight_decay=0.1),
    "muon_shared": case("Muon", muon(), lr=1e-2, momentum=0.9, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1),
    "muon_clip_after": case("Muon", muon(after=True), note="clipped and normed after Newton-Schulz", muon_lr=2e-2,
                            adam_lr=1e-2, weight_decay=0.1),
    "muon_bf16": case("Muon", muon(compute="bf16"), note="Newton-Schulz in bf16", muon_lr=2e-2, adam_lr=1e-2,
                      ns_method="standard", weight_decay=0.1),
    "muon_gpt2": case("Muon", muon(), "gpt2", muon_lr=2e-2, adam_lr=1e-2, eps=1e-4, weight_decay=0.1),
}


# ---- training ----

def read_tokens(name):
    data = (goldens.HERE / name / "tokens.bin").read_bytes()[1024:]
    return [int.from_bytes(data[i:i + 2], "little") for i in range(0, len(data), 2)]


def load(name):
    return AutoModelForCausalLM.from_pretrained(goldens.HERE / name, attn_implementation="eager",
                                                dtype=torch.float32).eval()


def grouped(model, decay):
    """no_decay of make_goldens.py"""
    rows = goldens.groups(model)
    return [dict(rows[0], weight_decay=decay), dict(rows[1], weight_decay=0.0)]


def train(c, model, micro):
    """-> losses, norms before clipping"""
    shape, tokens = MODELS[c["model"]], read_tokens(c["model"])
    samples = shape["micro"]
    epoch = (len(tokens) - 1) // shape["length"]
    optimizer = c["make"](grouped(model, c["params"].get("weight_decay", 0.0)), c["params"], model)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for first in range(0, samples, micro):
            x, y = goldens.batch(tokens, (step * samples + first) % epoch, micro, shape["length"])
            logits = model(input_ids=x, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()) * (micro / samples)
            loss.backward()
            total += loss.item()
        losses.append(total)
        if getattr(optimizer, "after", False):
            optimizer.orthogonalize()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), shape["clip"]).item())
        optimizer.step()
    return losses, norms


def train_double(c):
    model = load(c["model"]).double()
    with goldens.all_double():
        for module in model.modules():
            if type(module).__name__.endswith("RotaryEmbedding"):
                module.__init__(model.config)
        return train(c, model, MODELS[c["model"]]["micro"]), goldens.weights(model)


def sums(name, p):
    """In fp64.  Without GPT-2's K bias, whose true gradient is zero."""
    p = p.double()
    if name.endswith("c_attn.bias"):
        third = len(p) // 3
        p = torch.cat([p[:third], p[2 * third:]])
    return [p.sum().item(), (p * p).sum().item()]


def settings(c):
    def words(value):
        if isinstance(value, tuple):
            return f"[{', '.join(map(words, value))}]"
        return str(value).lower() if isinstance(value, bool) else str(value)
    return [f"optimizer.type={c['kind']}"] + [f"optimizer.params.{key}={words(value)}"
                                              for key, value in c["params"].items()]


def deck(name):
    shape = MODELS[name]
    return (f"# Written by make_optimizers.py, for the overrides in optimizers.json.\n"
            f'model = {{ from = "{name}"; }};\n'
            f'data = {{ path = "regression/golden/{name}/tokens.bin"; format = "bin"; '
            f'sequence_length = {shape["length"]};\n         validation_fraction = 0.0; shuffle = false; }};\n'
            f'run = {{ directory = "runs/optimizers_{name}"; steps = {STEPS}; }};\n'
            f'train_micro_batch_size_per_gpu = {shape["micro"]};\ngradient_accumulation_steps = 1;\n'
            f'optimizer = {{ no_decay = [{", ".join(chr(34) + word + chr(34) for word in goldens.NO_DECAY)}]; }};\n'
            f'gradient_clipping = {shape["clip"]};\nzero_optimization = {{ stage = 0; }};\n')


def rounded(value):
    """To nine digits, which is all of a float."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return list(map(rounded, value)) if isinstance(value, list) else value


def write_cases(path, cases, **head):
    """One line a list."""
    rows = [f"  {json.dumps(name)}: {{\n" + ",\n".join(f"   {json.dumps(key)}: {json.dumps(rounded(value))}"
                                                       for key, value in expected.items()) + "\n  }"
            for name, expected in cases.items()]
    top = "".join(f' "{key}": {json.dumps(value)},\n' for key, value in head.items())
    path.write_text(f'{{\n{top} "cases": {{\n' + ",\n".join(rows) + "\n }\n}\n")


def make(name, c):
    model = load(c["model"])
    losses, norms = train(c, model, MODELS[c["model"]]["micro"])
    other = load(c["model"])
    again = train(c, other, 1)
    double, exact = train_double(c)
    final = goldens.weights(model)
    far = [goldens.largest_difference(losses, double[0]), goldens.largest_difference(norms, double[1]),
           goldens.largest_difference(again[0], losses), goldens.largest_difference(again[1], norms)]
    print(f"| {name} |", *(f"{d:.1e} |" for d in far), "{:.1e} {} |".format(*goldens.weight_difference(final, exact)),
          "{:.1e} {} |".format(*goldens.weight_difference(goldens.weights(other), final)),
          *(f"{loss:.2f}" for loss in losses[::4]), f"clipped {sum(n > MODELS[c['model']]['clip'] for n in norms)}",
          flush=True)
    note = dict(note=c["note"]) if c["note"] else {}
    return dict(model=c["model"], set=settings(c), **note, losses=losses, grad_norms=norms, losses_fp64=double[0],
                grad_norms_fp64=double[1], sums={key: sums(key, p) for key, p in final.items()})


def main():
    disable_progress_bar()
    torch.set_num_threads(1)
    made = {name: make(name, CASES[name]) for name in sys.argv[1:] or CASES}
    if sys.argv[1:]:
        return
    write_cases(goldens.HERE / "optimizers.json", made, steps=STEPS)
    for name in MODELS:
        (goldens.HERE / f"optimizers_{name}.cfg").write_text(deck(name))


if __name__ == "__main__":
    main()
