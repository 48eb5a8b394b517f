#!/bin/sh
# TAP: the tests of products, attention and head as on lesser processors, down to one without AVX, and with bf16 by
# instructions and widened; TEST_ISA_ALL, with any value, is for all of them on each.
results=0
failures=0
for setting in ONEDNN_MAX_CPU_ISA=AVX512_CORE ONEDNN_MAX_CPU_ISA=AVX2 TESSERA_ISA=v3 TESSERA_ISA=generic \
  TESSERA_BF16=instructions TESSERA_BF16=widened; do
  tests="matmul head attention"
  case ${TEST_ISA_ALL:+all}$setting in
    *AVX512_CORE) [ -n "${TEST_ISA_ALL:-}" ] || continue ;; # of oneDNN's choices one is enough
    ONEDNN*) tests=matmul ;;
    TESSERA_ISA=v3) tests="attention" ;; # it has the products of kernels, head the loops
    TESSERA_ISA=generic) tests="head" ;;
    TESSERA_BF16=instructions) tests="matmul attention" ;; # which is what some processors do by themselves
    TESSERA_BF16=widened) [ -n "${TEST_ISA_ALL:-}" ] || continue ;; # as on all without instructions
  esac
  for test in $tests; do
    results=$((results + 1))
    if output=$(env $setting regression/cpu/test_$test 2>&1); then
      echo "ok $results - $test with $setting"
    elif echo "$output" | grep -q "processor does not have it"; then
      echo "ok $results - $test with $setting # SKIP this processor does not have it"
    else
      failures=$((failures + 1))
      echo "not ok $results - $test with $setting"
      echo "$output" | grep -v '^ok' | sed 's/^/#   /'
    fi
  done
done
echo "1..$results"
[ "$failures" -eq 0 ]
