# Sourced by the tests of the command line: TAP, a directory to work in, a small deck and a text to learn.
tessera=$(pwd)/tessera
top=$(cd "${srcdir:-.}" && pwd)
mpiexec=${MPIEXEC:-mpiexec}
results=0
failures=0
scratch=$(mktemp -d)
work=$scratch/work
mkdir "$work"
trap 'rm -rf "$scratch"' EXIT
cd "$work" || exit 1

# ok NAME COMMAND...: one result, by the exit status of COMMAND; what it prints is shown when it fails.
ok() {
  results=$((results + 1))
  name=$1
  shift
  if "$@" > "$scratch/why" 2>&1; then
    echo "ok $results - $name"
  else
    failures=$((failures + 1))
    echo "not ok $results - $name"
    { echo "$*"; cat "$scratch/why"; echo "status $status"; tail -n 20 "$scratch/out" "$scratch/err"; } | sed 's/^/# /'
  fi
}

skip() {
  results=$((results + 1))
  echo "ok $results - $1 # SKIP $2"
}

finish() {
  echo "1..$results"
  exit $((failures > 0))
}

# hdf5 NAME COMMAND...: a result by what one of HDF5's tools says; skipped where it is not installed.
hdf5() {
  what=$1
  shift
  if command -v "$1" > /dev/null; then
    run "$@"
    ok "$what" gave 0
  else
    status=127
    skip "$what" "$1 is not installed (Debian: hdf5-tools)"
  fi
}

# run COMMAND...: keeps stdout, stderr and the exit status; a hang is status 124.
run() {
  timeout -k 5 60 "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null
  status=$?
}

# both COMMAND COMMAND, each one word.
both() { eval "$1" && eval "$2"; }
is() { [ "$1" = "$2" ]; }
gave() { [ "$status" -eq "$1" ]; }
# A clean end: exit 0 and nothing on stderr.
clean() { gave 0 && [ ! -s "$scratch/err" ]; }
# gave STATUS and a line that matches an expression
printed() { gave 0 && grep -Eq -e "$1" "$scratch/out"; }
said() { gave "$1" && grep -Eq -e "$2" "$scratch/err"; }

write_text() {
  i=0
  while [ $i -lt 300 ]; do
    i=$((i + 1))
    echo "line $i: the quick brown fox jumps over the lazy dog $((i * i))"
  done > text.txt
}

write_deck() {
  cat > tiny.cfg << 'END'
model = { model_type = "llama"; vocab_size = 256; hidden_size = 32; intermediate_size = 48; num_hidden_layers = 2;
          num_attention_heads = 4; num_key_value_heads = 2; max_position_embeddings = 64; tie_word_embeddings = true; };
data = { path = "text.txt"; format = "text"; sequence_length = 32; validation_fraction = 0.1; seed = 1; };
run = { directory = "run"; steps = 6; seed = 1; evaluate_every = 3; threads = 1; log_every = 2; };
train_batch_size = 4;
optimizer = { type = "AdamW"; params = { lr = 1e-2; }; no_decay = ["norm"]; };
gradient_clipping = 1.0;
END
}

write_text
write_deck
