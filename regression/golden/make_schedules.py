#!/usr/bin/env python3
"""Write schedules.json: learning rates and momenta as DeepSpeed's own schedules give them.

    make_schedules.py LR_SCHEDULES_PY > schedules.json

LR_SCHEDULES_PY is deepspeed/runtime/lr_schedules.py of DeepSpeed 0.19.6 (not part of this repository).  It is run as it
is, with stand-ins for what it imports; neither torch nor DeepSpeed need be installed.
"""

import importlib.util
import json
import logging
import sys
import types


class Optimizer:
    """What the schedules touch of a torch optimizer: one group with a learning rate and two betas."""

    def __init__(self, lr, momentum):
        self.defaults = {"lr": lr, "betas": (momentum, 0.999)}
        self.param_groups = [dict(self.defaults)]


def stand_in(name, **members):
    sys.modules[name] = types.ModuleType(name)
    for key, value in members.items():
        setattr(sys.modules[name], key, value)


def load(path):
    stand_in("torch", is_tensor=lambda value: False)
    stand_in("torch.optim", Optimizer=Optimizer)
    stand_in("deepspeed")
    stand_in("deepspeed.utils", logger=logging.getLogger("silent"))
    logging.getLogger("silent").setLevel(logging.CRITICAL)
    spec = importlib.util.spec_from_file_location("lr_schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Steps to record.  Every early one; then both sides of the corners of the default parameters.
SHORT = list(range(48))
LONG = [0, 1, 2, 3, 500, 998, 999, 1000, 1001, 1002, 1999, 2000, 2001, 2002, 3000, 3999, 4000, 4001, 4002, 5000]

BASE_LR, BASE_MOMENTUM = 2e-3, 0.85

CYCLE = {"cycle_min_lr": 1e-4, "cycle_max_lr": 3e-3}
SHORT_CYCLE = dict(CYCLE, cycle_first_step_size=10)

CASES = [
    ("LRRangeTest", {}, LONG),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-5, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 0.5},
     SHORT),
    ("LRRangeTest", {"lr_range_test_step_size": 7, "lr_range_test_step_rate": 5.0, "lr_range_test_staircase": True},
     SHORT),
    ("LRRangeTest", {"lr_range_test_step_size": 1, "lr_range_test_step_rate": 0.0}, SHORT[:4]),

    ("WarmupLR", {}, LONG),
    ("WarmupLR", {"warmup_type": "linear"}, LONG),
    ("WarmupLR", {"warmup_num_steps": 10, "warmup_min_lr": 1e-5, "warmup_max_lr": 7e-4}, SHORT),
    ("WarmupLR", {"warmup_num_steps": 10, "warmup_min_lr": 1e-5, "warmup_max_lr": 7e-4, "warmup_type": "linear"},
     SHORT),
    ("WarmupLR", {"warmup_num_steps": 10, "warmup_min_lr": 7e-4, "warmup_max_lr": 1e-5}, SHORT),
    ("WarmupLR", {"warmup_num_steps": 1}, SHORT[:6]),
    ("WarmupLR", {"warmup_num_steps": 1, "warmup_type": "linear"}, SHORT[:6]),

    ("WarmupDecayLR", {"total_num_steps": 3000}, LONG),
    ("WarmupDecayLR", {"total_num_steps": 40, "warmup_num_steps": 10, "warmup_min_lr": 1e-5, "warmup_max_lr": 7e-4},
     SHORT),
    ("WarmupDecayLR", {"total_num_steps": 40, "warmup_num_steps": 10, "warmup_type": "linear"}, SHORT),
    ("WarmupDecayLR", {"total_num_steps": 5, "warmup_num_steps": 10}, SHORT[:20]),
    ("WarmupDecayLR", {"total_num_steps": 10, "warmup_num_steps": 10}, SHORT[:20]),
    ("WarmupDecayLR", {"total_num_steps": 6, "warmup_num_steps": 1, "warmup_type": "linear"}, SHORT[:10]),

    ("WarmupCosineLR", {"total_num_steps": 3000}, LONG),
    ("WarmupCosineLR", {"total_num_steps": 40, "warmup_num_steps": 10}, SHORT),
    ("WarmupCosineLR", {"total_num_steps": 40, "warmup_num_steps": 10, "warmup_type": "linear", "warmup_min_ratio": 0.1,
                        "cos_min_ratio": 0.05}, SHORT),
    ("WarmupCosineLR", {"total_num_steps": 40, "warmup_num_steps": 10, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.0},
     SHORT),
    ("WarmupCosineLR", {"total_num_steps": 5, "warmup_num_steps": 10}, SHORT[:20]),
    ("WarmupCosineLR", {"total_num_steps": 6, "warmup_num_steps": 1, "warmup_type": "linear"}, SHORT[:10]),

    ("OneCycle", CYCLE, LONG),
    ("OneCycle", SHORT_CYCLE, SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_second_step_size=17, cycle_min_mom=0.7, cycle_max_mom=0.95), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_second_step_size=0, decay_step_size=5, decay_lr_rate=0.5), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_min_lr=0.0, decay_step_size=5, decay_lr_rate=0.5), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_first_stair_count=4), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_second_step_size=17, cycle_first_stair_count=3, cycle_second_stair_count=5),
     SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_first_stair_count=5, cycle_second_stair_count=0), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_first_step_size=4, cycle_first_stair_count=9), SHORT[:16]),
    ("OneCycle", dict(SHORT_CYCLE, decay_step_size=4, decay_lr_rate=0.3, decay_mom_rate=0.01), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, decay_lr_rate=0.3, decay_mom_rate=0.01), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, decay_step_size=4), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_momentum=False, decay_step_size=4, decay_lr_rate=1.0), SHORT),
    ("OneCycle", dict(SHORT_CYCLE, cycle_first_step_size=1), SHORT[:8]),
]


def run(module, name, params, steps):
    """One schedule, advanced step by step as a training run does."""
    optimizer = Optimizer(BASE_LR, BASE_MOMENTUM)
    schedule = getattr(module, name)(optimizer, **params)
    group = optimizer.param_groups[0]
    lrs, momenta = [], []
    for step in range(steps[-1] + 1):
        if step in steps:
            lrs.append(group["lr"])
            momenta.append(group["betas"][0])
        schedule.step()
    return {"type": name, "params": params, "lr": BASE_LR, "momentum": BASE_MOMENTUM, "steps": steps, "lrs": lrs,
            "momenta": momenta}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    module = load(sys.argv[1])
    rows = [json.dumps(run(module, *case)) for case in CASES]
    print("[\n" + ",\n".join(rows) + "\n]")


main()
