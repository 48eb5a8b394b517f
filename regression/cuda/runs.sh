# Sourced by the tests of training on a GPU: on the stand-in of one (regression/shim) or, with TEST_DEVICE=real, on the machine's own.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"
cpu=$tessera
share=
if [ "${TEST_DEVICE:-}" = real ]; then
  share="--set run.share_device=true"
  clean() { gave 0; } # its libraries may say something
else
  tessera=$(dirname "$cpu")/regression/shim/tessera_shim
  if [ ! -x "$tessera" ]; then
    echo "1..0 # SKIP no C++ compiler for the stand-in"
    exit 0
  fi
fi
export SHIM_DEVICES=4 OMP_NUM_THREADS=1

cat > deck.cfg << 'END'
model = { model_type = "gpt2"; vocab_size = 256; n_embd = 24; n_layer = 2; n_head = 3; n_positions = 32;
          attn_pdrop = 0.1; embd_pdrop = 0.1; resid_pdrop = 0.1; };
data = { path = "text.txt"; format = "text"; sequence_length = 24; validation_fraction = 0.1; seed = 1; };
run = { directory = "run"; steps = 6; seed = 1; evaluate_every = 3; evaluate_batches = 2; threads = 1; log_every = 2; save_every = 3;
        device = "cuda"; measure_algorithms = false; };
train_batch_size = 4; gradient_accumulation_steps = 2;
optimizer = { type = "AdamW"; params = { lr = 1e-2; weight_decay = 0.1; }; no_decay = ["ln_", "bias"]; };
gradient_clipping = 1.0;
zero_optimization = { stage = 1; overlap_comm = true; stage3_param_persistence_threshold = 100; };
debug = { digest_every = 1; };
END

# train RANKS DIRECTORY [WORD]...
train() {
  n=$1
  directory=$2
  shift 2
  run $mpiexec -n "$n" "$tessera" train deck.cfg --set "run.directory=$directory" $share "$@"
}
within() { [ $(($3 - $2)) -ge 0 ] && [ $(($3 - $2)) -lt "$1" ]; }
same() { "$cpu" compare "$@"; }
# same_numbers DIRECTORY: its two ranks have entered as many collectives of the group of all, 0.
same_numbers() { grep -Eho ' 0:[1-9][0-9]*$' "$1"/status/[!@]* | sort | uniq -c | grep -Eq '^ *2 '; }
# close DIRECTORY DIRECTORY TOLERANCE: losses and norms of all steps.
close() {
  paste -d, "$1/metrics.csv" "$2/metrics.csv" | awk -F, -v most="$3" '
    NR == 1 { for (i = 1; i <= NF / 2; ++i) { if ($i == "loss" || $i == "grad_norm") { column[i] = 1 } } half = NF / 2; next }
    { for (i in column) { d = ($i - $(i + half)) / $i; d = d < 0 ? -d : d; worst = d > worst ? d : worst } ++n }
    END { print n " rows, " worst; exit !(n > 0 && worst <= most) }'
}

# A line that standard error or output has.
told() { grep -qE "$1" "$scratch/err" "$scratch/out"; }
