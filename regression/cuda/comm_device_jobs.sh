#!/bin/sh
# TAP: communicators of devices that fail, on the stand-in: the job ends at once with a message that names the rank, the
# group, the collective and the reason.
if [ ! -x regression/shim/test_comm_device_shim ]; then
  echo "1..0 # SKIP the stand-in is not built here"
  exit 0
fi
results=0
failures=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT
export TEST_TIME_LIMIT=0 SHIM_DEVICES=4 OMP_NUM_THREADS=1

# fails PATTERN NAME VARIABLE=VALUE... -- RANKS JOB: within 20 seconds the job fails by itself and says PATTERN.
fails() {
  pattern=$1 name=$2
  shift 2
  assignments=
  while [ "$1" != -- ]; do
    assignments="$assignments $1"
    shift
  done
  timeout -k 5 20 env $assignments "${MPIEXEC:-mpiexec}" -n "$2" regression/shim/test_comm_device_shim "$3" > "$output" 2>&1 < /dev/null
  status=$?
  results=$((results + 1))
  if [ $status -ne 0 ] && [ $status -lt 124 ] && grep -q "$pattern" "$output"; then
    echo "ok $results - $name"
  else
    failures=$((failures + 1))
    echo "not ok $results - $name"
    echo "# status $status, expected: $pattern"
    sed 's/^/# /' "$output"
  fi
}

fails "^tessera: rank 1 on .*4 ranks (0, 1, 2, 3): waiting for the device: remote process exited.*told that a peer is dead.*all_gather, op a.node" \
  "a peer dies while this rank waits" SHIM_NCCL_ERROR=1:6 -- 4 error
fails "^tessera: rank 0 on .*2 ranks (0, 1): ncclSend.*remote process exited.*number 2, reduce_scatter, op first connections" \
  "a peer dies while this rank queues" SHIM_NCCL_ERROR=0:1 -- 2 error
fails "connecting: not done after 1 s.*it was being made" "a peer does not come" SHIM_NCCL_STALL=1 TEST_TIME_LIMIT=1 -- 2 error
fails "waiting for the device: nothing came for 1 s.*number 5, exchange, op first connections" "work that never ends" \
  SHIM_STUCK=1 TEST_TIME_LIMIT=1 -- 2 error
fails "waiting for the device: nothing came for 1 s" "a limit that is known once the device is open" \
  SHIM_STUCK=1 -- 2 limited
fails "rank 1 is in all_gather of 198 elements while rank 0 is in all_gather of 200 elements" "ranks that differ" -- 2 mismatch
echo "1..$results"
exit $((failures > 0))
