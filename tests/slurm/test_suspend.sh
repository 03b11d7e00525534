#!/bin/bash
# `scontrol suspend` for longer than the stall timeout kills nothing: deadlines count running time.  The job goes on, and all results are right.
. "${0%/*}/lib.sh"
CLUSTER_CPUS=2 cluster_start
stall_ms=3000 seconds=12
[ -z "${LONG:-}" ] || { stall_ms=10000 seconds=60; }
ranks=/mnt/tree/build/tests/faults/fault_rank
[ -x "$TREE/build/tests/faults/fault_rank" ] || fail "build/tests/faults/fault_rank is not built: make unit-tests"

# For eight seconds of running time, collectives in a loop over both transports, each result checked.
as_user env SYNCTRAIN_TIMEOUT_MS=$stall_ms SYNCTRAIN_ARRIVAL_TIMEOUT_MS=$stall_ms srun --mpi=pmix -N4 --ntasks-per-node=2 "$ranks" 8 > "$SCRATCH/out" 2>&1 &
wait_until 30 bash -c '[ "$(grep -c ready "$1")" = 8 ]' - "$SCRATCH/out" || fail "the job does not start: $(cat "$SCRATCH/out")"
job=$(as_user squeue -h -o %A -t RUNNING | head -n 1)
in_cluster_as_root scontrol suspend "$job" || fail "scontrol suspend $job"
sleep "$seconds"
stopped=$(in_cluster_as_root bash -c 'for p in /proc/[0-9]*; do [ "$(cat $p/comm 2> /dev/null)" = fault_rank ] && grep "^State:" $p/status; done | sort | uniq -c')
expect_match "all ranks are stopped" '^ *8 State:	T' "$stopped"
in_cluster_as_root scontrol resume "$job" || fail "scontrol resume $job"
wait %1 && code=0 || code=$?
expect "suspended for $seconds s under a stall timeout of $((stall_ms / 1000)) s, the job ends well" "0: " "$code: $(grep -v -e ready -e "rounds: $" "$SCRATCH/out" | head -n 3)"
expect "nobody was blamed" 8 "$(grep -c 'ended rank [0-7], [1-9][0-9]* rounds: $' "$SCRATCH/out")"
pass
