#!/bin/bash
# shellcheck disable=SC2016  # what is in single quotes is for the shell inside the cluster
# The SPANK plugin on a real cluster: what it offers, what it refuses, what tasks get, and that it leaves everything else alone.
. "${0%/*}/lib.sh"
need_programs readelf nm

PLUGIN=/mnt/tree/build/lib/slurm/synctrain.so
HELPERS=helpers=/mnt/tree/build/libexec/synctrain
for file in lib/slurm/synctrain.so libexec/synctrain/profile; do [ -x "$TREE/build/$file" ] || fail "build/$file is not there: make"; done

# plugstack.conf is read by every command and step, so the site can be another one without another cluster.
site() { printf '%s\n' "optional $PLUGIN $HELPERS $*" | as_root tee "$STATE/etc/plugstack.conf" > /dev/null; }    # ARGUMENT...
no_plugin() { as_root truncate -s 0 "$STATE/etc/plugstack.conf"; }
in_home() { as_root install -m "${2:-644}" /dev/stdin "$STATE/home/$ACCOUNT/$1"; }                 # FILE [MODE] < TEXT
refused() {  # WHAT LINE CMD...: fails, and prints a line that ends in LINE
	local what=$1 line=$2
	shift 2
	if output=$(as_user_home "$@" 2>&1); then fail "$what: accepted: $output"; fi
	[[ $output$'\n' == *": $line"$'\n'* ]] || fail "$what"$'\n'"  expected: $line"$'\n'"  seen:     $output"
	echo "ok    $what"
}
nothing_queued() { expect "nothing was queued" '' "$(as_user squeue -h -t all -o %A)"; }
# Runs a job script in the account's home to its end; prints what the job printed.
job() {  # [SBATCH ARGUMENT...] < SCRIPT
	local id
	in_home job.sh
	id=$(as_user_home sbatch --parsable "$@" -o job-%j.out job.sh) || { echo "not submitted"; return; }
	wait_job "$id" 60 > /dev/null || echo "job $id does not end"
	cat "$STATE/home/$ACCOUNT/job-$id.out"
}
ours='^(SYNCTRAIN.*|SLURM_SPANK.*|_SLURM_SPANK.*|SLURM_MPI_TYPE|PMIX_RANK|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT|OMP_NUM_THREADS)='

echo "--- what it is linked to, and what it exports"
so=$TREE/build/lib/slurm/synctrain.so
expect "libc only" libc.so.6 "$(readelf -d "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | xargs)"
expect "exports hooks and identity only" "plugin_name plugin_type plugin_version spank_plugin_version" \
	"$(nm -D --defined-only "$so" | awk '{ print $3 }' | grep -v '^slurm_spank_' | sort | xargs)"
expect "no hook that runs for every job on every node" '' "$(nm -D --defined-only "$so" | grep -E 'prolog|epilog|slurmd_exit')"
expect_match "hardened" 'GNU_RELRO' "$(readelf -lW "$so")"
expect_match "symbols are bound at load" 'NOW' "$(readelf -d "$so")"

# salloc without a command starts an interactive step here, which is no step for ranks.
printf '%s\n' LaunchParameters=use_interactive_step 'InteractiveStepOptions="--interactive --preserve-env $SHELL"' > "$SCRATCH/extra.conf"
CLUSTER_EXTRA_CONF=$SCRATCH/extra.conf CLUSTER_PLUGIN_ARGS=$HELPERS cluster_start
as_user_home true
in_home show 755 <<- 'SH'
	#!/bin/bash
	# show NAME...: their values in one line, "-" for what is not set
	for name; do printf '%s ' "${!name--}"; done; echo
SH

echo "--- help and refusals"
for command in sbatch srun salloc; do
	output=$(as_user "$command" --help)
	for option in '--synctrain=\[FILE\]' --synctrain-algorithm=NAME --synctrain-transport=LIST --synctrain-report=DIR; do
		grep -qE -- "^ +$option( |\$)" <<< "$output" || fail "$command --help lacks $option"
	done
	grep -qE -- '--synctrain-(rails|bind|health|spares)' <<< "$output" && fail "$command --help offers what is not built"
	echo "ok    $command --help"
done
pigeon="synctrain: --synctrain-transport: seen 'carrier-pigeon', expected auto, or shm, tcp joined by +"
for command in "sbatch --wrap true" "srun true" "salloc true"; do
	# shellcheck disable=SC2086  # words
	set -- $command
	refused "$1 refuses a value" "$pigeon" "$1" --synctrain-transport=carrier-pigeon "${@:2}"
done
in_home pigeon.sh <<< $'#!/bin/bash\n#SBATCH --synctrain-transport=carrier-pigeon\ntrue'
refused "#SBATCH refuses it too" "$pigeon" sbatch pigeon.sh
refused "a value of later versions" "synctrain: --synctrain-algorithm: seen 'nccl', not in this version (have auto, ring, tree, halving, hierarchical, torus, direct)" \
	sbatch --synctrain-algorithm=nccl --wrap true
refused "another one" "synctrain: --synctrain-transport: seen 'tcp+verbs', not in this version (have auto, or shm, tcp joined by +)" \
	sbatch --synctrain-transport=tcp+verbs --wrap true
refused "a control character" "synctrain: --synctrain-algorithm: seen 'ri?ng', expected auto, ring, tree, halving, hierarchical, torus, direct" sbatch --synctrain-algorithm=$'ri\eng' --wrap true
refused "a report pattern" "synctrain: --synctrain-report: seen 'r-%n', expected a directory of at most 1000 printable bytes with only %j %A %a %x %u %% in it" sbatch --synctrain-report=r-%n --wrap true

echo "--- profiles, as they are refused"
in_home unknown.json <<< '{ "transport": "tcp", "colour": "red" }'
refused "a key" "synctrain: --synctrain: unknown.json: colour: unknown key, expected one of: algorithm, transport, report" sbatch --synctrain=unknown.json --wrap true
in_home value.json <<< '{ "transport": "carrier-pigeon" }'
refused "a value" "synctrain: --synctrain: value.json: transport: seen 'carrier-pigeon', expected auto, or shm, tcp joined by +" sbatch --synctrain=value.json --wrap true
in_home type.json <<< '{ "transport": 7 }'
refused "a type" "synctrain: --synctrain: type.json: transport: seen 7, expected a string" srun --synctrain=type.json true
in_home broken.json <<< '{ "transport": '
refused "no JSON" "synctrain: --synctrain: broken.json: line 2: not JSON: unexpected end of data" salloc --synctrain=broken.json true
refused "no file" "synctrain: --synctrain: gone.json: can't open: No such file or directory" sbatch --synctrain=gone.json --wrap true
in_home secret.json 600 <<< '{}'
refused "a file of another account" "synctrain: --synctrain: secret.json: can't open: Permission denied" sbatch --synctrain=secret.json --wrap true
refused "a directory" "synctrain: --synctrain: .: not a regular file" sbatch --synctrain=. --wrap true
as_user_home mkfifo fifo
refused "a named pipe" "synctrain: --synctrain: fifo: not a regular file" sbatch --synctrain=fifo --wrap true

echo "--- heterogeneous jobs"
het="synctrain: heterogeneous jobs and steps are not supported: seen several components, expected one"
refused "sbatch" "$het" sbatch --synctrain -N1 --wrap true : -N1
refused "sbatch, asked for in the second component" "$het" sbatch -N1 --wrap true : -N1 --synctrain
in_home het.sh <<< $'#!/bin/bash\n#SBATCH -N1 --synctrain\n#SBATCH hetjob\n#SBATCH -N1\ntrue'
refused "#SBATCH hetjob" "$het" sbatch het.sh
refused "srun" "$het" srun -N1 --synctrain true : -N1 true
refused "salloc" "$het" salloc -N1 --synctrain : -N1 true
nothing_queued

echo "--- a site that made a mistake"
site transport=carrier-pigeon
refused "the plugin is off and says why" "synctrain: switched off: plugstack.conf: transport=: seen 'carrier-pigeon', expected auto, or shm, tcp joined by +" \
	sbatch --synctrain --wrap true
site colour=red
refused "an argument" "synctrain: switched off: plugstack.conf: seen 'colour=red', expected algorithm=, transport=, report=, lock=, mpi=, port-range= or helpers=" srun --synctrain-algorithm=ring true
nothing_queued
expect "other jobs run" "-" "$(as_user_home srun ./show SYNCTRAIN 2>&1 | xargs)"
site

echo "--- the environment of tasks"
address=$(as_user scontrol -o show node node1 | sed 's/.*NodeAddr=\([0-9.]*\).*/\1/')
output=$(as_user_home srun -N4 --ntasks-per-node=2 --synctrain-transport=tcp+shm \
	./show RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK SYNCTRAIN SYNCTRAIN_ALGORITHM SYNCTRAIN_TRANSPORT SYNCTRAIN_STEP SYNCTRAIN_RESTART MASTER_ADDR)
expect "4 nodes x 2 tasks" "$(for r in 0 1 2 3 4 5 6 7; do echo "$r $((r % 2)) 8 2 $((r / 2)) 1 auto shm+tcp 0 0 $address "; done)" "$(sort <<< "$output")"
read -r id job_id report port < <(as_user_home srun --resv-ports=0 --synctrain-algorithm=ring ./show SLURM_JOB_ID SYNCTRAIN_JOB SYNCTRAIN_REPORT MASTER_PORT)
expect "the job's number" "$id" "$job_id"
expect "reports go below the submit directory" "/mnt/c/home/$ACCOUNT/synctrain-$id" "$report"
expect_match "a port of the default range" '^2[0-9]{4}$' "$port"
expect "PMIx is selected, and not shown to programs" "0 - " "$(as_user_home srun --synctrain ./show PMIX_RANK SLURM_MPI_TYPE)"
expect "but not over --mpi" "0 pmix_v4 - - " "$(for type in pmix_v4 none; do as_user_home srun --synctrain --mpi=$type ./show PMIX_RANK SLURM_MPI_TYPE; done | tr -d '\n')"
expect "nor over the user's variable" "0 pmix_v4 " "$(as_user_home env SLURM_MPI_TYPE=pmix_v4 srun --synctrain ./show PMIX_RANK SLURM_MPI_TYPE)"
expect "all ranks take the same port" 1 "$(as_user_home srun -N4 --resv-ports=0 --synctrain ./show MASTER_PORT | sort -u | wc -l)"
expect "a reserved port is used" same "$(as_user_home srun --resv-ports=2 --synctrain bash -c '[ "$MASTER_PORT" = "${SLURM_STEP_RESV_PORTS%%[-,]*}" ] && echo same')"
cpus=$(as_user nproc)
expect "threads: the task's CPUs, as far as there are any" $((cpus < 3 ? cpus : 3)) "$(as_user_home srun -n1 -c3 --synctrain ./show OMP_NUM_THREADS | xargs)"
expect "or its share of the node's" $((cpus < 4 ? cpus : 4)) "$(as_user_home salloc -Q -N1 -n2 --exclusive srun --synctrain ./show OMP_NUM_THREADS | sort -u | xargs)"
expect "but what the user gave it comes first" 1 "$(as_user_home salloc -Q -N1 -n2 -c1 --exclusive srun --synctrain ./show OMP_NUM_THREADS | sort -u | xargs)"
expect "one for one" 1 "$(as_user_home srun -n1 -c1 --synctrain ./show OMP_NUM_THREADS | xargs)"
site port-range=31000-31000 algorithm=ring report=/site/%u/%x-%j mpi=no_such
output=$(as_user_home srun -J 'a/b' --resv-ports=0 --synctrain ./show SYNCTRAIN_ALGORITHM SYNCTRAIN_REPORT MASTER_PORT PMIX_RANK 2>&1)
expect_match "the site's defaults" "ring /site/$ACCOUNT/a_b-[0-9]+ 31000 - $" "$output"
expect_match "a missing MPI plugin is told" "srun: synctrain: Slurm's plugin mpi_no_such is not installed here: ranks start without it" "$output"
site
expect "what the user set is kept" "x y z 7 8 9 " "$(as_user_home env RANK=x MASTER_ADDR=y MASTER_PORT=z OMP_NUM_THREADS=7 WORLD_SIZE=8 SYNCTRAIN_ALGORITHM=9 \
	srun --synctrain ./show RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS WORLD_SIZE SYNCTRAIN_ALGORITHM)"
expect "also when it is empty" "-:" "$(as_user_home env RANK= srun --synctrain bash -c 'echo "-$RANK:"')"

echo "--- requeue, array: under way while the rest is tested"
in_home requeue.sh <<- 'SH'
	#!/bin/bash
	srun --resv-ports=0 ./show SYNCTRAIN_RESTART MASTER_PORT >> requeued
	[ "${SLURM_RESTART_COUNT:-0}" -ge 1 ] || { scontrol requeue "$SLURM_JOB_ID"; sleep 60; }
SH
requeued=$(as_user_home sbatch --parsable --requeue -w node4 --synctrain -o /dev/null requeue.sh)
array=$(as_user_home sbatch --parsable --array=3-6 -n2 --synctrain -o array-%a.out --wrap 'srun ./show SYNCTRAIN_REPORT SYNCTRAIN_JOB')

echo "--- precedence"
in_home tcp.json <<< '{ "transport": "tcp", "algorithm": "ring", "report": "from-profile" }'
site transport=shm
SBATCH_LINES=$'#!/bin/bash\n#SBATCH --synctrain=tcp.json --synctrain-report=from-line\nrm -f tcp.json\nsrun ./show SYNCTRAIN_TRANSPORT SYNCTRAIN_ALGORITHM SYNCTRAIN_REPORT\n'
output=$(job --synctrain-algorithm=auto <<< "$SBATCH_LINES")
expect "command line over #SBATCH over profile over site" "tcp auto /mnt/c/home/$ACCOUNT/from-line" "$(xargs <<< "$output")"
expect "the profile is read at submission only" gone "$([ -e "$STATE/home/$ACCOUNT/tcp.json" ] && echo there || echo gone)"
in_home tcp.json <<< '{ "transport": "tcp", "algorithm": "ring", "report": "from-profile" }'
site transport=shm report=/site lock=transport,report
output=$(as_user_home srun --synctrain=tcp.json --synctrain-report=mine ./show SYNCTRAIN_TRANSPORT SYNCTRAIN_ALGORITHM SYNCTRAIN_REPORT 2>&1)
expect_match "locks over all" '(^|'$'\n'')shm ring /site ' "$output"
expect_match "said in one line each" "srun: synctrain: --synctrain-transport: 'tcp' asked for, 'shm' used: the site locked it" "$output"
expect_match "for the strongest value asked for" "srun: synctrain: --synctrain-report: 'mine' asked for, '/site' used" "$output"
expect "nothing to say" "shm" "$(as_user_home srun --synctrain-transport=shm ./show SYNCTRAIN_TRANSPORT 2>&1 | xargs)"
expect "over the settings of a forged job too" "shm /site " "$(job <<< $'#!/bin/bash\nSLURM_SPANK_SYNCTRAIN=v1:algorithm=auto:transport=tcp:report=x:directory=/ srun ./show SYNCTRAIN_TRANSPORT SYNCTRAIN_REPORT 2> /dev/null')"
site

echo "--- inside a job"
output=$(job -N2 -n2 --overcommit --synctrain-transport=tcp << 'SH'
#!/bin/bash
echo "batch $(./show SYNCTRAIN RANK MASTER_ADDR SLURM_MPI_TYPE) $(env | grep -c SPANK_OPTION)"
srun -n2 -N2 ./show RANK SYNCTRAIN_TRANSPORT | sort | sed 's/^/step /'
echo "none $(srun -n1 -N1 --export=NONE "$PWD/show" SYNCTRAIN_TRANSPORT RANK)"
echo "other $(srun -n1 -N1 --synctrain-transport=shm ./show SYNCTRAIN_TRANSPORT)"
cd /
echo "report $(srun -n1 -N1 "$OLDPWD/show" SYNCTRAIN_REPORT) $(srun -n1 -N1 --synctrain-report=r "$OLDPWD/show" SYNCTRAIN_REPORT)"
cd "$OLDPWD"
srun -n2 -N2 bash -c '[ "$RANK" = 1 ] || exit 0; echo "inner $(srun --overlap -n1 -N1 ./show RANK WORLD_SIZE)"; echo "kept $(RANK=7 srun --overlap -n1 -N1 ./show RANK)"
	sbatch --wait -w node1 --overcommit -o nested-task.out --wrap "./show SYNCTRAIN RANK SLURM_SPANK_SYNCTRAIN SYNCTRAIN_SET; srun -n1 ./show SYNCTRAIN RANK MASTER_ADDR SLURM_SPANK_SYNCTRAIN SLURM_MPI_TYPE"' > task.out
cat task.out
srun -n1 -N1 --resv-ports=0 --overlap bash -c 'echo $SYNCTRAIN_STEP $MASTER_PORT > a; until [ -e b ]; do sleep 0.1; done' &
srun -n1 -N1 --resv-ports=0 --overlap bash -c 'echo $SYNCTRAIN_STEP $MASTER_PORT > b; until [ -e a ]; do sleep 0.1; done' &
wait
echo "steps $(cat a b | cut -d' ' -f1 | sort -u | wc -l) $(cat a b | cut -d' ' -f2 | sort -u | wc -l)"
sbatch --wait -w node1 --overcommit -o nested.out --wrap "./show SYNCTRAIN SLURM_SPANK_SYNCTRAIN; srun -n1 ./show SYNCTRAIN RANK SLURM_SPANK_SYNCTRAIN PMIX_RANK" > /dev/null
sbatch --wait -w node1 --overcommit --synctrain -o nested-asks.out --wrap "srun -n1 ./show SYNCTRAIN_TRANSPORT" > /dev/null
SH
)
expect "nothing for the batch script" "batch - - - - 0" "$(grep ^batch <<< "$output" | xargs)"
expect "srun in it is synctrain's" "step 0 tcp step 1 tcp" "$(grep ^step\  <<< "$output" | xargs)"
expect "also with srun --export=NONE" "none tcp 0" "$(grep ^none <<< "$output" | xargs)"
expect "srun's own option over the job's" "other shm" "$(grep ^other <<< "$output" | xargs)"
expect_match "reports stay where the job was submitted, unless srun names a directory" "report /mnt/c/home/$ACCOUNT/synctrain-[0-9]+ /r$" "$(grep ^report <<< "$output" | xargs)"
expect "srun in a task: its own ranks" "inner 0 1" "$(grep ^inner <<< "$output" | xargs)"
expect "and what the user set there" "kept 7" "$(grep ^kept <<< "$output" | xargs)"
expect "two steps at once, with ports of their own" "steps 2 2" "$(grep ^steps <<< "$output" | xargs)"
expect "sbatch in it is not synctrain's" "- - - - - -" "$(xargs < "$STATE/home/$ACCOUNT/nested.out")"
expect "nor sbatch in a task" "- - - - - - - - -" "$(xargs < "$STATE/home/$ACCOUNT/nested-task.out")"
expect "unless it asks" "auto" "$(xargs < "$STATE/home/$ACCOUNT/nested-asks.out")"
expect "--export=NONE" "tcp 0 " "$(job --export=NONE --synctrain-transport=tcp <<< $'#!/bin/bash\n/usr/bin/srun "$PWD/show" SYNCTRAIN_TRANSPORT RANK')"
expect "salloc" "- shm 0 " "$(as_user_home salloc -Q --synctrain-transport=shm bash -c 'echo "${RANK--} $(srun ./show SYNCTRAIN_TRANSPORT RANK)"')"
expect "nothing for an interactive step, a step in it is synctrain's" "- - - shm 0 0 -" \
	"$(as_user_home salloc -Q --synctrain-transport=shm <<< './show RANK SYNCTRAIN PMIX_RANK; srun --overlap ./show SYNCTRAIN_TRANSPORT RANK PMIX_RANK SLURM_MPI_TYPE' | xargs)"

echo "--- two jobs on a node"
for other in a b; do
	as_user_home srun -w node2 -n2 --resv-ports=0 --synctrain bash -c 'echo "$SYNCTRAIN_JOB $SYNCTRAIN_REPORT $MASTER_PORT" >> two-$0; until [ -s two-a ] && [ -s two-b ]; do sleep 0.1; done' $other &
done
wait %% %-
expect "jobs, reports, ports of their own" "2 2 2" "$(for f in 1 2 3; do cat "$STATE/home/$ACCOUNT"/two-[ab] | cut -d' ' -f$f | sort -u | wc -l; done | xargs)"

echo "--- who did not ask"
expect "arguments of the program that look like ours" "- - -" "$(as_user_home srun ./show SYNCTRAIN PMIX_RANK RANK --synctrain-transport=x 2> /dev/null | cut -d' ' -f1-3)"
sorted='env -0 | sort -z | sed -zE "s/^(SLURM_(JOB_ID|JOBID|STEP_ID|STEPID|TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|STEP_RESV_PORTS))=.*/\1=*/" | tr "\0" "\n"'
dump() { as_user_home srun -N2 -w node1,node2 -l bash -c "$sorted" | sort; job -w node1 <<< $'#!/bin/bash\n'"$sorted"$'\nsrun bash -c '"'$sorted'"; }
dump > "$SCRATCH/with"
no_plugin
dump > "$SCRATCH/without"
site
[ -s "$SCRATCH/with" ] || fail "no environment to compare"
expect "the environment is that without a plugin" '' "$(diff "$SCRATCH/with" "$SCRATCH/without")"
expect "and has nothing of ours" '' "$(sed 's/^[01]: //' "$SCRATCH/with" | grep -E "$ours")"

echo "--- forged environments"
forged() {  # WHAT EXPECTED NAME=VALUE...: in a job that did not ask
	local what=$1 wanted=$2
	shift 2
	expect "$what" "$wanted" "$(as_user_home salloc -Q env "$@" srun ./show SYNCTRAIN RANK 2>&1 | sort | xargs)"
}
raw=SLURM_SPANK__SLURM_SPANK_OPTION_synctrain_synctrain_transport
forged "raw options" "- -" "$raw=carrier-pigeon" "${raw%_transport}=/etc/passwd" _SLURM_SPANK_OPTION_synctrain_synctrain_transport=tcp
expect "raw options outside a job" "- - " "$(as_user_home env "$raw=carrier-pigeon" _SLURM_SPANK_OPTION_synctrain_synctrain=x srun ./show SYNCTRAIN RANK)"
expect "settings outside a job" "- - " "$(as_user_home env SLURM_SPANK_SYNCTRAIN=v1:algorithm=auto:transport=tcp:report=:directory=/ srun ./show SYNCTRAIN SLURM_SPANK_SYNCTRAIN)"
expect "for sbatch" "- " "$(as_user_home env "$raw=carrier-pigeon" SLURM_SPANK_SYNCTRAIN=v1 sbatch --wait -Q -o forged.out --wrap './show SLURM_SPANK_SYNCTRAIN' && cat "$STATE/home/$ACCOUNT/forged.out")"
forged "a carrier of another version" "- - srun: error: synctrain: SLURM_SPANK_SYNCTRAIN: seen v9:x, expected what this version of the plugin writes: ignored" SLURM_SPANK_SYNCTRAIN=v9:x
forged "a carrier with a value that is none" "- - srun: error: synctrain: SLURM_SPANK_SYNCTRAIN: seen nccl, not in this version (have auto, ring, tree, halving, hierarchical, torus, direct): ignored" \
	SLURM_SPANK_SYNCTRAIN=v1:algorithm=nccl:transport=tcp:report=:directory=/
expect_match "a carrier of 100,000 bytes" 'expected what this version of the plugin writes: ignored'$'\n''- - ' \
	"$(as_user_home salloc -Q env SLURM_SPANK_SYNCTRAIN="v1:$(printf '%0100000d' 0)" srun ./show SYNCTRAIN RANK 2>&1)"
# srun without the plugin is a hostile client: what it sends reaches the nodes unchecked. So does --export in its task.
hostile() {  # WHAT EXPECTED NAME=VALUE...
	local what=$1 wanted=$2
	shift 2
	expect "$what" "$wanted" "$(as_user_home env SLURM_CONF=/mnt/c/home/slurm-hostile.conf "$@" srun ./show SYNCTRAIN MASTER_ADDR SYNCTRAIN_TRANSPORT 2>&1 | sort | xargs)"
}
as_root sed 's|^PlugStackConfig=.*||' "$STATE/etc/slurm.conf" | as_root tee "$STATE/home/slurm-hostile.conf" > /dev/null
echo 'PlugStackConfig=/dev/null' | as_root tee -a "$STATE/home/slurm-hostile.conf" > /dev/null
good=SLURM_SPANK_SYNCTRAIN=v1:algorithm=auto:transport=tcp:report=:directory=/
hostile "from a hostile srun: garbage" "- - - synctrain: SLURM_SPANK_SYNCTRAIN: seen garbage, expected what this version of the plugin writes: this step runs without synctrain" \
	SLURM_SPANK_SYNCTRAIN=garbage
hostile "too long" "- - - synctrain: SLURM_SPANK_SYNCTRAIN: too long: this step runs without synctrain" "SLURM_SPANK_SYNCTRAIN=v1:$(printf '%020000d' 0)"
hostile "an address that is none" "1 node1 tcp" $good 'SLURM_SPANK_SYNCTRAIN_MASTER=a;rm -rf /'
hostile "a heterogeneous step" "- - - synctrain: heterogeneous jobs and steps are not supported: this step runs without synctrain" $good SLURM_HET_SIZE=2
site transport=shm lock=transport
hostile "a value that the site locked" "1 node1 shm" $good
site colour=red
hostile "at a site that made a mistake" "- - - synctrain: switched off on this node: plugstack.conf: seen colour=red, expected algorithm=, transport=, report=, lock=, mpi=, port-range= or helpers=: this step runs without synctrain" $good
site

echo "--- helper programs that go wrong"
helper() { in_home helpers/profile 755; }
as_user_home mkdir helpers
HELPERS="helpers=/mnt/c/home/$ACCOUNT/helpers"
bad_helper() {  # WHAT LINE < SCRIPT
	helper
	refused "$1" "synctrain: --synctrain: /mnt/c/home/$ACCOUNT/helpers/profile: $2" sbatch --synctrain=tcp.json --wrap true
}
site
refused "none" "synctrain: --synctrain: /mnt/c/home/$ACCOUNT/helpers/profile: no such program" sbatch --synctrain=tcp.json --wrap true
bad_helper "garbage" "its answer is not understood" <<< $'#!/bin/sh\necho algorithm=ring; echo colour=red; echo end'
bad_helper "a value that is none" "its answer is not understood" <<< $'#!/bin/sh\necho algorithm=nccl; echo end'
bad_helper "an answer cut off" "its answer is not understood" <<< $'#!/bin/sh\necho algorithm=ring'
bad_helper "a flood" "its answer is too long" <<< $'#!/bin/sh\nyes algorithm=ring'
bad_helper "no answer, after ten seconds" "no answer in time" <<< $'#!/bin/sh\nexec sleep 60'
bad_helper "terminal escapes" "a?[31mb" <<< $'#!/bin/sh\nprintf "error a\\033[31mb\\n"'
HELPERS=helpers=/mnt/tree/build/libexec/synctrain
site

echo "--- array, requeue"
wait_job "${array}_6" 60 > /dev/null || fail "the array does not end"
wait_until 30 bash -c "[ -z \"\$('$CLUSTER' run '$STATE' -- squeue -h -j $array)\" ]" || fail "the array does not end"
expect "a report directory for each element" "$(for i in 3 4 5 6; do for _ in 1 2; do echo "/mnt/c/home/$ACCOUNT/synctrain-${array}_$i"; done; done)" \
	"$(for i in 3 4 5 6; do cut -d' ' -f1 "$STATE/home/$ACCOUNT/array-$i.out"; done)"
expect "and a job number" 4 "$(for i in 3 4 5 6; do cut -d' ' -f2 "$STATE/home/$ACCOUNT/array-$i.out"; done | sort -u | wc -l)"
wait_job "$requeued" 60 > /dev/null || fail "the requeued job does not end"
expect "restarts are counted" "0 1" "$(cut -d' ' -f1 "$STATE/home/$ACCOUNT/requeued" | xargs)"
expect "and get ports of their own" 2 "$(cut -d' ' -f2 "$STATE/home/$ACCOUNT/requeued" | sort -u | wc -l)"
expect "no node was drained" "4 idle" "$(as_user sinfo -h -o '%D %T')"
pass
