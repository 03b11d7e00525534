#!/bin/bash
# The whole way once: text -> shards -> `sbatch --synctrain` on four nodes -> both transports in use, loss falls, replicas
# identical, checkpoint and resume, report with a row for each rank; then a straggler is found by name.
. "${0%/*}/lib.sh"
CLUSTER_CPUS=2 cluster_start
as_user_home mkdir -p run || fail "no home"
home=$STATE/home/$ACCOUNT/run

as_user_home bash -c 'cd run && for i in $(seq 400); do cat /mnt/tree/README.md /mnt/tree/LICENSE; done | head -c 300000 > text &&
	synctrain data text -o data > data.log 2>&1' || fail "synctrain data: $(cat "$home/data.log")"
as_user_home tee run/config.json > /dev/null <<'C'
{"name": "t", "model": {"vocabulary": 256, "context": 32, "layers": 2, "heads": 2, "channels": 32}, "data": {"directory": "data"},
 "batch": {"global": 32, "micro": 4}, "optimizer": {"kind": "adamw", "learning_rate": 3e-3, "warmup_steps": 5},
 "steps": 40, "eval": {"every": 20, "batches": 8}, "hash_every": 10, "checkpoint": {"directory": "ckpt", "every": 20},
 "log": {"every": 1, "file": "loss.jsonl"}}
C
as_user_home tee run/job.sh > /dev/null <<'C'
#!/bin/bash
#SBATCH -N4 --ntasks-per-node=2 -c1 -o job-%j.log --synctrain --synctrain-report=report-%j
srun synctrain train config.json "$@"
C
submit() { as_user_home bash -c 'cd run && sbatch --parsable job.sh "$@"' - "$@"; } # KEY=VALUE... -> job id

job=$(submit)
expect "the job completes" COMPLETED "$(wait_job "$job" 120)"
log=$home/job-$job.log
first=$(grep -oE 'step +1/40.*loss +[0-9.]+' "$log" | grep -oE '[0-9.]+$')
last=$(grep -oE 'step +40/40.*loss +[0-9.]+' "$log" | grep -oE '[0-9.]+$')
[ -n "$first" ] && [ -n "$last" ] || fail "no step lines in the log: $(tail -n 5 "$log")"
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < 0.8 * a) }' || fail "loss falls by less than 20 %: $first to $last"
echo "ok    loss falls from $first to $last"
expect_match "replicas are compared" 'replicas identical' "$(grep -i replicas "$log" | tail -n 1)"
expect_match "both losses are printed" 'bigram entropy' "$(cat "$log")"

report=$(as_user_home synctrain report --json "run/report-$job") || fail "report: $report"
expect "the report has all ranks on their nodes" "0:node1 1:node1 2:node2 3:node2 4:node3 5:node3 6:node4 7:node4" "$(python3 -c '
import json, sys
r = json.load(sys.stdin)
print(" ".join("%d:%s" % (x["rank"], x["host"]) for x in r["ranks"]))' <<< "$report")"
as_user_home synctrain report "run/report-$job" || fail "text report"

echo "--- resume"
cp "$home/loss.jsonl" "$SCRATCH/whole.jsonl"
as_user_home bash -c 'cd run && ls ckpt && rm -rf ckpt/step-*40 loss.jsonl' || fail "no checkpoint"
job=$(submit)
expect "a resumed job completes" COMPLETED "$(wait_job "$job" 120)"
python3 - "$SCRATCH/whole.jsonl" "$home/loss.jsonl" <<'P' || fail "a resumed run's losses differ"
import json, sys
def losses(path):
    # As text: what must agree is every digit.
    return {r["step"]: json.dumps(r["loss"]) for r in map(json.loads, open(path)) if "loss" in r and "step" in r}
whole, resumed = map(losses, sys.argv[1:])
print("steps", len(whole), "and", len(resumed))
assert len(whole) == 40 and 15 <= len(resumed) <= 21, (len(whole), len(resumed))
assert all(whole[s] == resumed[s] for s in resumed), [(s, whole[s], resumed[s]) for s in resumed if whole[s] != resumed[s]]
P
echo "ok    the same losses, digit for digit"

echo "--- straggler"
job=$(submit checkpoint.directory=slow steps=30 debug.delay.rank=5 debug.delay.milliseconds=120)
expect "the job completes" COMPLETED "$(wait_job "$job" 120)"
report=$(as_user_home synctrain report "run/report-$job")
expect_match "the verdict names the slow rank" 'verdict:.*(rank 5|node3)' "$report"
pass
