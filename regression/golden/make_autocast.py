#!/usr/bin/env python3
"""Losses under torch.autocast on the CPU, of models of make_goldens.py and make_families.py: autocast.json, and logits
before the first step: autocast.safetensors.

    python3 make_autocast.py [CASE ...]
    python3 make_autocast.py --spread [CASE ...]   as a table: how far other right ways of computing the same are off
    python3 make_autocast.py --logits              autocast.safetensors alone

Twenty steps of AdamW from the case's first weights, at a quarter of its learning rate (at all of it gemma2 is chaotic:
roundings that fall otherwise are 2e-2 apart in a loss), on the ten steps' samples twice, with the kernels that torch takes by
itself ("sdpa" where the model has it); fp16 has torch.amp.GradScaler.  The logits are those of a model that rounds where
autocast does, but a result of several operations that are one op here once; "gpt2.TYPE.epilogue" are those where GPT-2's
activation is done by the product before it, which it sees unrounded, as on GPUs.
"""
import argparse
import json

import torch
from safetensors.torch import save_file
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.utils.logging import disable_progress_bar

import make_families
from make_goldens import BETAS, CASES, EPS, HERE, STEPS, batch, case_tokens, groups, learning_rate

ALL = CASES | make_families.CASES
NAMES = ["llama", "llama_tied", "gpt2", "gemma2", "olmo2", "qwen3"]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TWICE = 2 * STEPS
SLOWER = 0.25
SEEDS = 8


def in_fp32(f, *args):
    with torch.autocast("cpu", enabled=False):
        return f(*args)


def lower(x):
    return x.to(torch.get_autocast_dtype("cpu"))


def attend_once(module, q, k, v, mask, scaling, softcap=None, **more):
    """Attention on what autocast gives it, in fp32 inside."""
    k, v = (lower(x).float().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = in_fp32(torch.matmul, lower(q).float(), k.transpose(2, 3)) * scaling
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    return lower(in_fp32(torch.matmul, (s + mask).softmax(-1), v)).transpose(1, 2).contiguous(), None


def round_once(model):
    """What is one op here rounds its result alone, as a kernel that computes in fp32 does: gates, GPT-2's activation,
    Qwen3's norms; and logits not at all, which the loss has in fp32."""
    for _, module in model.named_modules():
        kind = type(module).__name__
        if hasattr(module, "gate_proj"):
            module.forward = lambda x, m=module: m.down_proj(
                lower(m.act_fn(m.gate_proj(x).float()) * m.up_proj(x).float()))
        elif kind == "NewGELUActivation":
            module.forward = lambda x: lower(torch.nn.functional.gelu(x.float(), approximate="tanh"))
        elif kind == "Qwen3RMSNorm":
            module.forward = lambda x, m=module: m.weight * (
                x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + m.variance_epsilon))
    head = model.get_output_embeddings()
    head.forward = lambda x: in_fp32(torch.nn.functional.linear, lower(x).float(), lower(head.weight).float())
    return model


def activate_in_product(model):
    for _, module in model.named_modules():
        if type(module).__name__ == "GPT2MLP":
            module.forward = lambda x, m=module: m.c_proj(lower(torch.nn.functional.gelu(
                in_fp32(torch.matmul, lower(x).float(), lower(m.c_fc.weight).float()) + lower(m.c_fc.bias).float(),
                approximate="tanh")))
    return model


def load(name, once=False, seed=None):
    """With a seed, weights are off by 1e-6 of themselves: roundings fall otherwise."""
    how = "once" if once else "eager" if name == "gemma2" else "sdpa"  # no fused kernel has its softcap
    model = AutoModelForCausalLM.from_pretrained(HERE / name, attn_implementation=how, dtype=torch.float32).eval()
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 1e-6 * torch.randn(p.shape, generator=generator))
    return round_once(model) if once else model


def travel(model, dtype, sums):
    """What a rank sends: gradients of modules in DeepSpeed's list in the lower type, among them that of a tied table."""
    listed = {p for m in model.modules() if type(m) is torch.nn.Linear for p in m.parameters(recurse=False)}
    for p in model.parameters():
        sums[p] = sums.get(p, 0) + (p.grad.to(dtype).float() if p in listed else p.grad)
        p.grad = None


def train(name, case, dtype, once=False, ranks=1, seed=None):
    """-> losses and scales of each step; dtype None: fp32.  Ranks do as with DeepSpeed: each scales the mean over its own
    samples; gradients are divided by the ranks, here when the scale is gone."""
    model, tokens = load(name, once, seed), case_tokens(case)
    case = case | {"lr": SLOWER * case["lr"]}
    length, micro = case["length"], case["micro"] // ranks
    samples = case["micro"] * case.get("accumulation", 1)
    optimizer = torch.optim.AdamW(groups(model), lr=case["lr"], betas=BETAS, eps=EPS)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    losses, scales, updates = [], [], 0
    for step in range(TWICE):
        optimizer.zero_grad()
        total, sums = 0.0, {}
        for first in range(0, samples, micro):
            x, y = batch(tokens, step % STEPS * samples + first, micro, length)
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                logits = model(input_ids=x, use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten()) * micro / samples
            scaler.scale(loss * ranks).backward()
            if ranks > 1:
                travel(model, dtype, sums)
            total += loss.item()
        losses.append(total)
        for p, gradient in sums.items():
            p.grad = gradient
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad /= ranks
        torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(case, updates)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        scales.append(before)
        updates += scaler.get_scale() >= before  # a step that overflowed did not move the schedule
    return losses, scales


def first_logits(name, case, dtype, change=lambda model: model):
    """Of the first sample, before the first step."""
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        x = batch(case_tokens(case), 0, 1, case["length"])[0]
        return change(load(name, True))(input_ids=x, use_cache=False).logits[0].contiguous()


def write_logits():
    logits = {f"{name}.{word}": first_logits(name, ALL[name], dtype) for name in NAMES for word, dtype in TYPES.items()}
    for word, dtype in TYPES.items():
        logits[f"gpt2.{word}.epilogue"] = first_logits("gpt2", ALL["gpt2"], dtype, activate_in_product)
    save_file(logits, HERE / "autocast.safetensors")


def apart(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def spread(name, case):
    fp32 = train(name, case, None)[0]
    for word, dtype in TYPES.items():
        low = train(name, case, dtype)[0]
        once = train(name, case, dtype, True)[0]
        other = max(apart(train(name, case, dtype, True, seed=seed)[0], low) for seed in range(SEEDS))
        print(f"| {name} | {word} | {apart(low, fp32):.1e} | {apart(once, low):.1e} | {other:.1e} |", flush=True)


def make(name, case):
    row = {"fp32": train(name, case, None)[0]}
    row["bf16"] = train(name, case, torch.bfloat16)[0]
    for ranks in (n for n in range(1, 5) if case["micro"] % n == 0):
        row[f"fp16.{ranks}"], row[f"fp16_scales.{ranks}"] = train(name, case, torch.float16, ranks=ranks)
    print(name, "bf16 and fp32 are", f"{apart(row['bf16'], row['fp32']):.1e}", "apart, fp16 and fp32",
          f"{apart(row['fp16.1'], row['fp32']):.1e}")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--logits", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    arguments = parser.parse_args()
    disable_progress_bar()
    AttentionInterface.register("once", attend_once)
    AttentionMaskInterface.register("once", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    torch.set_num_threads(1)
    path = HERE / "autocast.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    for name in [] if arguments.logits else arguments.cases or NAMES:
        if arguments.spread:
            spread(name, ALL[name])
        else:
            rows[name] = make(name, ALL[name])
    if not arguments.spread:
        write_logits()
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
