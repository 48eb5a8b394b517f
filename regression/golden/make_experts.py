#!/usr/bin/env python3
"""Make the golden cases of DeepSpeed's layers of experts in a GPT-2 and a Llama, with its own deepspeed.moe on the CPU.

    make_experts.py [CASE]...

A case is as those of make_families.py.  An expert has room for a part of each sample's tokens, and l_aux is the mean of the
samples', as with moe.capacity_over and moe.balance_over = "sequence"; in expected.json `micro_batch` has losses and norms of
three steps with both over the micro-batch, as DeepSpeed has them.  Logits and continuations are without a limit.  Nothing is
left to chance: no noise, no sampling, no random token selection.
"""

import functools
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

import deepspeed
from deepspeed.moe import sharded_moe
from deepspeed.moe.layer import MoE

import make_families as families
import make_goldens as goldens

AUX = 0.05  # times l_aux of each layer

GPT2 = dict(vocab_size=67, n_positions=32, n_embd=36, n_inner=29, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=1, eos_token_id=2, pad_token_id=None)
LLAMA = families.SIZES


def case(seed, config, layers, num_experts, micro=4, length=19, **moe):
    """layers: None for every second."""
    return dict(seed=seed, model=config, length=length, micro=micro, lr=1e-2, clip=2.0, scheduler=None, steps=10,
                layers=layers, num_experts=num_experts, moe=moe)


CASES = {
    # A pyramid with MLPs beside the experts.
    "gpt2_top1": case(1, AutoConfig.for_model("gpt2", n_layer=3, **GPT2), [0, 2], [3, 5], k=1, capacity_factor=1.0,
                      min_capacity=2, use_residual=True),
    "gpt2_top2": case(2, AutoConfig.for_model("gpt2", n_layer=4, **GPT2), None, [4], k=2, capacity_factor=0.9, min_capacity=1),
    "llama_topk": case(3, AutoConfig.for_model("llama", **LLAMA), None, [6], k=3, capacity_factor=0.8, min_capacity=4),
    # Biases of experts; the last tokens are dropped.
    "llama_position": case(4, AutoConfig.for_model("llama", mlp_bias=True, **LLAMA), [1], [5], k=4, capacity_factor=0.7,
                           min_capacity=4, drop_policy="position"),
}


class Layer(MoE):
    """In place of a block's MLP: sample by sample, or all together."""

    whole = False

    def forward(self, x):
        parts = [x] if Layer.whole else x.split(1)
        outputs = [super(Layer, self).forward(part) for part in parts]
        self.l_aux = sum(y[1] for y in outputs) / len(outputs)
        return torch.cat([y[0] for y in outputs])


def layers_of(case):
    return case["layers"] or list(range(1, case["model"].num_hidden_layers, 2))


def initial_model(case):
    model = AutoModelForCausalLM.from_config(case["model"], **goldens.EAGER)
    blocks = model.transformer.h if case["model"].model_type == "gpt2" else model.model.layers
    experts = case["num_experts"] * (1 if len(case["num_experts"]) > 1 else len(layers_of(case)))
    more = {key: value for key, value in case["moe"].items() if key != "drop_policy"}
    policy = case["moe"].get("drop_policy", "probs")
    sharded_moe.topkgating = functools.partial(topkgating, drop_policy=policy)
    for i, n in zip(layers_of(case), experts):
        blocks[i].mlp = Layer(case["model"].hidden_size, blocks[i].mlp, n, top2_2nd_expert_sampling=False, eval_capacity_factor=more["capacity_factor"], **more)
        blocks[i].mlp.set_deepspeed_parallelism()
    goldens.fill(model, case)
    model.extra_loss = lambda: AUX * sum(m.l_aux for m in model.modules() if isinstance(m, Layer))
    return model


topkgating = sharded_moe.topkgating


def in_order(shape):
    """Instead of numbers by chance: the first tokens stay.  (Without random token selection torch.topk takes any of equal
    ones.)"""
    return torch.linspace(1.0, 0.5, shape[0])[:, None].expand(shape)


def limited(model, case, limits):
    for module in model.modules():
        if isinstance(module, sharded_moe.TopKGate):
            module.drop_tokens = limits
            module.min_capacity = case["moe"]["min_capacity"] if limits else 0


def train_double(case, tokens):
    model = initial_model(case).double()
    with goldens.all_double():
        for module in model.modules():
            if type(module).__name__.endswith("RotaryEmbedding"):
                module.__init__(case["model"])
        return goldens.train(model, tokens, case, case["micro"])


def train_whole(case, tokens):
    """Three steps with room for and balance of the micro-batch."""
    Layer.whole = True
    losses, norms = goldens.train(initial_model(case), tokens, case | dict(steps=3), case["micro"])
    Layer.whole = False
    return dict(losses=losses, grad_norms=norms)


def deck(name, case):
    keys = dict(num_experts=case["num_experts"], k=case["moe"]["k"]) | case["moe"]
    keys |= dict(layers=case["layers"]) if case["layers"] else {}
    keys |= dict(use_rts=False, top2_2nd_expert_sampling=False, aux_loss_coef=AUX, capacity_over="sequence",
                 balance_over="sequence")
    text = " ".join(f"{key} = {goldens.literal(value)};" for key, value in keys.items())
    return goldens.deck(name, case, "make_experts.py") + f"moe = {{ {text} }};\n"


def make(name, case):
    directory = goldens.new_directory(name)
    model, tokens = initial_model(case), goldens.case_tokens(case)
    goldens.save_model(directory, case, model)
    goldens.write_tokens(directory / "tokens.bin", tokens)
    limited(model, case, False)
    goldens.save_logits(directory, case, model, tokens)
    more = dict(generate=families.generate(model, tokens, case["length"]), micro_batch=train_whole(case, tokens))
    limited(model, case, True)
    trained, double = goldens.train(model, tokens, case, case["micro"]), train_double(case, tokens)
    goldens.write_expected(directory, goldens.expect(case, trained, double, **more))
    (goldens.HERE / f"{name}.cfg").write_text(deck(name, case))
    print(f"| {name} | {goldens.largest_difference(trained[0], double[0]):.1e} "
          f"| {goldens.largest_difference(trained[1], double[1]):.1e} | {sum(n > case['clip'] for n in trained[1])} |",
          *(f"{loss:.2f}" for loss in trained[0]), flush=True)


def main():
    disable_progress_bar()
    torch.set_num_threads(1)
    os.environ |= dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
    deepspeed.init_distributed(dist_backend="gloo")
    sharded_moe.exp_selection_uniform_map[torch.device("cpu")] = in_order
    for name in sys.argv[1:] or CASES:
        make(name, CASES[name])


if __name__ == "__main__":
    main()
