#!/bin/sh
# TAP: the tests of products, attention and head as on lesser processors, down to one without AVX.
results=0
failures=0
for setting in ONEDNN_MAX_CPU_ISA=AVX512_CORE ONEDNN_MAX_CPU_ISA=AVX2 TESSERA_ISA=v3 TESSERA_ISA=generic; do
  tests=matmul
  case $setting in
    *v3) tests="head attention" ;;                  # attention has no product of oneDNN, matmul little else
    TESSERA_ISA=*) tests="$tests head attention" ;;
    *AVX2) tests="$tests head" ;;                    # made of products: one of oneDNN's other choices is enough
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
