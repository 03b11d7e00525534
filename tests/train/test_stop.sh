#!/bin/bash
# Signals and time limits: all ranks stop after the same step, save, and exit 75; started again they go on as if nothing had been.
. tests/train/lib.sh

well train 4 steps=100 log.file=whole.log
slow="debug.delay.rank=1 debug.delay.milliseconds=20"

stopped() { # WHAT
	says "stopped by $1 at rank [0-9]+ after step [0-9]+: checkpoint run/step-[0-9]+"
	[ "$(grep -c 'stopped by' out)" = 1 ] || { cat out; fail "more than one line for one stop"; }
	step=$(ls run | sed 's/step-0*//')
	[ "$step" -gt 0 ] && [ "$step" -lt 100 ] || fail "saved after step $step"
	echo "$1: stopped after step $step"
}

# A signal to one rank only, rank 2: the others learn of it by the vote.
cat >rank.sh <<'END'
[ "$RANK" = 2 ] && echo $$ >rank2.pid
exec synctrain train "$@"
END
for signal in USR1 TERM; do
	rm -rf run log rank2.pid
	# shellcheck disable=SC2086
	ranks 4 bash rank.sh tiny.json steps=100 checkpoint.directory=run log.file=log $slow >out 2>&1 &
	job=$!
	for _ in $(seq 300); do
		grep -q '"step":10,' log 2>/dev/null && break
		sleep 0.1
	done
	kill -$signal "$(cat rank2.pid)"
	code=0
	wait $job || code=$?
	[ "$code" = 75 ] || { cat out; fail "SIG$signal: exit $code, expected 75"; }
	stopped "SIG$signal"
	says 'at rank 2'
	well train 4 steps=100 checkpoint.directory=run log.file=log
	[ "$(losses log)" = "$(losses whole.log)" ] || { diff <(losses log) <(losses whole.log); fail "losses differ after SIG$signal and resume"; }
done

# Time limits: the configuration's, and the job's.
rm -rf run
# shellcheck disable=SC2086
exits 75 train 4 steps=100 checkpoint.directory=run time_limit.seconds=60.5 time_limit.margin=60 $slow
stopped 'time_limit.seconds = 60.5'
rm -rf run
export SLURM_JOB_END_TIME=$(($(date +%s) + 31))
# shellcheck disable=SC2086
exits 75 train 2 steps=100 checkpoint.directory=run time_limit.margin=30 $slow
stopped "the job's time limit"

# Without a directory nothing is saved, and that is said.
# shellcheck disable=SC2086
exits 75 train 2 steps=100 time_limit.margin=60 $slow
says 'after step 1: nothing was saved, checkpoint.directory is not set'
