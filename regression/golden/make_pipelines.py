#!/usr/bin/env python3
"""pipelines.txt: what torch.distributed.pipelining's schedules have each rank do (torch 2.15).

A line is "ROW STAGES CHUNKS MICRO_BATCHES RANK: LIST", the list in torch's notation with every full backward written as
its two halves, I and W.  Instances of micro-batches that ZBV's schedule makes up for short steps are left out.

    python make_pipelines.py > pipelines.txt
"""
import re

import torch.distributed.pipelining.schedules as schedules

ROWS = {
    "interleaved": (schedules.ScheduleInterleaved1F1B, 2),
    "zb_h1": (schedules.ScheduleInterleavedZeroBubble, 1),
    "zb_v": (schedules.ScheduleZBVZeroBubble, 2),
    "dualpipe_v": (schedules.ScheduleDualPipeV, 2),
}
PIPELINES = ((2, 4), (2, 7), (3, 6), (4, 8))


def list_of(schedule, stages, chunks, micro_batches, rank):
    """A schedule without the modules and processes that its constructor wants."""
    bare = type("Bare", (schedule,), {"__init__": lambda self: None})()
    bare.pp_group_size, bare.rank = stages, rank
    bare.n_local_stages, bare._num_stages, bare.num_stages = chunks, stages * chunks, stages * chunks
    bare._n_microbatches = micro_batches
    bare.number_of_rounds = max(1, micro_batches // stages)
    bare.microbatches_per_round = micro_batches // bare.number_of_rounds
    instances = []
    for action in bare._calculate_single_rank_operations(rank):
        for piece, work, number in re.findall(r"(\d+)([FIWB])(\d+)", str(action)):
            if int(number) < micro_batches:
                instances += [piece + half + number for half in ("IW" if work == "B" else work)]
    return " ".join(instances)


for row, (schedule, chunks) in ROWS.items():
    for stages, micro_batches in PIPELINES:
        if row == "interleaved" and micro_batches % (micro_batches // stages) != 0:
            continue
        for rank in range(stages):
            print(row, stages, chunks, micro_batches, rank, end=": ")
            print(list_of(schedule, stages, chunks, micro_batches, rank))
