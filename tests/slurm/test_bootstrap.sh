#!/bin/bash
# Ranks under Slurm's own PMIx server: they meet, know their nodes and job, and survive nothing they should not.
. "${0%/*}/lib.sh"
need_programs mpirun
cluster_start
ranks=/mnt/tree/build/tests/test_control_ranks
[ -x "$TREE/build/tests/test_control_ranks" ] || fail "build/tests/test_control_ranks is not built: make unit-tests"

count() { grep -c -- "$1" <<< "$output"; }                  # REGEX: lines of $output that match

# ---- they meet -------------------------------------------------------------------------------------------------------
expect_code "eight ranks on four nodes start" 0 as_user srun --mpi=pmix -n 8 -N 4 "$ranks" rank start 0
expect "each is ready" 8 "$(count 'ready rank [0-7] of 8 node node[1-4] ([0-3] of 4)')"
expect "each knows job.step.restart" 8 "$(count 'job [0-9]*\.0\.0:')"
grep 'rank 0 ' <<< "$output"
expect_code "cyclic ranks start too" 0 as_user srun --mpi=pmix -n 7 -N 3 -m cyclic "$ranks" rank start 0
expect "each is ready" 7 "$(count 'ready rank')"
expect_code "mpirun inside an allocation starts them as well" 0 as_user salloc -Q -n 4 -N 2 mpirun --oversubscribe -n 4 "$ranks" rank start 0
expect "each is ready" 4 "$(count 'ready rank [0-3] of 4')"
expect_code "one task needs no PMIx" 0 as_user srun --mpi=none -n 1 "$ranks" rank start 0
expect "it is alone" 1 "$(count 'ready rank 0 of 1')"
expect_code "synctrain run inside a batch allocation" 0 as_user salloc -Q -n 3 -N 1 /mnt/tree/build/bin/synctrain run -n 3 "$ranks" rank start 0
expect "each is ready" 3 "$(count 'ready rank [0-2] of 3')"

# ---- without PMIx: no silent jobs of one rank ------------------------------------------------------------------------
expect_code "several tasks without PMIx are refused" 1 as_user srun --mpi=none -n 4 -N 2 "$ranks" rank start 0
expect "each says how to launch" 4 "$(count 'srun --mpi=pmix')"
expect "none ran alone" 0 "$(count 'ready rank')"

# ---- deaths ----------------------------------------------------------------------------------------------------------
# Ranks have left Slurm's PMIx by then, so Slurm does not kill the step: everybody lives to name the culprit.
for victim in 0 3 5; do
	as_user srun --mpi=pmix -K0 -n 6 -N 3 --ntasks-per-node=2 "$ranks" rank kill $victim > "$SCRATCH/out" 2>&1
	output=$(cat "$SCRATCH/out")
	[ "$(count "verdict: rank $victim on node$((victim / 2 + 1)) died")" = 5 ] || fail "kill of rank $victim: $output"
	echo "ok    all five name rank $victim"
done
as_user srun --mpi=pmix -K0 -n 4 -N 2 --ntasks-per-node=2 timeout -s KILL 20 "$ranks" rank stop 2 > "$SCRATCH/out" 2>&1
output=$(cat "$SCRATCH/out")
[ "$(count 'verdict: rank 2 on node2 is unreachable')" -ge 3 ] || fail "stop of rank 2: $output"
echo "ok    a stopped rank is found"

# ---- suspension is not a death ---------------------------------------------------------------------------------------
as_user env STALL_MS=2000 srun --mpi=pmix -n 4 -N 2 "$ranks" rank linger 0 > "$SCRATCH/out" 2>&1 &
wait_until 20 grep -q 'lingering' "$SCRATCH/out" || fail "the ranks do not linger: $(cat "$SCRATCH/out")"
job=$(as_user squeue -h -o %A -t RUNNING | head -1)
in_cluster_as_root scontrol suspend "$job" || fail "scontrol suspend $job"
sleep 6
in_cluster_as_root scontrol resume "$job" || fail "scontrol resume $job"
wait %1 && code=0 || code=$?
output=$(cat "$SCRATCH/out")
[ "$code" = 0 ] && [ "$(count 'lingered')" = 4 ] || fail "suspended job: exit $code: $output"
echo "ok    a job that was suspended for three stall timeouts goes on"
pass
