# Helpers of the tests that need a real Slurm.  A test begins with
#
#   . "${0%/*}/lib.sh"
#   cluster_start                      # four idle nodes of its own; taken down when the test ends, however it ends
#
# and is then a row of  expect WHAT WANTED SEEN  lines.  It ends with  pass.  Exit: 0 passed, 1 failed, 77 skipped.
# shellcheck shell=bash disable=SC2034,SC2016,SC2120
set -u

TREE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
CLUSTER=$TREE/etc/quickstart/cluster
NAME=$(basename "$0" .sh)
SCRATCH=$TREE/build/tests/slurm/$NAME-$$    # this run's files; removed when the test passes
STATE=$SCRATCH/cluster                      # the state directory of the cluster
ACCOUNT=nobody                              # as_user's account; set below to whoever is behind sudo
clusters=()                                 # state directories to take down at the end
result=1

fail() { echo "FAIL  $*"; exit 1; }                        # WHAT
skip() { echo "SKIP  $*"; result=77; exit 77; }            # REASON
pass() { echo "PASS  $NAME"; result=0; exit 0; }

expect() {  # WHAT WANTED SEEN: the same text
	[ "$2" = "$3" ] || fail "$1"$'\n'"  expected: $2"$'\n'"  seen:     $3"
	echo "ok    $1"
}
expect_match() {  # WHAT REGEX SEEN: some part of it matches
	[[ $3 =~ $2 ]] || fail "$1"$'\n'"  expected: a match of $2"$'\n'"  seen:     $3"
	echo "ok    $1"
}
expect_code() {  # WHAT CODE CMD...: exits with CODE; what it prints is left in $output
	local what=$1 code=$2 seen=0
	shift 2
	output=$("$@" 2>&1) || seen=$?
	[ "$seen" = "$code" ] || fail "$what"$'\n'"  expected: exit $code"$'\n'"  seen:     exit $seen, $output"
	echo "ok    $what"
}
output=''

need_programs() {  # PROGRAM...: skips the test where one is missing
	local program
	for program; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$program" > /dev/null ||
			skip "$program is not installed: etc/quickstart/install-packages build run"
	done
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n -- "$@"; fi; }    # CMD... on the host

# Settings (CLUSTER_CPUS=..., CLUSTER_EXTRA_CONF=...) come from the environment: see `etc/quickstart/cluster --help`.
cluster_start() {  # [STATE_DIR]
	local dir=${1:-$STATE}
	need_programs slurmctld slurmd srun munged ip unshare nsenter setpriv
	[ "$(id -u)" = 0 ] || sudo -n true 2> /dev/null || skip "needs root, or sudo without a password"
	clusters+=("$dir")
	"$CLUSTER" up "$dir" || fail "the cluster does not come up; logs are in $dir/log"
}
cluster_stop() { "$CLUSTER" down "${1:-$STATE}"; }          # [STATE_DIR]

# In these, CMD runs in the cluster's namespaces with a fresh environment (give variables as: env NAME=VALUE CMD) and in
# the checkout, seen there as /mnt/tree.  The account's own directory is $HOME, /mnt/c/home/ACCOUNT.
# To kill one by its pid, start it in the background without a helper:  "$CLUSTER" run ... & kill $!
as_user() { "$CLUSTER" run -u "$ACCOUNT" "$STATE" -- "$@"; }                       # CMD...
as_user_home() { "$CLUSTER" run -u "$ACCOUNT" -d "$STATE" -- "$@"; }               # CMD... in $HOME
on_node() { "$CLUSTER" run -u "$ACCOUNT" -n "$1" "$STATE" -- "${@:2}"; }           # NODE CMD...
on_node_as_root() { "$CLUSTER" run -u root -n "$1" "$STATE" -- "${@:2}"; }         # NODE CMD...
in_cluster_as_root() { "$CLUSTER" run -u root "$STATE" -- "$@"; }                  # CMD... (scontrol update and the like)

# CMD on the host itself, as the ordinary account, with nothing but what `cluster env` gives.
as_host_user() {  # CMD...
	as_root setpriv --reuid "$(id -u "$ACCOUNT")" --regid "$(id -g "$ACCOUNT")" --init-groups \
		env -i PATH=/usr/bin:/bin HOME=/ USER="$ACCOUNT" \
		bash -c 'eval "$("$1" env "$2")" && shift 2 && "$@"' - "$CLUSTER" "$STATE" "$@"
}
host_user_reaches() {  # [STATE_DIR]: an ordinary account can get at the client's configuration from the host
	as_root setpriv --reuid "$(id -u "$ACCOUNT")" --regid "$(id -g "$ACCOUNT")" --init-groups \
		test -r "${1:-$STATE}/etc/client/slurm.conf"
}

# Loss of power: every process of the node is gone in the same instant, and so are its link and its addresses.  Slurm finds
# out after SlurmdTimeout (30 s).  For slurmd alone:  on_node_as_root node3 bash -c 'kill "$(cat /run/slurmd.pid)"',  and
# on_node_as_root node3 slurmd -N node3  brings it back.
kill_node() {  # NODE
	local pids
	mapfile -t pids < <(in_cluster_as_root pgrep -f "_node $1 ")
	[ ${#pids[@]} -gt 0 ] && in_cluster_as_root kill -9 "${pids[@]}"
}

job_state() { as_user scontrol -o show job "$1" | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p'; }    # JOB_ID
wait_job() {  # JOB_ID [SECONDS=30] -> the final state; on time-out the state it is in, and 1
	local state='' end=$((SECONDS + ${2:-30}))
	while [ $SECONDS -lt $end ]; do
		state=$(job_state "$1")
		case $state in COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|BOOT_FAIL|DEADLINE|OUT_OF_MEMORY|PREEMPTED)
			echo "$state"; return 0;;
		esac
		sleep 0.2
	done
	echo "$state"
	return 1
}
wait_until() {  # SECONDS CMD...: until CMD succeeds
	local end=$((SECONDS + $1))
	shift
	until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.1; done
}

finish() {
	local dir
	trap '' INT TERM HUP
	for dir in ${clusters[@]+"${clusters[@]}"}; do "$CLUSTER" down "$dir" > /dev/null; done
	if [ $result = 1 ]; then echo "logs and files are in $SCRATCH"; else rm -rf "$SCRATCH" 2> /dev/null || as_root rm -rf "$SCRATCH"; fi
}
trap finish EXIT
trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM

if [ "$(id -u)" != 0 ]; then ACCOUNT=$(id -un)
elif [ -n "${SUDO_USER-}" ] && [ "$SUDO_USER" != root ]; then ACCOUNT=$SUDO_USER; fi
mkdir -p "$SCRATCH" || fail "can't make $SCRATCH"
