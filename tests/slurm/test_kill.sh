#!/bin/bash
# kill -9 of one rank in the middle of a run of 8 over 4 nodes: the others end within 10 s, each naming that rank and its
# node; the job fails; nothing is left; a resubmitted job goes on with the same losses, bit for bit.
. "${0%/*}/lib.sh"
CLUSTER_CPUS=2 cluster_start
as_user_home mkdir -p run || fail "no home"
home=$STATE/home/$ACCOUNT/run
as_user_home bash -c 'cd run && for i in $(seq 60); do cat /mnt/tree/LICENSE; done | head -c 200000 > text && synctrain data text -o data > data.log 2>&1' ||
	fail "synctrain data: $(cat "$home/data.log")"
as_user_home tee run/config.json > /dev/null <<'C'
{"name": "t", "model": {"vocabulary": 256, "context": 32, "layers": 2, "heads": 2, "channels": 32}, "data": {"directory": "data"},
 "batch": {"global": 16, "micro": 2}, "optimizer": {"kind": "adamw", "learning_rate": 3e-3, "warmup_steps": 5},
 "steps": 60, "checkpoint": {"directory": "ckpt", "every": 10}, "log": {"every": 1, "file": "loss.jsonl"}}
C
as_user_home tee run/job.sh > /dev/null <<'C'
#!/bin/bash
#SBATCH -N4 --ntasks-per-node=2 -c1 -o job-%j.log --synctrain --synctrain-report=report-%j
srun --label --kill-on-bad-exit=0 synctrain train config.json "$@"
code=$?
echo "srun ended with $code"
exit $code
C
submit() { as_user_home bash -c 'cd run && sbatch --parsable job.sh "$@"' - "$@"; } # KEY=VALUE... -> job id
at_step() { grep -qE "step +$2/" "$home/job-$1.log" 2> /dev/null; }                  # JOB STEP
rank_pid() { on_node_as_root "$1" bash -c 'for p in /proc/[0-9]*; do
	[ "$(cat $p/comm 2>/dev/null)" = synctrain ] && tr "\0" "\n" < $p/environ | grep -qx "SLURM_PROCID='"$2"'" && echo ${p#/proc/}; done'; } # NODE RANK

job=$(submit checkpoint.directory=whole log.file=whole.jsonl)
expect "an uninterrupted run" COMPLETED "$(wait_job "$job" 120)"

for victim in "node3 5" "node1 0" "node2 2"; do
	read -r node rank <<< "$victim"
	echo "--- kill -9 rank $rank on $node"
	as_user_home rm -rf run/ckpt run/loss.jsonl
	# Slow enough to be in the middle of a step when the blow falls.
	job=$(submit debug.delay.rank=1 debug.delay.milliseconds=50)
	wait_until 60 at_step "$job" 23 || fail "the run does not get to step 23: $(tail -n 3 "$home/job-$job.log")"
	pid=$(rank_pid "$node" "$rank")
	[ -n "$pid" ] || fail "no process of rank $rank on $node"
	on_node_as_root "$node" kill -9 "$pid"
	began=$(date +%s%N)
	state=$(wait_job "$job" 20)
	took=$((($(date +%s%N) - began) / 1000000))
	expect "the job fails" FAILED "$state"
	[ $took -lt 10000 ] || fail "it took $took ms, expected less than 10 s"
	echo "ok    ended after $took ms"
	log=$(cat "$home/job-$job.log")
	for other in 0 1 2 3 4 5 6 7; do
		[ "$other" = "$rank" ] && continue
		expect_match "rank $other names rank $rank on $node" "(^|"$'\n'")$other: [^"$'\n'"]*rank $rank on $node" "$log"
	done
	expect_match "exit code is not 0" 'srun ended with [1-9]' "$log"
	flight=$STATE/flight-$job
	mkdir "$flight"
	for n in node1 node2 node3 node4; do
		left=$(on_node_as_root "$n" bash -c 'pgrep -a synctrain; ls /dev/shm; ls -d /tmp/synctrain* 2>/dev/null | grep -v /tmp/synctrain-recorder-; grep -a synctrain /proc/net/unix; ss -Htan | grep -v TIME-WAIT | grep -v ":$(ss -Htlnp | grep slurmd | grep -o "[0-9]* .*" | head -n1 | cut -d" " -f1) "' 2> /dev/null | grep -vE '^LISTEN.*slurm' | grep -iE 'synctrain|shm' )
		expect "nothing left on $n but the flight recorder's files" "" "$left"
		on_node_as_root "$n" bash -c 'cd /tmp/synctrain-recorder-* && tar -c *.flight' > "$STATE/flight.tar" 2> /dev/null &&
			tar -x -C "$flight" -f "$STATE/flight.tar" || fail "no flight recorder's files on $n"
	done
	expect_match "the flight recorders of all nodes name rank $rank on $node" "rank $rank on $node" "$("$TREE/build/bin/synctrain" report --hang --job "$job.0.0" "$flight" 2>&1)"
	job=$(submit)
	expect "the resubmitted job completes" COMPLETED "$(wait_job "$job" 120)"
	expect_match "it resumes" '[Rr]esum' "$(cat "$home/job-$job.log")"
	python3 - "$home/whole.jsonl" "$home/loss.jsonl" <<'P' || fail "losses differ from an uninterrupted run"
import json, sys
def losses(path):
    table = {}
    for line in open(path):
        r = json.loads(line)
        if "loss" in r and "step" in r:
            table.setdefault(r["step"], set()).add(json.dumps(r["loss"]))
    return table
whole, resumed = map(losses, sys.argv[1:])
assert len(whole) == 60 and set(resumed) == set(whole), (len(whole), sorted(set(whole) - set(resumed)))
assert all(len(v) == 1 for v in resumed.values()) and resumed == whole
P
	echo "ok    the same losses as uninterrupted, digit for digit"
done
pass
