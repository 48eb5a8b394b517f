#!/bin/sh
# TAP: every command of doc/finetune.md, as it stands there, with a small model in the place of the published one: it is
# fine-tuned on chats, answers them, goes on after a stop, and becomes a Hugging Face directory that answers the same.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"
page=$top/doc/finetune.md
tokenizer=$top/regression/tokenizer/golden/qwen/tokenizer.json
templates=$top/regression/chat/golden/templates.json

# A directory as it is published: untrained weights, a tokenizer with Qwen's marks, Qwen3's template.
make_model() {
  cat > seed.cfg << 'END'
model = { model_type = "qwen3"; vocab_size = 416; hidden_size = 64; intermediate_size = 128; num_hidden_layers = 2;
          num_attention_heads = 4; num_key_value_heads = 2; max_position_embeddings = 256; tie_word_embeddings = true;
          eos_token_id = 401; };
data = { path = "text.txt"; format = "text"; sequence_length = 32; };
run = { directory = "seed"; steps = 1; };
train_batch_size = 2;
optimizer = { type = "AdamW"; params = { lr = 1e-3; }; };
END
  run "$tessera" train seed.cfg
  run "$tessera" zero_to_fp32 seed Qwen3-0.6B --format safetensors
  ok "a model to begin with" clean
  cp "$tokenizer" Qwen3-0.6B
  text=$(sed -n '/"row": "qwen3",/,/template/s/.*"template": "\(.*\)"/\1/p' "$templates" | head -n 1 | sed 's/\\"/"/g')
  printf '%b' "$text" > Qwen3-0.6B/chat_template.jinja
  echo '{"eos_token_id": [401], "do_sample": true}' > Qwen3-0.6B/generation_config.json
}

turn() { printf '{"role": "%s", "content": "%s"}' "$1" "$2"; }

make_chats() {
  for i in 1 2 3 4 5 6; do
    echo "{\"messages\": [$(turn user "What is $i times $i?"), $(turn assistant "It is $((i * i)).")]}" >> chats.jsonl
    echo "{\"prompt\": \"What is $i times $i?\"}" >> questions.jsonl
  done
}

# The page's lines of four blanks: the deck is a file, what begins with a command is one.
deck_of_page() { sed -n '/^tune.cfg:/,/^`sequence/s/^    //p' "$page"; }
commands_of_page() { sed -n 's/^    \(tessera .*\|mpiexec .*\|zero_to_fp32 .*\)$/\1/p' "$page"; }

# The commands where they were built, the launcher that is configured.
run_line() {
  echo "$1" | sed "s|^tessera|$tessera|; s|^zero_to_fp32|$tessera zero_to_fp32|; s|^mpiexec -n 2 tessera|$mpiexec -n 2 $tessera|" > line.sh
  run sh ./line.sh
}

test_page() {
  deck_of_page | sed 's/sequence_length = 2048/sequence_length = 128/; s/epochs = 3.0/epochs = 300.0/; s/lr = 1e-5/lr = 3e-3/
    /^bf16/d' > tune.cfg
  commands_of_page > lines
  ok "the page has its commands" [ "$(wc -l < lines)" -eq 10 ]
  while IFS= read -r line <&3; do
    run_line "$line"
    ok "$line" gave 0
    cp "$scratch/out" "said.$((n = n + 1))"
  done 3< lines
}

answers() {
  for i in 1 2 3 4 5 6; do
    echo "It is $((i * i))."
  done
}

test_answers() {
  ok "tokenize: some of the tokens are learned" grep -Eq '^look.h5: 6 documents, [0-9]+ tokens .*, [0-9]+ of them learned' said.2
  ok "plan: what a rank needs" grep -q "peak" said.4
  ok "train: the chats become tokens" grep -Eq '^chats.jsonl: 6 documents, .* of which .* are learned' said.5
  ok "and its steps are whole epochs" grep -Eq 'steps: 300 epochs of [0-9]+ samples' said.5
  ok "again: nothing is left to do" grep -q 'nothing is left to do' said.6
  ok "the model says what it was taught" is "$(tail -n 1 said.7)" "It is 9."
  ok "as Qwen3 does, without a thought" is "$(head -n 1 said.7)" "<think>"
  answers > right
  sed 's/.*"text": "[^"]*\(It is[^"]*\)".*/\1/' answers.jsonl > texts
  ok "to every question" cmp texts right
  ok "and ends by itself" is "$(grep -c '"end": true' answers.jsonl)" 6
  ok "the directory made of it says the same" is "$(tail -n 1 said.10)" "It is 9."
  for file in tokenizer.json chat_template.jinja generation_config.json; do
    ok "$file came along" cmp "Qwen3-0.6B/$file" "tuned-hf/$file"
  done
  mv Qwen3-0.6B away
  run "$tessera" generate tuned --chat --prompt "What is 5 times 5?" --temperature 0
  ok "without the directory it began from" is "$(tail -n 1 "$scratch/out")" "It is 25."
  run "$tessera" generate tuned --prompt "What is 5 times 5?" --temperature 0 --tokens 5
  ok "without --chat the text is gone on with" printed "^What is 5 times 5"
}

# What the assistant said before counts: a chat is gone on with.
test_turns() {
  echo "{\"messages\": [$(turn user "What is 2 times 2?"), $(turn assistant "It is 4."), $(turn user "And 6?")]}" > turns.jsonl
  run "$tessera" generate tuned --chat --prompts turns.jsonl --temperature 0
  ok "a chat of several turns is answered" printed '"end": (true|false)'
  echo '{"messages": [{"role": "assistant"}]}' > turns.jsonl
  run "$tessera" generate tuned --chat --prompts turns.jsonl
  ok "a wrong one is refused with its line" said 2 'turns.jsonl:1: messages\[0\]'
  run "$tessera" generate tuned --chat --chat-template chatlm --prompt a
  ok "no such template" said 2 "chatlm.*chatml"
  run "$tessera" generate tuned --chat-template chatml --prompt a
  ok "a template without --chat" said 2 "chat-template is for --chat"
}

make_model
make_chats
test_page
test_answers
test_turns
finish
