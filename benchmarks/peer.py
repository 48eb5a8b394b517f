"""The shapes of benchmarks/gpu and benchmarks/cpu in PyTorch: torch.compile, scaled_dot_product_attention, fused AdamW on
fp32 master weights, bf16 autocast.  Usage: python3 peer.py MODEL STEPS [cpu] [fp32] [eager] prints one line;
python3 peer.py MODEL STEPS [cpu] [fp32] -- mpiexec -n 1 benchmarks/step -t DECK STEPS ... has a step of it, of PyTorch's
eager and of its compiled model by turns.  Development only."""
import contextlib
import os
import subprocess
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# name: (family, vocabulary, width, inner, blocks, heads, kv heads, micro-batch, length)
SHAPES = {
    "gpt2_124m_short": ("gpt2", 50257, 768, 3072, 12, 12, 12, 4, 256),
    "gpt2_124m": ("gpt2", 50304, 768, 3072, 12, 12, 12, 64, 1024),
    "gpt2_1558m": ("gpt2", 50304, 1600, 6400, 48, 25, 25, 16, 1024),
    "llama_1b": ("llama", 32000, 2048, 5632, 22, 32, 4, 8, 4096),
    "llama_8b_blocks": ("llama", 32064, 4096, 14336, 8, 32, 8, 4, 4096),
}
DATASHEET = {"H100": 989.4e12, "H200": 989.4e12, "A100": 312e12}


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        if self.bias is not None:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias)
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self, family, width, inner, heads, kv):
        super().__init__()
        gpt2 = family == "gpt2"
        self.gpt2, self.heads, self.kv, self.d = gpt2, heads, kv, width // heads
        self.n1, self.n2 = Norm(width, gpt2), Norm(width, gpt2)
        self.q = nn.Linear(width, width, bias=gpt2)
        self.k = nn.Linear(width, kv * self.d, bias=gpt2)
        self.v = nn.Linear(width, kv * self.d, bias=gpt2)
        self.o = nn.Linear(width, width, bias=gpt2)
        self.up = nn.Linear(width, inner, bias=gpt2)
        self.gate = None if gpt2 else nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=gpt2)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        h = self.n1(x)
        q, k, v = (m(h).view(b, t, -1, self.d).transpose(1, 2) for m in (self.q, self.k, self.v))
        if not self.gpt2:
            q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
            k, v = (z.repeat_interleave(self.heads // self.kv, 1) for z in (k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, c))
        h = self.n2(x)
        h = F.gelu(self.up(h), approximate="tanh") if self.gpt2 else F.silu(self.gate(h)) * self.up(h)
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, family, vocabulary, width, inner, blocks, heads, kv, length):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width) if family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(family, width, inner, heads, kv) for _ in range(blocks))
        self.norm = Norm(width, family == "gpt2")
        self.head = nn.Linear(width, vocabulary, bias=False)
        if family == "gpt2":
            self.head.weight = self.embedding.weight
        for p in self.parameters():  # as GPT-2: with a head of PyTorch's own initial values most of a softmax is no normal number
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        angle = torch.outer(torch.arange(length), 500000.0 ** (-torch.arange(0, width // heads, 2) / (width // heads)))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids, labels):
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


def training(name, device, fp32, eager):
    """One step of a model, made and warmed up: a function that returns its seconds."""
    family, vocabulary, width, inner, blocks, heads, kv, batch, length = SHAPES[name]
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(1)
    model = Model(family, vocabulary, width, inner, blocks, heads, kv, length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = model if eager else torch.compile(model)
    tokens = torch.randint(0, vocabulary, (batch, length + 1), device=device)
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    cast = contextlib.nullcontext() if fp32 else torch.autocast(device, dtype=torch.bfloat16)

    def step():
        synchronize()
        start = time.perf_counter()
        with cast:
            loss = forward(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        return time.perf_counter() - start

    for _ in range(3):
        step()
    return step


def say(name, words, median, device):
    family, vocabulary, width, inner, blocks, heads, kv, batch, length = SHAPES[name]
    c = width // heads * kv
    n = blocks * (2 * width * width + 2 * width * c + (2 if family == "gpt2" else 3) * width * inner) + vocabulary * width
    attention = blocks * width * length
    card = torch.cuda.get_device_name() if device == "cuda" else ""
    rate = next((r for key, r in DATASHEET.items() if key in card), 0)
    half, full = (batch * length * (6 * n + factor * attention) for factor in (6, 12))
    mfu = f", MFU {100 * half / median / rate:.1f} % (causal half), {100 * full / median / rate:.1f} % (full)" if rate else ""
    print(f"{' '.join([name] + words)} in PyTorch {torch.__version__}: step {1e3 * median:.1f} ms, {batch * length / median:.0f} tokens/s{mfu}",
          flush=True)


def middle(values):
    return sorted(values)[len(values) // 2]


def quiet(values):
    """Of the fastest quarter: nothing makes a step shorter (doc/performance.md, "The search")."""
    quarter = max(1, len(values) // 4)
    return sum(sorted(values)[:quarter]) / quarter


def in_turns(name, steps, words, command, device):
    """Fewer than 100 steps of fewer than 16384 tokens, as benchmarks/step warms up; a step of each by turns: what else the machine does meets all of them."""
    ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def our_step():
        ours.stdin.write("\n")
        ours.stdin.flush()
        return float(next(line for line in ours.stdout if line.strip().replace(".", "", 1).isdigit())) / 1e3

    for _ in range(3):  # before others take memory and time
        our_step()
    peers = {how: training(name, device, "fp32" in words, how == "eager") for how in ("eager", "compiled")}
    seconds = {how: [] for how in ["ours", *peers]}
    for _ in range(steps):
        seconds["ours"].append(our_step())
        for how, step in peers.items():
            seconds[how].append(step())
    our_step()  # the one that is observed
    ours.stdin.close()
    print(next(line for line in ours.stdout if "of peak" in line), end="")
    ours.stdout.read()
    ours.wait()
    for how in peers:
        say(name, words + [how], middle(seconds[how]), device)
        ratio = middle([peer / own for peer, own in zip(seconds[how], seconds["ours"])])
        least = quiet(seconds[how]) / quiet(seconds["ours"])
        print(f"  {ratio:.2f} times the step of Tessera beside it (median of {steps} pairs), {least:.2f} times by the fastest quarters "
              f"({1e3 * quiet(seconds[how]):.0f}, {1e3 * quiet(seconds['ours']):.0f} ms)", flush=True)


def main():
    name, steps, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    command = words[words.index("--") + 1:] if "--" in words else []
    words = words[:words.index("--")] if command else words
    device = "cpu" if "cpu" in words else "cuda"
    if device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    else:
        torch.set_float32_matmul_precision("high")
    if command:
        in_turns(name, steps, words, command, device)
        return
    step = training(name, device, "fp32" in words, "eager" in words)
    say(name, words, middle([step() for _ in range(steps)]), device)


main()
