#!/usr/bin/env python3
"""Make the golden cases with Hugging Face transformers and torch: fp32, CPU, one thread, fixed seeds.

    make_goldens.py [--spread] [CASE]...

A case is a directory: config.json and model.safetensors as a Hugging Face model, tokens.bin, expected.json (losses,
gradient norms before clipping, learning rates of ten steps of AdamW), logits.safetensors (of the first sample, before
the first step), final.safetensors (the weights after the last step); and CASE.cfg next to it, the deck of the same run.
--spread writes nothing and prints how far other ways of computing the same thing are from the goldens; see README.md.
"""

import argparse
import contextlib
import json
import math
import pathlib
import re
import shutil
import struct

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 10
NO_DECAY = ["norm", "bias", "ln_"]
BETAS, EPS, WEIGHT_DECAY = (0.9, 0.95), 1e-8, 0.1
IGNORED = -100
EAGER = dict(attn_implementation="eager", experts_implementation="eager")

# ---- the cases: sizes that divide nothing, where the model allows it; seeds chosen by --spread, see README.md ----

GPT2 = dict(vocab_size=67, n_embd=33, n_layer=2, n_head=3, n_positions=24, n_inner=50, attn_pdrop=0.0, embd_pdrop=0.0,
            resid_pdrop=0.0, initializer_range=0.15, bos_token_id=1, eos_token_id=2)
LLAMA = dict(vocab_size=67, hidden_size=36, intermediate_size=41, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.15)

CASES = {
    # Hub-style names (no "transformer." in front, causal masks among the tensors) and the default MLP width.
    "gpt2": dict(
        seed=4, model=GPT2Config(**dict(GPT2, n_embd=32, n_head=4, n_inner=None)), hub_names=True,
        length=24, micro=3, lr=1e-2, clip=1.5, scheduler=None),
    # Two micro-batches a step; the mean is over the tokens of the whole batch.
    "gpt2_accumulate": dict(
        seed=9, model=GPT2Config(**GPT2),
        length=19, micro=2, accumulation=2, lr=1e-2, clip=1.5,
        scheduler=dict(type="WarmupLR", warmup_min_lr=2e-3, warmup_max_lr=1e-2, warmup_num_steps=4,
                       warmup_type="linear")),
    "llama": dict(
        seed=5, model=LlamaConfig(**LLAMA),
        length=17, micro=3, lr=1e-2, clip=2.5, scheduler=None),
    "llama_tied": dict(
        seed=8, model=LlamaConfig(**dict(LLAMA, vocab_size=71, hidden_size=32, num_attention_heads=4,
                                         num_key_value_heads=4, intermediate_size=45, rope_theta=500000.0,
                                         tie_word_embeddings=True)),
        length=32, micro=2, lr=1.5e-2, clip=2.5,
        scheduler=dict(type="WarmupCosineLR", total_num_steps=10, warmup_num_steps=3, warmup_min_ratio=0.1,
                       cos_min_ratio=0.1)),
    # Of the eight frequencies one is kept, two are between, five are stretched in full.
    "llama_rope": dict(
        seed=4, model=LlamaConfig(**dict(LLAMA, hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
                                         max_position_embeddings=64, rope_theta=500.0,
                                         rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                           high_freq_factor=4.0,
                                                           original_max_position_embeddings=32))),
        length=47, micro=2, lr=1e-2, clip=2.5, scheduler=None),
    # Three files and an index; linear rope scaling; biases; three layers.
    "llama_sharded": dict(
        seed=8, model=LlamaConfig(**dict(LLAMA, hidden_size=32, num_attention_heads=4, num_hidden_layers=3,
                                         intermediate_size=29, rms_norm_eps=1e-5, rope_theta=100.0,
                                         attention_bias=True, mlp_bias=True,
                                         rope_scaling=dict(rope_type="linear", factor=2.0))),
        shard="40KB", length=21, micro=4, lr=1e-2, clip=2.0, scheduler=None),
}


# ---- inputs ----

def initial_model(case):
    """Random weights of a healthy size; norm weights are not 1 and biases not 0, so that each is seen to be used."""
    return fill(AutoModelForCausalLM.from_config(case["model"], **EAGER), case)


def fill(model, case):
    neutral = 0 if case["model"].model_type.startswith("gemma") else 1  # Gemma's norms multiply by 1 + w
    generator = torch.Generator().manual_seed(case["seed"])
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            is_norm_weight = re.search(r"(norm|ln_\w+)\.weight$", name)
            p.copy_(neutral + 0.1 * noise if is_norm_weight else noise * (0.1 if name.endswith("bias") else 0.15))
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # one expert that all tokens have, one that none has
                b.copy_(0.1 * torch.randn(b.shape, generator=generator))
                b[:2] = torch.tensor([30.0, -10.0])
    return model.eval()


def markov_tokens(n, vocab, seed):
    """Most tokens follow from the one before and small ones are frequent, so there is something to learn."""
    generator = torch.Generator().manual_seed(seed + 1000)
    free = (vocab * torch.rand(n, generator=generator) ** 3).long().tolist()
    follow = (torch.rand(n, generator=generator) < 0.75).tolist()
    tokens = free[:1]
    for i in range(1, n):
        tokens.append((3 * tokens[-1] + 1) % (vocab // 2) if follow[i] else free[i])
    return tokens


def with_ends(tokens, end, seed):
    """The same as documents of 1 to 30 tokens, of which the last is end and no other."""
    generator = torch.Generator().manual_seed(seed + 2000)
    tokens = [token if token != end else end + 1 for token in tokens]
    at = -1
    while (at := at + torch.randint(1, 31, (1,), generator=generator).item()) < len(tokens):
        tokens[at] = end
    return tokens


def batch(tokens, first, count, length):
    """Samples first .. first + count - 1: sample i is tokens iT .. iT + T, labels one further than inputs."""
    rows = [tokens[i * length:(i + 1) * length + 1] for i in range(first, first + count)]
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def by_documents(end, x, y):
    """Of samples of several documents, each closed by end: positions that begin again in each, a mask of the pairs of a
    query and a key before it in the same document, and labels, of which a document's last token has none."""
    ends = (x == end).long()
    number = ends.cumsum(1) - ends  # of ends before a token
    place = torch.arange(x.shape[1]).expand_as(x)
    first = torch.where((place == 0) | (torch.roll(ends, 1, 1) == 1), place, 0).cummax(1).values
    seen = (number[:, :, None] == number[:, None, :]) & (place[:, :, None] >= place[:, None, :])
    mask = torch.zeros(seen.shape, dtype=torch.float32).masked_fill(~seen, float("-inf"))[:, None]
    return dict(position_ids=place - first, attention_mask=mask), torch.where(x == end, IGNORED, y)


# ---- training ----

def steps_of(case):
    return case.get("steps", STEPS)


def learning_rate(case, step):
    """The formulas of DeepSpeed's schedules, for the parameters used above; see src/engine/lr_schedule.h."""
    s, i = case["scheduler"], step - 1
    if s is None:
        return case["lr"]
    if s["type"] == "WarmupLR":
        part = min(max(i, 0) / s["warmup_num_steps"], 1.0)
        return s["warmup_min_lr"] + (s["warmup_max_lr"] - s["warmup_min_lr"]) * part
    warmup, low = s["warmup_num_steps"], s["cos_min_ratio"]
    if i < 0:
        return 0.0
    if i < warmup:
        part = math.log(i + 1) / math.log(warmup)
        return case["lr"] * (s["warmup_min_ratio"] + (1 - s["warmup_min_ratio"]) * part)
    progress = min(1.0, (i - warmup + 1) / (s["total_num_steps"] - warmup))
    return case["lr"] * (low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2)


def groups(model):
    rows = [[], []]
    for name, p in model.named_parameters():
        rows[any(re.search(pattern, name) for pattern in NO_DECAY)].append(p)
    return [dict(params=rows[0], weight_decay=WEIGHT_DECAY), dict(params=rows[1], weight_decay=0.0)]


def train(model, tokens, case, micro):
    """Ten steps, micro samples at a time. -> losses, gradient norms before clipping"""
    length, samples, end = case["length"], case["micro"] * case.get("accumulation", 1), case.get("documents")
    optimizer = torch.optim.AdamW(groups(model), lr=case["lr"], betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step in range(steps_of(case)):
        optimizer.zero_grad()
        total = 0.0
        labels = samples * length - tokens[step * samples * length:(step + 1) * samples * length].count(end)
        for first in range(0, samples, micro):
            x, y = batch(tokens, step * samples + first, micro, length)
            more, y = by_documents(end, x, y) if end is not None else ({}, y)
            out = model(input_ids=x, use_cache=False, **more)
            part = (y != IGNORED).sum().item() / labels
            loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), y.flatten(), ignore_index=IGNORED)
            if getattr(model.config, "output_router_logits", False):
                loss = loss + model.config.router_aux_loss_coef * out.aux_loss
            if hasattr(model, "extra_loss"):
                loss = loss + model.extra_loss()
            loss = loss * part
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"]).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(case, step)
        optimizer.step()
    return losses, norms


def weights(model):
    return {name: p.detach().clone().contiguous() for name, p in model.named_parameters()}


def llama_frequencies(config):
    """Rotary frequencies in fp64: transformers keeps them in fp32 buffers."""
    width, scaling = config.hidden_size // config.num_attention_heads, config.rope_scaling or {}
    f = config.rope_theta ** (-torch.arange(0, width, 2, dtype=torch.int64).double() / width)
    if scaling.get("rope_type") == "llama3":
        positions, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = ((positions * f / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        f = (1 - smooth) * f / factor + smooth * f
    return f / scaling["factor"] if scaling.get("rope_type") == "linear" else f


@contextlib.contextmanager
def all_double():
    """transformers names torch.float32 and .float () in its norms, softmax and rotary embedding: make them fp64 too."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved


def train_double(case, tokens):
    model = initial_model(case).double()
    for name, module in model.named_modules():
        if name.endswith("rotary_emb"):
            module.inv_freq = llama_frequencies(case["model"])
            module.original_inv_freq = module.inv_freq
    with all_double():
        return train(model, tokens, case, case["micro"]), weights(model)


# ---- files ----

def write_tokens(path, tokens):
    """llm.c's format: 256 int32 (magic, version, count), then uint16."""
    header = [20240520, 1, len(tokens)] + [0] * 253
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens))


def hub_name(name):
    return name[len("transformer."):]


def save_model(directory, case, model, **more):
    model.save_pretrained(directory, max_shard_size=case.get("shard", "5GB"), **more)
    (directory / "generation_config.json").unlink()
    if case.get("hub_names"):
        n = case["model"].n_positions
        mask = torch.tril(torch.ones(n, n)).reshape(1, 1, n, n)
        masks = {f"h.{layer}.attn.bias": mask.clone() for layer in range(case["model"].n_layer)}
        save_file({hub_name(k): v for k, v in weights(model).items()} | masks, directory / "model.safetensors",
                  metadata={"format": "pt"})


def literal(value):
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def deck(name, case, script="make_goldens.py"):
    s = dict(case["scheduler"] or {"type": "none"})
    kind = s.pop("type")
    params = "\n                         ".join(f"{key} = {literal(value)};" for key, value in s.items())
    scheduler = f'scheduler = {{ type = "{kind}";\n              params = {{ {params} }}; }};\n' if params else ""
    no_decay = ", ".join(f'"{pattern}"' for pattern in NO_DECAY)
    packing = ' packing = "documents";' if case.get("documents") is not None else ""
    return (f"# Written by {script}.  data.path is relative to the top of the source tree.\n"
            f'model = {{ from = "{name}"; }};\n'
            f'data = {{ path = "regression/golden/{name}/tokens.bin"; format = "bin"; '
            f'sequence_length = {case["length"]};\n         validation_fraction = 0.0; shuffle = false;{packing} }};\n'
            f'run = {{ directory = "runs/{name}"; steps = {steps_of(case)}; }};\n'
            f'train_micro_batch_size_per_gpu = {case["micro"]};\n'
            f'gradient_accumulation_steps = {case.get("accumulation", 1)};\n'
            f'optimizer = {{ type = "AdamW"; params = {{ lr = {case["lr"]}; betas = [{BETAS[0]}, {BETAS[1]}]; '
            f'eps = {EPS:.1e}; weight_decay = {WEIGHT_DECAY}; }};\n              no_decay = [{no_decay}]; }};\n'
            f'{scheduler}gradient_clipping = {case["clip"]};\n'
            f"zero_optimization = {{ stage = 0; }};\n")


def settings(case):
    return dict(steps=steps_of(case), sequence_length=case["length"], micro_batch=case["micro"],
                gradient_accumulation_steps=case.get("accumulation", 1), lr=case["lr"], betas=BETAS, eps=EPS,
                weight_decay=WEIGHT_DECAY, no_decay=NO_DECAY, gradient_clipping=case["clip"],
                scheduler=case["scheduler"])


def case_tokens(case):
    samples = steps_of(case) * case["micro"] * case.get("accumulation", 1)
    tokens = markov_tokens(samples * case["length"] + 1, case["model"].vocab_size, case["seed"])
    return tokens if case.get("documents") is None else with_ends(tokens, case["documents"], case["seed"])


def new_directory(name):
    directory = HERE / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


def save_logits(directory, case, model, tokens):
    with torch.no_grad():
        logits = model(input_ids=batch(tokens, 0, 1, case["length"])[0], use_cache=False).logits[0].contiguous()
    save_file({"logits": logits}, directory / "logits.safetensors")


def expect(case, trained, double, **more):
    """expected.json: of losses and norms as trained in fp32 and in fp64."""
    return dict(losses=trained[0], grad_norms=trained[1], losses_fp64=double[0], grad_norms_fp64=double[1],
                lrs=[learning_rate(case, step) for step in range(steps_of(case))], settings=settings(case), **more)


def write_expected(directory, expected):
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def make(name, case):
    directory = new_directory(name)
    model, tokens = initial_model(case), case_tokens(case)
    save_model(directory, case, model)
    write_tokens(directory / "tokens.bin", tokens)
    save_logits(directory, case, model, tokens)
    losses, norms = train(model, tokens, case, case["micro"])
    double, _ = train_double(case, tokens)
    rename = hub_name if case.get("hub_names") else str
    save_file({rename(k): v for k, v in weights(model).items()}, directory / "final.safetensors")
    write_expected(directory, expect(case, (losses, norms), double))
    (HERE / f"{name}.cfg").write_text(deck(name, case))
    print(name, "loss", *(f"{x:.3f}" for x in losses), "norm", *(f"{x:.3f}" for x in norms))


# ---- how far apart equally good computations are ----

def largest_difference(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def weight_difference(a, b):
    """Largest difference of a tensor, as a part of its largest element; GPT-2's K bias left out (gradient zero)."""
    worst, where = 0.0, ""
    for name, other in b.items():
        difference = (a[name].double() - other.double()).abs()
        if name.endswith("c_attn.bias"):
            third = len(difference) // 3
            difference[third:2 * third] = 0
        part = (difference.max() / other.abs().max()).item()
        worst, where = max((worst, where), (part, name))
    return worst, where


def spread(name, case):
    tokens = case_tokens(case)

    def run(micro, threads):
        torch.set_num_threads(threads)
        model = initial_model(case)
        result = train(model, tokens, case, micro)
        torch.set_num_threads(1)
        return result, weights(model)

    golden = run(case["micro"], 1)
    rows = [("two threads", run(case["micro"], 2)), ("one sample at a time", run(1, 1)),
            ("fp64", train_double(case, tokens))]
    for label, ((losses, norms), final) in rows:
        part, where = weight_difference(golden[1], final)
        print(f"| {name} | {label} | {largest_difference(golden[0][0], losses):.1e} "
              f"| {largest_difference(golden[0][1], norms):.1e} | {part:.1e} | {where} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if not arguments.cases or name in arguments.cases:
            (spread if arguments.spread else make)(name, case)


if __name__ == "__main__":
    main()
