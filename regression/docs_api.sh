#!/bin/sh
# TAP: doc/api.md and doc/migrate.md are about this tree.  Every function of the library is in api.md, every name and every
# key that either has is there, and what is said to be refused or without effect is so.  The programs of api.md compile;
# the whole one trains on two ranks with the deck that stands below it.
# shellcheck source=regression/cli_common.sh
# shellcheck disable=SC2016
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
status=0
: > "$scratch/out"
: > "$scratch/err"
api=$top/doc/api.md
migrate=$top/doc/migrate.md
functions=$build/lib/tessera.functions
header=$build/lib/tessera.h
compiler="$(sed -n 's/^CC = //p' "$build/Makefile") $(sed -n 's/^TS_SANITIZE = //p' "$build/Makefile")"

# empty TEXT: else TEXT is what is wrong.
empty() { [ -z "$1" ] || { echo "$1"; false; }; }

# What stands between backquotes in a document, a line each; code blocks are not prose.
quoted() { sed '/^```/,/^```/d; /^    /d' "$1" | grep -o '`[^`]*`' | tr -d '`'; }

# ---- names ----

untold_functions() {
  while read -r name; do
    grep -qw "$name" "$api" || echo "doc/api.md: nothing of $name"
  done < "$functions"
}

# Types and enumerators too, so the header is asked.
unknown_names() {
  for document in "$api" "$migrate"; do
    grep -oE '\b(ts|TS)_[A-Za-z0-9_]*[a-zA-Z0-9]' "$document" | sort -u | while read -r name; do
      grep -qw "$name" "$header" || echo "${document##*/}: $name is not in tessera.h"
    done
  done
}

# Calls that are written out have as many arguments as the prototype.
miscounted_calls() {
  quoted "$api" | sed -n '/\.\.\./d; s/^\(ts_[a-z0-9_]*\) (\(.*\))$/\1 \2/p' | sort -u | while read -r name arguments; do
    wanted=$(tr '\n' ' ' < "$header" | grep -oE "\\b$name\\([^)]*\\);" | head -n 1 | tr -cd , | wc -c)
    [ "$(echo "$arguments" | tr -cd , | wc -c)" -eq "$wanted" ] || echo "api.md: $name ($arguments)"
  done
}

# ---- keys ----

# A key is dotted words of which the first is a section, or what is set to a value (with blanks: without, it is an argument
# of Python's).
keys_of() {
  quoted "$1" | grep -oE '^[a-z][A-Za-z0-9_]*((\[\])?\.[a-z][A-Za-z0-9_]*)*( = .*)?$' | grep -v '\.h5$' | while read -r word; do
    key=${word%% *}
    case $word in
      *\ =\ *) echo "$key" ;;
      *.*) ! grep -qx "${key%%[.[]*}" sections || echo "$key" ;;
    esac
  done | sort -u
}

# A key, or a section.
is_key() {
  awk -v key="$1" '$1 == key || index($1, key ".") == 1 || index($1, key "[]") == 1 { found = 1 } END { exit !found }' deck.lines
}

unknown_keys() {
  for document in "$api" "$migrate"; do
    keys_of "$document" | while read -r key; do
      is_key "$key" || echo "${document##*/}: $key is no key of a deck"
    done
  done
}

# Whatever is set to a value may have it, in a deck with a text of words.
refused_values() {
  for document in "$api" "$migrate"; do
    quoted "$document" | sed -n 's/;$//; s/^\([a-z][A-Za-z0-9_.]*\) = \(.*\)$/\1=\2/p' | grep -v '^model[.=]' | sort -u | while IFS= read -r set; do
      "$tessera" deck small.cfg --set "$set" > deck.out 2>&1 || echo "${document##*/}: $set: $(grep error deck.out)"
    done
  done
}

# `KEY`: refused, and `KEY`: no effect.
wrong_claims() {
  grep -ohE '`[^`]*`: (refused|no effect)' "$api" "$migrate" | tr -d '`' | sort -u | while IFS= read -r claim; do
    key=${claim%%: *}
    said=$(awk -v key="$key" '$1 == key { getline; print; exit }' deck.keys)
    case $said in
      *"    ${claim#*: }"*) ;;
      *) echo "$claim, but: $said" ;;
    esac
  done
}

claims() { grep -ohE '`[^`]*`: (refused|no effect)' "$api" "$migrate" | wc -l; }

# ---- the programs ----

# The Nth block of C of the page.
block() { awk -v wanted="$1" '/^```c$/ { ++n; inside = 1; next } /^```$/ { inside = 0 } inside && n == wanted' "$api"; }
compiles() { $compiler -std=c11 -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter -I"$build/lib" "$@"; }

# What stands behind the whole program uses what is in it.
test_blocks() {
  block 1 > prog.c
  ok "the program compiles" compiles -fsyntax-only prog.c
  for n in 2 3 4; do
    { cat prog.c && block "$n"; } > "part$n.c"
    ok "and with block $n" compiles -fsyntax-only "part$n.c"
  done
  ok "there is no other block" empty "$(block 5)"
}

# The page's deck, smaller, with a json that says nothing; fewer steps.
test_program() {
  sed -n '/^    model = {/,/^    deepspeed_config/s/^    //p' "$api" |
    sed 's/hidden_size = 256; intermediate_size = 688; num_hidden_layers = 6/hidden_size = 64; intermediate_size = 96; num_hidden_layers = 2/' > prog.cfg
  echo '{"gradient_accumulation_steps": 2}' > ds_config.json
  sed -i 's/step < 100/step < 4/' prog.c
  shared=$(echo "$build"/lib/libtessera.so.*)
  ln -s "$shared" libtessera.so.0
  ok "the program is linked" compiles prog.c "$shared" -o prog
  export LD_LIBRARY_PATH="$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  OMP_NUM_THREADS=1 run "$mpiexec" -n 2 ./prog
  ok "it trains" gave 0
  ok "four steps, to a smaller loss" awk '{ loss[NR] = $2 } END { exit !(NR == 4 && loss[4] < loss[1]) }' "$scratch/out"
  run "$tessera" verify run
  ok "and leaves a checkpoint" gave 0
}

"$tessera" keys > deck.keys
grep -v '^ ' deck.keys > deck.lines
sed 's/[.[ ].*//' deck.lines | sort -u > sections
ok "every function is told" both 'test -s "$functions"' 'empty "$(untold_functions)"'
ok "every name is one of the library" empty "$(unknown_names)"
ok "calls have the arguments that functions take" empty "$(miscounted_calls)"
ok "every key is one of the deck" empty "$(unknown_keys)"
cat > small.cfg << 'END'
model = { model_type = "llama"; vocab_size = 256; hidden_size = 16; intermediate_size = 16; num_hidden_layers = 1;
          num_attention_heads = 2; max_position_embeddings = 16; eos_token_id = 0; };
train_micro_batch_size_per_gpu = 1;
scheduler = { type = "WarmupLR"; };
END
echo '{}' > ds_config.json
ok "every value is one that its key may have" empty "$(refused_values)"
ok "$(claims) keys are refused, or have no effect, as it is said" both 'test "$(claims)" -gt 25' 'empty "$(wrong_claims)"'
test_blocks
test_program
finish
