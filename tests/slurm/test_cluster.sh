#!/bin/bash
# shellcheck disable=SC2016,SC2086  # single quotes are for the shell inside; $places are words
# The quickstart cluster: four nodes that are apart from each other, clients from inside and from the host, several
# clusters at once, and nothing left behind, also after a crash.
. "${0%/*}/lib.sh"

# What the host has, that a cluster could leave behind.  Other clusters may come and go meanwhile: mounts of theirs are
# private, links and directories are looked up by name.
mounts_before=$(sort /proc/mounts)
namespaces_of() { as_root readlink "/proc/$1/ns/"{mnt,pid,net,ipc,uts} 2> /dev/null; }       # PID
processes_in() {  # NAMESPACE...: processes of the host's list that are in one of them, or have it for their children
	as_root find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/*' -printf '%p %l\n' 2> /dev/null | grep -F "$(printf '%s\n' "$@")"
}
all_namespaces() {  # STATE_DIR: of its init and its nodes, less those of the host
	local pid
	read -r pid _ < "$1/run/init"
	{ namespaces_of "$pid"; for pid in $(as_root grep -lszx _node /proc/[0-9]*/cmdline | cut -d/ -f3); do
		tr '\0' ' ' < "/proc/$pid/cmdline" | grep -qF " $1 " && namespaces_of "$pid"; done
	} | sort -u | grep -vxF "$(readlink /proc/self/ns/{mnt,pid,net,ipc,uts})"
}
mark_of() { cut -d' ' -f2 "$1/run/init"; }                                                   # STATE_DIR
link_there() { grep -qsxF "synctrain-$1" /sys/class/net/*/ifalias; }                         # MARK
expect_nothing_left() {  # WHAT MARK NAMESPACE...
	local what=$1 mark=$2
	shift 2
	expect "$what: no process" '' "$(processes_in "$@")"
	expect "$what: no mount" "$mounts_before" "$(sort /proc/mounts)"
	expect "$what: no link" gone "$(link_there "$mark" && echo there || echo gone)"
	expect "$what: no short path" gone "$([ -e "/tmp/synctrain-$mark" ] && echo there || echo gone)"
}

echo "--- up"
began=$(date +%s%N)
cluster_start
echo "ok    up after $((($(date +%s%N) - began) / 1000000)) ms"
expect "four idle nodes" "4 idle" "$(as_user sinfo -h -o '%D %T')"
expect_code "up on a cluster that is up" 0 "$CLUSTER" up "$STATE"
expect_match "says so" 'is up already' "$output"
expect_code "status" 0 "$CLUSTER" status "$STATE"
expect_match "status names the directory for job output" "home +$STATE/home/$ACCOUNT" "$output"
expect_match "two leaf switches under a spine" 'leaf1 .*node\[1-2\].*leaf2 .*node\[3-4\].*spine' "$(as_user scontrol show topology | tr '\n' ' ')"

echo "--- jobs and nodes"
expect "run is an ordinary account in the checkout" "$ACCOUNT /mnt/tree head" "$(as_user bash -c 'echo "$(id -un) $PWD $(hostname)"')"
expect "srun -N4 hostname" "node1 node2 node3 node4" "$(as_user srun -N4 hostname | sort | xargs)"
expect "jobs run as the account" "$ACCOUNT" "$(as_user srun id -un)"
expect "four addresses" 4 "$(as_user srun -N4 hostname -I | awk '{ print $1 }' | sort -u | wc -l)"
expect "a node's address is the one Slurm has" "$(as_user scontrol -o show node node3 | sed 's/.*NodeAddr=\([0-9.]*\).*/\1/')" "$(on_node node3 hostname -I | cut -d' ' -f1)"
expect "names lead to addresses" "$(on_node node3 hostname -I | cut -d' ' -f1)" "$(on_node node1 getent hosts node3 | cut -d' ' -f1)"
expect "/sys shows the node's own interfaces" "eth0 lo" "$(on_node node1 ls /sys/class/net | xargs)"
own=synctrain-test-$$                       # unlike any other run's: where nodes are not apart, files of a failed run stay
places="/dev/shm/$own /run/$own /tmp/$own"
on_node_as_root node1 touch $places
expect "files of node1 are there" "$places" "$(on_node node1 ls $places | xargs)"
expect "and not on node2" "" "$(on_node node2 ls $places 2> /dev/null)"
expect "and not on the host" "" "$(ls $places 2> /dev/null)"
"$CLUSTER" run -n node1 "$STATE" -- sleep 321 &
wait_until 5 bash -c "[ \"\$('$CLUSTER' run -n node1 '$STATE' -- ps -C sleep -o args= | grep -c 321)\" = 1 ]" || fail "node1 does not show its own process"
expect "processes of node1 are not seen on node2" "" "$(on_node node2 ps ax -o args= | grep 'sleep 321' | grep -v grep)"
kill $!; wait 2> /dev/null
wait_until 5 bash -c "! '$CLUSTER' run -n node1 '$STATE' -- ps -C sleep -o args= | grep -q 321" || fail "a command outlives the run that was told to end"
echo "ok    a command ends with the run that was told to end"
expect "cwd and output in the account's home" "/mnt/c/home/$ACCOUNT node1" \
	"$(as_user_home bash -c 'sbatch --wait -w node1 -o out.txt --wrap "pwd; hostname" > /dev/null; xargs < out.txt')"
id=$(as_user_home sbatch --parsable -o /dev/null --wrap 'exit 3')
expect "a failed job is seen to fail" FAILED "$(wait_job "$id")"

echo "--- steps"
expect_match "PMIx is there to be chosen (test_bootstrap.sh uses it)" "pmix" "$(as_user srun --mpi=list 2>&1 | xargs)"
expect_match "a step can reserve ports" '^2[01][0-9]{3}' "$(as_user srun --resv-ports=1 bash -c 'echo $SLURM_STEP_RESV_PORTS')"

echo "--- clients on the host"
if host_user_reaches; then
	expect "srun in a host shell, as an ordinary account" "node1 node2 node3 node4" "$(as_host_user bash -c 'cd / && srun -N4 hostname | sort | xargs')"
	expect "with input" "over and out" "$(echo "over and out" | as_host_user bash -c 'cd / && srun cat')"
	expect "PATH has the build first" "$TREE/build/bin" "$(as_host_user bash -c 'echo ${PATH%%:*}')"
	expect "sbatch in a host shell, srun in its job" COMPLETED "$(wait_job "$(as_host_user bash -c 'cd / && sbatch --parsable -N2 -o /dev/null --wrap "[ \$(srun hostname | sort | xargs | tr -d \" \") = node1node2 ]"')")"
else
	echo "note  not checked: $STATE is below a directory that $ACCOUNT may not enter"
fi

echo "--- two clusters at once, the second with settings of its own"
echo 'KillWait = 9' > "$SCRATCH/extra.conf"
export CLUSTER_CPUS=3 CLUSTER_GPUS=2 CLUSTER_EXTRA_CONF=$SCRATCH/extra.conf
cluster_start "$SCRATCH/second"
unset CLUSTER_CPUS CLUSTER_GPUS CLUSTER_EXTRA_CONF
other() { "$CLUSTER" run -u "$ACCOUNT" "$SCRATCH/second" -- "$@"; }
expect "both answer" "4 idle 4 idle" "$(as_user sinfo -h -o '%D %T') $(other sinfo -h -o '%D %T')"
expect "with addresses of their own" 8 "$({ as_user srun -N4 hostname -I; other srun -N4 hostname -I; } | awk '{ print $1 }' | sort -u | wc -l)"

expect "CLUSTER_CPUS" 12 "$(other sinfo -h -o %C | cut -d/ -f4)"
expect "CLUSTER_GPUS" "0,1" "$(other srun --gres=gpu:2 bash -c 'echo $CUDA_VISIBLE_DEVICES')"
expect "CLUSTER_EXTRA_CONF replaces a key" "KillWait = 9 sec" "$(other scontrol show config | grep KillWait | xargs)"
expect "and only there" "KillWait = 2 sec" "$(as_user scontrol show config | grep KillWait | xargs)"

echo "--- down, and down after a crash"
mapfile -t spaces < <(all_namespaces "$SCRATCH/second")
STATE=$SCRATCH/second kill_node node4
wait_until 5 bash -c "! '$CLUSTER' run '$SCRATCH/second' -- test -e /sys/class/net/node4" || fail "node4 does not lose its link"
expect_code "a node that lost power is gone" 69 "$CLUSTER" run -n node4 "$SCRATCH/second" -- true
expect "and the others are there" "node1 node2 node3" "$(other srun -w 'node[1-3]' -N3 hostname | sort | xargs)"
[ ${#spaces[@]} -ge 20 ] || fail "expected five namespaces of each of five inits, seen ${#spaces[@]}"
mark=$(mark_of "$SCRATCH/second")
link_there "$mark" || fail "no link of the second cluster to look for"
began=$(date +%s%N)
cluster_stop "$SCRATCH/second"
echo "ok    down after $((($(date +%s%N) - began) / 1000000)) ms"
expect_nothing_left "down" "$mark" "${spaces[@]}"
expect_code "down twice" 0 "$CLUSTER" down "$SCRATCH/second"
expect "logs stay" there "$([ -s "$SCRATCH/second/log/slurmctld.log" ] && echo there)"
expect "with the owner of the checkout" "$(stat -c %u "$TREE")" "$(stat -c %u "$SCRATCH/second/log/slurmctld.log")"
expect "the other cluster lives on" "4 idle" "$(as_user sinfo -h -o '%D %T')"

mapfile -t spaces < <(all_namespaces "$STATE")
mark=$(mark_of "$STATE")
read -r pid _ < "$STATE/run/init"
as_user_home sbatch -N4 -o /dev/null --wrap 'srun sleep 300' > /dev/null
wait_until 10 bash -c "'$CLUSTER' run -n node4 '$STATE' -- ps ax -o args= | grep -q '[s]leep 300'" || fail "no job to crash under"
as_root kill -9 "$pid"
wait_until 10 bash -c "! [ -e /proc/$pid ]" || fail "init $pid does not die"
expect_code "status after a crash" 69 "$CLUSTER" status "$STATE"
cluster_stop
expect_nothing_left "crash, then down" "$mark" "${spaces[@]}"

as_root kill -9 "$(cluster_start > /dev/null; cut -d' ' -f1 "$STATE/run/init")"
expect_code "up after a crash" 0 "$CLUSTER" up "$STATE"
expect "four idle nodes" "4 idle" "$(as_user sinfo -h -o '%D %T')"
mapfile -t spaces < <(all_namespaces "$STATE")
mark=$(mark_of "$STATE")
as_root mv "$STATE" "$STATE.lost"
cluster_stop
expect_nothing_left "down without the state directory" "$mark" "${spaces[@]}"

echo "--- a cluster that can't come up"
echo 'SelectType=select/no_such_plugin' > "$SCRATCH/bad.conf"
clusters+=("$SCRATCH/bad")
expect_code "exits 69" 69 env CLUSTER_EXTRA_CONF="$SCRATCH/bad.conf" "$CLUSTER" up "$SCRATCH/bad"
expect_match "with Slurm's reason" 'no_such_plugin' "$output"
expect "and leaves no state but logs" "home log" "$(cd "$SCRATCH/bad" && echo *)"

echo "--- a checkout with a long path, in a directory for its owner alone"
long=$SCRATCH/$(printf 'a-long-name-%.0s' 1 2 3 4 5 6 7 8 9 10)/checkout
mkdir -p "$long/etc" && cp -r "$TREE/etc/quickstart" "$long/etc/" || fail "can't copy etc/quickstart"
[ ${#long} -gt 120 ] || fail "path too short: $long"
CLUSTER=$long/etc/quickstart/cluster STATE=$long/build/cluster
cluster_start
expect "srun" "node1 node2 node3 node4" "$(as_user srun -N4 hostname | sort | xargs)"
if host_user_reaches; then
	expect "srun in a host shell" "node1 node2 node3 node4" "$(as_host_user bash -c 'cd / && srun -N4 hostname | sort | xargs')"
fi
chmod 700 "${long%/*}"
expect "srun below a 0700 directory, in the checkout" "/mnt/tree" "$(as_user srun pwd)"
mapfile -t spaces < <(all_namespaces "$STATE")
mark=$(mark_of "$STATE")
[ -e "/tmp/synctrain-$mark" ] || fail "no short path to look for"
cluster_stop
expect_nothing_left "down" "$mark" "${spaces[@]}"
pass
