#!/bin/sh
# TAP: texts and JSONL: tokenized by hand, and by training once, by any ranks, with the same result; what is wrong with
# them is said with file and line, and leaves nothing.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"
tokenizers=$top/regression/tokenizer/golden

write_texts() {
  cp -r "$tokenizers/llama3" tok
  sed 's/vocab_size = 256/vocab_size = 600; eos_token_id = 501/; s/path = /tokenizer = "tok"; &/' tiny.cfg > words.cfg
  i=0
  while [ $i -lt 40 ]; do
    i=$((i + 1))
    echo "{\"text\": \"record $i is a fox, \\u00e9 and all\", \"prompt\": \"what is $i?\", \"answer\": \" $i is $((i * i)).\"}"
  done > lines.jsonl
}

# train DECK OPTION...: on one rank
train() {
  deck=$1
  shift
  run "$tessera" train "$deck" "$@"
}

same_numbers() { run "$tessera" compare "$1" "$2" && gave 0; }
none() { [ -z "$(find . -path "$1" -print)" ]; }
files() { find . -path "$1" -print | wc -l | tr -d ' '; }

# ---- by hand ----

test_tokenize() {
  run "$tessera" tokenize --tokenizer tok text.txt -o text.h5
  ok "tokenize: documents and tokens" printed '^text.h5: 1 document, [0-9]+ tokens \('
  tokens=$(sed -n 's/.* \([0-9]*\) tokens.*/\1/p' "$scratch/out")
  run "$tessera" tokenize --tokenizer tok text.txt --print
  ok "--print: as many ids, in a line" both clean 'is "$(wc -lw < "$scratch/out" | tr -s " ")" " 1 $tokens"'
  cp "$scratch/out" once.ids
  run "$tessera" tokenize --tokenizer tok text.txt --print --threads 3
  ok "on three threads the same" cmp "$scratch/out" once.ids
  run "$tessera" tokenize --tokenizer tok lines.jsonl --print
  ok "jsonl: a line a record" both clean 'is "$(wc -l < "$scratch/out" | tr -d " ")" 40'
  run "$tessera" tokenize --tokenizer tok lines.jsonl text.txt -o both.h5
  ok "several files: their documents after one another" printed '^both.h5: 41 documents'
  run "$tessera" tokenize --tokenizer tok lines.jsonl --field prompt --completion-field answer -o pairs.h5
  ok "prompts: some of the tokens are learned" printed '^pairs.h5: 40 documents, ([0-9]+) tokens .*, [0-9]+ of them learned'
  run "$tessera" tokenize --tokenizer tok lines.jsonl --field prompt --completion-field answer --train-on-prompt -o all.h5
  ok "or all" both 'gave 0' 'never grep -q "of them learned" "$scratch/out"'
  run "$tessera" tokenize --tokenizer tok lines.jsonl --end-token none --print
  sed 's/$/ 501/' "$scratch/out" > ended.ids
  run "$tessera" tokenize --tokenizer tok lines.jsonl --end-token '<|eot_id|>' --print
  ok "an end token closes each document" cmp "$scratch/out" ended.ids
}

never() { ! "$@"; }

# ---- by training ----

test_prepared() {
  train words.cfg --set run.directory=text.run
  ok "training on a text" both clean 'grep -q "^text.txt: 1 document, .* tokens, in .*, now in text.txt.*h5" "$scratch/out"'
  ok "one file beside it, and nothing else" both 'is "$(files "./text.txt.*.h5")" 1' 'is "$(files "./text.txt.*")" 1'
  train words.cfg --set run.directory=again.run
  ok "again: not tokenized again" both clean 'grep -q "^text.txt: tokens are those of text.txt" "$scratch/out"'
  ok "the same losses" same_numbers text.run again.run
  run "$tessera" tokenize --tokenizer tok text.txt --end-token '<|eot_id|>' -o hand.h5
  train words.cfg --set run.directory=hand.run --set data.path=hand.h5 --set data.format=auto
  ok "and those of the file made by hand" both clean 'same_numbers text.run hand.run'
  for ranks in 1 2 3; do
    run $mpiexec -n $ranks "$tessera" train words.cfg --set run.directory=r$ranks.run --set data.cache=cache$ranks \
      --set train_batch_size=6
    ok "$ranks ranks into data.cache" both clean 'is "$(files "./cache$ranks/*")" 1'
  done
  ok "one rank, two and three: the same bytes" both 'cmp cache1/*.h5 cache2/*.h5' 'cmp cache1/*.h5 cache3/*.h5'
  ok "RUN keeps the tokenizer" cmp tok/tokenizer.json text.run/tokenizer/tokenizer.json
  run "$tessera" zero_to_fp32 text.run text.hf --format safetensors
  ok "and exports it" both clean 'cmp tok/tokenizer.json text.hf/tokenizer.json'
  run "$tessera" eval text.run
  ok "eval reads the same tokens" printed '^loss [0-9.]+ nats'
  mv tok away
  run "$tessera" eval text.run
  ok "also without the tokenizer's directory" printed '^loss [0-9.]+ nats'
  run "$tessera" train words.cfg --set run.directory=text.run --set data.tokenizer=text.run/./tokenizer --set run.steps=7 \
    --resume auto
  ok "a run goes on with the tokenizer that it kept" gave 0
  ok "and still has it" cmp away/tokenizer.json text.run/tokenizer/tokenizer.json
  mv away tok
}

# What the tokens depend on makes another file.
test_keys() {
  base="--set data.path=lines.jsonl --set data.format=jsonl --set data.cache=keys --set run.steps=2 --set run.evaluate_every=0
        --set data.validation_fraction=0"
  n=0
  for what in "" "data.field=prompt" "data.completion_field=answer" "data.train_on_prompt=true" "model.eos_token_id=2" \
    "data.tokenizer=$tokenizers/llama2"; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    run "$tessera" train words.cfg $base --set run.directory=k$n.run ${what:+--set "$what"}
    ok "another file with ${what:-the defaults}" both clean 'is "$(files "./keys/*.h5")" $n'
  done
  sed 's/record 40/number 40/' lines.jsonl > lines.new && mv lines.new lines.jsonl
  # shellcheck disable=SC2086
  run "$tessera" train words.cfg $base --set run.directory=k.run
  ok "and with another line" both clean 'is "$(files "./keys/*.h5")" $((n + 1))'
}

test_leftovers() {
  train words.cfg --set run.directory=l1.run --set data.cache=left
  made=$(ls left)
  rm "left/$made"
  touch "left/$made.lock" "left/$made.part-0.tokens" "left/$made.tmp"
  train words.cfg --set run.directory=l2.run --set data.cache=left
  ok "what a dead job left is removed" both clean 'is "$(ls left)" "$made"'
}

# It says what to do instead, and what it made is gone.
test_stopped() {
  i=0
  while [ $i -lt 4000 ]; do
    i=$((i + 1))
    cat text.txt
  done > long.txt
  "$tessera" train words.cfg --set data.path=long.txt --set data.cache=long --set run.directory=long.run \
    > "$scratch/out" 2> "$scratch/err" &
  job=$!
  tries=0
  while none "./long/*.part-0.tokens" && [ $tries -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
  done
  kill -TERM $job
  wait $job
  status=$?
  ok "SIGTERM while a text is tokenized" said 2 "data.path: long.txt: the job was asked to stop .*tessera tokenize makes"
  ok "leaves nothing" both 'none "./long/*"' 'none ./long.run'
  TESSERA_PROGRESS=bar run "$tessera" tokenize --tokenizer tok long.txt -o long.h5
  ok "a bar shows how far it is" both 'gave 0' 'grep -q "tokenizing \[#*-*\] of .* MB/s  ETA" "$scratch/out"'
  rm -r long long.txt long.h5
}

test_mixture() {
  sed 's/path = "text.txt"; format = "text";/packing = "best_fit";\n  sources = ( { path = "text.txt"; },\n@/
       s/@/{ path = "lines.jsonl"; weight = 2.0; field = "prompt"; completion_field = "answer"; } );/' words.cfg |
    sed 's/validation_fraction = 0.1/validation_fraction = 0.0/; s/evaluate_every = 3/evaluate_every = 0/' > mixture.cfg
  train mixture.cfg --set run.directory=m1.run
  ok "a text and jsonl in one run" both clean 'grep -q "from 2 sources" "$scratch/out"'
  run $mpiexec -n 2 "$tessera" train mixture.cfg --set run.directory=m2.run
  ok "on two ranks the same" same_within m1.run m2.run
}
same_within() { run "$tessera" compare "$1" "$2" --tolerance 2e-6 && gave 0; }

# A chat: what the assistant says is learned; by the name of a template, or by the one beside the tokenizer.
test_chats() {
  i=0
  while [ $i -lt 30 ]; do
    i=$((i + 1))
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"and $i?\"}, {\"role\": \"assistant\", \"content\": \"$((i * i))\"}]}"
  done > chats.jsonl
  sed 's/"role": "user", "content"/"from": "human", "value"/; s/"role": "assistant", "content"/"from": "gpt", "value"/' \
    chats.jsonl > sharegpt.jsonl
  chats="--set data.path=chats.jsonl --set data.format=jsonl --set data.field=messages --set data.packing=best_fit"
  # shellcheck disable=SC2086
  train words.cfg $chats --set data.chat_template=chatml --set run.directory=chat.run
  ok "training on chats" both clean 'grep -q "^chats.jsonl: 30 documents, .* of which .* are learned" "$scratch/out"'
  cp -r tok chatty
  write_chatml chatty
  # shellcheck disable=SC2086
  train words.cfg $chats --set data.tokenizer=chatty --set run.directory=beside.run
  ok "by the template beside the tokenizer: the same losses" both clean 'same_numbers chat.run beside.run'
  ok "RUN keeps the template" cmp chatty/chat_template.jinja beside.run/tokenizer/chat_template.jinja
  run "$tessera" tokenize --tokenizer chatty chats.jsonl --field messages --print
  cp "$scratch/out" chats.ids
  run "$tessera" tokenize --tokenizer chatty sharegpt.jsonl --field messages --print
  ok "from and value are role and content" cmp "$scratch/out" chats.ids
  run "$tessera" tokenize --tokenizer tok chats.jsonl --field messages --chat-template llama3 --print
  ok "another template, other tokens" both clean '! cmp -s "$scratch/out" chats.ids'
}

# write_chatml DIRECTORY: the template as it is shipped, out of the goldens.
write_chatml() {
  text=$(sed -n '/OpenHermes/,/template/s/.*"template": "\(.*\)"/\1/p' "$top/regression/chat/golden/templates.json")
  printf '%b' "$text" > "$1/chat_template.jinja"
}

test_not_utf8() {
  printf 'good \377\376 text, and so on and on and on and on and on and on and on and on and on and on and on' > odd.txt
  run "$tessera" tokenize --tokenizer tok odd.txt -o odd.h5
  ok "what is no UTF-8 is counted and said" printed '; 2 places that were not UTF-8 became U\+FFFD'
}

# ---- wrong input ----

# refused NAME PATTERN COMMAND...: exit 2, one line, no file more.
refused() {
  what=$1
  pattern=$2
  shift 2
  find . | sort > "$scratch/before"
  run "$@"
  find . | sort > "$scratch/after"
  ok "$what" said 2 "$pattern"
  ok "$what: nothing written" both 'cmp "$scratch/before" "$scratch/after"' '[ "$(wc -l < "$scratch/err")" -eq 1 ]'
}

refused_train() {
  what=$1
  pattern=$2
  shift 2
  refused "$what" "$pattern" "$tessera" train words.cfg "$@"
  refused "$what, two ranks" "$pattern" $mpiexec -n 2 "$tessera" train words.cfg "$@"
}

test_refused() {
  lines="--set data.path=bad.jsonl --set data.format=auto"
  refused_train "a tokenizer with more tokens than the model" \
    "data.tokenizer: tok/tokenizer.json has [0-9]+ tokens, but the model 100 \(model.vocab_size\)" --set model.vocab_size=100 --set model.eos_token_id=2
  refused_train "no tokenizer there" "data.tokenizer: nowhere: there is no tokenizer.json in it" --set data.tokenizer=nowhere
  mkdir broken && echo '{"model": {"type": "WordPiece"}}' > broken/tokenizer.json
  refused_train "a tokenizer of another kind" "data.tokenizer: broken/tokenizer.json: .*WordPiece" --set data.tokenizer=broken
  { head -n 20 lines.jsonl; echo '{"text": 7}'; } > bad.jsonl
  # shellcheck disable=SC2086
  refused_train "a wrong line" 'data.path: bad.jsonl:21: "text" is a number; accepted: a string' $lines
  { head -n 20 lines.jsonl; echo '{"text": "cut'; } > bad.jsonl
  # shellcheck disable=SC2086
  refused_train "a cut line" 'data.path: bad.jsonl:21: no json: ' $lines
  # shellcheck disable=SC2086
  refused_train "no such member" 'data.path: bad.jsonl:1: no member "words"; there are: "text", "prompt", "answer"' $lines \
    --set data.field=words
  chats="--set data.path=chats.jsonl --set data.format=auto --set data.field=messages"
  # shellcheck disable=SC2086
  refused_train "a chat without a template" 'data.path: chats.jsonl:1: "messages" is a list, a chat: .*data.chat_template' $chats
  cp -r tok odd && echo '{{ messages }}' > odd/chat_template.jinja
  # shellcheck disable=SC2086
  refused_train "a template that nobody knows" 'chats.jsonl:1: .*odd: its chat template is not known .*chatml' $chats \
    --set data.tokenizer=odd
  # shellcheck disable=SC2086
  refused_train "no such template" 'data.chat_template: .*chatlm.*chatml' $chats --set data.chat_template=chatlm
  echo '{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}' > bad.jsonl
  # shellcheck disable=SC2086
  refused_train "a tool" 'data.path: bad.jsonl:1: messages\[1\].role: .*tool.*assistant' $lines --set data.field=messages \
    --set data.chat_template=chatml
  echo '{"messages": [{"role": "user", "content": "a"}, {"content": "b"}]}' > bad.jsonl
  # shellcheck disable=SC2086
  refused_train "no role" 'data.path: bad.jsonl:1: messages\[1\]' $lines --set data.field=messages \
    --set data.chat_template=chatml
  : > bad.jsonl
  # shellcheck disable=SC2086
  refused_train "an empty file" 'data.path: bad.jsonl: there is no text in it' $lines
  echo '{"text": "short"}' > bad.jsonl
  # shellcheck disable=SC2086
  run "$tessera" train words.cfg $lines
  ok "too short: the text is named, and the file of its tokens" said 2 \
    'data.path: bad.jsonl: .*too short.*its tokens are in bad.jsonl.*h5, which is made again'
  rm -f bad.jsonl.*
  refused_train "jsonl without a tokenizer" "data.path: lines.jsonl: is jsonl, .*: set data.tokenizer" \
    --set data.path=lines.jsonl --set data.format=auto --set data.tokenizer=
  refused_train "a cache that is no directory" "data.cache: tiny.cfg.*accepted: a directory that all ranks can write to" --set data.cache=tiny.cfg
  refused "tokens of tokens" "text.h5: holds tokens already \(hdf5\); accepted: text, jsonl" \
    "$tessera" tokenize --tokenizer tok text.h5 -o x.h5
  refused "over another file" "text.h5 exists already" "$tessera" tokenize --tokenizer tok text.txt -o text.h5
  refused "no such end token" "end-token <none such>: the tokenizer has no such token" \
    "$tessera" tokenize --tokenizer tok text.txt -o x.h5 --end-token '<none such>'
  refused "neither -o nor --print" "one of -o OUT.h5 and --print" "$tessera" tokenize --tokenizer tok text.txt
  refused "no tokenizer" "tokenizer DIRECTORY is missing" "$tessera" tokenize text.txt -o x.h5
  mkdir sentence && cp tok/tokenizer.json sentence/tokenizer.model
  cp "$top/regression/golden/llama/config.json" sentence
  grep -v '^model\|num_attention_heads' words.cfg > sentence.cfg
  "$tessera" tokenize text.txt text.bin > /dev/null
  run "$tessera" train sentence.cfg --set model.from=sentence --set data.tokenizer= --set data.path=text.bin --set data.format=auto \
    --set run.directory=sentence.run
  ok "but not where the data are tokens" said 2 "text.bin: .*outside the vocabulary"
  refused "a model whose tokenizer is of another kind" "model.from: .*sentence has no tokenizer.json but a tokenizer.model; make one" \
    "$tessera" train sentence.cfg --set model.from=sentence --set data.tokenizer=
}

write_texts
test_tokenize
test_prepared
test_keys
test_leftovers
test_stopped
test_mixture
test_chats
test_not_utf8
test_refused
finish
