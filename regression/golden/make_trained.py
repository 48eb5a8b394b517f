#!/usr/bin/env python3
"""Train cases with Tessera, consolidate them, and let transformers compute the loss of what comes out.

    make_trained.py BUILD_DIRECTORY [CASE]...

trained_CASE/ is the directory that zero_to_fp32 wrote after ten steps on two ranks, ZeRO stage 3, of CASE.cfg; the
directory the run began from is gone by then, so that config.json is Tessera's own.  expected.json has the mean loss per
token over all samples of CASE/tokens.bin, computed by AutoModelForCausalLM.from_pretrained (trained_CASE) in fp32.  It needs what make_goldens.py needs; see README.md.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
CASES = ["gpt2", "llama_rope", "llama_sharded"]
HEADER = 1024  # bytes of a .bin file before its tokens


def run(*words, cwd):
    subprocess.run([str(word) for word in words], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def train(build, case, work):
    source = work / "source"
    shutil.copytree(HERE / case, source)
    run("mpiexec", "-n", 2, build / "tessera", "train", HERE / f"{case}.cfg", "--set", f"model.from={source}", "--set",
        f"data.path={HERE / case / 'tokens.bin'}", "--set", f"run.directory={work / 'run'}", "--set", "zero_optimization.stage=3",
        "--set", "train_micro_batch_size_per_gpu=1", "--set", f"gradient_accumulation_steps={accumulation(case)}", cwd=work)
    shutil.rmtree(source)
    target = HERE / f"trained_{case}"
    shutil.rmtree(target, ignore_errors=True)
    run(build / "zero_to_fp32", work / "run", target, "--format", "safetensors", cwd=work)
    return target


def accumulation(case):
    """Micro-batches of one sample on two ranks: as near as that comes to the deck's batch."""
    deck = (HERE / f"{case}.cfg").read_text()
    micro, steps = (int(re.search(rf"{key} = (\d+)", deck)[1])
                    for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    return (micro * steps + 1) // 2


def mean_loss(directory, tokens, length):
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    samples = (len(tokens) - 1) // length
    rows = torch.tensor(numpy.stack([tokens[i * length:(i + 1) * length + 1] for i in range(samples)]))
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    torch.set_num_threads(1)
    for case in sys.argv[2:] or CASES:
        with tempfile.TemporaryDirectory() as work:
            target = train(build, case, pathlib.Path(work))
        raw = (HERE / case / "tokens.bin").read_bytes()[HEADER:]
        tokens = numpy.frombuffer(raw, dtype=numpy.uint16).astype(numpy.int64)
        length = int(re.search(r"sequence_length = (\d+)", (HERE / f"{case}.cfg").read_text())[1])
        loss = {"loss": mean_loss(target, tokens, length), "sequence_length": length}
        (target / "expected.json").write_text(json.dumps(loss, indent=1) + "\n")
        print(case, loss)


main()
