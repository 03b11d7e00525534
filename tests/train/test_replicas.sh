#!/bin/bash
# One bit that flips in one replica is found by the next comparison, which names the rank and the tensor; nothing is saved from it.
. tests/train/lib.sh
run() { train "$@" hash_every=10 steps=40 checkpoint.directory=run checkpoint.every=20 debug.flip_bit.step=23; }

# Element 0 is in wte.weight; the check after step 30 is the next one, and the checkpoint of step 40 is never written.
exits 1 run 4 debug.flip_bit.rank=2 debug.flip_bit.element=0
says 'replicas differ at step 30: rank 2 on [^ ]+ differs in wte.weight'
[ "$(grep -c 'replicas differ' out)" = 1 ] || { cat out; fail "more than one line for one verdict"; }
[ "$(ls run)" = step-00000020 ] || { ls run; fail "a checkpoint was written from replicas that differ"; }

# From the checkpoint before it the run goes on and ends well.
well train 4 hash_every=10 steps=40 checkpoint.directory=run checkpoint.resume=must
says 'replicas identical: hash [0-9a-f]{32} \(4 ranks\)'

# The lowest bit of a weight deep inside, flipped right before the check, since later updates may round it away; two of five ranks can't be told apart from three, one of two can't.
rm -rf run
exits 1 train 5 hash_every=10 steps=40 checkpoint.directory=run checkpoint.every=20 batch.global=20 \
	debug.flip_bit.step=30 debug.flip_bit.rank=4 debug.flip_bit.element=20001 debug.flip_bit.bit=0
says 'replicas differ at step 30: rank 4 on [^ ]+ differs in h\.[01]\.'
rm -rf run
exits 1 run 2 debug.flip_bit.rank=1 debug.flip_bit.element=0
says 'replicas differ at step 30: rank 0 on [^ ]+, rank 1 on [^ ]+ differ in wte.weight; no majority of the 2 replicas agrees'

# A bit that flips between two comparisons is found before a checkpoint is written, whatever the interval.
rm -rf run
exits 1 train 4 hash_every=0 steps=40 checkpoint.directory=run checkpoint.every=24 debug.flip_bit.step=23 debug.flip_bit.rank=0
says 'replicas differ at step 24: rank 0 on'
[ -z "$(ls run 2>/dev/null)" ] || fail "a checkpoint was written from replicas that differ"
