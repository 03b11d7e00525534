#!/bin/bash
# Four ranks compute what one does: the same gradients from the same parameters, and the same training.
. tests/train/lib.sh

# Gradients of one step for one rank with one micro-batch of the whole batch, and for several ranks and micro-batches.
gradients() { # NAME STEP KEY=VALUE...
	local name=$1 step=$2 ranks micro nodes
	shift 2
	for shape in "1 16 1" "1 4 1" "2 4 1" "4 4 2" "8 2 1"; do
		read -r ranks micro nodes <<<"$shape"
		[ -d start ] && { rm -rf run && cp -r start run; }
		well train "$ranks" batch.micro="$micro" debug.dump_gradients.file="$name-$ranks-$micro" debug.dump_gradients.step="$step" \
			steps="$step" optimizer.schedule_steps=200 "$@"
	done
	for shape in 1-4 2-4 4-4 8-2; do
		compare "$name-$shape" "$name-1-16" 1e-6 || fail "gradients $name: ranks-micro $shape differ from one rank with one micro-batch"
	done
}
gradients initial 1
well train 2 steps=200 checkpoint.directory=start
[ -d start/step-00000200 ] || fail "no checkpoint after 200 steps"
gradients after-200 201 checkpoint.directory=run checkpoint.resume=must
says 'resume \| after step 200'

# 50 steps of plain SGD without warm-up: the same parameters.
sgd="optimizer.kind=sgd optimizer.learning_rate=0.1 optimizer.minimum_rate=0 optimizer.weight_decay=0 optimizer.clip_norm=0 steps=50"
adamw="optimizer.kind=adamw optimizer.learning_rate=3e-3 steps=50"
for kind in sgd adamw; do
	for ranks in 1 4; do
		# shellcheck disable=SC2086
		well train "$ranks" ${!kind} batch.micro=4 checkpoint.directory="$kind-$ranks" log.file="$kind-$ranks.log"
	done
done
compare sgd-4/step-00000050/model.safetensors sgd-1/step-00000050/model.safetensors 1e-6 || fail "SGD: parameters differ after 50 steps"
# As one vector: the gradient of the attention keys' biases is zero but for rounding (softmax ignores what all keys share), and AdamW
# makes full steps of it.
compare --whole adamw-4/step-00000050/model.safetensors adamw-1/step-00000050/model.safetensors 1e-4 || fail "AdamW: parameters differ after 50 steps"
losses adamw-4.log | awk 'NR == 1 {first = $2} {last = $2} END {printf "AdamW: loss %.3f -> %.3f\n", first, last; exit !(last < 0.8 * first)}' ||
	fail "the loss fell by less than 20 %"

# Clipping by the global norm: a step of SGD is then learning rate x clip_norm long, whatever the gradient and the number of ranks.
for ranks in 1 4; do
	for rate in 0 0.5; do
		rm -rf "clip-$rate"
		well train "$ranks" batch.micro=4 steps=1 optimizer.kind=sgd optimizer.learning_rate=$rate optimizer.minimum_rate=0 \
			optimizer.weight_decay=0 optimizer.clip_norm=0.25 checkpoint.directory="clip-$rate"
	done
	compare --distance clip-0.5/step-00000001/model.safetensors clip-0/step-00000001/model.safetensors |
		awk '{print "a clipped step is " $1 " long"; exit !($1 > 0.12499 && $1 < 0.12501)}' || fail "clipping: expected 0.5 x 0.25 = 0.125"
done

# Same world, same bits: two runs end with the same hash and the same losses.
well train 4 steps=20 log.file=a.log
first=$(grep -o 'hash [0-9a-f]*' out)
well train 4 steps=20 log.file=b.log
[ "$first" = "$(grep -o 'hash [0-9a-f]*' out)" ] && [ -n "$first" ] || fail "two runs differ: $first"
[ "$(losses a.log)" = "$(losses b.log)" ] || fail "losses of two runs differ"

# Validation loss: the same bits for every number of ranks, also when ranks share the batches unevenly.
for ranks in 1 2 4 8; do
	well train "$ranks" steps=1 optimizer.learning_rate=0 optimizer.minimum_rate=0 eval.every=1 eval.batches=5 log.file=eval.log
done
[ "$(grep validation eval.log | sort -u | wc -l)" = 2 ] || { cat eval.log; fail "the validation loss depends on the number of ranks"; }
says "validation loss [0-9.]+ nats/byte at step 1 \| text's bigram entropy [0-9.]+"
