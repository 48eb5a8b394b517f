#!/usr/bin/env python3
"""Make the golden cases of the model families and kinds of rotary positions, with transformers 5 and torch.

    make_families.py [CASE]...

A case is as those of make_goldens.py, without final.safetensors, and in expected.json `generate`: a prompt and the
tokens that transformers' generate continues it with, greedily and with its cache, before the first step.  It prints how
far fp64 is from each, and refuses a case whose greedy choice is a near tie; see README.md.
"""

import json
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from transformers.utils.logging import disable_progress_bar

import make_goldens as goldens

NEW_TOKENS = 12
CLEAR = 1e-3  # the least distance of the two largest logits where one is chosen

SIZES = dict(vocab_size=67, hidden_size=36, intermediate_size=41, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.15, bos_token_id=1, eos_token_id=2,
             pad_token_id=None)
FULL, WINDOW = "full_attention", "sliding_attention"


def rope(kind="default", theta=500.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def case(seed, model_type, micro=2, length=19, clip=2.0, older=None, generate=True, documents=None, steps=10, fused=False,
         **config):
    """older: config.json's keys in the spelling of transformers 4 instead of rope_parameters; None: no such key.
    documents: the token that ends one, where samples hold several.  fused: all experts of a layer in one tensor."""
    sizes = {key: value for key, value in SIZES.items() if (model_type, key) != ("gpt_neox", "num_key_value_heads")}
    return dict(seed=seed, model=AutoConfig.for_model(model_type, **sizes | config), length=length, micro=micro,
                lr=1e-2, clip=clip, scheduler=None, older=older, generate=generate, documents=documents, steps=steps,
                fused=fused)


LONG = dict(short_factor=[1.0, 1.1, 1.25, 1.5, 1.75, 2.0], long_factor=[1.0, 1.5, 2.5, 4.0, 6.0, 8.0])

MIXED = dict(steps=20, output_router_logits=True, router_aux_loss_coef=0.05)

# Sizes that divide nothing, samples longer than the windows, multipliers far from 1, bases that 20 positions tell
# apart; seeds with which fp64 and single samples stay within 1e-6.
CASES = {
    "mistral": case(1, "mistral", head_dim=8, sliding_window=5, micro=3),
    "qwen2": case(2, "qwen2", num_hidden_layers=3, intermediate_size=29, use_sliding_window=True, sliding_window=6,
                  max_window_layers=1, length=21, older=dict(rope_theta=10000.0, layer_types=None)),
    "qwen3": case(3, "qwen3", head_dim=8, num_key_value_heads=3, tie_word_embeddings=True, micro=4),
    "gemma": case(1, "gemma", head_dim=8, num_attention_heads=3, num_key_value_heads=1, length=17),
    "gemma2": case(4, "gemma2", num_hidden_layers=3, intermediate_size=29, num_attention_heads=4, head_dim=8,
                   query_pre_attn_scalar=12, attn_logit_softcapping=5.0, final_logit_softcapping=3.0, sliding_window=5,
                   micro=3, older=dict(rope_theta=10000.0, layer_types=None)),
    # The full layer's positions are stretched and of a base of their own.
    "gemma3_text": case(5, "gemma3_text", num_hidden_layers=3, intermediate_size=29, num_attention_heads=4, head_dim=8,
                        query_pre_attn_scalar=12, sliding_window=6, layer_types=[WINDOW, FULL, WINDOW], length=20,
                        rope_parameters={FULL: rope("linear", 5000.0, factor=2.0), WINDOW: rope(theta=100.0)}),
    # 6 of the 12 elements of a head turn.
    "phi3": case(3, "phi3", num_attention_heads=3, num_key_value_heads=1, sliding_window=7, micro=4,
                 rope_parameters=rope(partial_rotary_factor=0.5)),
    "phi3_long": case(13, "phi3", num_attention_heads=3, num_key_value_heads=3, intermediate_size=31, length=23,
                      max_position_embeddings=64, original_max_position_embeddings=8,
                      rope_parameters=rope("longrope", original_max_position_embeddings=8, **LONG),
                      older=dict(rope_theta=500.0, rope_scaling=dict(type="longrope", **LONG))),
    "olmo2": case(3, "olmo2", micro=3),
    "olmo3": case(5, "olmo3", num_hidden_layers=3, intermediate_size=29, sliding_window=5, length=24,
                  layer_types=[WINDOW, FULL, WINDOW],
                  rope_parameters={FULL: rope("yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=0.5,
                                              beta_slow=0.05, attention_factor=1.1), WINDOW: rope()}),
    # The middle layer has no rotary positions and a window.
    "smollm3": case(1, "smollm3", num_hidden_layers=3, intermediate_size=29, no_rope_layers=[1, 0, 1],
                    use_sliding_window=True, sliding_window=6, rope_parameters=rope(), micro=4),
    "granite": case(2, "granite", clip=0.85, embedding_multiplier=3.0, residual_multiplier=0.4,
                    attention_multiplier=0.7, logits_scaling=2.5, micro=3),
    "gpt_neox": case(1, "gpt_neox", hidden_size=32, num_attention_heads=2, intermediate_size=50,
                     rope_parameters=rope(partial_rotary_factor=0.25)),
    "gpt_neox_serial": case(3, "gpt_neox", num_attention_heads=3, intermediate_size=45, use_parallel_residual=False,
                            rope_parameters=rope(partial_rotary_factor=0.5), micro=3,
                            older=dict(rotary_pct=0.5, rotary_emb_base=500.0)),
    "starcoder2": case(1, "starcoder2", sliding_window=5),
    "llama_yarn": case(4, "llama", hidden_size=32, num_attention_heads=2, num_key_value_heads=1, length=24,
                       max_position_embeddings=64, micro=4,
                       rope_parameters=rope("yarn", 50.0, factor=4.0, original_max_position_embeddings=16,
                                            beta_fast=1.0, beta_slow=0.1, truncate=False)),
    # Within its positions dynamic is default; beyond them frequencies follow the length, which a cache would not bear.
    "llama_dynamic": case(1, "llama", intermediate_size=31, length=21, rope_parameters=rope("dynamic", factor=2.0)),
    "llama_dynamic_beyond": case(1, "llama", intermediate_size=31, length=23, max_position_embeddings=9,
                                 rope_parameters=rope("dynamic", factor=2.0), generate=False),
    # Mixtures of experts.
    "mixtral": case(5, "mixtral", num_local_experts=5, intermediate_size=21, head_dim=8, sliding_window=6, micro=4, **MIXED),
    # The middle layer is dense, and only the first has a window.
    "qwen2_moe": case(13, "qwen2_moe", num_hidden_layers=3, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=13,
                      shared_expert_intermediate_size=19, mlp_only_layers=[1], use_sliding_window=True, sliding_window=6,
                      max_window_layers=2, **MIXED),
    "qwen3_moe": case(13, "qwen3_moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8,
                      norm_topk_prob=True, micro=4, fused=True, **MIXED),
    "olmoe": case(8, "olmoe", num_experts=9, num_experts_per_tok=4, intermediate_size=11, micro=3, **MIXED),
    # Biases take every token to the first expert and none to the second.
    "dots1": case(11, "dots1", n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=12,
                  n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.7, first_k_dense_replace=1,
                  num_hidden_layers=3, sliding_window=6, max_window_layers=2, micro=3, steps=20),
    # Each sample holds two to seven documents or pieces; no logits and no prompt: those are of one.
    "llama_documents": case(1, "llama", length=43, max_position_embeddings=64, micro=3, generate=False,
                            documents=SIZES["eos_token_id"]),
}


def respell(directory, older):
    """config.json as transformers 4 wrote it."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | dict(rope_parameters=None) | older
    gone = {key for key in ("rope_parameters", *older) if config[key] is None}
    path.write_text(json.dumps({key: config[key] for key in sorted(config) if key not in gone}, indent=2) + "\n")


def train_double(case, tokens):
    """As train of make_goldens.py, and all that transformers holds in fp32, frequencies among it, in fp64."""
    model = goldens.initial_model(case).double()
    with goldens.all_double():
        for module in model.modules():
            if type(module).__name__.endswith("RotaryEmbedding"):
                module.__init__(case["model"])
        return goldens.train(model, tokens, case, case["micro"])


def generate(model, tokens, length):
    """The prompt is such that prompt and continuation fill a sample."""
    prompt = tokens[:length - NEW_TOKENS]
    x = torch.tensor([prompt])
    out = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=NEW_TOKENS, do_sample=False,
                         use_cache=True, return_dict_in_generate=True, output_logits=True)
    for logits in out.logits:
        first, second = logits[0].topk(2).values.tolist()
        assert first - second >= CLEAR, f"near tie, {first} and {second}: take another seed"
    continuation = out.sequences[0, len(prompt):].tolist()
    assert model.config.eos_token_id not in continuation, "an end token: take another seed"
    return dict(prompt=prompt, tokens=continuation)


def router_logits(model, tokens, case):
    """Of the first batch, before the first step: [tokens][experts] of each layer."""
    logits = []
    routers = [m for name, m in model.named_modules() if name.endswith("mlp.gate")]
    hooks = [m.register_forward_hook(lambda module, x, y: logits.append(y[0])) for m in routers]
    with torch.no_grad():
        model(input_ids=goldens.batch(tokens, 0, case["micro"], case["length"])[0], use_cache=False)
    for hook in hooks:
        hook.remove()
    return logits


def router_losses(model, tokens, case):
    """The sum over layers of the mean of logsumexp^2, and the mean over samples of each sample's loss for balance."""
    logits, length, config = router_logits(model, tokens, case), case["length"], model.config
    more = dict(z_loss=sum(layer.logsumexp(-1).square().mean().item() for layer in logits))
    if config.output_router_logits:
        of_samples = [load_balancing_loss_func(tuple(layer[i:i + length] for layer in logits), logits[0].shape[1],
                                               config.num_experts_per_tok) for i in range(0, len(logits[0]), length)]
        more |= dict(balance_of_samples=config.router_aux_loss_coef * sum(of_samples).item() / len(of_samples))
    return more


BALANCE_RATE, BALANCE_STEPS = 0.02, 8


def follow_balance(model):
    """From here on the bias of each router moves by a rate towards equal shares after every step of an optimizer (Wang et
    al. 2024, algorithm 1). -> the routers, and how to end this"""
    routers = [m for m in model.modules() if hasattr(m, "e_score_correction_bias")]
    counts = [torch.zeros(m.e_score_correction_bias.numel()) for m in routers]

    def count(router, _, y):
        counts[routers.index(router)] += torch.bincount(y[2].flatten(), minlength=counts[0].numel())

    def move(*_):
        for router, times in zip(routers, counts):
            with torch.no_grad():
                router.e_score_correction_bias += BALANCE_RATE * torch.sign(times.mean() - times)
            times.zero_()

    hooks = [m.register_forward_hook(count) for m in routers]
    hooks.append(register_optimizer_step_post_hook(move))
    return routers, lambda: [hook.remove() for hook in hooks]


def train_balanced(case, tokens):
    """Losses, norms, and the biases behind the last step."""
    case = case | dict(steps=BALANCE_STEPS)
    model = goldens.initial_model(case)
    routers, end = follow_balance(model)
    losses, norms = goldens.train(model, tokens, case, case["micro"])
    end()
    return dict(rate=BALANCE_RATE, losses=losses, grad_norms=norms,
                biases=[router.e_score_correction_bias.tolist() for router in routers])


def check_reading(directory, tokens, case, model):
    """transformers reads the directory back as the model that was saved, whatever its spelling."""
    again = AutoModelForCausalLM.from_pretrained(directory, **goldens.EAGER).eval()
    x = goldens.batch(tokens, 0, 1, case["length"])[0]
    with torch.no_grad():
        a, b = (m(input_ids=x, use_cache=False).logits for m in (again, model))
    assert (a - b).abs().max() < 1e-6 * b.abs().max()  # where tensors lie in memory may change a last bit


def make(name, case):
    directory = goldens.new_directory(name)
    model, tokens = goldens.initial_model(case), goldens.case_tokens(case)
    goldens.save_model(directory, case, model, **dict(save_original_format=False) if case["fused"] else {})
    if case["older"]:
        respell(directory, case["older"])
    goldens.write_tokens(directory / "tokens.bin", tokens)
    if case["documents"] is None:
        goldens.save_logits(directory, case, model, tokens)
    check_reading(directory, tokens, case, model)
    more = dict(generate=generate(model, tokens, case["length"])) if case["generate"] else {}
    if getattr(case["model"], "num_experts_per_tok", None):
        more |= router_losses(model, tokens, case)
    if hasattr(case["model"], "routed_scaling_factor"):
        more |= dict(balanced=train_balanced(case, tokens))
    trained, double = goldens.train(model, tokens, case, case["micro"]), train_double(case, tokens)
    goldens.write_expected(directory, goldens.expect(case, trained, double, **more))
    (goldens.HERE / f"{name}.cfg").write_text(goldens.deck(name, case, "make_families.py"))
    norms = trained[1]
    print(f"| {name} | {goldens.largest_difference(trained[0], double[0]):.1e} "
          f"| {goldens.largest_difference(norms, double[1]):.1e} | {sum(n > case['clip'] for n in norms)} |",
          *(f"{loss:.2f}" for loss in trained[0]), *(f"{norm:.1f}" for norm in norms), flush=True)


def main():
    disable_progress_bar()
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        make(name, CASES[name])


if __name__ == "__main__":
    main()
