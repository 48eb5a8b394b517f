/* Bad decks: each class of error is found, is described well, and is found by the check that claims it. */
#include "deck/check.h"
#include "regression/deck_fixture.h"

typedef struct bad_deck {
  ts_deck_check check;
  const char *text; /* NULL: GOOD_DECK. */
  const char *more; /* Appended. */
  const char *set;  /* NULL: none. */
  const char *expected;
} bad_deck;

#define SCHEDULE(type, params) "scheduler = { type = \"" type "\"; params = { " params " }; };\n"
#define GPT2_MODEL(more)                                                                     \
  "model = { model_type = \"gpt2\"; vocab_size = 256; n_embd = 64; n_layer = 2; n_head = 4;" \
  " n_positions = 128; " more " };\n"

#define ELASTIC(limit, sizes, more) \
  "elasticity = { enabled = true; max_train_batch_size = " limit "; micro_batch_sizes = [" sizes "]; " more " };\n"

#define TP(keys) "tensor_parallel = { " keys " };\n"
#define SPECS(keys) TP("partition_config = { layer_specs = ( { " keys " } ); };")
#define PLAN(pattern_, style_) TP("tp_plan = ( { pattern = \"" pattern_ "\"; style = \"" style_ "\"; } );")

static const bad_deck decks[] = {
    {TS_CHECK_UNKNOWN_KEY, NULL, "run = { stepz = 5; };\n", NULL,
     "bad.cfg:4: run.stepz: unknown key; did you mean run.steps?"},
    {TS_CHECK_UNKNOWN_KEY, NULL, "\nlr = 1.0;\n", NULL,
     "bad.cfg:5: lr: unknown key; did you mean optimizer.params.lr?"},
    {TS_CHECK_UNKNOWN_KEY, NULL, "zero_optimisation = { stage = 1; };\n", NULL,
     "bad.cfg:4: zero_optimisation: unknown key; did you mean zero_optimization?"},
    {TS_CHECK_UNKNOWN_KEY, NULL, "", "optimizer.groups[0].lr_factor=1.0",
     "--set: optimizer.groups[0].lr_factor: list elements cannot be added one by one; give the whole list: "
     "optimizer.groups=..."},
    {TS_CHECK_UNKNOWN_KEY, NULL, "", "frozen[0]=wte", "frozen[0]: list elements cannot be added one by one"},
    {TS_CHECK_UNKNOWN_KEY, NULL, "amq = 1;\n", NULL, "bad.cfg:4: amq: unknown key; did you mean amp?"},
    {TS_CHECK_TWICE, GPT2_MODEL("hidden_size = 32;"), "", NULL,
     "bad.cfg:1: model.hidden_size: 32, but model.n_embd is 64 at bad.cfg:1"},
    {TS_CHECK_TYPE, NULL, "run = {\n steps = \"many\";\n};\n", NULL,
     "bad.cfg:5: run.steps: \"many\" is not an integer"},
    {TS_CHECK_TYPE, NULL, "", "model=3", "--set: model: must be a section"},
    {TS_CHECK_TYPE, NULL, "data = { shuffle = 1; };\n", NULL, "shuffle: 1 is not a truth value; accepted: true, false"},
    {TS_CHECK_TYPE, NULL, "gradient_clipping = true;\n", NULL, "gradient_clipping: true is not a number"},
    {TS_CHECK_TYPE, NULL, "data = { path = 7; };\n", NULL, "data.path: 7 is not a string"},
    {TS_CHECK_TYPE, NULL, "frozen = \"wte\";\n", NULL, "frozen: \"wte\" is not a list of strings"},
    {TS_CHECK_TYPE, NULL, "optimizer = { params = { betas = [0.9]; }; };\n", NULL,
     "betas: a list of 1 is not a list of two"},
    {TS_CHECK_WHOLE, NULL, "run = { steps = 5.5; };\n", NULL, "run.steps: 5.5 is not a whole number"},
    {TS_CHECK_BIG, NULL, "run = { seed = 99999999999999999999; };\n", NULL,
     "run.seed: 99999999999999999999 does not fit in 64 bits"},
    {TS_CHECK_BIG, NULL, "run = { seed = 1e19; };\n", NULL, "run.seed: 1e+19 does not fit in 64 bits"},
    {TS_CHECK_FINITE, NULL, "gradient_clipping = 1e999;\n", NULL, "gradient_clipping: inf is too large"},
    {TS_CHECK_FINITE, NULL, "", "model.rms_norm_eps=1e-60",
     "model.rms_norm_eps: 1e-60 is too small for a float (below 1.2e-38); accepted: a number"},
    {TS_CHECK_RANGE, NULL, "zero_optimization = { stage = 4; };\n", NULL,
     "bad.cfg:4: zero_optimization.stage: 4 is out of range; accepted: an integer from 0 to 3"},
    {TS_CHECK_RANGE, NULL, "run = { steps = -1; };\n", NULL, "run.steps: -1 is out of range"},
    {TS_CHECK_RANGE, NULL, "", "model.vocab_size=0", "--set: model.vocab_size: 0 is out of range"},
    {TS_CHECK_RANGE, NULL, "", "model.hidden_size=99999999999", "model.hidden_size: 99999999999 is out of range"},
    {TS_CHECK_RANGE, NULL, "", "model.num_hidden_layers=10001",
     "10001 is out of range; accepted: an integer from 1 to"},
    {TS_CHECK_RANGE, NULL, "", "model.rope_theta=0.5",
     "model.rope_theta: 0.5 is out of range; accepted: a number of at"},
    {TS_CHECK_RANGE, NULL, "", "model.rope_scaling={rope_type=\"linear\"; factor=1e-4;}", "factor: 0.0001 is out of"},
    {TS_CHECK_RANGE, NULL, "", "model.rope_scaling.short_factor=[1e-4]", "short_factor: 0.0001 is out of range"},
    {TS_CHECK_RANGE, NULL, "optimizer = { params = { betas = [0.9, 1.0]; }; };\n", NULL, "betas: 1 is out of range"},
    {TS_CHECK_RANGE, NULL, "train_batch_size = 0;\n", NULL, "train_batch_size: 0 is out of range"},
    {TS_CHECK_WORD, NULL, "optimizer = { type = \"Rprop\"; };\n", NULL,
     "optimizer.type: \"Rprop\" is not known; accepted: AdamW, Adam"},
    {TS_CHECK_WORD, NULL, "data = { format = \"csv\"; };\n", NULL, "accepted: auto, text, jsonl, bin, uint16, hdf5"},
    {TS_CHECK_WORD, NULL, "activation_checkpointing = { enabled = true; policy = \"selective\"; };\n", NULL,
     "bad.cfg:4: activation_checkpointing.policy: \"selective\" is not known; accepted: auto, block, sac"},
    {TS_CHECK_RANGE, NULL, "activation_checkpointing = { interval = -1; };\n", NULL,
     "activation_checkpointing.interval: -1 is out of range; accepted: an integer from 0 to 256"},
    {TS_CHECK_RANGE, NULL, "pipeline = { activation_checkpoint_interval = 257; };\n", NULL,
     "pipeline.activation_checkpoint_interval: 257 is out of range; accepted: an integer from 0 to 256"},
    {TS_CHECK_WORD_LATER, NULL, "optimizer = { type = \"MuSGD\"; };\n", NULL,
     "optimizer.type: \"MuSGD\" is not there yet"},
    {TS_CHECK_PRECISION, NULL, "fp16 = { enabled = true; };\nbf16 = { enabled = true; };\n", NULL,
     "bad.cfg:4: fp16.enabled: bf16.enabled is true too, and a model computes in one type; accepted: one of the two"},
    {TS_CHECK_RANGE, NULL, "", "fp16.loss_scale=-1", "fp16.loss_scale: -1 is out of range"},
    {TS_CHECK_RANGE, NULL, "", "fp16.loss_scale_window=0", "fp16.loss_scale_window: 0 is out of range"},
    {TS_CHECK_RANGE, NULL, "", "fp16.min_loss_scale=0", "fp16.min_loss_scale: 0 is out of range"},
    {TS_CHECK_RANGE, NULL, "", "fp16.hysteresis=0", "fp16.hysteresis: 0 is out of range"},
    {TS_CHECK_TYPE, NULL, "fp16 = { loss_scale = true; };\n", NULL, "fp16.loss_scale: true is not a number"},
    {TS_CHECK_AUTOCAST, NULL, "fp16 = { enabled = true; };\ntorch_autocast = { enabled = true; };\n", NULL,
     "torch_autocast.enabled: fp16.enabled is true too"},
    {TS_CHECK_WORD, NULL, "torch_autocast = { enabled = true; dtype = \"fp32\"; };\n", NULL,
     "torch_autocast.dtype: \"fp32\" is not known; accepted: bf16, fp16"},
    {TS_CHECK_TYPE, NULL, "torch_autocast = { enabled = \"auto\"; };\n", NULL,
     "torch_autocast.enabled: \"auto\" is not a truth value"},
    {TS_CHECK_WORD, NULL, "torch_autocast = { lower_precision_safe_modules = [\"torch.nn.Linaer\"]; };\n", NULL,
     "torch_autocast.lower_precision_safe_modules: \"torch.nn.Linaer\" is not known; accepted: torch.nn.Linear, "
     "torch.nn.Conv1d,"},
    {TS_CHECK_AUTOCAST, NULL, "bf16 = { enabled = true; };\ntorch_autocast = { enabled = true; };\n", NULL,
     "bad.cfg:5: torch_autocast.enabled: bf16.enabled is true too, and autocast lowers a model of fp32 parameters; "
     "accepted: one of the two"},
    {TS_CHECK_REFUSED, NULL, "sparse_gradients = true;\n", NULL, "sparse_gradients: refused, removed from DeepSpeed"},
    {TS_CHECK_REFUSED, NULL, "amp = { enabled = true; opt_level = \"O2\"; };\n", NULL,
     "bad.cfg:4: amp.enabled: refused, removed from DeepSpeed"},
    {TS_CHECK_REFUSED, NULL, "zero_optimization = { zenflow = { topk_ratio = 0.1; }; };\n", NULL,
     "zero_optimization.zenflow.topk_ratio: refused, not there yet: updates of gradients that are stale by then; "
     "zero_optimization.offload_optimizer.super_offload hides updates"},
    {TS_CHECK_REFUSED, NULL, "aio = { use_gds = true; };\n", NULL,
     "aio.use_gds: refused, not there yet: a GPU that reads files past the host, which checks the hash of each block"},
    {TS_CHECK_REFUSED, NULL, "zero_optimization = { mics_shard_size = 4; };\n", NULL,
     "mics_shard_size: refused, removed from DeepSpeed"},
    {TS_CHECK_REFUSED, NULL, "optimizer = { params = { max_grad_norm = 1.0; }; };\n", NULL,
     "accepted: 0.0, or --set optimizer.params.max_grad_norm=0 --set gradient_clipping=NORM"},
    {TS_CHECK_REFUSED, NULL, "data_efficiency = { enabled = true; };\n", NULL,
     "bad.cfg:4: data_efficiency.enabled: refused, not there yet"},
    {TS_CHECK_REFUSED, NULL, "", "checkpoint.use_node_local_storage=true",
     "refused, not there yet: checkpoints on disks that only one node sees; accepted: false"},
    {TS_CHECK_REFUSED, NULL, "expert_parallel = { enabled = true; score_apply = \"pre\"; };\n", NULL,
     "bad.cfg:4: expert_parallel.score_apply: refused, not there yet"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = 4; };\nexpert_parallel = { expert_tensor_parallel_size = 2; };\n",
     "tensor_parallel.autotp_size=4",
     "bad.cfg:5: expert_parallel.expert_tensor_parallel_size: 2; accepted: 1, or tensor_parallel.autotp_size (4)"},
    {TS_CHECK_EXPERTS, NULL,
     "moe = { num_experts = 4; enable_expert_tensor_parallelism = true; };\n"
     "tensor_parallel = { autotp_size = 2; };\n",
     "optimizer.type=Muon",
     "expert_parallel.expert_tensor_parallel_size: 2: Muon wants the matrices of experts whole; accepted: 1"},
    {TS_CHECK_EXPERTS, NULL, "expert_parallel = { expert_tensor_parallel_size = 2; };\n",
     "tensor_parallel.autotp_size=2", "bad.cfg:4: expert_parallel.expert_tensor_parallel_size: a llama has no experts"},
    {TS_CHECK_EXPERTS, NULL, "expert_parallel = { enabled = true; load_balance_coeff = 0.001; };\n", NULL,
     "bad.cfg:4: expert_parallel.load_balance_coeff: 0.001: routers of a llama have no bias"},
    {TS_CHECK_EXPERTS, NULL, "moe = { capacity_factor = 1.5; };\n", NULL,
     "bad.cfg:4: moe.capacity_factor: there is no MoE layer in this llama; accepted: with moe.num_experts"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = 4; layers = [2]; };\n", NULL,
     "bad.cfg:4: moe.layers: 2; accepted: layers of 0 to 1, in ascending order"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = 4; layers = [1, 0]; };\n", NULL,
     "bad.cfg:4: moe.layers: 0; accepted"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = [4, 8]; };\n", NULL,
     "bad.cfg:4: moe.num_experts: 2 numbers for 1 MoE layers; accepted: one for all, or one for each"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = 4; };\n", "model.num_hidden_layers=1",
     "moe.layers: every second of one layer is none"},
    {TS_CHECK_RANGE, NULL, "moe = { num_experts = [0]; };\n", NULL, "bad.cfg:4: moe.num_experts: 0"},
    {TS_CHECK_TYPE, NULL, "moe = { num_experts = \"four\"; };\n", NULL, "bad.cfg:4: moe.num_experts: "},
    {TS_CHECK_RANGE, NULL, "moe = { num_experts = 4; capacity_factor = 0.0; };\n", NULL,
     "bad.cfg:4: moe.capacity_factor: 0"},
    {TS_CHECK_RANGE, NULL, "moe = { num_experts = 4; min_capacity = -1; };\n", NULL, "bad.cfg:4: moe.min_capacity: -1"},
    {TS_CHECK_WORD, NULL, "moe = { num_experts = 4; noisy_gate_policy = \"Gauss\"; };\n", NULL,
     "bad.cfg:4: moe.noisy_gate_policy: \"Gauss\""},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = [4]; k = 5; };\n", NULL, "bad.cfg:4: moe.k: 5 of 4 experts"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = 4; k = 2; noisy_gate_policy = \"RSample\"; };\n", NULL,
     "bad.cfg:4: moe.noisy_gate_policy: \"RSample\" with moe.k = 2: it samples the choice of one expert"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = 4; drop_policy = \"position\"; };\n", NULL,
     "bad.cfg:4: moe.drop_policy: \"position\" with moe.k = 1: it is for more than 2"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = 4; capacity_over = \"sequence\"; };\nsequence_parallel_size = 2;\n",
     NULL, "bad.cfg:4: moe.capacity_over: \"sequence\": ranks share the tokens of a sample (sequence_parallel_size)"},
    {TS_CHECK_EXPERTS, NULL, "moe = { num_experts = 3; ep_size = 4; };\n", NULL,
     "bad.cfg:4: moe.ep_size: 4 ranks for the 3 experts of a layer"},
    {TS_CHECK_EXPERTS, NULL, "expert_parallel = { autoep_size = 2; };\n", NULL,
     "bad.cfg:4: expert_parallel.autoep_size: 2 ranks for the 0 experts of a layer"},
    {TS_CHECK_WORD, NULL, "pipeline = { checkpointable_layers = [\"LlamaDecoderLayer\", \"LlamaLayer\"]; };\n", NULL,
     "bad.cfg:4: pipeline.checkpointable_layers: \"LlamaLayer\": no block of the model; accepted: "},
    {TS_CHECK_WORD, NULL, "pipeline = { stages = 2; partition = \"weight\"; };\n", NULL,
     "bad.cfg:4: pipeline.partition: \"weight\"; accepted: \"best\", \"time\""},
    {TS_CHECK_REGEX, NULL, "pipeline = { stages = 2; partition = \"type:(\"; };\n", NULL,
     "bad.cfg:4: pipeline.partition: \"(\": not a valid regular expression"},
    {TS_CHECK_REFUSED, NULL, TP("tp = { mpu = { a = 1; }; };"), NULL,
     "bad.cfg:4: tensor_parallel.tp.mpu: refused, not there yet: an object of a Python program; accepted: to leave it "
     "out, or tensor_parallel.autotp_size"},
    {TS_CHECK_REFUSED, NULL, TP("tp = { tp_group = [1, 2]; };"), NULL, "tensor_parallel.tp.tp_group: refused"},
    {TS_CHECK_REFUSED, NULL, TP("injection_policy_tuple = (\"a\", \"b\");"), NULL,
     "injection_policy_tuple: refused, not there yet: classes of a Python program; accepted: to leave it out, or "
     "tensor_parallel.partition_config.layer_specs"},
    {TS_CHECK_RANGE, NULL, TP("autotp_size = -1;"), NULL,
     "autotp_size: -1 is out of range; accepted: an integer from 0"},
    {TS_CHECK_RANGE, NULL, TP("tp = { tp_grain_size = 0; };"), NULL,
     "tensor_parallel.tp.tp_grain_size: 0 is out of range; accepted: an integer from 1 to 2147483647"},
    {TS_CHECK_TYPE, NULL, TP("tp_overlap_comm = 1;"), NULL, "tp_overlap_comm: 1 is not a truth value"},
    {TS_CHECK_RANKS, NULL, TP("autotp_size = 5;"), NULL,
     "bad.cfg:4: tensor_parallel.autotp_size: 5 ranks share the 4 heads of model.num_attention_heads, and some would "
     "have none; accepted: 1 to 4"},
    {TS_CHECK_RANKS, NULL, TP("autotp_size = 4;\n tp = { tp_size = 2; };"), NULL,
     "bad.cfg:5: tensor_parallel.tp.tp_size: 2, but tensor_parallel.autotp_size is 4; accepted: 1 or the same"},
    {TS_CHECK_RANKS, NULL, TP("autotp_size = 0; tp = { tp_size = 2; };"), NULL,
     "tp_size: 2, but tensor_parallel.autotp_size is 1"},
    {TS_CHECK_WORD, NULL, TP("preset_model = \"lama\";"), NULL,
     "bad.cfg:4: tensor_parallel.preset_model: \"lama\" is not known; accepted: none, llama, bloom, chatglm, mixtral, "
     "deepseek_v2, qwen2, phi3; did you mean llama?"},
    {TS_CHECK_WORD, NULL, SPECS("patterns = \"x\"; partition_type = \"colunm\";"), NULL,
     "layer_specs[0].partition_type: \"colunm\" is not known; accepted: column, row, skip; did you mean column?"},
    {TS_CHECK_WORD, NULL, PLAN("layers.*.mlp.up_proj", "colwize"), NULL,
     "bad.cfg:4: tensor_parallel.tp_plan[0].style: \"colwize\" is not known; accepted: colwise, rowwise,"},
    {TS_CHECK_WORD_LATER, NULL, PLAN("layers.*.mlp.experts", "moe_tp_experts"), NULL,
     "tensor_parallel.tp_plan[0].style: \"moe_tp_experts\" is not there yet; accepted: colwise, rowwise,"},
    {TS_CHECK_WORD_LATER, NULL, PLAN("norm", "sequence_parallel"), NULL, "\"sequence_parallel\" is not there yet"},
    {TS_CHECK_WORD, NULL, "compile = { passes = [\"autotp\", \"autoep\"]; };\n", NULL,
     "compile.passes: \"autoep\" is not known; accepted: z1, z3, autotp, autosp"},
    {TS_CHECK_REQUIRED, NULL, TP("tp_plan = ( { style = \"colwise\"; } );"), NULL, "tp_plan[0].pattern: missing"},
    {TS_CHECK_REQUIRED, NULL, SPECS("partition_type = \"row\";"), NULL,
     "tensor_parallel.partition_config.layer_specs[0].patterns: missing"},
    {TS_CHECK_REGEX, NULL, SPECS("patterns = (\"a\", \"b(\");"), NULL,
     "layer_specs[0].patterns: \"b(\" is not a valid regular expression"},
    {TS_CHECK_TYPE, NULL, SPECS("patterns = 5;"), NULL,
     "layer_specs[0].patterns: 5 is not a list of strings; accepted: a list of regular expressions, [\"a\", \"b.*c\"], "
     "or one"},
    {TS_CHECK_TYPE, NULL, SPECS("patterns = \"a\"; shape = 3;"), NULL,
     "layer_specs[0].shape: 3 is not a list of extents; accepted: a list of extents, each -1"},
    {TS_CHECK_TYPE, NULL, SPECS("patterns = \"a\"; shape = ((5, (1, 2)), -1);"), NULL,
     "layer_specs[0].shape: a list of 2 is not an integer"},
    {TS_CHECK_TYPE, NULL, SPECS("patterns = \"a\"; shape = ((), -1);"), NULL,
     "layer_specs[0].shape: a list of 0 is a dimension without sizes"},
    {TS_CHECK_WHOLE, NULL, SPECS("patterns = \"a\"; shape = (2.5, -1);"), NULL, "shape: 2.5 is not a whole number"},
    {TS_CHECK_BIG, NULL, SPECS("patterns = \"a\"; shape = ((1, 99999999999999999999), -1);"), NULL, "64 bits"},
    {TS_CHECK_RANGE, NULL, SPECS("patterns = \"a\"; shape = (3, -2);"), NULL, "shape: -2 is out of range"},
    {TS_CHECK_RANGE, NULL, SPECS("patterns = \"a\"; partition_dim = 8;"), NULL, "partition_dim: 8 is out of range"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = ();"), NULL,
     "bad.cfg:4: tensor_parallel.partition_config.layer_specs[0].patterns: [] is empty; accepted: a string, or a list"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\"; shape = [64];"), NULL,
     "layer_specs[0].shape: (64): accepted: two to eight dimensions"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\"; shape = [1, 1, 1, 1, 1, 1, 1, 1, 64];"), NULL,
     "shape: (1, 1, 1, 1, 1, 1, 1, 1, 64): accepted: two to eight dimensions"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\"; shape = (0, -1);"), NULL,
     "shape: (0, -1): accepted: counts and sizes of at least 1"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\"; shape = ((3, -1), -1);"), NULL,
     "shape: ((3, -1), -1): accepted: counts and sizes of at least 1"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\"; shape = (-1, -1);"), NULL,
     "shape: (-1, -1) has -1 more than once; accepted: one dimension that is left to be counted"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\"; partition_type = \"row\"; shape = ((3, 4), -1);"), NULL,
     "shape: ((3, 4), -1) has sizes of blocks in another dimension than partition_dim 1; accepted: there alone"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\"; shape = (2, 3, -1); partition_dim = 3;"), NULL,
     "layer_specs[0].partition_dim: 3: there are 3 dimensions; accepted: 0 to 2"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\";\n partition_dim = 1;"), NULL,
     "bad.cfg:5: tensor_parallel.partition_config.layer_specs[0].partition_dim: 1 is not the dimension of [out][in] "
     "that "
     "a column is cut along; accepted: 0, or a shape"},
    {TS_CHECK_PARTITION, NULL, SPECS("patterns = \"a\"; partition_type = \"row\"; partition_dim = 0;"), NULL,
     "partition_dim: 0 is not the dimension of [out][in] that a row is cut along; accepted: 1, or a shape"},
    {TS_CHECK_UNKNOWN_KEY, NULL, SPECS("patterns = \"a\"; partition_typ = \"row\";"), NULL,
     "layer_specs[0].partition_typ: unknown key; did you mean "
     "tensor_parallel.partition_config.layer_specs[].partition_type?"},
    {TS_CHECK_REQUIRED_BY, NULL, "zero_optimization = { offload_optimizer = { device = \"nvme\"; }; };\n", NULL,
     "zero_optimization.offload_optimizer.nvme_path: missing: zero_optimization.offload_optimizer.device = \"nvme\" "
     "needs "
     "it"},
    {TS_CHECK_OFFLOAD, NULL, "zero_optimization = { offload_param = { device = \"nvme\"; nvme_path = \"/a\"; }; };\n",
     NULL, "zero_optimization.offload_param.device: \"nvme\" needs zero_optimization.stage = 3, and it is 0"},
    {TS_CHECK_OFFLOAD, NULL,
     "zero_optimization = { stage = 3; offload_param = { device = \"nvme\"; nvme_path = \"/a\"; };\n"
     " offload_optimizer = { device = \"nvme\"; nvme_path = \"/b\"; }; };\n",
     NULL,
     "bad.cfg:5: zero_optimization.offload_optimizer.nvme_path: \"/b\", and offload_param has \"/a\": a rank has one "
     "file; accepted: the same for both"},
    {TS_CHECK_OFFLOAD, NULL,
     "zero_optimization = { stage = 3; offload_param = { device = \"auto\"; nvme_path = \"/a\"; };\n"
     " offload_optimizer = { device = \"nvme\"; nvme_path = \"/b\"; }; };\n",
     NULL,
     "bad.cfg:5: zero_optimization.offload_optimizer.nvme_path: \"/b\", and offload_param has \"/a\": a rank has one "
     "file; accepted: the same for both"},
    {TS_CHECK_RANGE, NULL, "zero_optimization = { offload_optimizer = { ratio = 1.5; }; };\n", NULL,
     "bad.cfg:4: zero_optimization.offload_optimizer.ratio: 1.5 is out of range"},
    {TS_CHECK_TYPE, NULL, "", "run.memory_limit=\"24 XB\"",
     "run.memory_limit: \"24 XB\" is not a size; accepted: a number of bytes, or a string such as \"24GB\""},
    {TS_CHECK_RANGE, NULL, "", "run.host_memory_limit=-1", "run.host_memory_limit: -1 is out of range"},
    {TS_CHECK_WORD_LATER, NULL, "optimizer = { type = \"ZeroOneAdam\"; };\n", NULL,
     "optimizer.type: \"ZeroOneAdam\" is removed from DeepSpeed, which refuses it too; accepted: AdamW, Adam"},
    {TS_CHECK_UNKNOWN_KEY, NULL, "data = { sources = ( { path = \"a\"; wieght = 2.0; } ); };\n", NULL,
     "bad.cfg:4: data.sources[0].wieght: unknown key; did you mean data.sources[].weight?"},
    {TS_CHECK_UNKNOWN_KEY, NULL, "data = { sources = ( { path = \"a\"; } ); };\n", "data.sources[1].path=b",
     "--set: data.sources[1].path: list elements cannot be added one by one; give the whole list: data.sources=..."},
    {TS_CHECK_RANGE, NULL, "data = { sources = ( { path = \"a\"; }, {\n path = \"b\"; weight = 0; } ); };\n", NULL,
     "bad.cfg:5: data.sources[1].weight: 0 is out of range; accepted: a number above 0"},
    {TS_CHECK_RANGE, NULL, "data = { sources = ( { path = \"a\"; weight = 1.0; } ); };\n",
     "data.sources[0].weight=-1.5", "--set: data.sources[0].weight: -1.5 is out of range"},
    {TS_CHECK_FINITE, NULL, "data = { sources = ( { path = \"a\"; weight = 1e999; } ); };\n", NULL,
     "data.sources[0].weight: "},
    {TS_CHECK_TYPE, NULL, "data = { sources = \"a\"; };\n", NULL,
     "bad.cfg:4: data.sources: must be a list, ( { ... } )"},
    {TS_CHECK_WORD, NULL, "data = { sources = ( { path = \"a\"; format = \"parquet\"; } ); };\n", NULL,
     "data.sources[0].format: \"parquet\" is not known; accepted: auto, text, jsonl, bin, uint16, hdf5, megatron"},
    {TS_CHECK_SOURCES, NULL, "data = { path = \"a\";\n sources = ( { path = \"b\"; } ); };\n", NULL,
     "bad.cfg:4: data.path: data.sources is given too; accepted: one of the two"},
    {TS_CHECK_SOURCES, NULL, "data = { sources = ( { path = \"b\"; },\n { path = \"\"; } ); };\n", NULL,
     "bad.cfg:5: data.sources[1].path: is empty"},
    {TS_CHECK_REGEX, NULL, "frozen = [\"wte(\"];\n", NULL, "frozen: \"wte(\" is not a valid regular expression"},
    {TS_CHECK_REGEX, NULL, "optimizer = { groups = ( { pattern = \"[\"; } ); };\n", NULL, "not a valid regular"},
    {TS_CHECK_ONLY, NULL, SCHEDULE("WarmupLR", "cycle_min_lr = 1.0;"), NULL,
     "scheduler.params.cycle_min_lr: has no meaning with scheduler.type = \"WarmupLR\"; it belongs to OneCycle"},
    {TS_CHECK_ONLY, GPT2_MODEL("rope_theta = 5e5;"), "", NULL,
     "model.rope_theta: has no meaning with model.model_type"},
    {TS_CHECK_REQUIRED, "model = { model_type = \"gpt2\"; n_embd = 8; n_layer = 1; n_head = 1; n_positions = 8; };\n",
     "", NULL, "bad.cfg: model.vocab_size: missing"},
    {TS_CHECK_REQUIRED, "model = { model_type = \"gpt2\"; n_embd = 8; n_layer = 1; n_head = 1; };\n", "", NULL,
     "bad.cfg: model: 2 keys are missing; model.from = \"DIR\" (a Hugging Face directory) supplies them"},
    {TS_CHECK_REQUIRED, NULL, "optimizer = { groups = ( { lr_factor = 2.0; } ); };\n", NULL,
     "optimizer.groups[0].pattern: missing"},
    {TS_CHECK_REQUIRED_BY, NULL, SCHEDULE("WarmupDecayLR", ""), NULL,
     "scheduler.params.total_num_steps: missing: scheduler.type = \"WarmupDecayLR\" needs it"},
    {TS_CHECK_REQUIRED_BY, NULL, SCHEDULE("WarmupCosineLR", "total_num_steps = \"auto\";"), NULL, "takes run.steps"},
    {TS_CHECK_REQUIRED_BY, NULL, SCHEDULE("OneCycle", "cycle_min_lr = 0.0;"), NULL, "cycle_max_lr: missing"},
    {TS_CHECK_REQUIRED, NULL, "data = { sources = ( { path = \"a\"; }, { weight = 2.0; } ); };\n", NULL,
     "bad.cfg: data.sources[1].path: missing"},
    {TS_CHECK_SET, NULL, "", "run.steps", "--set: run.steps: not an assignment; accepted: key.path=value"},
    {TS_CHECK_HEADS, NULL, "", "model.num_attention_heads=6",
     "hidden_size 64 is not a multiple of num_attention_heads 6"},
    {TS_CHECK_KV_HEADS, NULL, "", "model.num_key_value_heads=3", "heads 4 is not a multiple of num_key_value_heads 3"},
    {TS_CHECK_ROTARY, NULL, "", "model.head_dim=15", "model.head_dim: 15 is odd"},
    {TS_CHECK_ROTARY,
     "model = { model_type = \"phi3\"; vocab_size = 9; hidden_size = 48; intermediate_size = 8;\n"
     " num_hidden_layers = 1; num_attention_heads = 4; max_position_embeddings = 8; };\n",
     "", "model.partial_rotary_factor=0.25", "0.25 of heads of 12 are 3 elements"},
    {TS_CHECK_SEQUENCE, GPT2_MODEL(""), "data = { sequence_length = 129; };\n", NULL,
     "data.sequence_length: 129 is more than model.max_position_embeddings 128"},
    {TS_CHECK_LAYERS,
     "model = { model_type = \"gemma2\"; vocab_size = 9; hidden_size = 32; intermediate_size = 8;\n"
     " num_hidden_layers = 3; num_attention_heads = 4; max_position_embeddings = 8; };\n",
     "", "model.layer_types=[\"full_attention\"]", "model.layer_types: 1 entries for 3 layers"},
    {TS_CHECK_ROPE, NULL, "", "model.rope_scaling={rope_type=\"longrope\"; short_factor=[1.0]; long_factor=[1.0];}",
     "model.rope_scaling.short_factor: 1 numbers; longrope wants one for each of 8 pairs"},
    {TS_CHECK_ROPE, NULL, "",
     "model={max_position_embeddings=1; rope_scaling={rope_type=\"longrope\"; factor=2.0; "
     "short_factor=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]; long_factor=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];};}",
     "longrope needs more than one position of the pretraining"},
    {TS_CHECK_ROPE, NULL, "", "model={rope_theta=1.0; rope_scaling={rope_type=\"yarn\"; factor=4.0;};}",
     "model.rope_theta: 1: yarn needs a base above 1"},
    {TS_CHECK_ROPE, NULL, "",
     "model.rope_scaling={rope_type=\"llama3\"; factor=8.0; low_freq_factor=4.0; original_max_position_embeddings=64;}",
     "low_freq_factor: 4 is not below high_freq_factor 4"},
    {TS_CHECK_TOKEN_IDS, NULL, "", "model.eos_token_id=256", "model.eos_token_id: 256 is not below vocab_size 256"},
    {TS_CHECK_SIZE, NULL, "",
     "model={hidden_size=2147483647; intermediate_size=2147483647; num_attention_heads=1; "
     "num_key_value_heads=1; head_dim=2;}",
     "parameters are more than can be counted"},
    {TS_CHECK_SIZE, NULL, "", "train_batch_size=9000000000000000000", "tokens is more than can be counted"},
    {TS_CHECK_SIZE,
     "model = { model_type = \"llama\"; vocab_size = 9; hidden_size = 1; intermediate_size = 8; num_hidden_layers = "
     "1;\n"
     " num_attention_heads = 2147483647; num_key_value_heads = 1; head_dim = 1024; max_position_embeddings = 8; };\n"
     "train_micro_batch_size_per_gpu = 1;\n",
     "data = { sequence_length = 2147483647; };\n", NULL, "a batch of 2.15e+09 tokens is more than can be counted"},
    {TS_CHECK_VALIDATION, NULL, "data = { validation_fraction = 0.1; validation_path = \"v\"; };\n", NULL,
     "one of the two"},
    {TS_CHECK_FLAGS, NULL, "", "bf16.stochastic_rounding=true",
     "bf16.stochastic_rounding: bf16.enabled is false; accepted: bf16.enabled = true with it"},
    {TS_CHECK_FLAGS, NULL, "fp16 = { enabled = true; };\nbf16 = { enabled = \"auto\"; };\n",
     "bf16.stochastic_rounding=true",
     "bf16.stochastic_rounding: bf16.enabled is false; accepted: bf16.enabled = true with it"},
    {TS_CHECK_FLAGS, NULL, "bf16 = { bf16_master_weights_and_grads = true; };\n", NULL,
     "bf16.enabled is false; accepted: bf16.enabled = true with it, or neither"},
    {TS_CHECK_FLAGS, NULL, "fp16 = { enabled = true; };\nbf16 = { bf16_master_weights_and_grads = true; };\n", NULL,
     "bf16.bf16_master_weights_and_grads: bf16.enabled is false"},
    {TS_CHECK_FLAGS, NULL, "bf16 = { enabled = true; };\nfp16 = { fp16_master_weights_and_grads = true; };\n", NULL,
     "bad.cfg:5: fp16.fp16_master_weights_and_grads: fp16.enabled is false; accepted: fp16.enabled = true with it"},
    {TS_CHECK_WORD, NULL, "optimizer = { state_dtype = \"fp8\"; };\n", NULL,
     "optimizer.state_dtype: \"fp8\" is not known; accepted: fp32, bf16, 8bit"},
    {TS_CHECK_WORD, NULL, "data_types = { grad_accum_dtype = \"8bit\"; };\n", NULL,
     "data_types.grad_accum_dtype: \"8bit\" is not known; accepted: fp32, bf16, fp16"},
    {TS_CHECK_PRECISION, NULL, "data_types = { grad_accum_dtype = \"fp16\"; };\n", NULL,
     "bad.cfg:4: data_types.grad_accum_dtype: fp16 without a loss scale: small gradients would vanish"},
    {TS_CHECK_PRECISION, NULL, "bf16 = { enabled = true; };\ndata_types = { grad_accum_dtype = \"fp16\"; };\n", NULL,
     "accepted: fp16.enabled = true with it, or fp32 or bf16"},
    {TS_CHECK_OPTIMIZER, NULL, "bf16 = { enabled = true; bf16_optimizer_states = true; };\n", NULL,
     "needs bf16.bf16_master_weights_and_grads = true; accepted beside fp32 masters"},
    {TS_CHECK_OPTIMIZER, NULL,
     "optimizer = { state_dtype = \"8bit\"; };\nbf16 = { enabled = true; bf16_master_weights_and_grads = true; "
     "bf16_optimizer_states = true; };\n",
     NULL, "optimizer.state_dtype: \"8bit\", and bf16.bf16_optimizer_states is true"},
    {TS_CHECK_OPTIMIZER, NULL, "optimizer = { type = \"Lamb\"; params = { min_coeff = 2.0; max_coeff = 1.0; }; };\n",
     NULL, "optimizer.params.min_coeff: 2; accepted: at most max_coeff, 1"},
    {TS_CHECK_OPTIMIZER, NULL, "optimizer = { type = \"Muon\"; params = { muon_lr = 0.0; adam_lr = 0.1; }; };\n", NULL,
     "optimizer.params.muon_lr: 0, and adam_lr 0.1; accepted: more than 0"},
    {TS_CHECK_OPTIMIZER, NULL,
     "optimizer = { type = \"Muon\"; params = { per_head_muon = true; }; };\n"
     "tensor_parallel = { autotp_size = 2; partition_config = { layer_specs = ({ patterns = \"x\"; }); }; };\n",
     NULL,
     "optimizer.params.per_head_muon: true, and tensor_parallel.partition_config.layer_specs may cut inside heads"},
    {TS_CHECK_OPTIMIZER, NULL,
     "optimizer = { type = \"Muon\"; params = { per_head_muon = true; }; };\n"
     "tensor_parallel = { autotp_size = 2; tp_plan = ({ pattern = \"q_proj\"; style = \"rowwise\"; }); };\n",
     NULL, "optimizer.params.per_head_muon: true, and tensor_parallel.tp_plan may cut inside heads"},
    {TS_CHECK_OPTIMIZER, NULL, "optimizer = { groups = ({ pattern = \"mlp\"; weight_decay = -0.5; }); };\n", NULL,
     "optimizer.groups[0].weight_decay: -0.5; accepted: at least 0, or -1 for that of optimizer.params"},
    {TS_CHECK_FINITE, NULL, "optimizer = { params = { betas = [0.9, 0.99999999]; }; };\n", NULL,
     "is as good as the end of the range in a float"},
    {TS_CHECK_FINITE, NULL, "optimizer = { params = { lr = 1e39; }; };\n", NULL, "is too large for a float"},
    {TS_CHECK_PRECISION, NULL, "fp16 = { enabled = true; min_loss_scale = 65537; };\n", NULL,
     "fp16.min_loss_scale: 65537 is above the scale that is begun with"},
    {TS_CHECK_PRECISION, NULL,
     "torch_autocast = { enabled = true; dtype = \"fp16\"; };\ndata_types = { grad_accum_dtype = \"fp16\"; };\n", NULL,
     "with torch_autocast parameters and their gradients are fp32"},
    {TS_CHECK_OPTIMIZER, NULL,
     "optimizer = { type = \"SGD\"; params = { nesterov = true; momentum = 0.9; dampening = 0.1; }; };\n", NULL,
     "momentum is 0.9 and dampening 0.1; accepted: a positive momentum without dampening"},
    {TS_CHECK_STEPS, NULL, "run = { steps = 5;\n epochs = 1.5; };\n", NULL,
     "bad.cfg:5: run.epochs: run.steps = 5 is given too; accepted: one of the two"},
    {TS_CHECK_RANGE, NULL, "run = { epochs = -0.5; };\n", NULL, "run.epochs: -0.5 is out of range"},
    {TS_CHECK_CYCLE, NULL, SCHEDULE("OneCycle", "cycle_min_lr = 0.1; cycle_max_lr = 0.01;"), NULL,
     "above cycle_max_lr"},
    {TS_CHECK_RANGE, LLAMA_MODEL, ELASTIC("32", "2, 0, -4", ""), NULL,
     "bad.cfg:3: elasticity.micro_batch_sizes: 0 is out of range; accepted: a list of integers, each from 1 to "
     "2147483647"},
    {TS_CHECK_RANGE, LLAMA_MODEL, ELASTIC("32", "2", "min_gpus = 0;"), NULL, "elasticity.min_gpus: 0 is out of range"},
    {TS_CHECK_RANGE, LLAMA_MODEL, ELASTIC("32", "2", "num_gpus_per_node = -8;"), NULL,
     "num_gpus_per_node: -8 is out of range"},
    {TS_CHECK_RANGE, LLAMA_MODEL, ELASTIC("32", "2", "max_gpus = 2147483648;"), NULL,
     "max_gpus: 2147483648 is out of range"},
    {TS_CHECK_TYPE, LLAMA_MODEL, "", "elasticity.micro_batch_sizes=4",
     "micro_batch_sizes: 4 is not a list of integers"},
    {TS_CHECK_TYPE, LLAMA_MODEL, "", "elasticity.micro_batch_sizes=[\"2\"]",
     "micro_batch_sizes: \"2\" is not an integer"},
    {TS_CHECK_WHOLE, LLAMA_MODEL, "", "elasticity.micro_batch_sizes=[2.0, 0.5]",
     "micro_batch_sizes: 0.5 is not a whole number"},
    {TS_CHECK_BIG, LLAMA_MODEL, ELASTIC("32", "2, 99999999999999999999", ""), NULL, "does not fit in 64 bits"},
    {TS_CHECK_REQUIRED_BY, LLAMA_MODEL, "elasticity = { enabled = true; max_train_batch_size = 32; };\n", NULL,
     "elasticity.micro_batch_sizes: missing: elasticity.enabled needs it, such as [2, 4, 6]"},
    {TS_CHECK_REQUIRED_BY, LLAMA_MODEL, ELASTIC("32", "", ""), NULL,
     "bad.cfg:3: elasticity.micro_batch_sizes: missing"},
    {TS_CHECK_REQUIRED_BY, LLAMA_MODEL, "elasticity = { enabled = true; micro_batch_sizes = [2]; };\n", NULL,
     "elasticity.max_train_batch_size: missing: elasticity.enabled needs it"},
    {TS_CHECK_ELASTICITY, LLAMA_MODEL, ELASTIC("32", "2, 33", ""), NULL,
     "bad.cfg:3: elasticity.micro_batch_sizes: 33 is above elasticity.max_train_batch_size 32"},
    {TS_CHECK_ELASTICITY, LLAMA_MODEL, ELASTIC("32", "2, 5", "num_gpus_per_node = 8;"), NULL,
     "micro_batch_sizes: 5 is above elasticity.max_train_batch_size 32 / 8 replicas of a node = 4"},
    {TS_CHECK_ELASTICITY, LLAMA_MODEL, ELASTIC("32", "2", "version = 0.3;"), NULL,
     "elasticity.version: 0.3 is not there; accepted: 0.1, 0.2"},
    {TS_CHECK_ELASTICITY, LLAMA_MODEL, ELASTIC("32", "2", "version = 0.1; model_parallel_size = 2;"), NULL,
     "model_parallel_size: 2, but version 0.1 has no model parallelism"},
    {TS_CHECK_ELASTICITY, LLAMA_MODEL, ELASTIC("32", "2", "model_parallel_size = 16; num_gpus_per_node = 8;"), NULL,
     "num_gpus_per_node: 8 is not a multiple of elasticity.model_parallel_size 16"},
    {TS_CHECK_ELASTICITY, LLAMA_MODEL, ELASTIC("32", "2", "min_gpus = 4; max_gpus = 3;"), NULL,
     "elasticity.max_gpus: 3 is below elasticity.min_gpus 4"},
    {TS_CHECK_ELASTIC_BATCH, NULL, ELASTIC("32", "2", ""), NULL,
     "bad.cfg:3: train_micro_batch_size_per_gpu: elasticity.enabled chooses the batch; accepted: to leave it out, or "
     "elasticity.ignore_non_elastic_batch_info = true"},
    {TS_CHECK_BATCH, NULL, "train_batch_size = 9;\n", NULL,
     "9 is not a multiple of train_micro_batch_size_per_gpu 2 x "
     "gradient_accumulation_steps 1 (not given); accepted: a multiple of 2"},
};

/* A config.json, of which line 3 is wrong. */
#define SIZES                                                                                     \
  "\"vocab_size\": 64, \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
  " \"num_attention_heads\": 4, \"max_position_embeddings\": 64"
#define CONFIG(type, more) "{\n\"model_type\": \"" type "\", " SIZES ",\n" more "}"

typedef struct bad_config {
  ts_deck_check check;
  const char *text, *expected;
} bad_config;

static const bad_config configs[] = {
    {TS_N_DECK_CHECKS, CONFIG("falcon", "\"num_local_experts\": 8"),
     "config.json:2: model.model_type: \"falcon\" is not there yet; accepted: gpt2, llama,"},
    {TS_N_DECK_CHECKS, CONFIG("gpt_oss", "\"sliding_window\": 128"), "\"gpt_oss\" is not there yet"},
    {TS_N_DECK_CHECKS, CONFIG("lama", "\"use_cache\": true"),
     "config.json:2: model.model_type: \"lama\" is not known; accepted: gpt2, llama,"},
    {TS_N_DECK_CHECKS, "{\"model_type\": [\"llama\"], " SIZES "}",
     "config.json:1: model.model_type: a list of 1 is not a string"},
    {TS_N_DECK_CHECKS, "{" SIZES "}", "config.json: model.model_type: missing: Model family. Accepted: gpt2, llama,"},
    {TS_CHECK_REQUIRED,
     "{\"model_type\": \"llama\", \"vocab_size\": 9, \"hidden_size\": null, \"intermediate_size\": 8,"
     " \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"head_dim\": 8,"
     " \"max_position_embeddings\": 8}",
     "config.json: model.hidden_size: missing: Width of the model"},
    {TS_CHECK_REQUIRED_BY,
     "{\"model_type\": \"llama\", \"vocab_size\": 9, \"hidden_size\": 8, \"num_hidden_layers\": 1,"
     " \"num_attention_heads\": 4, \"max_position_embeddings\": 8}",
     "config.json: model.intermediate_size: missing: model.model_type = \"llama\" needs it"},
    {TS_CHECK_REFUSED, CONFIG("llama", "\"quantization_config\": {\"quant_method\": \"fp8\"}"),
     "config.json:3: model.quantization_config: refused, not there yet: quantised weights; accepted: to leave it out"},
    {TS_CHECK_REFUSED,
     "{\"quantization_config\": {\"bits\": 4}, \"text_config\": {\"model_type\": \"gemma3_text\", " SIZES "}}",
     "config.json:1: model.quantization_config: refused, not there yet: quantised weights"},
    {TS_CHECK_EXPERTS, CONFIG("llama", "\"num_experts\": 60"), "model.num_experts: 60: a llama has no experts"},
    {TS_CHECK_EXPERTS, CONFIG("granite", "\"num_local_experts\": 8"),
     "model.num_local_experts: 8: a granite has no experts"},
    {TS_CHECK_EXPERTS, CONFIG("dots1", "\"num_key_value_heads\": 4, \"n_routed_experts\": 0"),
     "model.n_routed_experts: 0: a dots1 has some"},
    {TS_CHECK_EXPERTS,
     CONFIG("mixtral", "\"num_key_value_heads\": 4, \"num_local_experts\": 3, \"num_experts_per_tok\": 4"),
     "model.num_experts_per_tok: 4 of 3 experts"},
    {TS_CHECK_EXPERTS, CONFIG("dots1", "\"num_key_value_heads\": 4, \"n_routed_experts\": 8, \"n_group\": 3"),
     "model.n_group: topk_group 1 of n_group 3 groups of 8 experts; accepted: groups that divide them"},
    {TS_CHECK_EXPERTS,
     CONFIG("dots1", "\"num_key_value_heads\": 4, \"n_routed_experts\": 8, \"n_group\": 2, \"topk_group\": 3"),
     "model.topk_group: topk_group 3 of n_group 2 groups of 8 experts"},
    {TS_CHECK_EXPERTS,
     CONFIG("dots1", "\"num_key_value_heads\": 4, \"n_routed_experts\": 8, \"n_group\": 4, \"topk_group\": 1, "
                     "\"num_experts_per_tok\": 3"),
     "model.topk_group: 1 groups have 2 experts for 3 of a token"},
    {TS_CHECK_RANGE, CONFIG("mixtral", "\"num_key_value_heads\": 4, \"router_aux_loss_coef\": -1"),
     "model.router_aux_loss_coef: -1"},
    {TS_CHECK_REFUSED, CONFIG("mixtral", "\"num_key_value_heads\": 4, \"router_jitter_noise\": 0.1"),
     "model.router_jitter_noise: refused, not there yet: noise on what a router reads; accepted: 0"},
    {TS_CHECK_REFUSED, CONFIG("olmoe", "\"clip_qkv\": 8.0"), "model.clip_qkv: refused, not there yet"},
    {TS_N_DECK_CHECKS, CONFIG("gpt_oss", "\"num_local_experts\": 32"),
     "model.model_type: \"gpt_oss\" is not there yet: its attention has sinks, and its files are in MXFP4"},
    {TS_N_DECK_CHECKS, CONFIG("deepseek_v3", "\"n_routed_experts\": 256"),
     "model.model_type: \"deepseek_v3\" is not there yet: its attention is latent, and its files are in FP8"},
    {TS_CHECK_REFUSED, CONFIG("gemma3_text", "\"use_bidirectional_attention\": true"),
     "model.use_bidirectional_attention: refused, not there yet: attention that sees what comes later"},
    {TS_CHECK_REFUSED, CONFIG("gpt2", "\"scale_attn_by_inverse_layer_idx\": true"),
     "model.scale_attn_by_inverse_layer_idx: refused, not there yet"},
    {TS_CHECK_REFUSED, CONFIG("gpt2", "\"add_cross_attention\": true"), "model.add_cross_attention: refused"},
    {TS_CHECK_REFUSED, CONFIG("llama", "\"is_encoder_decoder\": true"), "model.is_encoder_decoder: refused"},
    {TS_CHECK_WORD_LATER, CONFIG("llama", "\"hidden_act\": \"relu2\""), "model.hidden_act: \"relu2\" is not there yet"},
    {TS_CHECK_WORD, CONFIG("llama", "\"hidden_act\": \"mish\""), "model.hidden_act: \"mish\" is not known"},
    {TS_CHECK_WORD, CONFIG("llama", "\"hidden_act\": \"\\u001b[31m\\nsilu\""),
     "model.hidden_act: \"\\u001b[31m\\u000asilu\" is not known"},
    {TS_CHECK_TYPE, CONFIG("mistral", "\"num_key_value_heads\": 4, \"sliding_window\": \"all\""),
     "config.json:3: model.sliding_window: \"all\" is not an integer"},
    {TS_CHECK_WORD, CONFIG("olmo3", "\"layer_types\": [\"full_attention\", \"chunked_attention\", \"full_attention\"]"),
     "model.layer_types: \"chunked_attention\" is not known; accepted: full_attention, sliding_attention"},
    {TS_CHECK_LAYERS, CONFIG("gemma2", "\"layer_types\": [\"full_attention\"]"),
     "config.json:3: model.layer_types: 1 entries for 2 layers"},
    {TS_CHECK_LAYERS, CONFIG("smollm3", "\"no_rope_layers\": [1, 1, 0]"),
     "model.no_rope_layers: 3 entries for 2 layers"},
    {TS_CHECK_WORD, CONFIG("llama", "\"rope_scaling\": {\"rope_type\": \"mrope\", \"factor\": 2.0}"),
     "config.json:3: model.rope_scaling.rope_type: \"mrope\" is not known; accepted: default, linear, dynamic"},
    {TS_CHECK_TYPE, CONFIG("llama", "\"rope_parameters\": [7.0]"), "model.rope_parameters: must be a section"},
    {TS_CHECK_TWICE,
     CONFIG("llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0},\n"
                     "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4.0}"),
     "config.json:4: model.rope_parameters.factor: 4, but model.rope_scaling.factor is 2 at "},
    {TS_CHECK_REQUIRED_BY, CONFIG("llama", "\"rope_scaling\": {\"type\": \"yarn\"}"),
     "config.json: model.rope_scaling.factor: missing: model.rope_scaling.rope_type = \"yarn\" needs it"},
    {TS_CHECK_ROPE,
     CONFIG("phi3", "\"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [1]}"),
     "config.json:3: model.rope_scaling.long_factor: 1 numbers; longrope wants one for each of 4 pairs"},
    {TS_CHECK_KV_HEADS, CONFIG("llama", "\"num_key_value_heads\": 3"),
     "config.json:3: model.num_key_value_heads: num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
    {TS_CHECK_RANGE, CONFIG("qwen3", "\"num_key_value_heads\": 4, \"head_dim\": 0"),
     "model.head_dim: 0 is out of range"},
    {TS_CHECK_BIG, CONFIG("llama", "\"head_dim\": 1e300"), "model.head_dim: 1e+300 does not fit in 64 bits"},
    {TS_CHECK_ROTARY, CONFIG("gpt_neox", "\"rotary_pct\": 0.4"),
     "config.json:3: model.rotary_pct: 0.4 of heads of 8 are 3 elements"},
    {TS_N_DECK_CHECKS, CONFIG("llama", "\"head_dim\": 8, \"head_dim\": 8"),
     "config.json:3: json: duplicate object key near '\"head_dim\"'"},
    {TS_N_DECK_CHECKS, CONFIG("llama", "\"head_dim\": 1e400"),
     "config.json:3: json: real number overflow near '1e400'"},
    {TS_N_DECK_CHECKS, "{\n\"model_type\": \"llama\", \"hidden_size\": 3",
     "config.json:2: json: '}' expected near end"},
    {TS_N_DECK_CHECKS, "", "config.json:1: json: '[' or '{' expected near end of file"},
    {TS_N_DECK_CHECKS, "[1]", "config.json:1: json: the file must hold an object"},
};

/* What the libraries find, so that no check of ours could be turned off; and a list that then lacks its keys. */
static const bad_deck broken[] = {
    {0, NULL, "optimizer = { groups = ( 5 ); };\n", NULL, "optimizer.groups[0]: must be a section"},
    {0, " \n{\"train_batch_size\": 4}\n", "", NULL,
     "bad.cfg: this is json: put deepspeed_config = \"bad.cfg\"; into a deck"},
    {0, NULL, "run = { steps = ; };\n", NULL, "bad.cfg:4: syntax error"},
    {0, NULL, "\nrun = { steps = 1;\n steps = 2; };\n", NULL, "bad.cfg:6: steps: set twice in one section"},
    {0, NULL, "run = { steps = 1; };\nrun = { seed = 2; };\n", NULL, "bad.cfg:5: run: set twice"},
    {0, NULL, "optimizer = { params = {\n betas = [0.9, 1]; }; };\n", NULL,
     "bad.cfg:5: an array [ ] holds values of one type"},
    {0, NULL, "", "optimizer.params.betas=[0.9, 1]", "--set: optimizer.params.betas: an array [ ] holds"},
    {0, NULL, "@include \"absent.cfg\"\n", NULL, "bad.cfg:4: @include: absent.cfg: "},
    {0, NULL, "deepspeed_config = \"absent.json\";\n", NULL, "bad.cfg:4: deepspeed_config: absent.json: No such file"},
    {0, "\nmodel = { from = \"absent\"; };\n", "", NULL, "bad.cfg:2: model.from: /"},
    {0, NULL, "scheduler = { type = \"OneCycle\"; params = { cycle_min_lr = \"auto\"; cycle_max_lr = \"auto\"; }; };\n",
     NULL, "scheduler.params.cycle_max_lr: missing: scheduler.type = \"OneCycle\" needs it"},
    {0, NULL, "steps_per_print = \"often\";\n", NULL, "\"often\" is not an integer; accepted: an integer"},
};

static char *read_error(const bad_deck *bad) {
  char *text = ts_format("%s%s", bad->text != NULL ? bad->text : GOOD_DECK, bad->more);
  char *set = (char *) bad->set;
  ts_deck *deck = NULL;
  ts_error err = {0};
  ts_deck_read_text("bad.cfg", text, &set, set != NULL, &deck, &err);
  char *message = ts_strdup(err.text);
  ts_deck_destroy(&deck);
  ts_error_clear(&err);
  ts_free(text);
  return message;
}

static void expect(const bad_deck *bad, const char *what) {
  char *message = read_error(bad);
  bool found = message != NULL && strstr(message, bad->expected) != NULL;
  tap_ok(found, "%s: %s", what, bad->expected);
  if (!found) {
    tap_note("message: %s", message != NULL ? message : "none: the deck was accepted");
  }
  ts_free(message);
}

static void test_checks(void) {
  for (size_t i = 0; i < sizeof decks / sizeof *decks; ++i) {
    const char *name = ts_deck_check_name(decks[i].check);
    expect(&decks[i], name);
    ts_deck_test_disable(decks[i].check);
    char *message = read_error(&decks[i]);
    tap_ok(message == NULL, "%s off: the deck passes%s%s", name, message != NULL ? " not: " : "",
           message != NULL ? message : "");
    ts_free(message);
    ts_deck_test_disable(TS_N_DECK_CHECKS);
  }
}

static void test_conflict(void) {
  ts_free(fixture_file("a.json", "{\"zero_optimization\": {\"stage\": 3}}"));
  char *more = ts_format("zero_optimization = { stage = 2; };\ndeepspeed_config = \"%s/a.json\";\n", tap_directory());
  bad_deck bad = {TS_CHECK_CONFLICT, NULL, more, NULL, "stage: 3, but zero_optimization.stage is 2 at bad.cfg:4"};
  expect(&bad, "CONFLICT");
  ts_deck_test_disable(TS_CHECK_CONFLICT);
  char *message = read_error(&bad);
  tap_ok(message == NULL, "CONFLICT off: the deck passes");
  ts_free(message);
  ts_deck_test_disable(TS_N_DECK_CHECKS);
  bad.set = "zero_optimization.stage=1";
  message = read_error(&bad);
  tap_ok(message == NULL, "--set decides a conflict");
  ts_free(message);
  ts_free(more);
}

/* The parser's errors, and a model_type, without which there is nothing to go on with, are not turned off. */
static void test_configs(void) {
  char *model = ts_format("model = { from = \"%s\"; };\ntrain_micro_batch_size_per_gpu = 1;\n", tap_directory());
  for (size_t i = 0; i < sizeof configs / sizeof *configs; ++i) {
    bad_deck bad = {configs[i].check, model, "", NULL, configs[i].expected};
    ts_free(fixture_file("config.json", configs[i].text));
    expect(&bad, "config.json");
    ts_deck_test_disable(bad.check);
    char *message = read_error(&bad);
    if (bad.check < TS_N_DECK_CHECKS) {
      tap_ok(message == NULL, "%s off: it passes%s%s", ts_deck_check_name(bad.check), message != NULL ? " not: " : "",
             message != NULL ? message : "");
    }
    ts_free(message);
    ts_deck_test_disable(TS_N_DECK_CHECKS);
  }
  ts_free(model);
}

/* As many micro-batch sizes as may be, and one more. */
static void test_many_sizes(void) {
  for (int n = 256; n <= 257; ++n) {
    ts_text sizes = {0};
    for (int i = 0; i < n; ++i) {
      ts_text_add(&sizes, i > 0 ? ", 1" : "1");
    }
    char *more = ts_format("elasticity = { enabled = true; max_train_batch_size = 32; micro_batch_sizes = [%s]; };\n",
                           sizes.text);
    bad_deck bad = {TS_CHECK_ELASTICITY, LLAMA_MODEL, more, NULL, "257 sizes; accepted: at most 256"};
    char *message = read_error(&bad);
    tap_ok(n == 256 ? message == NULL : message != NULL && strstr(message, bad.expected) != NULL, "%d sizes: %s", n,
           message != NULL ? message : "accepted");
    ts_free(message);
    ts_free(more);
    ts_text_free(&sizes);
  }
}

static void test_many_groups(void) {
  ts_text more = {0};
  for (int i = 0; i < 1001; ++i) {
    ts_text_add(&more, "%s{ pattern = \"x\"; }", i > 0 ? ", " : "optimizer = { groups = ( ");
  }
  ts_text_add(&more, "); };\n");
  bad_deck bad = {TS_CHECK_GROUPS, NULL, more.text, NULL, "optimizer.groups: more than 1000 entries"};
  expect(&bad, "GROUPS");
  ts_deck_test_disable(TS_CHECK_GROUPS);
  char *message = read_error(&bad);
  tap_ok(message == NULL, "GROUPS off: the deck passes");
  ts_free(message);
  ts_deck_test_disable(TS_N_DECK_CHECKS);
  ts_text_free(&more);
}

/* Checks outside of reading have their tests here and in test_deck.c. */
static void test_training(void) {
  ts_deck *deck = fixture_read("deck without data", GOOD_DECK, NULL);
  ts_error err = {0};
  tap_ok(ts_deck_check_training(deck, &err) == TS_BAD_INPUT &&
             strstr(err.text, "good.cfg: data.path: missing") != NULL &&
             strstr(err.text, "run.directory: missing") != NULL && strstr(err.text, "run.steps: missing") != NULL,
         "TRAINING: what is missing is named");
  ts_error_clear(&err);
  ts_deck_test_disable(TS_CHECK_TRAINING);
  tap_ok(ts_deck_check_training(deck, &err) == TS_OK, "TRAINING off: it passes");
  ts_deck_test_disable(TS_CHECK_BATCH_RANKS);
  deck->train_batch_size = 7;
  deck->gradient_accumulation_steps = 1;
  tap_ok(ts_deck_resolve_batch(deck, 3, &err) == TS_OK, "BATCH_RANKS off: it passes");
  ts_deck_test_disable(TS_N_DECK_CHECKS);
  deck->train_batch_size = 7;
  tap_ok(ts_deck_resolve_batch(deck, 3, &err) == TS_BAD_INPUT, "BATCH_RANKS: it does not");
  ts_error_clear(&err);
  ts_deck_destroy(&deck);
}

static void test_coverage(void) {
  for (int check = 0; check < TS_N_DECK_CHECKS; ++check) {
    bool own = check == TS_CHECK_CONFLICT || check == TS_CHECK_GROUPS || check == TS_CHECK_TRAINING ||
               check == TS_CHECK_BATCH_RANKS;
    for (size_t i = 0; i < sizeof decks / sizeof *decks && !own; ++i) {
      own = (int) decks[i].check == check;
    }
    tap_ok(own, "%s has a bad deck", ts_deck_check_name((ts_deck_check) check));
  }
}

static void test_all_at_once(void) {
  bad_deck bad = {0, NULL, "run = { stepz = 1; seed = -1; device = \"tpu\"; };\n", NULL, ""};
  char *message = read_error(&bad);
  tap_ok(message != NULL && strstr(message, "stepz") && strstr(message, "seed") && strstr(message, "tpu"),
         "three errors of one deck are reported together");
  ts_free(message);
}

static void test_no_suggestion(void) {
  bad_deck bad = {0, NULL, "foo = 1;\n", NULL, "bad.cfg:4: foo: unknown key"};
  char *message = read_error(&bad);
  tap_ok(message != NULL && strcmp(message, bad.expected) == 0, "a short word far from all keys gets no suggestion");
  ts_free(message);
}

static void test_limits(void) {
  ts_text more = {0};
  for (int i = 0; i < 300; ++i) {
    ts_text_add(&more, "key%d = 1;\n", i);
  }
  bad_deck bad = {0, NULL, more.text, NULL, "more errors are not shown"};
  char *message = read_error(&bad);
  tap_ok(message != NULL && strstr(message, bad.expected) != NULL && strstr(message, "key200") == NULL,
         "a hundred errors are enough");
  ts_free(message);
  ts_text_free(&more);
  ts_text_add(&more, "#%*s\n", 200000, "");
  bad = (bad_deck){0, NULL, more.text, NULL, "larger than 131072 bytes"};
  expect(&bad, "size");
  ts_text_free(&more);
  ts_text_add(&more, "data = { sources = (");
  for (int i = 0; i < 1000; ++i) {
    ts_text_add(&more, "%s{path=\"%080d\";}\n", i > 0 ? "," : "", i);
  }
  ts_text_add(&more, "); };\n");
  bad = (bad_deck){0, NULL, more.text, NULL, "with the defaults in its lists it has"};
  expect(&bad, "size in full");
  ts_text_free(&more);
}

int main(void) {
  test_limits();
  test_checks();
  test_configs();
  test_conflict();
  test_many_groups();
  test_many_sizes();
  test_training();
  test_coverage();
  test_all_at_once();
  test_no_suggestion();
  for (size_t i = 0; i < sizeof broken / sizeof *broken; ++i) {
    expect(&broken[i], "broken");
  }
  tap_ok(ts_memory_live() == 0, "nothing leaks (%lld live)", (long long) ts_memory_live());
  return tap_done();
}
