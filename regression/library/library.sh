#!/bin/sh
# TAP: the installed library, for programs outside of the tree: what is installed, C, C++ and Fortran by pkg-config against
# the shared object and the archive, and a program that does everything wrongly.
# shellcheck source=regression/cli_common.sh
# shellcheck disable=SC2086,SC2046
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
status=0
: > "$scratch/out"
: > "$scratch/err"
prefix=$scratch/place
long() {
  timeout -k 5 500 env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null
  status=$?
}
config() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --define-variable=prefix="$prefix" "$@" tessera; }
there() { for file in "$@"; do [ -f "$prefix/$file" ] || { echo "$file"; return 1; }; done; }
of_make() { sed -n "s/^$1 = //p" "$build/Makefile"; }
sanitize=$(of_make TS_SANITIZE)

long make -s -C "$build" install prefix="$prefix"
ok "make install" gave 0
ok "header, archive, shared object, examples" there include/tessera.h lib/libtessera.a lib/libtessera.so lib/libtessera.so.0 \
  share/doc/tessera/examples/first.c
ok "pkg-config names them" is "$(config --cflags --libs | tr -s ' ' | sed 's/ *$//')" "-I$prefix/include -L$prefix/lib -ltessera"

# ---- names ----

names_of_header() { sed 's/;$//' "$build/lib/tessera.functions" | sort; }
exported() { nm "$@" | awk '$2 ~ /^[TDBRVWi]$/ { print $3 }' | sort; }
names_of_header > header.names
exported -D --defined-only "$prefix/lib/libtessera.so" > shared.names
exported -g --defined-only "$prefix/lib/libtessera.a" > archive.names
ok "the shared object exports what the header has, and nothing else" cmp header.names shared.names
ok "so does the archive" cmp header.names archive.names
of_runs=$(nm "$prefix/lib/libtessera.a" | grep -c ' U sigaction$\|ts_stop_\|ts_watch_\|ts_train$')
ok "it sets no handler of signals, and has nothing else of a run's" is "$of_runs" 0
of_ours=$(sed 's/[^a-zA-Z0-9_ ].*//' "$prefix/include/tessera.h" | grep -c '^#include "')
ok "the header needs none of the tree's" is "$of_ours" 0

# ---- programs ----

mpicc=$(config --variable=mpicc)
shared="$(config --libs) -Wl,-rpath,$prefix/lib"
static=$(config --static --libs | sed 's/-ltessera/-l:libtessera.a/')
example=$prefix/share/doc/tessera/examples
strict="-Wall -Wextra -Werror -pedantic $sanitize"
train() { run $mpiexec -n 2 "$1" "$example/first.cfg"; }

# learned NAME: the losses are those of the C program, the first is not the last, and nothing is said on stderr.
learned() {
  clean && cmp "$scratch/out" first.out && [ "$(grep -c '^step .* loss' first.out)" -eq 6 ] &&
    awk 'NR == 1 { first = $4 } END { exit !($4 < first / 100) }' first.out
}
long $mpicc -std=c11 $strict "$example/first.c" -o first $(config --cflags) $shared
ok "C: compiles outside of the tree" clean
train ./first
cp "$scratch/out" first.out
ok "C: two ranks learn" learned
long $mpicc -std=c11 $strict "$example/first.c" -o archive $(config --cflags) $static
ok "C: against the archive" clean
train ./archive
ok "C: the archive's numbers" learned
run $mpiexec -n 1 ./first "$example/first.cfg" train_micro_batch_size_per_gpu=8
ok "C: one rank learns" clean

run $mpiexec -n 2 ./first "$example/first.cfg" zero_optimization.contiguous_gradients=true
ok "C: a key without effect is told once, with the reason" both 'gave 0' \
  '[ "$(grep -c "contiguous_gradients: no effect" "$scratch/err")" -eq 1 ]'

if command -v mpicxx > /dev/null; then
  long mpicxx -std=c++17 $strict "$top/regression/library/first.cc" -o cxx $(config --cflags) $shared
  ok "C++: compiles" clean
  train ./cxx
  ok "C++: the numbers of C" learned
else
  skip "C++: compiles" "there is no mpicxx"
fi
if command -v mpifort > /dev/null && [ -z "$sanitize" ] && printf 'use mpi\nend\n' > try.f90 && mpifort try.f90 -o try 2> /dev/null; then
  long mpifort -Wall -Wno-unused-dummy-argument -Werror "$example/first.f90" -o fortran $shared
  ok "Fortran: compiles" clean
  train ./fortran
  ok "Fortran: the numbers of C" learned
else
  skip "Fortran: compiles" "there is no mpifort with the module mpi, or sanitizers are on"
fi

# ---- real use, to the losses of torch (make_examples.py) ----

# near NAME: each line is torch's, to 1e-5: losses are printed to 1e-6, and sums are added in another order.
near() {
  clean && sed -n "s/^$1 //p" "$top/regression/library/examples.txt" | tr -s ' ' > torch.out &&
    tr -s ' ' < "$scratch/out" > plain.out && awk '
      NR == FNR { torch[NR] = $0; next }
      {
        d = $NF
        n = split(torch[FNR], its)
        d -= its[n]
        $NF = its[n]
        wrong += $0 != torch[FNR] || d > 1e-5 || d < -1e-5
        ++lines
      }
      END { exit wrong > 0 || lines < 9 || lines != NR - FNR }' torch.out plain.out
}
for name in two_tower distill; do
  long $mpicc -std=c11 $strict "$example/$name.c" -o $name $(config --cflags) $shared -lm
  ok "$name: compiles" clean
done
for n in 1 2; do
  for stage in 0 3; do
    run $mpiexec -n $n ./two_tower "$example/two_tower.cfg" zero_optimization.stage=$stage
    ok "two towers, chunks of a batch, $n ranks, stage $stage: torch's losses" near two_tower
    run $mpiexec -n $n ./distill "$example/teacher.cfg" "$example/student.cfg" zero_optimization.stage=$stage
    ok "distillation, $n ranks, stage $stage: torch's losses" near distill
  done
done
for name in two_tower distill; do
  decks=$example/two_tower.cfg
  [ $name = two_tower ] || decks="$example/teacher.cfg $example/student.cfg"
  run $mpiexec -n 2 ./$name $decks tensor_parallel.autotp_size=2
  ok "$name on ranks that share products: torch's losses" near $name
done

# ---- wrong calls ----

# refuses WHAT EXPRESSION: both ranks have a status and the same message, and end by themselves.
refuses() {
  run $mpiexec -n 2 ./wrong "$1"
  clean && grep -Eq "^2: .*$2" "$scratch/out" && [ "$(grep '^2: ' "$scratch/out" | sort -u | wc -l)" -eq 1 ] &&
    [ "$(grep -c '^2: ' "$scratch/out")" -eq 2 ]
}
long $mpicc -std=c11 $strict "$top/regression/library/wrong.c" -o wrong $(config --cflags) $shared
ok "a program that is wrong: compiles" clean
ok "joins before MPI runs" refuses early 'MPI does not run: call MPI_Init_thread'
ok "too low a thread level" refuses threads 'MPI_THREAD_FUNNELED.*MPI_THREAD_SERIALIZED'
ok "an unknown key" refuses key 'no.such_key'
ok "a batch that does not divide" refuses batch '7 is not a multiple'
ok "abilities that need another" refuses ability 'add TS_CAN_STEP'
ok "no model for a deck of \"own\"" refuses model 'model.model_type'
ok "a model whose shapes do not fit" refuses shapes 'inputs have one dtype and shape'
ok "a leaf module that is none" refuses leaf '"Block" names no module'
ok "whole steps without a loss" refuses loss 'no loss'
ok "a backward before a forward" refuses order 'call ts_forward before'
ok "an input that the model has not" refuses input 'no input z'

finish
