#!/usr/bin/env python3
"""Run DeepSpeed itself on the CPU, over gloo, on the tiny llama of make_goldens.py: losses, gradient norms and loss
scales of twenty steps, by precision, ZeRO stage, optimizer and number of processes.

    DS_BUILD_OPS=0 VENV/bin/python regression/golden/make_deepspeed.py [CASE]...    # named: these again, or new

deepspeed 0.19.8, torch 2.15.0, transformers 5.23.0, with a C++ compiler (it builds one operator).  Written:
deepspeed.json, per case the deck's overrides of optimizers_llama.cfg, and what one process and what two made of it, or
why it was refused.  The processes share samples_per_step samples; each step takes the next ones, and the first again
after the last.  Some minutes.
"""

import json
import os
import subprocess
import sys
import tempfile

import make_goldens as goldens
import make_optimizers as optimizers

STEPS, LENGTH, CLIP, DECAY = 20, 17, 2.5, 0.1
WORLDS = (1, 2)
SAMPLES = 4

ADAMW = dict(type="AdamW", params=dict(torch_adam=True, lr=3e-3, betas=[0.9, 0.95], eps=1e-3, weight_decay=DECAY))
BF16 = dict(enabled=True)
FP32_SUMS = dict(data_types=dict(grad_accum_dtype="fp32"))
LOW = dict(bf16=dict(enabled=True, bf16_master_weights_and_grads=True, bf16_optimizer_states=True))


def muon(**params):
    return dict(type="Muon", params=dict(torch_adam=True, muon_lr=2e-2, adam_lr=1e-2, weight_decay=DECAY, **params))


def case(stage, optimizer=ADAMW, accumulation=1, zero={}, **config):
    """What DeepSpeed is configured with."""
    return dict(config, optimizer=optimizer, zero_optimization=dict(zero, stage=stage),
                gradient_accumulation_steps=accumulation)


def of_stages(name, stages, **config):
    return {f"{name}_{stage}": case(stage, **config) for stage in stages}


CASES = {
    **of_stages("fp32", (0, 1, 2, 3)),
    **of_stages("bf16", (0, 1, 2, 3), bf16=BF16),
    **of_stages("bf16_fp32_sums", (1, 2, 3), bf16=BF16, **FP32_SUMS),
    **of_stages("bf16_accumulation", (1, 2, 3), bf16=BF16, accumulation=2),
    **of_stages("bf16_accumulation_fp32_sums", (1, 2, 3), bf16=BF16, accumulation=2, **FP32_SUMS),
    **of_stages("bf16_low", (1, 2, 3), **LOW),
    # Two processes' gradients meet in fp32
    **of_stages("bf16_fp32_wire", (1, 2, 3), bf16=BF16, communication_data_type="fp32"),
    **of_stages("fp16", (0, 1, 2, 3), fp16=dict(enabled=True, initial_scale_power=12)),
    **of_stages("fp16_accumulation", (1, 2), fp16=dict(enabled=True, initial_scale_power=12), accumulation=2),
    **of_stages("fp16_predivide", (1, 2, 3), fp16=dict(enabled=True, initial_scale_power=12),
                zero=dict(reduce_scatter=False), prescale_gradients=False, gradient_predivide_factor=3.0),
    **of_stages("fp16_prescale", (1, 2, 3), fp16=dict(enabled=True, initial_scale_power=12),
                zero=dict(reduce_scatter=False), prescale_gradients=True),
    # The scale falls to what fits and grows again
    **of_stages("fp16_overflow", (1, 2, 3), fp16=dict(enabled=True, initial_scale_power=21, loss_scale_window=7)),
    **of_stages("fp16_static", (1, 2, 3), fp16=dict(enabled=True, loss_scale=1024)),
    **of_stages("muon_gram", (0, 1, 2, 3), optimizer=muon()),
    **of_stages("muon_standard", (0, 2, 3), optimizer=muon(ns_method="standard")),
    **of_stages("muon_heads", (0, 1, 3), optimizer=muon(per_head_muon=True)),
    **of_stages("sgd", (1, 2, 3), optimizer=dict(type="SGD", params=dict(lr=0.05, momentum=0.9, weight_decay=DECAY)),
                zero_allow_untested_optimizer=True),
    **of_stages("adam_l2", (1, 3), optimizer=dict(ADAMW, type="Adam", params=dict(ADAMW["params"], adam_w_mode=False))),
    # type Adam alone decouples the decay as well
    **of_stages("adam", (1,), optimizer=dict(ADAMW, type="Adam")),
    # What it refuses
    **of_stages("low_masters_alone", (1,), bf16=dict(enabled=True, bf16_master_weights_and_grads=True)),
    **of_stages("low_states_alone", (1,), bf16=dict(enabled=True, bf16_optimizer_states=True)),
    **of_stages("fp16_and_bf16", (1,), bf16=BF16, fp16=dict(enabled=True)),
}


# ---- in each process ----

def run(config, rank, world):
    import deepspeed
    import torch
    torch.manual_seed(0)
    model = optimizers.load("llama").train()
    micro = SAMPLES // config["gradient_accumulation_steps"] // world
    zero = dict(config["zero_optimization"])
    if config["optimizer"]["type"] == "Muon" and zero["stage"] == 3:
        zero["reduce_scatter"] = False  # else refused, as is a division before the sum
    config = dict(config, train_micro_batch_size_per_gpu=micro, gradient_clipping=CLIP, zero_optimization=zero)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config,
                                                   model_parameters=optimizers.grouped(model, DECAY))
    tokens = optimizers.read_tokens("llama")
    epoch = (len(tokens) - 1) // LENGTH
    losses, norms, scales, skipped = [], [], [], []
    for step in range(STEPS):
        total = 0.0
        for part in range(config["gradient_accumulation_steps"]):
            first = step * SAMPLES + (part * world + rank) * micro
            x, y = map(torch.cat, zip(*(goldens.batch(tokens, (first + i) % epoch, 1, LENGTH) for i in range(micro))))
            logits = engine(input_ids=x, use_cache=False).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            total += loss.detach() / config["gradient_accumulation_steps"] / world
            engine.backward(loss)
            scale = getattr(engine.optimizer, "loss_scale", 1.0)
            engine.step()
        torch.distributed.all_reduce(total)
        losses.append(total.item())
        norm = engine.get_global_grad_norm()
        norms.append(None if norm is None else float(norm))
        scales.append(float(scale))
        skipped.append(engine.skipped_steps)
    out = dict(wrapper=type(optimizer).__name__, losses=losses)
    if norms[0] is not None:
        out["grad_norms"] = [norm if norm != float("inf") else "inf" for norm in norms]
    if "fp16" in config:
        out |= dict(scales=scales, skipped=skipped)
    return out


def worker(names, path):
    from deepspeed.accelerator import get_accelerator
    import torch
    # torch computes in fp16 on every CPU, if slowly; DeepSpeed looks for instructions.  Muon's choice is kept.
    supported = get_accelerator().is_fp16_supported
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    results = {}
    for name in names:
        config = CASES[name]
        get_accelerator().is_fp16_supported = (lambda: True) if "fp16" in config else supported
        try:
            results[name] = run(config, rank, world)
        except (AssertionError, ValueError, RuntimeError, TypeError, NotImplementedError) as error:
            results[name] = dict(refused=f"{type(error).__name__}: {error}"[:300])
        if rank == 0:
            print(world, name, json.dumps(results[name])[:200], flush=True)
            with open(path, "w") as file:
                json.dump(results, file)


# ---- all together ----

def launch(names, world):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        environment = dict(os.environ, DS_BUILD_OPS="0", DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", MASTER_PORT="29531",
                           MASTER_ADDR="127.0.0.1", WORLD_SIZE=str(world), LOCAL_SIZE=str(world))
        processes = [subprocess.Popen([sys.executable, __file__, "--worker", file.name, *names],
                                      env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)))
                     for rank in range(world)]
        assert [process.wait() for process in processes] == [0] * world
        return json.load(open(file.name))


def overrides(config):
    rows = [f"train_micro_batch_size_per_gpu={SAMPLES // config['gradient_accumulation_steps']}",
            f"gradient_accumulation_steps={config['gradient_accumulation_steps']}",
            f"zero_optimization.stage={config['zero_optimization']['stage']}",
            f"optimizer.type={config['optimizer']['type']}"]
    sections = {"optimizer.params": config["optimizer"]["params"]}
    sections |= {key: config[key] for key in ("bf16", "fp16", "data_types") if key in config}
    rows += [f"{key}={str(config[key]).lower()}" for key in ("communication_data_type", "prescale_gradients",
                                                             "gradient_predivide_factor") if key in config]
    for section, keys in sections.items():
        rows += [f"{section}.{key}={str(value).lower() if isinstance(value, bool) else value}"
                 for key, value in keys.items() if key != "torch_adam"]
    return rows


def main():
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[3:], sys.argv[2])
        return
    names, path = sys.argv[1:] or list(CASES), goldens.HERE / "deepspeed.json"
    made = json.loads(path.read_text())["cases"] if sys.argv[1:] else {}
    results = {world: launch(names, world) for world in WORLDS}
    made |= {name: dict(set=overrides(CASES[name]), **{str(world): results[world][name] for world in WORLDS})
             for name in names}
    optimizers.write_cases(path, {name: made[name] for name in CASES if name in made}, steps=STEPS,
                           samples_per_step=SAMPLES)


if __name__ == "__main__":
    main()
