#!/bin/bash
# A reproducible run ends with the same bits whatever the number of ranks, their nodes, buckets, transport, algorithm, chunks and threads; and goes on
# with them when it is resumed by other ranks.
. tests/train/lib.sh

# 11 micro-batches: no number of ranks but 1 and 11 shares them evenly.
settings="reproducible=true batch.global=22 batch.micro=2 steps=5 hash_every=1"

# same NAME RANKS KEY=VALUE...: this run's parameters, optimizer state and losses are those of run "1".
same() {
	local name=$1 ranks=$2 file
	shift 2
	# shellcheck disable=SC2086
	well train "$ranks" $settings checkpoint.directory="$name" log.file="$name.log" "$@"
	for file in model optimizer; do
		[ -s "1/step-00000005/$file.safetensors" ] || fail "no $file of one rank"
		cmp "1/step-00000005/$file.safetensors" "$name/step-00000005/$file.safetensors" || fail "$name: other bits than one rank"
	done
	[ "$(losses 1.log)" = "$(losses "$name.log")" ] || fail "$name: other losses than one rank"
}
same 1 1
says '11 micro-batches of 2, 11 of them on each rank \| adamw, reproducible'
same 2 2 bucket_bytes=1024
SYNCTRAIN_TRANSPORT=tcp same 3 3 bucket_bytes=1048576
says '3 or one more of them on each rank'
nodes=2 SYNCTRAIN_CHUNK_BYTES=1024 same 4 4 threads=2
SYNCTRAIN_ALGORITHM=ring same threads 1 threads=3 bucket_bytes=40000
if [ -n "${LONG:-}" ]; then
	for ranks in 2 3 4 5 7 8 11; do
		for algorithm in ring tree halving hierarchical torus auto; do
			for transport in shm tcp; do
				SYNCTRAIN_ALGORITHM=$algorithm SYNCTRAIN_TRANSPORT=$transport SYNCTRAIN_PROGRESS=thread \
					same "$ranks-$algorithm-$transport" "$ranks" bucket_bytes=$((1024 * (ranks * ranks)))
			done
		done
		nodes=2 same "$ranks-nodes" "$ranks" threads=2
	done
	nodes=1
fi

# Other ranks go on where three stopped.
# shellcheck disable=SC2086
well train 3 $settings optimizer.schedule_steps=5 checkpoint.directory=resumed steps=2
# shellcheck disable=SC2086
well train 4 $settings optimizer.schedule_steps=5 checkpoint.directory=resumed checkpoint.resume=must
cmp 1/step-00000005/model.safetensors resumed/step-00000005/model.safetensors || fail "a resumed run has other bits"
grep "may differ in their last bits" out && fail "a reproducible run says that other ranks have other bits"

# The control: without it the bits do depend on the number of ranks.
for ranks in 1 2; do
	# shellcheck disable=SC2086
	well train $ranks $settings reproducible=false batch.global=24 checkpoint.directory=plain-$ranks
done
cmp -s plain-1/step-00000005/model.safetensors plain-2/step-00000005/model.safetensors && fail "the plain runs of 1 and 2 ranks have the same bits"

# The instruction set does change the bits: refused where ranks differ, and where a run is resumed with another one.
isa=$(sed -n 's/.*"isa": *"\([^"]*\)".*/\1/p' 1/step-00000005/manifest.json)
[ -n "$isa" ] || fail "no instruction set in the manifest"
# shellcheck disable=SC2086
if [ "$isa" != sse41 ] && [ "$isa" != generic ]; then
	DNNL_MAX_CPU_ISA=SSE41 exits 78 train 2 $settings steps=6 optimizer.schedule_steps=5 checkpoint.directory=1 checkpoint.resume=must
	says "reproducible: seen true, but 1/step-00000005 was written with $isa and this run has sse41, of other bits"
	# shellcheck disable=SC2016
	mixed() { ranks 2 bash -c '[ "$RANK" = 1 ] && export DNNL_MAX_CPU_ISA=SSE41; exec synctrain train tiny.json '"$settings" >out 2>&1; }
	exits 1 mixed
	says 'rank 1 on .* has another instruction set'
fi

# More ranks than micro-batches.
# shellcheck disable=SC2086
exits 78 train 4 $settings batch.global=6
says 'batch.global: seen 6, expected at least batch.micro x ranks = 2 \(command line\) x 4 = 8'
