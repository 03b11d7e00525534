#!/bin/bash
# `synctrain run`: output, environment, exit codes, signals, and that nothing is left however it ends.
set -u
command -v synctrain >/dev/null || { echo "synctrain is not in PATH: make, then PATH=build/bin:\$PATH"; exit 1; }
tmp=$(mktemp -d /tmp/synctrain-test-run-XXXXXX) || exit 1
export TMPDIR=$tmp/session
mkdir "$TMPDIR"
trap 'rm -rf "$tmp"' EXIT
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE OMP_NUM_THREADS
result=0
check() { # WHAT EXPECTED SEEN
	[ "$2" = "$3" ] && { echo "ok    $1"; return; }
	printf 'FAIL  %s\n  expected: %s\n  seen:     %s\n' "$1" "$2" "$3"
	result=1
}
run() { code=0; timeout 60 synctrain run "$@" >"$tmp/out" 2>"$tmp/err" || code=$?; }
nothing_left() { check "$1: no session directory" "" "$(ls "$TMPDIR")"; }
alive() { kill -0 "$1" 2>/dev/null && [ "$(cut -d' ' -f3 "/proc/$1/stat" 2>/dev/null)" != Z ]; }
wait_until() { for _ in $(seq 300); do "$@" && return; sleep 0.05; done; return 1; }
gone() { for pid; do alive "$pid" && return 1; done; return 0; }

# ---- output ----------------------------------------------------------------------------------------------------------
run -n 3 sh -c 'echo one; echo two >&2; printf tail'
check "exit code" 0 $code
check "whole lines with the rank" "[0] one [0] tail [1] one [1] tail [2] one [2] tail" "$(sort "$tmp/out" | xargs)"
check "standard error apart" "[0] two [1] two [2] two" "$(sort "$tmp/err" | xargs)"
nothing_left "success"
run -n 2 --no-prefix sh -c 'echo plain'
check "--no-prefix" "plain plain" "$(xargs <"$tmp/out")"
run -n 4 sh -c 'for i in $(seq 2000); do echo "rank $RANK line $i abcdefghijklmnopqrstuvwxyz"; done'
check "8,000 lines come whole" 8000 "$(grep -cE '^\[([0-3])\] rank \1 line [0-9]+ abcdefghijklmnopqrstuvwxyz$' "$tmp/out")"
check "and in each rank's order" "" "$(for r in 0 1 2 3; do grep "^\[$r\]" "$tmp/out" | awk -v r=$r '$5 != NR {print r, NR; exit}'; done)"
run -n 1 sh -c 'head -c 300000 /dev/zero | tr "\0" x; echo'
check "a line without end is cut, not lost" 300000 "$(tr -cd x <"$tmp/out" | wc -c)"
run -n 2 sh -c 'read line && echo got || echo none'
check "no input" "[0] none [1] none" "$(sort "$tmp/out" | xargs)"
{ timeout 60 synctrain run -n 2 sh -c 'seq 50000'; echo "code $?" >"$tmp/code"; } 2>/dev/null | head -n 1 >/dev/null
check "a reader that leaves harms no rank" "code 0" "$(cat "$tmp/code")"
for closed in '<&-' '>&-' '2>&-' '<&- >&- 2>&-'; do
	code=0
	eval "timeout 20 synctrain run -n 2 sh -c 'echo out; echo err >&2; : >\"\$TMPDIR/ran\$RANK\"' $closed" >/dev/null 2>&1 || code=$?
	check "with $closed: exit code" 0 $code
	check "with $closed: the ranks ran" "ran0 ran1" "$(ls "$TMPDIR" | xargs)"
	rm -f "$TMPDIR"/ran?
done

# ---- environment -----------------------------------------------------------------------------------------------------
run -n 5 --nodes 2 sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE'
check "ranks and local ranks" "[0] 0 0 5 3|[1] 1 1 5 3|[2] 2 2 5 3|[3] 3 0 5 2|[4] 4 1 5 2" "$(sort "$tmp/out" | paste -sd'|')"
run -n 1 sh -c 'echo $OMP_NUM_THREADS'
check "threads" "[0] $(nproc)" "$(cat "$tmp/out")"
OMP_NUM_THREADS=7 SYNCTRAIN_LOG=error MARK='a b' run -n 1 sh -c 'echo "$OMP_NUM_THREADS $SYNCTRAIN_LOG $MARK"'
check "what the user set stays" "[0] 7 error a b" "$(cat "$tmp/out")"
PMIX_RANK=99 PMIX_NAMESPACE=outer PMIX_SERVER_URI41=outer run -n 1 sh -c 'echo $PMIX_RANK; case $PMIX_NAMESPACE$PMIX_SERVER_URI41 in *outer*) echo outer;; esac'
check "an outer launcher's PMIx is not passed on" "[0] 0" "$(cat "$tmp/out")"
run -n 2 synctrain run -n 2 sh -c 'echo $PMIX_RANK'
check "a run in a run" 4 "$(grep -c . "$tmp/out")"
check "session directory is private" "[0] 700" "$(timeout 60 synctrain run -n 1 sh -c 'stat -c %a "$PMIX_SERVER_TMPDIR"')"

# ---- exit codes ------------------------------------------------------------------------------------------------------
run -n 3 sh -c 'exit $((RANK == 1 ? 42 : 0))'
check "first failure's code" 42 $code
check "and one line that says so" "synctrain run: rank 1 exited with code 42" "$(cat "$tmp/err")"
run -n 3 sh -c '[ $RANK = 2 ] && kill -9 $$; exit 1'
check "a signal counts before an exit" 137 $code
run -n 2 sh -c '[ $RANK = 0 ] && kill -SEGV $$; exit 0'
check "128 + signal" 139 $code
run -n 2 "$tmp/nonesuch"
check "not found" 127 $code
check "one line" 1 "$(wc -l <"$tmp/err")"
run -n 2 nonesuch-at-all
check "not found in PATH" 127 $code
run -n 2 /etc/passwd
check "not executable" 126 $code
nothing_left "not started"
printf 'echo script $1\n' >"$tmp/script"
chmod +x "$tmp/script"
run -n 1 "$tmp/script" arg
check "a script without #! runs" "[0] script arg" "$(cat "$tmp/out")"
for bad in "" "-n" "-n 0 true" "-n x true" "-n 2.5 true" "-n 1e1 true" "-n 0x2 true" "-n +2 true" "-n 2. true" "-n 5000 true" "-n 2" "--bogus -n 2 true" "-n 2 --nodes 3 true" "-n 1 --timeout x true" "-n 1 --timeout 1e2 true" "-n 1 --timeout inf true" "-n 1 --grace 0x1 true" "-n 2 --nodes 1e0 true" "-n 1 --grace -1 true" "-n 1 --on-death=maybe true"; do
	# shellcheck disable=SC2086
	run $bad
	check "usage: '$bad'" "64 1" "$code $(wc -l <"$tmp/err")"
done
SYNCTRAIN_LOG=loud run -n 2 true
check "a level of messages that there is not" "78 synctrain: SYNCTRAIN_LOG: 'loud', expected error, warn, info or debug" "$code $(cat "$tmp/err")"
printf 'to be or not to be' >"$tmp/text"
check "a data set of one shard" "1 shard |" "$(synctrain data "$tmp/text" -o "$tmp/one" --validation 0 | grep -oE '[0-9]+ shards? \|')"
check "and of two" "2 shards |" "$(synctrain data "$tmp/text" -o "$tmp/two" --validation 0.5 | grep -oE '[0-9]+ shards? \|')"
for bad in "--shard-tokens 1e3" "--shard-tokens +3" "--validation 1e-1" "--validation 0x0"; do
	# shellcheck disable=SC2086
	synctrain data "$tmp/text" -o "$tmp/bad" $bad >"$tmp/out" 2>&1
	check "data: '$bad'" "64 1" "$? $(wc -l <"$tmp/out")"
done
for bad in "-n +1" "-n 1e1" "-b 0x10" "-b ' 8'" "-n -1"; do
	eval "synctrain bench allreduce $bad" >"$tmp/out" 2>&1
	check "bench: '$bad'" "64 1" "$? $(wc -l <"$tmp/out")"
done
for bad in +500 ' 500' 5e3 0x500; do
	SYNCTRAIN_TIMEOUT_MS=$bad synctrain bench barrier -n 1 >"$tmp/out" 2>&1
	check "SYNCTRAIN_TIMEOUT_MS='$bad'" "78 1" "$? $(wc -l <"$tmp/out")"
done
# Without PMIx, several tasks would be so many jobs of one rank each.
for tasks in SLURM_STEP_NUM_TASKS SLURM_NTASKS PMI_SIZE; do
	env "$tasks=3" synctrain bench barrier -n 1 >"$tmp/out" 2>&1
	check "$tasks without PMIx" "69 1" "$? $(grep -c 'one of 3 tasks, but there is no PMIx server (no PMIX_NAMESPACE in the environment): launch with `sbatch --synctrain` or `srun --synctrain` (without the plugin: `srun --mpi=pmix`).*, or local ranks with `synctrain run -n N`$' "$tmp/out")"
done
OMPI_COMM_WORLD_SIZE=3 synctrain bench barrier -n 1 >"$tmp/out" 2>&1
check "an mpirun without PMIx" "69 1" "$? $(grep -c 'one of 3 tasks.*launch with mpirun of an Open MPI with PMIx, or local ranks' "$tmp/out")"
run --help
check "help" "0 usage:" "$code $(head -c 6 "$tmp/out")"

# ---- ending ----------------------------------------------------------------------------------------------------------
start=$SECONDS
run -n 2 --timeout 1 sleep 50
check "--timeout" 75 $code
run -n 3 --grace 1 sh -c '[ $RANK = 1 ] && exit 5; exec sleep 50'
check "others are ended after the grace time" 5 $code
run -n 3 --grace 30 sh -c '[ $RANK = 1 ] && exit 5; sleep 1; echo "rank $RANK saw it"; exit 1'
check "and may speak within it" "5 [0] rank 0 saw it [2] rank 2 saw it" "$code $(sort "$tmp/out" | xargs)"
run -n 3 --grace 0 --on-death=continue sh -c '[ $RANK = 1 ] && kill -9 $$; sleep 1; echo "rank $RANK goes on"'
check "who may go on when a rank dies does" "0 [0] rank 0 goes on [2] rank 2 goes on" "$code $(sort "$tmp/out" | xargs)"
check "and the death is told" "synctrain run: rank 1 was killed by signal 9 (Killed); the others go on" "$(cat "$tmp/err")"
run -n 3 --on-death=continue sh -c '[ $RANK = 1 ] && kill -9 $$; [ $RANK = 2 ] && exit 7; exit 0'
check "a failure of a survivor counts" 7 $code
run -n 2 --on-death=continue sh -c 'kill -9 $$'
check "and so does it when nobody survives" 137 $code
run -n 2 --grace 0.1 sh -c '[ $RANK = 1 ] && exit 5; trap "" TERM; echo $$ >'"$tmp/stubborn"'; while :; do sleep 1; done'
check "who ignores SIGTERM is killed" 5 $code
gone "$(cat "$tmp/stubborn")" || check "the stubborn rank is gone" gone alive
check "all that in reasonable time" yes "$([ $((SECONDS - start)) -lt 40 ] && echo yes)"
for signal in INT TERM; do
	synctrain run -n 2 sh -c 'trap "echo heard; exit 75" '$signal'; echo ready; while :; do sleep 0.1; done' >"$tmp/out" 2>"$tmp/err" &
	launcher=$!
	wait_until eval "[ \"\$(grep -c ready $tmp/out)\" = 2 ]"
	kill -$signal $launcher
	wait $launcher
	check "SIG$signal is passed on" "75 2" "$? $(grep -c heard "$tmp/out")"
done
synctrain run -n 2 sh -c 'trap "" INT TERM; echo ready; while :; do sleep 0.1; done' >"$tmp/out" 2>&1 &
launcher=$!
wait_until eval "[ \"\$(grep -c ready $tmp/out)\" = 2 ]"
for _ in 1 2 3; do kill -TERM $launcher; sleep 0.2; done
wait $launcher
check "the third signal kills" 137 $?
run -n 2 sh -c '(exec sleep 77) & echo $! >>'"$tmp/children"'; exit 0'
wait_until gone $(cat "$tmp/children") || check "children of ranks are gone" gone alive
nothing_left "all these ends"

# ---- kill -9 of the launcher -----------------------------------------------------------------------------------------
synctrain run -n 3 sh -c 'sleep 88 & echo $$ $! >>'"$tmp/pids"'; wait' >/dev/null 2>&1 &
launcher=$!
wait_until eval "[ \"\$(wc -l <$tmp/pids)\" = 3 ]" 2>/dev/null
session=$(ls "$TMPDIR")
check "while it runs there is a session directory" 1 "$(wc -w <<<"$session")"
kill -9 $launcher
wait $launcher 2>/dev/null
# shellcheck disable=SC2046
wait_until gone $(cat "$tmp/pids") && echo "ok    kill -9: no rank and no child of a rank is left" || check "kill -9: nothing is left" gone alive
wait_until eval '[ -z "$(ls "$TMPDIR")" ]'
nothing_left "kill -9"

# Launcher and guard killed at once: the next run removes what they left, but only what is dead, old and ours.
mkdir -m 700 "$TMPDIR/synctrain-run-dead00" "$TMPDIR/synctrain-run-live00" "$TMPDIR/synctrain-run-new000" "$TMPDIR/synctrain-run-open00"
touch "$TMPDIR"/synctrain-run-{dead00,live00,new000,open00}/lock
chmod 755 "$TMPDIR/synctrain-run-open00"
touch -d '1 hour ago' "$TMPDIR"/synctrain-run-{dead00,live00,open00}
ln -s /etc "$TMPDIR/synctrain-run-link00"
exec 9>"$TMPDIR/synctrain-run-live00/lock"
flock 9
touch -d '1 hour ago' "$TMPDIR/synctrain-run-live00"
run -n 1 true
check "only the dead launcher's directory is removed" "synctrain-run-link00 synctrain-run-live00 synctrain-run-new000 synctrain-run-open00" "$(ls "$TMPDIR" | xargs)"
[ -e /etc/passwd ] || check "links are not followed" there gone
exit $result
