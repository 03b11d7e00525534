#!/bin/bash
# What goes wrong is one line, the same exit code on every rank, and never a hang.
. tests/train/lib.sh
lines() { [ "$(grep -c "$2" out)" = "$1" ] || { cat out; fail "expected $1 lines with: $2"; }; }

# Configuration: one line for the whole job.
exits 78 train 4 batch.micro=8
says 'synctrain train: tiny.json: batch.global: seen 16, expected a multiple of batch.micro x ranks = 8 \(command line\) x 4 = 32'
lines 1 'synctrain\( train\)\?:'
exits 78 train 3
says 'expected a multiple of batch.micro x ranks = 2 x 3 = 6'
exits 78 train 2 modle.layers=1
says 'command line: modle.layers: unknown key'
lines 1 'synctrain\( train\)\?:'
exits 78 train 2 batch.global=33
says 'synctrain train: command line: batch.global: seen 33, expected a multiple of batch.micro = 2$'
exits 78 train 2 data.directory=data model.context=20000
says 'data.directory: seen [0-9]+ training sequences of model.context = 20000 in data, expected at least batch.global = 16'
exits 78 train 2 model.vocabulary=255
says 'model.vocabulary: seen 255, expected at least 256 as in data.directory data'
exits 66 train 2 data.directory=nowhere
says 'nowhere: can.t list: No such file or directory'
lines 1 'synctrain\( train\)\?:'
exits 64 train 2 --fast
says 'seen --fast, expected CONFIG.json'

# Ranks that were not given the same configuration.
cat >rank.sh <<'END'
exec synctrain train tiny.json steps=$((20 + RANK / 3))
END
exits 1 ranks 4 bash rank.sh >out 2>&1
says 'rank 3 on [^ ]+ has another configuration than rank 0 on'
lines 1 'synctrain\( train\)\?:'

# Damaged data is found before training.
cp -r data damaged
printf x | dd of=damaged/train-000000.bin bs=1 seek=3000 conv=notrunc 2>/dev/null
exits 65 train 2 data.directory=damaged
says 'damaged/train-000000.bin: sha256: seen'
truncate -s -1 damaged/train-000000.bin
exits 65 train 2 data.directory=damaged data.verify=false
says 'damaged/train-000000.bin: size: seen'

# A gradient that is not finite: all ranks skip the step, the owner is named, the run goes on ...
nan="debug.not_a_number.rank=2 debug.not_a_number.step=5"
# shellcheck disable=SC2086
well train 4 $nan debug.not_a_number.count=2 skip_limit=3
says 'warning: step 5: rank 2 on [^ ]+ has a non-finite gradient in ln_f.bias: step skipped by all ranks \(1 in a row, the run stops at 3\)'
says 'replicas identical'
lines 2 'non-finite gradient'
# ... and ends when it does not stop.
# shellcheck disable=SC2086
exits 1 train 4 $nan debug.not_a_number.count=9 skip_limit=3
says 'step 7: rank 2 on [^ ]+ has a non-finite gradient in ln_f.bias: 3 steps in a row were skipped, skip_limit is 3'
# A learning rate that blows up ends too, with the loss's first owner named.
exits 1 train 2 optimizer.kind=sgd optimizer.learning_rate=1e6 optimizer.minimum_rate=1e6 optimizer.schedule=constant optimizer.clip_norm=0 \
	skip_limit=2 steps=200
says 'steps in a row were skipped, skip_limit is 2'

# A full disk: one line, exit 1, and the checkpoint before it is intact. A file system of 700 KB has room for one checkpoint.
cat >full.sh <<'END'
. ./functions.sh
mount -t tmpfs -o size=700k none run || exit 1
well train 2 steps=10 checkpoint.directory=run
exits 1 train 2 steps=20 checkpoint.directory=run
says 'no checkpoint after step 20: run/tmp.step-00000020/[a-z]*.safetensors: can.t write: No space left on device; the one before it is intact'
lines 1 'no checkpoint'
[ "$(ls run)" = step-00000010 ] || { ls run; fail "half a checkpoint was left"; }
# Going on ends with the last step: a run whose result is lost has failed.
exits 1 train 2 steps=25 checkpoint.every=20 checkpoint.directory=run checkpoint.on_failure=continue
says 'no checkpoint after step 20: .*training goes on'
says 'no checkpoint after step 25: .*the one before it is intact'
exits 0 train 2 steps=10 checkpoint.directory=run checkpoint.resume=must
END
{ declare -p nodes && declare -f fail ranks train well exits says lines; } >functions.sh
mkdir run
if unshare -rm true 2>/dev/null; then
	unshare -rm bash -u full.sh || exit 1
else
	echo "(no name spaces here: the full disk was left out)"
fi

# Where no checkpoint could be written is said at the start, not after the training.
exits 64 train 2 checkpoint.directory=tiny.json
says 'tiny.json: exists and is not a directory'
[ "$(grep -c 'step 10/20' out)" = 0 ] || { cat out; fail "it trained first"; }
lines 1 'synctrain\( train\)\?:'

# A second run in the directory of one that is going on is refused, and the first does not notice.
rm -rf shared
ranks 2 synctrain train tiny.json steps=400 checkpoint.directory=shared checkpoint.every=1 debug.delay.rank=0 debug.delay.milliseconds=20 \
	>first 2>&1 &
job=$!
for _ in $(seq 300); do
	ls shared/step-* >/dev/null 2>&1 && break
	sleep 0.1
done
exits 69 train 2 steps=400 checkpoint.directory=shared checkpoint.every=1
says 'checkpoint.directory: seen shared, which another run is using'
lines 1 'another run is using'
wait $job || { cat first; fail "the first run failed"; }
# Nobody uses it any more.
well train 2 steps=401 checkpoint.directory=shared

# A log that is a pipe without a reader does not hold the run up.
mkfifo pipe
timeout -k 1 30 synctrain run -n 2 --no-prefix synctrain train tiny.json steps=2 log.file=pipe >out 2>&1 || { cat out; fail "held up"; }
says "log.file pipe: can't open: .*the run goes on without it"

# A log that can't be written does not stop the run.
well train 2 log.file=/dev/full
says 'log.file /dev/full: can.t write'
well train 2 log.file=nowhere/log
says 'log.file nowhere/log: can.t open'

# Nor does a report that can't be written: one warning at the start, and no word of a report at the end.
well train 2 report.directory=tiny.json steps=5
says 'warning: step records: tiny.json: exists and is not a directory; steps go on'
lines 1 'step records:'
lines 0 'report tiny.json'
# Said before the first second of training is over, when the first records would be written.
ranks 2 synctrain train tiny.json report.directory=tiny.json debug.delay.rank=0 debug.delay.milliseconds=2000 steps=1 >out 2>&1 &
job=$!
for _ in $(seq 15); do
	grep -q 'step records: tiny.json' out && break
	sleep 0.1
done
lines 1 'step records: tiny.json'
lines 0 'step 1/1'
wait $job || { cat out; fail "a report stopped the run"; }
well train 2 report.directory=told/here steps=5
says '^report told/here \(synctrain report told/here\)'
ls told/here/steps-*.rec >/dev/null || fail "no report"
