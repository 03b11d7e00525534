#!/bin/bash
# A run that is killed and resumed has the same losses, bit for bit, as one that was never interrupted.
. tests/train/lib.sh
# Nine global batches an epoch: the runs below cross many epochs, and resume in the middle of one.
head -c 5000 text >short && synctrain data short -o data >out || fail "no data"
nodes=4
common="steps=60 checkpoint.every=10 eval.every=20 eval.batches=3 optimizer.warmup_steps=15 hash_every=15"

# shellcheck disable=SC2086
well train 8 $common checkpoint.directory=whole log.file=whole.log
hash=$(grep -o 'hash [0-9a-f]*' out)

# Kill rank 5 of 8 with SIGKILL when step 25 is over: every other rank says so and leaves, and the job fails at once.
cat >rank.sh <<'END'
[ "$RANK" = 5 ] && echo $$ >rank5.pid
exec synctrain train "$@"
END
# shellcheck disable=SC2086
ranks 8 bash rank.sh tiny.json $common checkpoint.directory=cut log.file=cut.log debug.delay.rank=0 debug.delay.milliseconds=30 >out 2>&1 &
job=$!
for _ in $(seq 300); do
	grep -q '"step":25,' cut.log 2>/dev/null && break
	sleep 0.1
done
kill -9 "$(cat rank5.pid)" || fail "rank 5 is not there"
begun=$(date +%s%N)
code=0
wait $job || code=$?
took=$((($(date +%s%N) - begun) / 1000000))
[ "$code" != 0 ] || { cat out; fail "the job ended well without rank 5"; }
[ $took -lt 8000 ] || { cat out; fail "the others needed $took ms to leave"; }
echo "rank 5 of 8 killed: the job ended with $code after $took ms"
for rank in 0 1 2 3 4 6 7; do
	[ "$(grep -cE "^synctrain: rank $rank on node[0-9]: step [0-9]+: .*rank 5 on node[0-9]" out)" = 1 ] ||
		{ cat out; fail "rank $rank did not say, once, that rank 5 is lost, in which step and where"; }
done
[ -d cut/step-00000020 ] && [ ! -d cut/step-00000030 ] || { ls cut; fail "expected the checkpoint of step 20 to be the last"; }

# Damage from the crash beside it: a half-written newer one is skipped with a word.
cp -r cut/step-00000020 cut/step-00000024
# shellcheck disable=SC2086
well train 8 $common checkpoint.directory=cut log.file=cut.log
says 'warning: checkpoint skipped: cut/step-00000024/manifest.json: step: seen 20, expected 24'
says 'resume \| after step 20, from cut/step-00000020'
[ "$(losses whole.log)" = "$(losses cut.log)" ] || { diff <(losses whole.log) <(losses cut.log); fail "losses differ after the resume"; }
[ "$(losses cut.log | wc -l)" = 60 ] || fail "not 60 losses"
[ "$(grep -o 'hash [0-9a-f]*' out)" = "$hash" ] || fail "parameters differ after the resume"
[ "$(grep validation whole.log | sort)" = "$(grep validation cut.log | sort -u)" ] || fail "validation losses differ after the resume"

# Again, finished: nothing to do. At another world size: goes on, says that bits may differ, and agrees to rounding.
# shellcheck disable=SC2086
well train 8 $common checkpoint.directory=cut report.directory=idle
says 'nothing to do: steps is 60'
grep -qE 'report idle|other values|was written by' out && { cat out; fail "there is no report of nothing, and nothing has changed"; }
rm -rf cut/step-00000060 cut/step-00000024
# shellcheck disable=SC2086
well train 4 $common checkpoint.directory=cut checkpoint.keep=9 log.file=four.log
says 'cut/step-00000050 was written by 8 ranks, this run has 4: losses may differ'
compare --whole cut/step-00000060/model.safetensors whole/step-00000060/model.safetensors 1e-4 || fail "another world, another model"

# Other values that alter the run are said, those that do not are not.
# shellcheck disable=SC2086
well train 4 $common checkpoint.directory=cut steps=62 batch.global=8 optimizer.learning_rate=1e-3 log.every=3
says 'warning: resuming with other values: batch.global 16 -> 8, optimizer.learning_rate 0.003 -> 0.001$'
rm -r cut/step-00000062

nodes=1
# What can't be continued is refused by key; a checkpoint in the way of a new run, too.
exits 78 train 1 steps=70 checkpoint.directory=cut model.layers=3
says 'model.layers: seen 3, expected 2 as in the checkpoint cut/step-00000060'
exits 78 train 2 steps=70 checkpoint.directory=cut seed=2
says 'seed: seen 2, expected 1 as in'
exits 78 train 2 steps=70 checkpoint.directory=cut checkpoint.resume=never
says 'checkpoint.resume: seen never, but there is cut/step-00000060'
exits 78 train 2 steps=70 checkpoint.directory=none checkpoint.resume=must
says 'checkpoint.resume: seen must, but none holds no checkpoint'
: >whole/step-00000060/manifest.json
: >whole/step-00000050/model.safetensors
exits 65 train 2 steps=70 checkpoint.directory=whole
says 'whole: none of its 2 checkpoints can be used'
