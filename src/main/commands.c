/* The table of subcommands. */
#include "main/command.h"

#include <limits.h>

#define SET_OPTION \
  { "--set", "KEY=VALUE", NULL, "change one key of the deck (may be given several times)", true }
#define FORMAT_OPTION \
  { "--format", "FORMAT", "text", "text, or json for programs", false }
#define END_OPTION \
  { NULL, NULL, NULL, NULL, false }

static const ts_option train_options[] = {
    SET_OPTION,
    {"--resume", "WHERE", NULL,
     "never, auto (the newest intact checkpoint of run.directory), or a run or checkpoint "
     "directory; default: the deck's run.resume (never)",
     false},
    {"--weights", "DIRECTORY", NULL,
     "begin a new run with the weights of this run, checkpoint or Hugging Face directory; settings of its model that "
     "the deck's has otherwise are named",
     false},
    {"--prompt", "TEXT", NULL, "when training is done, let the model continue this text", false},
    {"--tokens", "N", "300", "how many tokens to generate for --prompt", false},
    {"--verbose", NULL, NULL, "print what the passes do and where memory goes", false},
    END_OPTION};

#define TARGET_OPTION \
  { "--target", "TARGET", "auto", "what the ranks run on: cpu, cuda, or auto: what run.device would take here", false }

static const ts_option plan_options[] = {
    SET_OPTION,
    {"--ranks", "N", "1", "number of ranks the job will have", false},
    {"--threads", "N", "0", "threads of a rank; 0: what train would use here, with --machine what was measured", false},
    {"--memory", "SIZE", NULL, "of a rank, such as 80GB: print how long samples may be that fit into it", false},
    {"--machine", "FILE", NULL,
     "written by tessera bench: print what a step will take on it; or a GPU's datasheet: a100, h100, h200, b200, l40s, "
     "a100-40gb",
     false},
    {"--ranks-per-node", "N", NULL, "of --machine: which messages leave a node (default: as many as were measured)",
     false},
    {"--against", "RUN", NULL,
     "a run's directory: print what it measured beside the plan, op by op where it has a profile.timeline", false},
    {"--timeline", "FILE", NULL,
     "write the planned step for viewers of traces, a file a stage, as profile.timeline does", false},
    {"--schedule", "[FILE.svg]", NULL,
     "what each stage of a pipeline does in a step, in order; with a file the picture of it: stages down, time across",
     false},
    {"--layout", NULL, NULL, "which part of each parameter is on which rank, and why (tensor parallelism)", false},
    TARGET_OPTION,
    FORMAT_OPTION,
    END_OPTION};

static const ts_option tune_options[] = {
    SET_OPTION,
    {"--ranks", "N", "1", "number of ranks the job will have", false},
    {"--machine", "FILE", NULL,
     "written by tessera bench, or a GPU's datasheet: a100, h100, h200, b200, l40s, a100-40gb", false},
    {"--ranks-per-node", "N", "0", "0: as many as were measured and there are", false},
    {"--threads", "N", "0", "threads of a rank; 0: what was measured", false},
    {"--memory", "SIZE", NULL, "of a rank (default: the datasheet's, or run.memory_limit; else no limit)", false},
    {"--keep", "NAMES", NULL,
     "leave these as the deck has them: of tp,sp,ep,pp,schedule,stage,micro,recompute,offload,overlap (which GPUs "
     "always "
     "do),bucket",
     false},
    {"--seconds", "S", "45", "begin no other candidate after that", false},
    {"--top", "N", "10", "rows of the table", false},
    {"-o", "FILE", NULL, "write the best deck, complete", false},
    {"--measure", "K", "0",
     "run K of the plan's fastest 3 K for a few steps, each chosen by what those before took (or by "
     "autotuning.tuner_type), those near the fastest up to five times more, by turns, and take the fastest",
     false},
    {"--launch", "WORDS", NULL, "what runs tessera on the ranks (default: mpiexec -n N), such as \"srun -n 8\"", false},
    {"--steps", "N", NULL,
     "steps of a trial that count, behind three that do not (default: autotuning's, or what two seconds have, 5 to 20)",
     false},
    {"--timeout", "S", "600", "end a trial after that", false},
    {"--results", "DIRECTORY", NULL, "for decks, runs and logs of trials (default: autotuning.exps_dir)", false},
    TARGET_OPTION,
    FORMAT_OPTION,
    END_OPTION};

static const ts_option bench_options[] = {
    SET_OPTION,
    {"-o", "FILE", "machine.cfg", "to write; one of this device that is there is added to", false},
    {"--files", "DIRECTORY", NULL, "measure files there, as offload to nvme_path uses them", false},
    {"--quick", NULL, NULL, "a few shapes and sizes and the smallest model, in some seconds: plans by it are rough",
     false},
    TARGET_OPTION,
    END_OPTION};

static const ts_option graph_options[] = {
    SET_OPTION,
    {"--pass", "NAME", NULL, "show the graph after this pass (default: after the last)", false},
    {"--use", "USE", "train", "train, loss or logits", false},
    {"--ranks", "N", "1", "number of ranks", false},
    {"--rank", "R", "0", "whose graph", false},
    TARGET_OPTION,
    {"--format", "FORMAT", "text", "text, dot, json, or commands: what the queues of a GPU are given", false},
    END_OPTION};

static const ts_option eval_options[] = {SET_OPTION, FORMAT_OPTION, END_OPTION};

static const ts_option generate_options[] = {
    SET_OPTION,
    {"--prompt", "TEXT", NULL, "the text to continue; what is added appears as it is made", false},
    {"--prompts", "FILE.jsonl", NULL,
     "the texts to continue: a json object a line, empty lines aside; of each, in their order, a line is printed: "
     "{\"prompt\": what was given, \"text\": what was added, \"tokens\": of how many tokens, \"end\": whether the "
     "model ended it}",
     false},
    {"--field", "NAME", "prompt", "the member of a line of --prompts that has its text", false},
    {"--chat", NULL, NULL,
     "the text is what a user says; the model answers by its chat template.  In --prompts a line may have "
     "\"messages\": a "
     "chat to go on with",
     false},
    {"--chat-template", "NAME", NULL,
     "such as chatml (default: data.chat_template, else that of the tokenizer's directory)", false},
    {"--batch", "N", "8",
     "texts of --prompts that a rank continues at a time; ranks that differ in data parallelism have different ones. "
     "What is drawn depends on the seed and the line's number, not on N, but logits that are made together may round "
     "otherwise, and so, rarely, choose another token",
     false},
    {"--tokenizer", "DIRECTORY", NULL,
     "of the tokenizer.json that makes tokens of text (default: what the checkpoint's run kept, else data.tokenizer or "
     "model.from; "
     "where none has one, a token is a byte)",
     false},
    {"--tokens", "N", "200",
     "how many tokens to add to a text, at most: the model's end tokens (model.stop_token_ids) end it too", false},
    {"--temperature", "T", "0.8", "0 takes the most likely token, 1 draws from the model's distribution", false},
    {"--top-k", "K", "0", "draw from the K most likely tokens only; 0: from all", false},
    {"--seed", "SEED", "1", "another seed, another text", false},
    END_OPTION};

static const ts_option tokenize_options[] = {
    {"--tokenizer", "DIRECTORY", NULL, "with a tokenizer.json, as a model of Hugging Face has it", false},
    {"-o", "OUT.h5", NULL, "file of tokens to write; it must not be there", false},
    {"--print", NULL, NULL, "print the ids instead, a line a document", false},
    {"--format", "FORMAT", "auto", "text: a file is a document; jsonl: a line is one; auto: by its name", false},
    {"--field", "NAME", "text", "jsonl: the member with the text, the prompt or the chat", false},
    {"--completion-field", "NAME", NULL, "jsonl: what is to be said to the prompt in --field", false},
    {"--train-on-prompt", NULL, NULL, "jsonl: prompts are learned too", false},
    {"--chat-template", "NAME", NULL, "jsonl: such as chatml (default: that of the tokenizer's directory)", false},
    {"--end-token", "TOKEN", NULL,
     "closes a document; none: nothing does (default: eos_token_id of config.json, else eos_token of "
     "tokenizer_config.json)",
     false},
    {"--threads", "N", "0", "0: one a core", false},
    END_OPTION};

static const ts_option plot_options[] = {END_OPTION};

static const ts_option report_options[] = {
    {"-o", "FILE.html", NULL, "the page to write (default: report.html in the directory of the only run, else here)",
     false},
    {"--table", "[text|markdown|csv|json]", NULL,
     "print a row a run instead (default: text): medians without warm-up, saves, validations and observed steps; a "
     "page "
     "too only where -o is given",
     false},
    {"--mfu", "CONVENTION", "causal",
     "FLOPs of MFU and TFLOP/s: 6n (6N, as in Hugging Face's comparisons), causal (6N + 6LCT: the half of attention "
     "that "
     "is computed), full (6N + 12LCT, as PaLM and Megatron-LM count)",
     false},
    {"--plain", NULL, NULL, "without a script: curves are pictures, for viewers that run none", false},
    {"--peak", "TFLOPS", NULL,
     "of a device, which MFU is a part of: 312 for an A100 in bf16 (default: what the run took it to be)", false},
    END_OPTION};

static const ts_option compare_options[] = {
    {"--tolerance", "X", "0",
     "relative difference of the loss that counts as equal; columns but grad_norm must be equal "
     "exactly, and with a tolerance of either kind digests may differ",
     false},
    {"--norm-tolerance", "X", NULL, "the same of grad_norm (default: 500 times --tolerance)", false},
    FORMAT_OPTION,
    END_OPTION};

static const ts_option status_options[] = {FORMAT_OPTION, END_OPTION};

static const ts_option watch_options[] = {
    {"--every", "SECONDS", "2", "between two looks at the run's files", false},
    {"--once", NULL, NULL, "print one picture as text, and end", false},
    {"--ascii", NULL, NULL, "draw with ASCII (default: where the locale is not UTF-8)", false},
    END_OPTION};

static const ts_option verify_options[] = {FORMAT_OPTION, END_OPTION};

static const ts_option deck_options[] = {
    SET_OPTION, {"--key", "KEY", NULL, "print the value of this key only, such as run.directory", false}, END_OPTION};

static const ts_option keys_options[] = {{"--format", "FORMAT", "text", "text, or man for roff", false}, END_OPTION};

static const ts_option consolidate_options[] = {
    {"--tag", "TAG", NULL, "the checkpoint of a run, such as step_00000200 (default: the newest)", false},
    {"--format", "FORMAT", NULL,
     "hdf5: one file, a dataset per parameter (default); safetensors: a Hugging Face directory", false},
    {"--dtype", "DTYPE", "fp32", "fp32, bf16 or fp16", false},
    {"--saturate", NULL, NULL, "fp16: write 65504 for what is beyond it; without this such values are an error", false},
    {"--max-shard-size", "SIZE", "5GB", "largest safetensors file: 5GB, 500MB, 10MiB", false},
    {"--exclude-frozen-parameters", NULL, NULL, "leave out parameters that are not trained", false},
    {"--safe-serialization", NULL, NULL, "as DeepSpeed says --format safetensors", false},
    {"-t", "TAG", NULL, "as DeepSpeed says --tag", false},
    {"--debug", NULL, NULL, "DeepSpeed's, taken without an effect", false},
    {"-d", NULL, NULL, "as DeepSpeed says --debug", false},
    END_OPTION};

const ts_command ts_commands[] = {
    {"train", ts_main_train, "DECK", 1, 1, "train the model a deck describes",
     "Reads the deck, plans memory, trains, and writes metrics.csv, validation.csv, moe.csv, deck.cfg, checkpoints and "
     "loss.svg "
     "into "
     "the run directory (run.directory), which must be empty or new unless the run is resumed.  SIGTERM, SIGUSR1 or a "
     "file "
     "STOP in the run directory end it after the step, saved, with exit code 75; --resume auto goes on from there, on "
     "any "
     "number of ranks that divides the batch, which is kept, and any ZeRO stage.  Started by mpiexec or srun it uses "
     "all ranks; data "
     "parallelism and the ZeRO stage follow from the deck.  On a terminal it draws a progress bar; mpiexec hides the "
     "terminal from its ranks, so set TESSERA_PROGRESS=bar there.",
     train_options, "mpiexec -n 2 tessera train inputs/quickstart.cfg --set zero_optimization.stage=3", true},
    {"plan", ts_main_plan, "DECK", 1, 1, "print the memory and the work of a rank, without running",
     "Makes the programs of a job with N ranks and prints what the rank that needs most will need (without tensor "
     "parallelism all need the same): parameters, gradients, optimizer states, activations, buffers, reserves and "
     "their sum, the peak, in bytes.  The peak is what Tessera plans and checks before it trains; peak_bytes in "
     "metrics.csv is the most memory that the whole process has had, on a processor some 0.03 GB more for the "
     "program and its libraries, and what MPI takes.  --layout adds what tensor parallelism makes of the model: query "
     "and key "
     "heads of each rank; the bytes that a rank sends, per token along tp alone, per step along tp together with "
     "other axes, and per step in all; and of each parameter its shape, the rule that decided, and which elements "
     "of which dimension each rank has.  --machine adds the time of a step on a machine that tessera bench has "
     "measured: "
     "tokens and FLOP/s, what is exposed of messages and copies, the bubble of a pipeline, the time by op, and how "
     "much of "
     "all this was measured and how much is rated by what is near it.  Needs no MPI: run it on a login node.",
     plan_options, "tessera plan big.cfg --ranks 64 --set zero_optimization.stage=2", false},
    {"tune", ts_main_tune, "DECK", 1, 1, "search the settings with which a step is fastest",
     "Searches stages of ZeRO, tensor, sequence, expert and pipeline parallelism with its schedules, micro-batches, "
     "activation "
     "checkpointing, offload, overlap and buckets for the deck's batch on a number of ranks, without running: each "
     "candidate's memory is that of its plan, its time that of the clock (plan --machine).  Prints the fastest, why "
     "others are not, and the words that make train use the best; -o writes it as a deck.  A list where the deck has "
     "one "
     "value (zero_optimization.stage = [1, 3]) is what is tried.  What changes results (batch, precision, learning "
     "rate) is left alone.",
     tune_options, "tessera tune big.cfg --ranks 512 --machine h100 -o best.cfg", false},
    {"bench", ts_main_bench, "[DECK]", 0, 1, "measure what this machine takes, for plan --machine",
     "Measures products of a grid of shapes, collectives of a row of sizes, and the nodes of real steps of small "
     "models, "
     "in fp32 and bf16, with as many ranks as there are at work, and writes what each took to a file, where plan "
     "--machine finds it.  To be run once for each number of ranks a node and of threads that jobs will have, on a "
     "machine "
     "that does nothing else; each adds to the file.  With a DECK its own nodes are measured too, by a few steps "
     "on made-up tokens, on the grid that it asks for; if the file has been measured for as many ranks and threads, "
     "these "
     "alone.  In turns with these steps others are timed, and the last lines say how far a plan by what was measured "
     "is off.",
     bench_options, "mpiexec -n 2 tessera bench -o machine.cfg", true},
    {"graph", ts_main_graph, "DECK", 1, 1, "print the graph after a pass",
     "Prints the training step as a graph: one line a node, or dot for Graphviz, or json.", graph_options,
     "tessera graph inputs/quickstart.cfg --pass autodiff --format dot | dot -Tsvg > step.svg", false},
    {"eval", ts_main_eval, "DECK|CHECKPOINT", 1, 1, "print the loss of a model on the validation data",
     "Evaluates on the validation split of the deck's data.  The model is that of a checkpoint (a run directory: its "
     "newest), "
     "with the deck the run had; or of a deck (with model.from: the weights of a Hugging Face directory).",
     eval_options, "tessera eval runs/kjv --format json", true},
    {"generate", ts_main_generate, "DECK|CHECKPOINT", 1, 1, "let a model continue texts",
     "The model is that of a checkpoint (a run directory: its newest), of a Hugging Face directory, or of a deck.  "
     "Its tokens are those of its tokenizer.json, or bytes where there is none: for models trained on text files.  Of "
     "a text that outgrows data.sequence_length the first half is forgotten.  --prompts continues many, several at a "
     "time; a text that has ended waits for the others of its batch.",
     generate_options, "tessera generate runs/kjv --prompt 'In the beginning'", true},
    {"tokenize", ts_main_tokenize, "FILE...", 1, INT_MAX, "turn texts and JSONL into a file of tokens",
     "Encodes texts and JSONL files, one after the other, with a Hugging Face tokenizer, into an HDF5 file for "
     "data.path: tokens, where documents begin, and which tokens are learned.  Of a prompt with a completion the "
     "completion is learned.  Training does this by itself for a text or jsonl in a deck; this command is for doing it "
     "once, elsewhere, or to look at ids.  Without --tokenizer: tessera tokenize TEXT OUTPUT.bin, llm.c's format with "
     "a "
     "token a byte.",
     tokenize_options, "tessera tokenize --tokenizer Qwen3-4B web.jsonl -o web.h5", false},
    {"compare", ts_main_compare, "RUN RUN", 2, 2, "find the first step at which two runs differ",
     "Compares the metrics of two run directories row by row and names the first step and column that differ; with "
     "debug.digest_every in both decks also the first tensor.  The same deck on the same grid gives the same "
     "bits; on another grid, in fp32, the loss should differ by less than 2e-6 and grad_norm by less than 1e-3: "
     "--tolerance 2e-6.  "
     "Exit code 0 when they agree, 1 when they differ.",
     compare_options, "tessera compare runs/a runs/b --tolerance 2e-6", false},
    {"plot", ts_main_plot, "RUN", 1, 1, "write RUN/loss.svg from the metrics of a run",
     "Training does it at its end; this command does it while a run goes on.", plot_options, "tessera plot runs/kjv",
     false},
    {"report", ts_main_report, "RUN...", 1, 1000, "make a page of where time, memory and loss went",
     "Writes one HTML file that opens from disk and needs no network: a table, the loss and the other curves over "
     "steps, "
     "tokens or time, where a step's time goes, memory over a step, the observed step of all ranks with its messages "
     "(where profile.timeline was set), which rank was slowest, the load of experts, jobs and decks.  Several runs lie "
     "over one another, and the differences of their decks are shown.  Works while a run goes on and after it.",
     report_options, "tessera report runs/a runs/b -o a-b.html", false},
    {"status", ts_main_status, "RUN", 1, 1, "print where a run is, and which of its ranks are behind",
     "Reads what the run writes into RUN/status every few seconds: its job, its step and speed, the newest checkpoint, "
     "per node "
     "the ranks, their steps and the age of the last heartbeat (by the file system's clock), and the ranks that others "
     "wait for, "
     "with the collective they did not reach.  A run that says nothing is dead, or suspended where Slurm or this "
     "machine knows it.  "
     "Works from any machine that sees the directory, while the run goes on and after "
     "it.  Exit code 0 whatever the state is, 2 when there is no such run.",
     status_options, "tessera status runs/kjv", false},
    {"watch", ts_main_watch, "RUN", 1, 1, "show a run as it goes, in a terminal",
     "Draws what the run writes, again every few seconds, until the run has ended: progress, the curves of loss and "
     "speed, means "
     "of the last 100 steps, MFU, memory, ranks that others wait for, experts, and the last messages (RUN/log.txt).  "
     "Any "
     "size of "
     "terminal will do; what matters least is left out first.  q, or Ctrl-C where no keys can be read, ends the view, "
     "not the run.  Where standard output is "
     "no "
     "terminal, or TERM=dumb, plain lines are printed, one when there is something new.  NO_COLOR in the environment "
     "turns colours off.  Needs nothing but the run's directory: any machine that sees it, over ssh too.  Exit code 0 "
     "when the run has finished or stopped, 1 when it has failed, 2 when there is no such run; a run without a "
     "heartbeat "
     "is waited for.",
     watch_options, "tessera watch runs/kjv", false},
    {"verify", ts_main_verify, "RUN|CHECKPOINT", 1, 1, "check that checkpoints are what was written",
     "Reads every file of a checkpoint, or of all checkpoints of a run and its `latest`, and compares size and hash "
     "with "
     "the manifest, and the index in model.h5 with both.  A line each says intact or damaged; the reasons follow on "
     "standard error.  Exit code 0 when all is intact, 2 when something is not.",
     verify_options, "tessera verify runs/kjv", false},
    {"deck", ts_main_deck, "DECK", 1, 1, "print a deck as it is understood, or one value of it",
     "Reads the deck with what it refers to and what --set changes, checks it, and prints it complete, with every "
     "default but run.peer_timeout, run.step_timeout and run.first_step_timeout: what is printed is set where it is "
     "read.  A wrong deck ends with exit code 2: a check before a job is queued.",
     deck_options, "tessera deck big.cfg --set run.steps=50 --key run.directory", false},
    {"keys", ts_main_keys, "", 0, 0, "list every key of a deck: meaning, default, what is accepted",
     "All keys of DeepSpeed 0.19.8 are in the list, each with whether it works, has no effect here and why, or is "
     "refused.",
     keys_options, "tessera keys | less", false},
    {"zero_to_fp32", ts_main_zero_to_fp32, "CHECKPOINT|RUN OUTPUT", 2, 2,
     "turn a checkpoint into one model file or directory",
     "Streams the parameters (the fp32 masters) out of the shards of the checkpoint, a few MB of memory at a time, and "
     "meanwhile hashes every byte of every file against the manifest: OUTPUT is there when all was intact.  With "
     "--format safetensors OUTPUT is a directory that transformers' from_pretrained opens: config.json, tied weights "
     "once, the tokenizer of the directory the run began from.  OUTPUT appears complete or not at all.  DeepSpeed's "
     "spellings of the options are taken, with underscores too.  Also installed as a program of this name.",
     consolidate_options, "zero_to_fp32 runs/kjv kjv-hf --format safetensors --dtype bf16", false},
    {NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, false}};
