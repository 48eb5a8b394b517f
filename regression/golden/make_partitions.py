#!/usr/bin/env python3
"""partitions.txt: where DeepSpeed cuts a row of layers, by its own two functions, run as they are.

A line is "uniform N PARTS: CUTS" or "balanced PARTS WEIGHTS: CUTS".

    python make_partitions.py DEEPSPEED/deepspeed/runtime/utils.py > partitions.txt
"""
import ast
import random
import sys

WANTED = ("partition_uniform", "partition_balanced")
tree = ast.parse(open(sys.argv[1], encoding="utf-8").read())
functions = {}
for node in tree.body:
    if isinstance(node, ast.FunctionDef) and node.name in WANTED:
        exec(compile(ast.Module([node], []), sys.argv[1], "exec"), functions)


def text(numbers):
    return " ".join(str(int(n)) for n in numbers)


for n in (1, 2, 3, 5, 7, 8, 12, 13, 32, 33):
    for parts in (1, 2, 3, 4, 8):
        print(f"uniform {n} {parts}: {text(functions['partition_uniform'](n, parts))}")
draw = random.Random(5)
WEIGHTS = [[1] * 12, [0, 1, 1, 1, 1, 0, 0], [9, 1, 1, 1, 1, 1, 9], [38, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 38]]
WEIGHTS += [[draw.randrange(9) for _ in range(draw.randrange(4, 24))] for _ in range(40)]
for weights in WEIGHTS:
    for parts in (2, 3, 4, 8):
        print(f"balanced {parts} {text(weights)}: {text(functions['partition_balanced'](weights, parts))}")
