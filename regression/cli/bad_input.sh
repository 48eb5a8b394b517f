#!/bin/sh
# TAP: wrong input of every kind: exit 2, one message that says what and where, nothing written; and a rank that dies.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"
golden=$top/regression/golden

snapshot() { find . | sort; }

unchanged() {
  snapshot > "$scratch/after"
  cmp "$scratch/before" "$scratch/after"
}

once() { is "$(grep -Ec -e "$1" "$scratch/err")" 1; }

# refused NAME PATTERN COMMAND...: exit 2, nothing on stdout, one line of stderr matches, no file is made or changed.
refused() {
  what=$1
  pattern=$2
  shift 2
  snapshot > "$scratch/before"
  run "$@"
  ok "$what" said 2 "$pattern"
  ok "$what: said once, nothing written" all_of "$pattern"
  rm -rf run
}
all_of() { once "$1" && unchanged && [ ! -s "$scratch/out" ]; }

# The same on one rank and on two.
refused_train() {
  what=$1
  pattern=$2
  shift 2
  refused "$what" "$pattern" "$tessera" train "$@"
  refused "$what, two ranks" "$pattern" $mpiexec -n 2 "$tessera" train "$@"
}

# ---- the command line ----

test_words() {
  refused "unknown command" "unknown command trian; did you mean train\?" "$tessera" trian tiny.cfg
  refused "unknown command, two ranks" "did you mean train\?" $mpiexec -n 2 "$tessera" trian tiny.cfg
  refused "unknown command without a neighbour" "unknown command xyzzy; .tessera --help" "$tessera" xyzzy
  refused_train "unknown option" "train: unknown option --sett; did you mean --set\?" tiny.cfg --sett a=1
  refused "unknown option without a neighbour" "generate: unknown option --xyzzy" "$tessera" generate --xyzzy 1
  refused "an option without its value" "plan: --ranks needs a value: --ranks N" "$tessera" plan tiny.cfg --ranks
  refused "an option given twice" "plan: --ranks is given twice" "$tessera" plan tiny.cfg --ranks 1 --ranks 2
  refused "no deck" "usage: tessera train DECK" "$tessera" train
  refused "too many decks" "usage: tessera train DECK" "$tessera" train tiny.cfg tiny.cfg
  refused "ranks out of range" "--ranks 0: an integer from 1" "$tessera" plan tiny.cfg --ranks 0
  refused "not a number" "--ranks x: an integer from 1" "$tessera" plan tiny.cfg --ranks x
  refused "plan under mpiexec" "plan runs as one process" $mpiexec -n 2 "$tessera" plan tiny.cfg
  refused "a target that is not there" "--target gpu: auto, cpu and cuda are accepted" "$tessera" plan tiny.cfg --target gpu
  refused "no such pass" "--pass x: the passes are rehearse, precision, autocast, shard, experts, heads" "$tessera" graph tiny.cfg --pass x
  refused "no such format" "--format x: accepted are text, dot, json" "$tessera" graph tiny.cfg --format x
  refused "no prompt" "--prompt TEXT is missing" "$tessera" generate tiny.cfg
  refused "an empty prompt" "--prompt: the text is empty" "$tessera" train tiny.cfg --prompt ''
  refused "a prompt outside the vocabulary" "--prompt: byte 108 is outside the model's vocabulary of 100" \
    "$tessera" train tiny.cfg --prompt 'l' --set model.vocab_size=100
  refused "a run that is not there" "nowhere/metrics.csv: No such file" "$tessera" compare nowhere nowhere
  refused "tokens over another file" "tiny.cfg exists already" "$tessera" tokenize tiny.cfg tiny.cfg
  refused "a text that is not there" "nowhere.txt: No such file" "$tessera" tokenize nowhere.txt out.bin
  refused "validation without data" "no validation data" "$tessera" eval tiny.cfg --set data.validation_fraction=0
}

# ---- the deck ----

# refused_line NAME PATTERN LINE: the line is the eighth of the deck.
refused_line() {
  { cat tiny.cfg; echo "$3"; } > bad.cfg
  refused_train "$1" "$2" bad.cfg
  rm bad.cfg
}

test_deck() {
  refused_train "no such deck" "nowhere.cfg: No such file" nowhere.cfg
  refused_line "unknown key" "bad.cfg:8: zero_optimizaton: unknown key; did you mean zero_optimization\?" \
    'zero_optimizaton = { stage = 1; };'
  refused_line "wrong type" "bad.cfg:8: steps_per_print: .*accepted: an integer" 'steps_per_print = "often";'
  refused_line "out of range" "bad.cfg:8: zero_optimization.stage: 4 is out of range; accepted: .*3" \
    'zero_optimization = { stage = 4; };'
  refused_line "an integer too large for a word" "bad.cfg:8: steps_per_print: .*accepted" \
    'steps_per_print = 99999999999999999999;'
  refused_line "duplicate" "bad.cfg:8: .*duplicate.*|bad.cfg:8: .*twice" 'gradient_clipping = 2.0;'
  refused_line "a syntax error" "bad.cfg:8: " 'steps_per_print = = 1;'
  refused_line "a mixed array" "bad.cfg:8: .*0.9, 1.0|bad.cfg:8: .*1.0" 'scheduler = { type = "WarmupLR"; params = { x = [0.9, 1]; }; };'
  refused_line "disks of single nodes are not there yet" "bad.cfg:8: checkpoint.use_node_local_storage: .*not there yet" \
    'checkpoint = { use_node_local_storage = true; };'
  refused_train "--set of an unknown key" "--set: model.vocabsize: unknown key; did you mean model.vocab_size\?" \
    tiny.cfg --set model.vocabsize=1
  refused_train "--set without a value" "--set: run.steps: not an assignment" tiny.cfg --set run.steps
  refused_train "save_every" "run.save_every: -1 is out of range" tiny.cfg --set run.save_every=-1
  refused_train "resume from nothing" "error: nowhere: " tiny.cfg --resume nowhere
  refused_train "resume from a file" "--set: run.resume: text.txt: " tiny.cfg --set run.resume=text.txt
  refused_train "weights from nothing" "nowhere: " tiny.cfg --weights nowhere
  refused_train "heads" "model.num_attention_heads: hidden_size 32 is not a multiple of num_attention_heads 5" \
    tiny.cfg --set model.num_attention_heads=5
  sed 's/num_key_value_heads = 2;//; s/llama/gpt2/' tiny.cfg > learned.cfg
  refused_train "sequence_length" "data.sequence_length: 65 is more than model.max_position_embeddings 64, which" \
    learned.cfg --set data.sequence_length=65
  refused_train "more ranks than heads" "--set: tensor_parallel.autotp_size: 5 ranks share the 4 heads of model.num_att" \
    tiny.cfg --set tensor_parallel.autotp_size=5
  refused_train "another tp_size" "--set: tensor_parallel.tp.tp_size: 2, but tensor_parallel.autotp_size is 4; accepted: 1 or" \
    tiny.cfg --set 'tensor_parallel={autotp_size=4;tp={tp_size=2;};}'
  refused_train "an unknown preset" "tensor_parallel.preset_model: .lama. is not known; .*did you mean llama?" \
    tiny.cfg --set tensor_parallel.preset_model=lama
  refused_train "an unknown style" "tp_plan.0..style: .colwize. is not known; accepted: colwise" \
    tiny.cfg --set 'tensor_parallel.tp_plan=({pattern="lm_head";style="colwize";})'
  refused_train "a shape that leaves two dimensions open" "layer_specs.0..shape: .-1, -1, 32. has -1 more than once" \
    tiny.cfg --set 'tensor_parallel.partition_config.layer_specs=({patterns="x";shape=(-1,-1,32);})'
  refused "a pattern that matches nothing" "layer_specs\[0\].patterns: .*matches no weight; there is" $mpiexec -n 2 "$tessera" \
    train tiny.cfg --set 'tensor_parallel={autotp_size=2;partition_config={layer_specs=({patterns="x.weight";});};}'
  refused "a pattern that takes too long" "layer_specs\[0\].patterns: .*takes too long to match .*; accepted: an expr" $mpiexec \
    -n 2 "$tessera" train tiny.cfg --set \
    'tensor_parallel={autotp_size=2;partition_config={layer_specs=({patterns=".*q_proj|(([a-z._0-9]+)+)+Z";});};}'
  refused "a shape that cuts a head" "layer_specs\[0\].shape: cuts .*q_proj.weight inside of heads of 8 out" $mpiexec -n 2 "$tessera" \
    train tiny.cfg --set \
    'tensor_parallel={autotp_size=2;partition_config={layer_specs=({patterns=".*q_proj.weight";shape=((12,20),-1);});};}'
  refused "too many blocks" "layer_specs\[0\].shape: .16, -1. does not fit .*: it makes 16 blocks; accepted: at most 8" $mpiexec -n 2 "$tessera" \
    train tiny.cfg --set \
    'tensor_parallel={autotp_size=2;partition_config={layer_specs=({patterns=".*q_proj.weight";shape=(16,-1);});};}'
  refused "a table in blocks" "layer_specs\[0\].shape: .* is a table, which is cut by vocabulary, row by row; accepted: no shape" \
    $mpiexec -n 2 "$tessera" train tiny.cfg --set \
    'tensor_parallel={autotp_size=2;partition_config={layer_specs=({patterns=".*embed_tokens.weight";shape=(2,-1);});};}'
  refused "ranks that tp does not divide" "pp 1 x dp 1 x ep 1 x sp 1 x tp 2 = 2, but there are 3 ranks" \
    $mpiexec -n 3 "$tessera" train tiny.cfg --set tensor_parallel.autotp_size=2
  refused_train "no steps" "--set: run.steps: missing" tiny.cfg --set run.steps=0
  refused_train "no run directory" "--set: run.directory: missing" tiny.cfg --set run.directory=
  refused_train "a run directory that is a file" "--set: run.directory: tiny.cfg is a file" tiny.cfg --set run.directory=tiny.cfg
  refused_train "a run directory that cannot be made" "run.directory: .*/dev/null" tiny.cfg \
    --set run.directory=/dev/null/run
  refused_train "everything frozen" "--set: frozen: every parameter is frozen" tiny.cfg --set 'frozen=["."]'
  refused_line "a frozen pattern that matches nothing" "bad.cfg:8: frozen: \"nosuch\" matches no parameter" 'frozen = ["nosuch"];'
  refused_train "a group that matches nothing" "--set: optimizer.groups.0..pattern: \"nosuch\" matches no parameter" tiny.cfg \
    --set 'optimizer.groups=({pattern="nosuch";lr_factor=0.5;})'
  refused_train "a frozen pattern that takes too long" "--set: frozen: .*takes too long to match model" tiny.cfg \
    --set 'frozen=["norm|^(([a-z._0-9]+)+)+Z"]'
  refused_train "a pattern of no_decay that takes too long" "optimizer.no_decay: .*takes too long to match model" tiny.cfg \
    --set 'optimizer.no_decay=["norm|^(([a-z._0-9]+)+)+Z"]'
  refused_train "a head too wide" "model.head_dim: 2048 is more than 1024" tiny.cfg --set model.hidden_size=2048 \
    --set model.num_attention_heads=1 --set model.num_key_value_heads=1
  refused_line "a timeline over another file" "bad.cfg:8: profile.timeline: tiny.cfg exists already" \
    'profile = { timeline = "tiny.cfg"; };'
  refused_train "a timeline that cannot be written" "profile.timeline: .*nowhere" tiny.cfg \
    --set profile.timeline=nowhere/trace.json
}

# unfit NAME PATTERN KEYS [SET]: what tensor_parallel says does not fit the model.
unfit() {
  refused "$1" "$2" "$tessera" plan tiny.cfg --ranks 2 --set "tensor_parallel={autotp_size=2;$3}" ${4:+--set "$4"}
}

test_shapes() {
  way_out="accepted: no shape, or \(-1, 8, 32\)"
  unfit "a shape that leaves too few units" "layer_specs\[0\].shape: keeps 16 of the 16 outputs of .*k_proj.*, and 2 ranks .*$way_out" \
    'partition_config={layer_specs=({patterns=".*k_proj.weight";shape=(-1,16,32);});};'
  unfit "blocks of whole heads that nothing else has" "cuts .*q_proj.weight in blocks of its own: .*$way_out" \
    'partition_config={layer_specs=({patterns=".*q_proj.weight";shape=((16,16),-1);});};'
  unfit "blocks of a style" "tp_plan\[0\].style: cuts .*accepted: an entry of .*layer_specs for it with no shape, or \(-1, 8" \
    'tp_plan=({pattern="q_proj";style="packed_colwise";});'
  unfit "a style for what is three in one" "layer_specs for it with shape \(\(32, 16, 16\), -1\)" \
    'tp_plan=({pattern="qkv_proj";style="packed_colwise";});' 'model.model_type="phi3"'
  unfit "a head cut in what is three in one" "inside of heads of 8 outputs; accepted: \(\(32, 16, 16\), -1\)" \
    'partition_config={layer_specs=({patterns=".*qkv_proj.weight";shape=((12,20,32),-1);});};' 'model.model_type="phi3"'
  run "$tessera" plan tiny.cfg --ranks 2 --set \
    'tensor_parallel={autotp_size=2;partition_config={layer_specs=({patterns=".*[qk]_proj.weight";shape=(-1,8,32);});};}'
  ok "and the way out is one" clean
}

# idle NAME PATTERN KEYS: told once, and the plan is printed.
idle() {
  run "$tessera" plan tiny.cfg --ranks 2 --set "tensor_parallel={autotp_size=2;$3}"
  pattern=$2
  ok "$1" both 'said 0 "$pattern"' 'once "$pattern"'
}

test_idle() {
  idle "columns of vectors" "warning: --set: .*layer_specs\[0\].partition_type: no effect: .*vectors or stacks of experts alone" \
    'partition_config={layer_specs=({patterns=".*layernorm";partition_type="row";});};'
  idle "a tied head left whole" "layer_specs\[0\].partition_type: no effect: lm_head.weight is tied: .* model.embed_tokens.weight" \
    'partition_config={layer_specs=({patterns="lm_head";partition_type="skip";});};'
  idle "a tied head left whole by a plan" "tp_plan\[0\].style: no effect: lm_head.weight is tied" \
    'tp_plan=({pattern="lm_head";style="replicate";});'
  for keys in 'partition_config={layer_specs=({patterns=".*(norm|q_proj)";});};' 'tp_plan=({pattern="lm_head";style="colwise";});' \
    'partition_config={layer_specs=({patterns=".*(lm_head|embed_tokens)";partition_type="skip";},{patterns="lm_head";});};'; do
    run "$tessera" plan tiny.cfg --ranks 2 --set "tensor_parallel={autotp_size=2;$keys}"
    ok "nothing to say of $keys" clean
  done
}

test_batch() {
  refused_train "the batch equation" "train_batch_size: 4 is not a multiple of train_micro_batch_size_per_gpu 3 x" \
    tiny.cfg --set train_micro_batch_size_per_gpu=3
  refused "a batch that three ranks do not divide" "tiny.cfg:5: train_batch_size: 4 is not a multiple of .* x data-parallel size 3" \
    $mpiexec -n 3 "$tessera" train tiny.cfg
  refused "the whole equation" \
    "tiny.cfg:5: train_batch_size: 4 != train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 2 x data-parallel size 2 = 8" \
    $mpiexec -n 2 "$tessera" train tiny.cfg --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=2
}

# ---- a DeepSpeed json ----

# refused_json NAME PATTERN JSON: the json beside the deck.
refused_json() {
  { cat tiny.cfg; echo 'deepspeed_config = "ds.json";'; } > bad.cfg
  printf '%s\n' "$3" > ds.json
  refused_train "$1" "$2" bad.cfg
}

test_json() {
  refused_json "fp16 and bf16 in a json" "ds.json:2: fp16.enabled: bf16.enabled is true too, .*--set bf16.enabled=false" \
    '{ // of a template
  "fp16": {"enabled": true, "initial_scale_power": 12}, "bf16": {"enabled": true}, }'
  refused_json "another way" "ds.json:1: expert_parallel.score_apply: refused, not there yet" \
    '{"expert_parallel": {"score_apply": "pre"}}'
  refused_json "another's name" "ds.json:1: cp_size: refused, called otherwise here: .* sequence_parallel_size" '{"cp_size": 2}'
  refused_json "objects of Python" "ds.json:1: tensor_parallel.injection_policy_tuple: refused, .*layer_specs" \
    '{"tensor_parallel": {"injection_policy_tuple": ["a.b"]}}'
  refused_json "what DeepSpeed has no more" "ds.json:1: amp.enabled: refused, removed from DeepSpeed" '{"amp": {"enabled": true}}'
  refused_json "a batch that does not divide" "bad.cfg:5: train_batch_size: 4 is not a multiple of .* x gradient_accumulation_steps 3" \
    '{
  "gradient_accumulation_steps": 3}'
  rm bad.cfg ds.json
}

# ---- the data ----

test_data() {
  refused_train "no such data" "--set: data.path: nowhere.txt: No such file" tiny.cfg --set data.path=nowhere.txt
  sed 's/text.txt/nowhere.txt/' tiny.cfg > bad.cfg
  refused_train "no such data, by the deck" "bad.cfg:3: data.path: nowhere.txt: No such file" bad.cfg
  sed 's/validation_fraction = 0.1/validation_path = "nowhere.txt"/' tiny.cfg > bad.cfg
  refused_train "no such validation data" "bad.cfg:3: data.validation_path: nowhere.txt: No such file" bad.cfg
  printf 'too short' > short.txt
  refused_train "too short data" "--set: data.path: short.txt: too short: it has 9 tokens, .*sequence_length = 32 needs 33" tiny.cfg \
    --set data.path=short.txt
  refused_train "a token outside the vocabulary" \
    "tiny.cfg:3: data.path: text.txt: the token at offset 0 is 108, outside the vocabulary: vocab_size = 100 takes 0..99" tiny.cfg \
    --set model.vocab_size=100 --set data.shuffle=false
  refused_train "documents that nothing ends" \
    "tiny.cfg:3: data.path: text.txt: has no index of its documents: model.eos_token_id must say" tiny.cfg --set data.packing=best_fit
  refused_train "not a token file" "tiny.cfg:3: data.path: text.txt: " tiny.cfg --set data.format=bin
  "$tessera" tokenize text.txt cut.bin > /dev/null
  set -- tiny.cfg --set data.path=cut.bin --set data.format=bin
  printf '\001\001' | dd of=cut.bin bs=2 seek=10512 conv=notrunc 2> /dev/null
  refused_train "one token outside the vocabulary" \
    "--set: data.path: cut.bin: the token at offset 10000 is 257, outside the vocabulary: vocab_size = 256" "$@"
  sed 's/text.txt/cut.bin/; s/"text"/"bin"/' tiny.cfg > bad.cfg
  refused "one token outside the vocabulary, found by another rank than the first" "bad.cfg:3: data.path: cut.bin: the token at offset" \
    $mpiexec -n 4 "$tessera" train bad.cfg --set run.steps=100
  truncate -s 5000 cut.bin
  head -c 3000 text.txt | gzip > "it's a.txt.gz"
  refused_train "a compressed text" "path: it's a.txt.gz: is compressed .gzip., .*: gzip -dc < 'it.*gz' > 'it.*txt' .data.format" \
    tiny.cfg --set "data.path=it's a.txt.gz" --set data.format=auto
  sh -c "$(sed -n 's/.* of it: \(.*\) (data.format.*/\1/p' "$scratch/err")"
  run "$tessera" train tiny.cfg --set "data.path=it's a.txt" --set data.format=auto
  ok "and the command makes one that is taken" clean
  rm -rf run "it's a.txt" "it's a.txt.gz"
  refused_train "a truncated token file" "--set: data.path: cut.bin: truncated: the header says [0-9]+ tokens" "$@"
}

# ---- weights ----

# refused_weights NAME PATTERN [SET...]: the directory hf as a model.
refused_weights() {
  what=$1
  pattern=$2
  shift 2
  refused_train "$what" "$pattern" "$golden/llama.cfg" --set model.from=hf --set "data.path=$golden/llama/tokens.bin" \
    --set train_micro_batch_size_per_gpu=1 "$@"
  new_weights
}

new_weights() {
  rm -rf hf
  mkdir hf
  cp "$golden/llama/config.json" "$golden/llama/model.safetensors" hf
  chmod -R u+w hf
}

test_weights() {
  new_weights
  rm hf/config.json
  refused_weights "no config.json" "--set: model.from: /.*/hf/config.json: No such file"
  rm hf/model.safetensors
  refused_weights "no weights" "--set: model.from: /.*/hf: has neither model.safetensors nor model.safetensors.index.json"
  truncate -s 4000 hf/model.safetensors
  refused_weights "truncated weights" "--set: model.from: /.*/hf/model.safetensors: tensor .*data_offsets .* end outside the [0-9]+ bytes"
  truncate -s 4 hf/model.safetensors
  refused_weights "no room for a header" "hf/model.safetensors: "
  printf '\377\377\377\177\000\000\000\000' | dd of=hf/model.safetensors conv=notrunc 2> /dev/null
  refused_weights "a header longer than the file" "hf/model.safetensors: .*2147483647"
  LC_ALL=C sed -i 's/"F32"/"I32"/' hf/model.safetensors
  refused_weights "a wrong dtype" "--set: model.from: /.*/hf/model.safetensors: tensor .* is I32 \[.*\]; the model wants a floating-point"
  refused_weights "a wrong shape" "--set: model.from: /.*: tensor model.embed_tokens.weight is F32 \[67, [0-9]+\]; .* \[70, [0-9]+\]" \
    --set model.vocab_size=70
  printf x >> hf/model.safetensors
  refused_weights "a byte too many" "--set: model.from: /.*/hf/model.safetensors: "
  refused_weights "a missing tensor" "--set: model.from: /.*/hf: there is no tensor model.layers.2.input_layernorm.weight" \
    --set model.num_hidden_layers=3
}

# FAMILY|what sed does to its config.json|what its weights then are: one row a family
disagreements='
gpt2|s/"n_inner": null/"n_inner": 50/|tensor h.0.mlp.c_fc.weight is F32 .32, 128.; .* .32, 50.
llama|s/"attention_bias": false/"attention_bias": true/|hf: there is no tensor model.layers.1.self_attn.o_proj.bias
mistral|s/"head_dim": 8/"head_dim": 6/|tensor model.layers.1.self_attn.k_proj.weight is F32 .16, 36.; .* .12, 36.
qwen2|s/"qwen2"/"qwen3"/; s/"hidden_act"/"head_dim": 6, &/|hf: there is no tensor model.layers.2.self_attn.k_norm.weight
qwen3|s/"tie_word_embeddings": true/"tie_word_embeddings": false/|hf: there is no tensor lm_head.weight
gemma|s/"gemma"/"gemma2"/|hf: there is no tensor model.layers.1.pre_feedforward_layernorm.weight
gemma2|s/"num_key_value_heads": 2/"num_key_value_heads": 4/|tensor model.layers.0.self_attn.v_proj.weight is F32 .16, 36.; .* .32, 36.
gemma3_text|s/"vocab_size": 67/"vocab_size": 68/|tensor model.embed_tokens.weight is F32 .67, 36.; .* .68, 36.
phi3|s/"num_key_value_heads": 1/"num_key_value_heads": 3/|tensor model.layers.0.self_attn.qkv_proj.weight is F32 .60, 36.; .* .108, 36.
olmo2|s/"num_key_value_heads": 2/"num_key_value_heads": 1/|tensor model.layers.0.self_attn.k_norm.weight is F32 .12.; .* .6.
olmo3|s/"olmo3"/"mistral"/; s/"hidden_act"/"head_dim": 6, &/|hf: there is no tensor model.layers.1.input_layernorm.weight
smollm3|s/"intermediate_size": 29/"intermediate_size": 30/|tensor model.layers.2.mlp.down_proj.weight is F32 .36, 29.; .* .36, 30.
granite|s/"mlp_bias": false/"mlp_bias": true/|hf: there is no tensor model.layers.0.mlp.gate_proj.bias
gpt_neox|s/"intermediate_size": 50/"intermediate_size": 48/|tensor gpt_neox.layers.0.mlp.dense_4h_to_h.weight is F32 .32, 50.; .* .32, 48.
mixtral|s/"num_local_experts": 5/"num_local_experts": 6/|hf: there is no tensor model.layers.0.block_sparse_moe.experts.5.w1.weight
qwen2_moe|s/"moe_intermediate_size": 13/"moe_intermediate_size": 14/|tensor model.layers.0.mlp.experts.0.gate_proj.weight is F32 .13, 36.; .* .14, 36.
qwen3_moe|s/"num_local_experts": 6/"num_local_experts": 7/|tensor model.layers.1.mlp.experts.gate_up_proj is F32 .6, 32, 36.; .* .7, 32, 36.
olmoe|s/"olmoe"/"qwen3_moe"/; s/"hidden_act"/"head_dim": 6, "moe_intermediate_size": 11, &/|tensor model.layers.0.self_attn.k_norm.weight is F32 .12.; .* .6.
dots1|s/"first_k_dense_replace": 1/"first_k_dense_replace": 2/|hf: there is no tensor model.layers.1.mlp.gate_proj.weight
starcoder2|s/"starcoder2"/"qwen2"/|hf: there is no tensor model.layers.0.mlp.gate_proj.weight
'

# config.json and weights of one model that disagree; of config.json there may be notes.
test_disagreement() {
  rm -rf hf
  echo "$disagreements" | sed '/^$/d' > "$scratch/rows"
  while IFS='|' read -r family change pattern; do
    mkdir hf
    cp "$golden/$family/model.safetensors" hf
    sed "$change" "$golden/$family/config.json" > hf/config.json
    snapshot > "$scratch/before"
    run "$tessera" train "$golden/$family.cfg" --set model.from=hf --set "data.path=$golden/$family/tokens.bin" \
      --set run.directory=run
    ok "$family: its weights are others" said 2 "model.from: /.*$pattern"
    ok "$family: said once, nothing written" both 'once "$pattern"' unchanged
    rm -rf hf run
  done < "$scratch/rows"
}

# sharded NAME PATTERN: three files, of which something is wrong.
sharded() {
  refused "$1" "$2" "$tessera" train "$golden/llama_sharded.cfg" --set model.from=hf \
    --set "data.path=$golden/llama_sharded/tokens.bin" --set run.directory=run
  rm -rf hf
}

new_shards() {
  mkdir hf
  cp "$golden/llama_sharded"/config.json "$golden/llama_sharded"/model* hf
  chmod -R u+w hf
}

test_shards() {
  new_shards
  rm hf/model-00002-of-00003.safetensors
  sharded "an index and no file" "model.from: /.*/hf/model-00002-of-00003.safetensors: No such file"
  new_shards
  sed -i 's/"model.norm.weight"/"model.form.weight"/' hf/model.safetensors.index.json
  sharded "an index and no tensor" "model.from: /.*/hf/model.safetensors.index.json: .*model.form.weight"
  new_shards
  sed -i '/"model.layers.0.mlp.up_proj.weight"/d' hf/model.safetensors.index.json
  sharded "a tensor that the index leaves out" "model.from: /.*/hf: there is no tensor model.layers.0.mlp.up_proj.weight"
  new_shards
  truncate -s 4000 hf/model-00003-of-00003.safetensors
  sharded "a file that is cut off" "model.from: /.*/hf/model-00003-of-00003.safetensors: tensor .* end outside"
}

# ---- what a model does not read ----

# unread NAME PATTERN [WORD]...: a run from the directory hf, on `ranks`, says so once and goes on.
ranks=2
unread() {
  what=$1
  pattern=$2
  shift 2
  for n in $ranks; do
    run $mpiexec -n $n "$tessera" train unread.cfg "$@"
    ok "$what: $n ranks" both 'said 0 "$pattern"' 'once "$pattern"'
    rm -rf run
  done
}
both() { eval "$1" && eval "$2"; }
add() { "${tessera%/*}/regression/io/test_safetensors" add hf/model.safetensors "$@"; }

tied_weights() {
  rm -rf hf
  mkdir hf
  cp "$golden/llama_tied/config.json" "$golden/llama_tied/model.safetensors" hf
  chmod -R u+w hf
}

test_unread() {
  cat > unread.cfg << END
model = { from = "hf"; };
data = { path = "$golden/llama_tied/tokens.bin"; format = "bin"; sequence_length = 16; };
run = { directory = "run"; threads = 1; };
train_micro_batch_size_per_gpu = 1;
END
  tied_weights
  add model.layers.0.self_attn.rotary_emb.inv_freq model.norm.weight 1
  add lm_head.weight model.embed_tokens.weight 1
  run "$tessera" train unread.cfg
  ok "buffers, and a head that is the embedding: nothing to say" clean
  rm -rf run
  for name in q k v o; do
    add model.layers.1.self_attn.${name}_proj.bias model.norm.weight 1
  done
  ranks="1 3"
  unread "biases" "hf: 4 tensors are not read \(.*k_proj.bias, .* and 1 more\): biases .*model.attention_bias"
  ranks=2
  ok "buffers are not among them" is "$(grep -c 'not read' "$scratch/err")" 1
  tied_weights
  unread "layers" "hf: 9 tensors are not read \(model.layers.1.*and 6 more\): layers beyond model.num_hidden_layers" \
    --set model.num_hidden_layers=1
  add base_model.model.layers.0.q_proj.lora_A.weight model.norm.weight 1
  unread "LoRA" "hf: 1 tensor is not read \(base_model.*lora_A.weight\): LoRA weights.*merge"
  add norm.weight model.norm.weight 1
  unread "a second copy" "not read \(norm.weight\): parameters that are there under another name"
  add score.weight model.norm.weight 1
  unread "something else" "hf: 1 tensor is not read \(score.weight\): the model has nothing of that name"
  tied_weights
  cp hf/model.safetensors hf/adapter_model.safetensors
  unread "another file" "hf: 1 thing is not read \(adapter_model.safetensors\): only model.safetensors is"
  tied_weights
  add lm_head.weight model.embed_tokens.weight 1.0001
  refused_train "a head that is not the embedding" "unread.cfg:1: model.from: /.*/hf/model.safetensors: lm_head.weight differs from \
model.embed_tokens.weight, .*--set model.tie_word_embeddings=false" unread.cfg
  run "$tessera" train unread.cfg --set model.tie_word_embeddings=false
  ok "which the way out takes" clean
  rm -rf run
  tied_weights
  add lm_head.weight model.embed_tokens.weight inf
  unread "values that are not finite" "hf/model.safetensors: 2272 of 2272 values of lm_head.weight are not finite" \
    --set model.tie_word_embeddings=false
  tied_weights
  mv hf/model.safetensors hf/pytorch_model.bin
  refused_train "torch's weights" "hf: has pytorch_model.bin and no model.safetensors.*: python3 -c 'import sys, trans\
.*from_pretrained\(sys.argv\[1\].*save_pretrained\(sys.argv\[1\]\)' /.*/hf$" unread.cfg
  cp -r hf "it's"
  refused_train "in a directory with a quote" "save_pretrained.*\)' '/.*/it'\\\\''s'" unread.cfg --set "model.from=it's"
  rm -rf "it's"
  mv hf/config.json hf/adapter_config.json
  refused_train "an adapter alone" "unread.cfg:1: model.from: .*it is a LoRA adapter, .*merge_and_unload" unread.cfg
  mv hf/adapter_config.json hf/zero_to_fp32.py
  refused_train "DeepSpeed's checkpoint" "unread.cfg:1: model.from: .*a checkpoint of DeepSpeed, .*zero_to_fp32.py /.*/hf OUT" \
    unread.cfg
  rm -rf hf
}

# ---- a rank that dies ----

# The last of the ranks that wrote their number is killed once the run has made a step.
kill_one_rank() {
  mkdir dying
  timeout -k 5 60 $mpiexec -n 3 sh -c 'echo $$ >> dying/pids; exec "$@"' sh "$tessera" train tiny.cfg \
    --set run.directory=dying/run --set train_batch_size=3 --set run.steps=100000000 > "$scratch/out" 2> "$scratch/err" \
    < /dev/null &
  job=$!
  tries=0
  while [ $tries -lt 300 ] && ! grep -q '^1,' dying/run/metrics.csv 2> /dev/null; do
    sleep 0.1
    tries=$((tries + 1))
  done
  kill -9 "$(tail -n 1 dying/pids)"
  wait $job
  status=$?
}

ended() { [ "$status" -ne 0 ] && [ "$status" -ne 124 ]; }
# Open MPI's mpiexec may end a little before the last rank does.
all_gone() {
  for pid in $(cat dying/pids); do
    i=0
    while kill -0 "$pid" 2> /dev/null; do
      i=$((i + 1))
      [ $i -le 50 ] || return 1
      sleep 0.1
    done
  done
}

test_death() {
  kill_one_rank
  ok "a killed rank ends the job, no hang" ended
  # The launcher reports the first rank that it reaps: the killed one, one that MPI aborted when its peer's memory went
  # away (signal 6), or one that the launcher itself had ended (15).
  ok "with a message" grep -Eiq "signal (9|6|15)|killed|EXIT CODE: [1-9]" "$scratch/out" "$scratch/err"
  ok "and no rank stays" all_gone
}

test_words
test_deck
test_shapes
test_idle
test_batch
test_json
test_data
test_weights
test_disagreement
test_shards
test_unread
test_death
finish
