#!/usr/bin/env python3
"""Make the golden tokenizers, with Hugging Face's tokenizers (development only).

    make_tokenizers.py [TEXT]        default: the output of `bible gen1:1-rev22:21`

golden/NAME/tokenizer.json is trained on TEXT and the lines below, as small as its kind allows; golden/texts.json has
texts that are hard for one kind or another, each of characters that Unicode 9 has; golden/NAME/ids.json what
`encode (text).ids` gives with special tokens, and, each where it differs: without them ("plain"; else null), what `decode`
makes of the former ("decoded"; else the text), the same without special tokens ("hidden"; else decoded), and what
DecodeStream does token by token ("streamed"; else decoded).
"""
import json
import os
import random
import subprocess
import sys

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as D
from tokenizers import models
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors as C
from tokenizers import trainers

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
text = open(sys.argv[1]).read() if len(sys.argv) > 1 else subprocess.run(
    ["bible", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
MORE = ["L'été à Zürich, où l'œuvre coûte 1234,56 €.", "Привет, мир! Это тест.", "日本語の文章です。", "한국어 문장입니다.",
        "def f(x):\n    return x ** 2  # square", "don't won't I'll we're HE'S", "    indented\n\n\n\ttext   \n"] * 40
lines = text[:400000].split("\n") + MORE

LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = rf"{ENDINGS}|{LETTERS}|\p{{N}}{{1,3}}|{REST}"
QWEN = rf"{ENDINGS}|{LETTERS}|\p{{N}}|{REST}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def hard_texts():
    rng = random.Random(7)
    words = ["the", "And", "LORD", "God's", "'S", "I'm", "12", "1234567", "3.14", "٣٤", "Ⅷ", "½", "é", "e\u0301", "ﬁ", "Å",
             "가", "ᄀ\u1161", "日本語", "Привет", "हिन्दी", "🙂", "👨\u200d👩\u200d👧", "İ", "ſ", "ß", "ǅ", "_", "__init__",
             "...", "?!", "—", "«", "$", "€", "<", "~", "//", "<s>", "</s>", "<unk>", "<0x41>", "<|endoftext|>", "<|im_start|>",
             "<think>", "▁", "▁▁", "▁the", "Ġ", "\ufffd", "\u0301", "\u0300\u0323", "Ⓐ", "[MASK]", "[SEP]", "[N]", "[n]", "lord",
             "GOD", "and ", "éa", "xy", "aabc", "abc", "[UNK]", "\u2126", "\ufb03", "ΑΣ", "\u1100\u1161\u11a8"]
    space = [" ", " ", " ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u0085", "\u180e", "\u2028", "\x00"]
    texts = ["", " ", "\n", "a", "In the beginning God created the heaven and the earth.", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
             " " * 75 + "x", "the " * 2 + "\n" * 61, "Grüße aus Köln um 12:34 Uhr", "x" * 70 + " " + "ab" * 40,
             "1lord 12xy 3lord.", " lead and trail \n\n ", "if (a<=b) {\n\treturn a[i]++;\n}"]
    texts += [MORE[i] for i in range(7)]
    for _ in range(60):
        n = rng.randrange(1, 9)
        texts.append("".join(rng.choice(words) + (rng.choice(space) if rng.random() < .6 else "") for _ in range(n)))
    return texts


texts = hard_texts()


def save(name, t, edit=None):
    os.makedirs(f"{here}/{name}", exist_ok=True)
    members = json.loads(t.to_str())
    if edit is not None:
        edit(members)
    with open(f"{here}/{name}/tokenizer.json", "w") as file:
        json.dump(members, file, ensure_ascii=False, separators=(",", ":"))
    t = Tokenizer.from_file(f"{here}/{name}/tokenizer.json")
    special = [t.encode(s).ids for s in texts]
    plain = [t.encode(s, add_special_tokens=False).ids for s in texts]
    decoded = [t.decode(ids, skip_special_tokens=False) for ids in special]
    hidden = [t.decode(ids, skip_special_tokens=True) for ids in special]
    streamed = []
    for ids in special:
        stream = D.DecodeStream(skip_special_tokens=False)
        streamed.append("".join(stream.step(t, i) or "" for i in ids))

    def where_differs(a, b):
        return [None if x == y else y for x, y in zip(a, b)]

    with open(f"{here}/{name}/ids.json", "w") as file:
        json.dump({"special": special, "plain": where_differs(special, plain), "decoded": where_differs(texts, decoded),
                   "hidden": where_differs(decoded, hidden), "streamed": where_differs(decoded, streamed)}, file,
                  ensure_ascii=False, separators=(",", ":"))


def train(t, size, **options):
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False, **options))
    return t


def of_bytes(normalizer, splitter, size=400, **options):
    t = Tokenizer(models.BPE(**options))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, splitter, D.ByteLevel()
    return train(t, size, initial_alphabet=P.ByteLevel.alphabet())


def by_regex(regex):
    return P.Sequence([P.Split(Regex(regex), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2_kinds():
    t = of_bytes(None, P.ByteLevel(add_prefix_space=False))
    t.add_special_tokens(["<|endoftext|>"])
    t.post_processor = C.ByteLevel(trim_offsets=False)
    save("gpt2", t)
    save("gpt2_prefix", of_bytes(None, P.ByteLevel(add_prefix_space=True)),
         lambda members: members["model"].update(merges=[" ".join(m) for m in members["model"]["merges"]]))
    t = of_bytes(None, by_regex(CL100K), 500, ignore_merges=True)
    t.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    begin = C.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                 special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])
    t.post_processor = C.Sequence([C.ByteLevel(trim_offsets=True), begin])

    def without_half(members):  # so that a whole word is known of which no merges make it
        members["model"]["merges"] = members["model"]["merges"][:120]

    save("llama3", t, without_half)
    t = of_bytes(N.NFC(), by_regex(QWEN))
    t.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    save("qwen", t)
    save("o200k", of_bytes(None, by_regex(O200K)))
    save("starcoder", of_bytes(None, P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])))
    save("digits", of_bytes(None, P.Sequence([P.Digits(individual_digits=False), P.ByteLevel(add_prefix_space=True)])))
    save("deepseek", of_bytes(None, P.Sequence(
        [P.Split(Regex(r"[\r\n]"), "isolated"), P.Split(Regex(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿ]+"), "isolated"),
         P.Split(Regex(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), "isolated"), P.Split(Regex(r"\s+$"), "isolated"),
         P.Split(Regex(r"[一-龥ࠀ-一가-퟿]+"), "isolated"), P.Digits(individual_digits=True),
         P.ByteLevel(add_prefix_space=False, use_regex=False)])))


def splits():
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        steps = [P.Punctuation(behavior), P.Split("the", behavior),
                 P.Split(Regex(r"[aeiou]+|\d"), behavior, behavior in ("removed", "isolated"))]
        splitter = P.Sequence(steps + [P.ByteLevel(add_prefix_space=False, use_regex=False)])
        save(f"split_{behavior}", of_bytes(N.Lowercase(), splitter, 300))


def normal_forms():
    forms = (("nfd", N.Sequence([N.NFD(), N.Strip(True, False)])), ("nfkc", N.Sequence([N.NFKC(), N.Strip(True, True)])), ("nfkd", N.NFKD()),
             ("regex", N.Sequence([N.Replace(Regex(r"\s{2,}"), " "), N.Replace(Regex(r"(?i)the"), "THE"), N.NFKC(),
                                   N.Lowercase(), N.Prepend("_")])))
    for name, form in forms:
        save(name, of_bytes(form, P.ByteLevel(add_prefix_space=False), 300))


def with_fallback(normalizer, splitter, decoder):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, splitter, decoder
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    t = Tokenizer.from_str(t.to_str())
    train(t, 520, max_token_length=16, special_tokens=["<unk>", "<s>", "</s>"] + bytes_, limit_alphabet=70)

    def edit(members):
        members["added_tokens"] = [a for a in members["added_tokens"] if not a["content"].startswith("<0x")]
        members["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")

    return t, edit


def both(*edits):
    def edit(members):
        for e in edits:
            e(members)
    return edit


def sentence_pieces():
    shown = [D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]
    t, edit = with_fallback(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), P.Metaspace("▁", "never", True),
                            D.Sequence(shown + [D.Strip(" ", 1, 0)]))
    t.post_processor = C.TemplateProcessing(single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    whole = both(edit, lambda members: members.update(pre_tokenizer=None))
    save("llama2", t, whole)
    no_bytes = both(whole, lambda members: members["model"].update(byte_fallback=False))
    save("unknown", t, no_bytes)
    save("unknown_each", t, both(no_bytes, lambda members: members["model"].update(fuse_unk=False)))
    save("unknown_none", t, both(no_bytes, lambda members: members["model"].update(unk_token=None)))
    t.normalizer = None
    for scheme, split in (("first", False), ("always", True), ("never", True)):
        t.pre_tokenizer, t.decoder = P.Metaspace("▁", scheme, split), D.Metaspace("▁", scheme, split)
        save(f"metaspace_{scheme}", t, edit)
    t, edit = with_fallback(N.Replace(" ", "▁"), P.Split("▁", "merged_with_next"), D.Sequence(shown))
    t.pre_tokenizer = P.Split(" ", "merged_with_previous")
    t.add_tokens([AddedToken(s, normalized=False) for s in ("\n", "\n\n", "▁▁", "▁▁▁▁", "<unused0>")])
    save("gemma", t, edit)


def words():
    t = Tokenizer(models.BPE(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = N.Lowercase(), P.Whitespace()
    save("whitespace", train(t, 300, special_tokens=["[UNK]"]))
    t = Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
    t.pre_tokenizer, t.decoder = P.WhitespaceSplit(), D.BPEDecoder("</w>")
    save("suffix", train(t, 500, special_tokens=["[UNK]"], end_of_word_suffix="</w>"))
    t = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
    t.pre_tokenizer = P.Whitespace()
    save("prefix", train(t, 500, special_tokens=["[UNK]"], continuing_subword_prefix="##"))


def added():
    t = of_bytes(N.Lowercase(), P.ByteLevel(add_prefix_space=False), 300)
    t.add_tokens([AddedToken("Lord", single_word=True), AddedToken("GOD", lstrip=True, normalized=True),
                  AddedToken("and ", rstrip=True), AddedToken("éa", lstrip=True, rstrip=True, normalized=False),
                  AddedToken("xy", single_word=True, lstrip=True, rstrip=True, normalized=False),
                  AddedToken("aab", normalized=False), AddedToken("aa", normalized=False), AddedToken("abc", normalized=False)])
    t.add_special_tokens([AddedToken("[MASK]", lstrip=True), AddedToken("[SEP]", rstrip=True), AddedToken("[N]", normalized=True)])
    save("added", t)


def odd():  # what no trainer makes: half a fallback, an unknown token that is merged, tokens in the space of others
    letters = list("abcdehilnorst GL\n▁.1") + ["<unk>", "ab"]
    vocab = letters + ["ab.", "th", "the"] + [f"<0x{i:02X}>" for i in (0x41, 0xC3, 0xA9, 0xE6, 0x97, 0xA5, 0xC2, 0xA0)]
    t = Tokenizer(models.BPE({token: i for i, token in enumerate(vocab)},
                             [("a", "b"), ("ab", "."), ("t", "h"), ("th", "e")], unk_token="ab", byte_fallback=True))
    t.normalizer, t.pre_tokenizer = N.Strip(True, False), P.Metaspace("▁", "first", False)
    t.decoder = D.Sequence([D.Replace("", "|"), D.ByteFallback()])
    t.add_tokens([AddedToken("x", rstrip=True, normalized=False), AddedToken(" ", normalized=False),
                  AddedToken("\n", lstrip=True, rstrip=True, normalized=False), AddedToken("the ", rstrip=True)])
    again = [dict(id=0, content="<s>", single_word=False, lstrip=False, rstrip=False, normalized=False, special=special)
             for special in (True, False)]
    save("odd", t, lambda members: members["added_tokens"].extend(again))


with open(f"{here}/texts.json", "w") as file:
    json.dump(texts, file, ensure_ascii=False, indent=0)
gpt2_kinds()
splits()
normal_forms()
sentence_pieces()
words()
added()
odd()
