#!/bin/sh
# TAP: a rank that fails, or does something else than the others, ends the job at once with a message that says who.
results=0
failures=0

# expect HOW RANKS PATTERN NAME: the job fails within 20 seconds and says PATTERN on stderr.
expect() {
  results=$((results + 1))
  timeout -k 5 20 ${MPIEXEC:-mpiexec} -n "$2" regression/test_comm "$1" > "$output" 2>&1 < /dev/null
  status=$?
  if [ $status -ne 0 ] && [ $status -lt 124 ] && grep -q "$3" "$output"; then
    echo "ok $results - $4"
  else
    failures=$((failures + 1))
    echo "not ok $results - $4"
    echo "# status $status, expected: $3"
    sed 's/^/# /' "$output"
  fi
}

output=$(mktemp)
trap 'rm -f "$output"' EXIT
expect die 2 "^tessera: rank 1 on .*: rank 1 must die" "a rank that dies while another waits"
expect die 4 "^tessera: rank 1 on .*: rank 1 must die" "a rank that dies while three others wait"
expect mismatch 3 "rank 1 is in reduce_scatter of 3 elements while rank 0 is in all_gather of 3 elements" \
  "different collectives: the agreement names ranks and calls"
expect size 2 "than the [48] bytes expected: the ranks are not in the same collective" \
  "different sizes: noticed without the agreement"
echo "1..$results"
exit $((failures > 0))
