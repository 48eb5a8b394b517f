#!/bin/sh
# TAP: another compiler.  The kernels that this processor takes and in which vectors differ most are built with clang, where
# there is one, and pass their tests; so is the rest, which with the tests is the build's here, with TEST_CLANG_ALL; and configure names the
# package of clang's OpenMP where that is not there.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL
srcdir=$top
export MPICH_CC=clang OMPI_CC=clang srcdir
mpicc=${MPICC:-mpicc}

none() {
  echo "1..0 # SKIP $1"
  exit 0
}
command -v clang > /dev/null || none "clang is not installed"
$mpicc --version 2>&1 | grep -q clang || none "$mpicc does not take another compiler"
echo 'int main(void) { return 0; }' > program.c
$mpicc -fopenmp -o program program.c 2> /dev/null || none "clang's OpenMP is not installed (Debian: libomp-dev)"

# long COMMAND...: as run, for what takes more than a minute on a busy machine.
long() {
  timeout -k 5 500 nice "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null
  status=$?
}

# -O2 vectorises more, -O1 what is marked for it, and takes half the time.  What gcc has built with sanitizers clang cannot
# link.
build=$(dirname "$tessera")
all=${TEST_CLANG_ALL:-}
grep -q '^TS_SANITIZE = *$' "$build/Makefile" || all=1
flags=-O1
[ -z "$all" ] || flags=-O2
long "$top/configure" -q --cache-file=cache CC="$mpicc" CFLAGS=$flags --without-cuda --without-pmix
ok "configure" gave 0
tests="ops/test_ops cpu/test_vector"
[ -z "$all" ] || tests="cpu/test_attention cpu/test_head cpu/test_matmul $tests"
given=
if [ -z "$all" ]; then
  other=v4
  ! grep -q avx512vl /proc/cpuinfo || other=v3
  for library in libtessera_train.a libtessera.a libcpu_generic.a libcpu_$other.a; do
    cp "$build/$library" .
    given="$given -o $library"
  done
  own=0
  for object in "$build"/src/backend/cpu/libcpu_v[34]_a-*.o "$build"/regression/ops/*.o; do
    [ -e "$object" ] || continue
    object=${object#"$build/"}
    case $object in
      *$other*) continue ;;
      *_pointwise.o | *_rope.o | *_norm.o | *_sum.o | *_optimizer.o | *_lookup.o | *_merge.o)
        own=$((own + 1))
        continue
        ;;
    esac
    mkdir -p "${object%/*}"
    cp "$build/$object" "$object"
    given="$given -o $object"
  done
  ok "seven files of kernels are clang's" [ $own -eq 7 ]
fi
# shellcheck disable=SC2046,SC2086 # words
long make -s -j2 $given $(printf 'regression/%s ' $tests)
ok "everything is compiled" gave 0
ok "without a warning" is "$(grep -c 'warning:' "$scratch/err")" 0
# What vectors differ in most; TEST_CLANG_ALL, with any value, is for all ops, and all tests of kernels.
some=glu,activation,rope,layernorm,rmsnorm,rmsnorm_dx,sum_squares,update_elements,embedding_dw,attention_merge
for test in $tests; do
  only=
  [ "$test" != ops/test_ops ] || [ -n "$all" ] || only=$some
  long env ${only:+"TEST_ONLY=$only"} "$top/regression/run_test" regression/$test
  ok "${test#*/}" gave 0
  ok "${test#*/}: nothing failed" is "$(grep -c '^not ok' "$scratch/out")" 0
done
mkdir missing
sed 's/^\(ac_cv_prog_c_openmp=\).*/\1unsupported/' cache > missing/cache
cd missing || exit 1
long "$top/configure" -q --cache-file=cache CC="$mpicc" CFLAGS=$flags --without-cuda --without-pmix
ok "a compiler without OpenMP: configure names the package" said 1 'OpenMP through CC=.*Debian: libomp-dev for clang'
finish
