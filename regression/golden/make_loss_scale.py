#!/usr/bin/env python3
"""Write loss_scale.txt: how a loss scale changes, by DeepSpeed's own class and torch's own kernel.

    DS_BUILD_OPS=0 make_loss_scale.py > loss_scale.txt

Needs deepspeed 0.19.8 and torch.  Overflows are random, with a seed of their own in each case, at several rates.

A line a case: rule initial window hysteresis consecutive minimum : overflows (1 or 0, a character a step) : the scale after each
step, a dot where it is as before.  DeepSpeed's class raises an exception at the minimum: the case ends with that step, whose
scale is "stuck".
"""

import contextlib
import itertools
import random
import sys

with contextlib.redirect_stdout(sys.stderr):  # it greets
    import torch
    from deepspeed.runtime.fp16 import loss_scaler
    from deepspeed.utils import logger

STEPS = 50


def deepspeed_case(initial, window, hysteresis, consecutive, minimum, overflows):
    scaler = loss_scaler.DynamicLossScaler(initial, window, minimum, hysteresis, bool(consecutive))
    scales = []
    for overflow in overflows:
        try:
            scaler.update_scale(bool(overflow))
        except Exception as why:
            assert "already at minimum" in str(why)
            return scales + ["stuck"]
        scales.append("%.17g" % scaler.loss_scale)
    return scales


def torch_case(initial, window, overflows):
    """What GradScaler.update does."""
    scale, tracker = torch.full((), initial, dtype=torch.float32), torch.zeros((), dtype=torch.int32)
    scales = []
    for overflow in overflows:
        torch._amp_update_scale_(scale, tracker, torch.full((), float(overflow)), 2.0, 0.5, window)
        scales.append("%.17g" % scale.item())
    return scales


def show(rule, initial, window, hysteresis, consecutive, minimum, overflows, scales):
    overflows = overflows[:len(scales)]
    before = ["%.17g" % initial] + scales
    scales = ["." if scale == old else scale for scale, old in zip(scales, before)]
    print(rule, "%.17g" % initial, window, hysteresis, consecutive, minimum, ":", "".join(map(str, overflows)), ":", *scales)


def main():
    loss_scaler.dist.get_rank = lambda: 1
    logger.disabled = True
    settings = itertools.product((1, 2, 3), (0, 1), (1, 2, 5), (1, 6), (0.15, 0.5))
    for number, (hysteresis, consecutive, window, minimum, rate) in enumerate(settings):
        draw = random.Random(number)
        overflows = [int(draw.random() < rate) for _ in range(STEPS)]
        initial = 2.0**draw.choice((0, 4, 16))
        scales = deepspeed_case(initial, window, hysteresis, consecutive, minimum, overflows)
        show("dynamic", initial, window, hysteresis, consecutive, minimum, overflows, scales)
    for number, (window, rate, power) in enumerate(itertools.product((1, 2, 5), (0.15, 0.5), (0, 16, 126))):
        draw = random.Random(1000 + number)
        overflows = [int(draw.random() < rate) for _ in range(STEPS)]
        show("torch", 2.0**power, window, 1, 0, 1, overflows, torch_case(2.0**power, window, overflows))


main()
