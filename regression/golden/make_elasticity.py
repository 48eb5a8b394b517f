#!/usr/bin/env python3
"""Write elasticity.txt: batches as DeepSpeed's own elasticity chooses them.

    make_elasticity.py ELASTICITY_DIRECTORY > elasticity.txt

ELASTICITY_DIRECTORY is deepspeed/elasticity of DeepSpeed 0.19.6 (not part of this repository).  Its files are run as they
are, with stand-ins for what they import from the rest of DeepSpeed; needs numpy and packaging.

A line a case: version limit min_gpus max_gpus gpus_per_node model_parallel_size prefer_larger replicas : sizes :
batch micro : fits.  A batch of 0: no number of replicas fits any.  A micro-batch of 0: this one does not fit.  Replicas of 0
ask for the list alone.

Left out is what DeepSpeed fails on for another reason than the number of ranks (an exception of Python's), and what it gives
a batch of 0: Tessera refuses those.  With model_parallel_size above 1 its function for the list is asked, with all GPUs as it
expects, because the one around it compares that list with the number of all GPUs.  Version 0.2 has no list without replicas.
"""

import importlib
import itertools
import logging
import random
import sys
import types


def load(directory):
    package = types.ModuleType("deepspeed")
    package.__path__ = []
    sys.modules["deepspeed"] = package
    for name, members in (("git_version_info", {"version": "0.19.6"}), ("utils", {"logger": logging.getLogger("silent")})):
        sys.modules["deepspeed." + name] = types.ModuleType(name)
        sys.modules["deepspeed." + name].__dict__.update(members)
    logging.getLogger("silent").setLevel(logging.CRITICAL)
    elasticity = types.ModuleType("deepspeed.elasticity")
    elasticity.__path__ = [directory]
    sys.modules["deepspeed.elasticity"] = elasticity
    return importlib.import_module("deepspeed.elasticity.elasticity")


def largest_size(sizes, share):
    return max((s for s in sizes if share % s == 0), default=0)


def config(case):
    version, limit, fewest, most, per_node, parallel, larger, _, sizes = case
    return {"elasticity": {"enabled": True, "max_train_batch_size": limit, "micro_batch_sizes": list(sizes),
                           "min_gpus": fewest, "max_gpus": most, "num_gpus_per_node": per_node,
                           "model_parallel_size": parallel, "prefer_larger_batch": bool(larger), "version": version}}


def choose(module, case):
    """(batch, micro, fits); None for a case that is left out."""
    version, limit, fewest, most, per_node, parallel, larger, replicas, sizes = case
    if parallel > 1:
        batch, fits, _ = module._get_compatible_gpus_v02(list(sizes), limit, replicas * parallel, fewest, most, bool(larger),
                                                         per_node, parallel)
        return int(batch), largest_size(sizes, int(batch) // replicas), fits
    if replicas == 0:
        return *module.compute_elastic_config(config(case), "0.19.6", 0)[:1], 0, \
            module.compute_elastic_config(config(case), "0.19.6", 0)[1]
    try:
        batch, fits, micro = module.compute_elastic_config(config(case), "0.19.6", replicas)
    except module.ElasticityIncompatibleWorldSize:
        if version == 0.2:
            return None
        batch, fits = module.compute_elastic_config(config(case), "0.19.6", 0)
        micro = 0
    return batch, micro, fits


def cases():
    """Some by hand, DeepSpeed's own test first; the rest drawn, with few factors in common and many."""
    by_hand = [(0.1, 10000, 32, 1500, 1, 1, 1, (8, 12, 16, 17)), (0.1, 100, 1, 10000, 1, 1, 1, (8, 10, 12)),
               (0.1, 2000, 1, 10000, 1, 1, 1, (2, 4, 6)), (0.2, 2000, 1, 10000, 1, 1, 1, (2, 4, 6)),
               (0.2, 2000, 1, 10000, 8, 1, 1, (2, 4, 6)), (0.2, 2000, 1, 10000, 8, 4, 0, (2, 4, 6)),
               (0.1, 32, 1, 1500, 1, 1, 1, (1, 2, 3, 7)), (0.2, 32, 1, 4, 8, 2, 1, (1, 2, 3, 7)), (0.1, 7, 1, 10, 1, 1, 0, (7, 7)),
               (0.1, 1, 1, 1, 1, 1, 1, (1,)), (0.1, 999983, 1, 10, 1, 1, 1, (1,)), (0.1, 100000, 3, 5, 1, 1, 1, (6, 10, 15))]
    for case, replicas in itertools.product(by_hand, (0, 1, 2, 3, 5, 7, 8, 12, 48, 64, 128)):
        yield case[:7] + (replicas, case[7])
    yield 0.1, 2000000, 1, 16, 1, 1, 1, 4, (1, 2)  # above the end of the list of highly composite numbers
    yield 0.1, 2000000, 1, 16, 1, 1, 0, 4, (3,)
    draw = random.Random(5)
    for _ in range(600):
        version = draw.choice((0.1, 0.2))
        parallel = draw.choice((1, 1, 1, 2, 3)) if version == 0.2 else 1
        per_node = parallel * draw.choice((1, 1, 2, 4, 8)) if version == 0.2 else 1
        limit = draw.choice((draw.randint(1, 40), draw.randint(40, 600), draw.randint(600, 20000)))
        sizes = tuple(draw.randint(1, max(1, min(limit // 2, 40))) for _ in range(draw.randint(1, 6)))
        fewest = draw.choice((1, 1, draw.randint(1, 20)))
        most = draw.choice((10000, fewest + draw.randint(0, 60)))
        replicas = draw.choice((0 if version == 0.1 else 1, draw.randint(1, 12), draw.randint(1, 64)))
        yield version, limit, fewest, most, per_node, parallel, draw.randint(0, 1), replicas, sizes


def main():
    module = load(sys.argv[1])
    left_out = 0
    for case in cases():
        version, *numbers, replicas, sizes = case
        try:
            choice = None if version == 0.2 and replicas == 0 else choose(module, case)
        except (TypeError, ValueError, ZeroDivisionError):
            choice = None
        if choice is None or choice[0] == 0 or choice[2] is None:
            left_out += 1
            continue
        batch, micro, fits = choice
        batch = batch if fits else 0  # which batch it is that nothing fits does not matter
        print(version, *numbers, replicas, ":", *sizes, ":", int(batch), micro, ":", *map(int, fits))
    print(left_out, "cases left out", file=sys.stderr)


main()
