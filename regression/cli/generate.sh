#!/bin/sh
# `tessera generate` in words and in batches: with tokenizers of every kind of piece (bytes of characters among them), on
# models with random weights, which say anything at all.
# shellcheck source-path=SCRIPTDIR/../..
. "${srcdir:-.}/regression/cli_common.sh"
golden=$top/regression/tokenizer/golden

# lines FILE N: as many lines of json, each with the four members in their order, all of it valid UTF-8.
lines() {
  is "$(wc -l < "$1" | tr -d ' ')" "$2" &&
    is "$(grep -c '^{"prompt": ".*", "text": ".*", "tokens": [0-9]*, "end": \(true\|false\)}$' "$1")" "$2" &&
    iconv -f UTF-8 -t UTF-8 "$1" > /dev/null
}

write_prompts() {
  cat > prompts.jsonl << 'END'
{"prompt": "In the beginning"}
{"prompt": "Größe 中文 🙂, x = 1;", "id": 7}

{"other": "a", "prompt": "a"}
   
{"prompt": "The quick brown fox jumps over the lazy dog, and then it sleeps for a very long time in the sun."}
{"prompt": "\"quoted\"\nand\ttabs"}
{"prompt": "In the beginning"}
END
}

# A model of $2 tokens from the seed, the tokenizer of golden/$1.
test_tokenizer() {
  set -- "$1" generate tiny.cfg --set "model.vocab_size=$2" --tokenizer "$golden/$1" --tokens 24
  kind=$1
  shift
  run "$tessera" "$@" --prompt "Größe 中文 🙂" --temperature 1
  ok "$kind: the prompt, then whole characters" both 'printed "^Größe 中文 🙂"' 'iconv -f UTF-8 -t UTF-8 "$scratch/out"'
  for batch in 1 4 16; do
    run "$tessera" "$@" --prompts prompts.jsonl --batch $batch --temperature 0
    cp "$scratch/out" "batch$batch"
    ok "$kind: $batch at a time, a line each" both 'gave 0' 'lines "$scratch/out" 6'
  done
  ok "$kind: 4 at a time as 1" cmp batch1 batch4
  ok "$kind: 16 at a time as 1" cmp batch1 batch16
  run "$tessera" "$@" --prompts prompts.jsonl --batch 1 --temperature 1 --seed 5
  cp "$scratch/out" drawn1
  run "$tessera" "$@" --prompts prompts.jsonl --batch 4 --temperature 1 --seed 5
  ok "$kind: drawn 4 at a time as 1" both 'gave 0' 'cmp drawn1 "$scratch/out"'
  ok "$kind: equal prompts, other draws" differ_lines 1 6 "$scratch/out"
}
differ_lines() { ! is "$(sed -n "$1p" "$3")" "$(sed -n "$2p" "$3")"; }

test_ranks() {
  set -- generate tiny.cfg --set model.vocab_size=401 --tokenizer "$golden/gpt2" --tokens 24 --prompts prompts.jsonl
  run "$tessera" "$@" --temperature 0
  ok "one rank" both 'gave 0' 'cp "$scratch/out" one'
  set -- "$@" --temperature 0 --batch 2
  run $mpiexec -n 2 "$tessera" "$@"
  ok "two ranks: each has its texts" both 'gave 0' 'cmp one "$scratch/out"'
  run $mpiexec -n 2 "$tessera" "$@" --set zero_optimization.stage=3
  ok "two ranks at stage 3" both 'gave 0' 'cmp one "$scratch/out"'
  run $mpiexec -n 2 "$tessera" "$@" --set tensor_parallel.autotp_size=2
  ok "two ranks along tp" both 'gave 0' 'cmp one "$scratch/out"'
}

# Where the tokenizer is found: in a Hugging Face directory, and what the run that began from it kept.
test_places() {
  run "$tessera" train tiny.cfg --set model.vocab_size=401 --set run.directory=first
  run "$tessera" zero_to_fp32 first published --format safetensors
  set -- --prompt "In the beginning" --tokens 12
  run "$tessera" generate published "$@"
  ok "no tokenizer, too many tokens for bytes" said 2 "tokens are bytes here, but the model has a vocabulary of 401"
  cp "$golden/gpt2/tokenizer.json" published
  run "$tessera" generate published "$@"
  ok "of a directory" printed "^In the beginning"
  run "$tessera" train tiny.cfg --set model.vocab_size=401 --set model.from=published --set run.directory=second \
    --set run.steps=1 --prompt "In the beginning" --tokens 5
  ok "train --prompt in words" printed "^In the beginning"
  run "$tessera" generate second "$@"
  cp "$scratch/out" there
  mv published gone
  run "$tessera" generate second "$@"
  ok "what the run kept" both 'printed "^In the beginning"' 'cmp there "$scratch/out"'
  run "$tessera" generate second "$@" --tokenizer gone
  ok "--tokenizer DIRECTORY" both 'gave 0' 'cmp there "$scratch/out"'
}

# The model's end tokens end a text of a batch, and are no part of it.
test_end() {
  set -- generate tiny.cfg --set model.vocab_size=401 --tokenizer "$golden/gpt2" --tokens 24 --prompts prompts.jsonl
  run "$tessera" "$@" --temperature 1 --set "model.stop_token_ids=[$(seq -s, 0 2 60)]"
  ok "some texts end before others" both 'grep -q "\"end\": true" "$scratch/out"' 'grep -Eq "\"tokens\": 1?[0-9], \"end\": true" "$scratch/out"'
}

# refused NAME PATTERN LINE: a file of this line, after a good one and a blank one.
refused() {
  printf '{"prompt": "a"}\n\n%s\n' "$3" > bad.jsonl
  run "$tessera" generate tiny.cfg --prompts bad.jsonl
  ok "$1" both 'said 2 "$2"' '[ ! -s "$scratch/out" ]'
}

test_bad_input() {
  refused "no json" "bad.jsonl:3: no json object: " '{"prompt": "a"'
  refused "json, but no object" "bad.jsonl:3: json, but no object" '["a"]'
  refused "no such member" 'bad.jsonl:3: it has no member "prompt"' '{"text": "a"}'
  refused "no string" 'bad.jsonl:3: no string is the member "prompt"' '{"prompt": 1}'
  refused "an empty text" "bad.jsonl:3: the text is empty" '{"prompt": ""}'
  refused "twice the same member" "bad.jsonl:3: no json object: duplicate" '{"prompt": "a", "prompt": "b"}'
  printf '{"text": "a"}\n{"prompt": "b"}\n' > bad.jsonl
  run "$tessera" generate tiny.cfg --prompts bad.jsonl --field text
  ok "--field" both 'said 2 "bad.jsonl:2: it has no member .text.; accepted: .* .text. is a string"' \
    'is "$(wc -l < "$scratch/err" | tr -d " ")" 1'
  printf '\n \n' > bad.jsonl
  run "$tessera" generate tiny.cfg --prompts bad.jsonl
  ok "no text at all" said 2 "bad.jsonl: no line has a text to continue"
  run "$tessera" generate tiny.cfg --prompts nowhere.jsonl
  ok "no file" said 2 "nowhere.jsonl: No such file"
  run "$tessera" generate tiny.cfg --prompts prompts.jsonl --prompt a
  ok "both" said 2 "--prompt and --prompts: one of the two is accepted"
  run "$tessera" generate tiny.cfg --prompts prompts.jsonl --batch 0
  ok "no batch" said 2 "--batch 0: an integer from 1"
  run "$tessera" generate tiny.cfg --prompt a --tokenizer "$golden/gpt2"
  ok "a tokenizer larger than the model" said 2 "gpt2/tokenizer.json: it has 401 tokens, but the model has a vocabulary of 256"
  run "$tessera" generate tiny.cfg --prompt a --tokenizer .
  ok "no tokenizer there" said 2 "tokenizer.json: No such file"
  printf '{"prompt": "caf\351"}\n' > bad.jsonl
  run "$tessera" generate tiny.cfg --prompts bad.jsonl --tokens 3
  ok "no UTF-8 is said" both 'said 0 "bad.jsonl: 1 places that were not UTF-8 became U.FFFD"' 'lines "$scratch/out" 1'
}

write_prompts
test_tokenizer gpt2 401
test_tokenizer llama2 523
test_ranks
test_places
test_end
test_bad_input
finish
