#!/usr/bin/env python3
"""Tokenizers that packages ship, as tokenizer.json files: for `fuzz` and for measuring (development only).

    pip install --no-deps llama-models mistral-common; pip install transformers tiktoken sentencepiece protobuf
    real_tokenizers.py OUT

OUT gets a directory for each: Llama 3's and 4's (llama-models, converted by transformers), Mistral's Tekken and
SentencePiece models (mistral-common), the latter in both ways in which published files write the space.
"""
import base64
import glob
import json
import os
import sys

import llama_models
import mistral_common
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import SentencePieceExtractor, TikTokenConverter, bytes_to_unicode

LLAMA, MISTRAL = (os.path.dirname(package.__file__) for package in (llama_models, mistral_common))
ENDINGS = r"'s|'t|'re|'ve|'m|'ll|'d"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "llama3": rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",
    "llama4": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:{ENDINGS})?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:{ENDINGS})?"
              rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
}


def save(out, name, tokenizer):
    os.makedirs(f"{out}/{name}", exist_ok=True)
    tokenizer.save(f"{out}/{name}/tokenizer.json")
    print(name, tokenizer.get_vocab_size())


def llama(name):
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    path = f"{LLAMA}/{name}/tokenizer.model"
    return TikTokenConverter(vocab_file=path, pattern=PATTERNS[name], extra_special_tokens=special).converted()


def tekken(path):
    with open(path, encoding="utf-8") as file:
        source = json.load(file)
    config, first = source["config"], source["config"]["default_num_special_tokens"]
    special = [token["token_str"] for token in source.get("special_tokens") or []] or ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    special += [f"<SPECIAL_{i}>" for i in range(len(special), first)]
    kept = source["vocab"][:config["default_vocab_size"] - first]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in kept}
    letters = bytes_to_unicode()
    spell = lambda token: "".join(letters[byte] for byte in token)
    merges = []
    for token, rank in ranks.items():
        halves = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, spell(a), spell(b)) for a, b in sorted(halves, key=lambda half: (ranks[half[0]], ranks[half[1]]))]
    vocab = {spell(token): rank + first for token, rank in ranks.items()} | {token: i for i, token in enumerate(special)}
    merges = [(a, b) for _, a, b in sorted(merges, key=lambda merge: merge[0])]
    tokenizer = Tokenizer(models.BPE(vocab, merges, fuse_unk=False, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(config["pattern"]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return tokenizer


def sentencepiece(path, legacy):
    kept = SentencePieceExtractor(path).extract(None)
    added = kept["additional_special_tokens"]
    tokenizer = Tokenizer(models.BPE(kept["vocab"], kept["merges"], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_tokens([token for token in added if not token.special])
    tokenizer.add_special_tokens([token for token in added if token.special] + ["<unk>"])
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def main():
    out = sys.argv[1]
    for name in PATTERNS:
        save(out, name, llama(name))
    for path in glob.glob(f"{MISTRAL}/data/tekken*.json"):
        save(out, os.path.basename(path)[:-5], tekken(path))
    for path in glob.glob(f"{MISTRAL}/data/*.model.v*"):
        name, version = os.path.basename(path).split(".model.")
        for legacy in (True, False):
            save(out, f"{name}_{version}{'_legacy' if legacy else ''}", sentencepiece(path, legacy))


main()
