#!/bin/bash
# Ranks meet although some nodes take long to launch theirs.  Slurm 22.05's stepds reject each other's direct PMIx
# connections meanwhile, and a fence that they are needed for never ends: libcomm/bootstrap_pmix.c says how it is avoided.
. "${0%/*}/lib.sh"
need_programs cc
[ -x "$TREE/build/bin/synctrain" ] || fail "build/bin/synctrain is not built: make"
cc -std=gnu17 -Wall -Wextra -Wshadow -Wconversion -shared -fPIC -o "$SCRATCH/slow_launch.so" "$TREE/tests/slurm/slow_launch_spank.c" ||
	fail "slow_launch_spank.c does not compile"
cluster_start
as_root install -m 644 "$SCRATCH/slow_launch.so" "$STATE/home/slow_launch.so"

MS=1000
slow_nodes() {  # NODE...
	echo "required /mnt/c/home/slow_launch.so ms=$MS${1+$(printf ' node=%s' "$@")}" | as_root tee "$STATE/etc/plugstack.conf" > /dev/null
}
launches() {  # COUNT WHAT
	local n began
	began=$(date +%s%N)
	for ((n = 1; n <= $1; n++)); do
		output=$(as_user timeout 10 srun --mpi=pmix -K -N4 -n8 synctrain bench allreduce -b 8 -e 8 -n 1 -w 1 2>&1) ||
			fail "$2: launch $n of $1: exit $?, $output"
	done
	took=$((($(date +%s%N) - began) / 1000000))
	echo "ok    $2: $1 of $1, $((took / $1)) ms each"
}

slow_nodes
launches 3 "no slow node"
slow_nodes node2 node3 node4
launches 5 "all slow but the first"
[ $took -ge $((5 * MS)) ] || fail "the launches are not slow: the plugin does nothing"
slow_nodes node1
launches 3 "the first is slow"
slow_nodes node2 node4
launches 3 "two are slow"
slow_nodes node1 node2 node3 node4
launches 2 "all are slow"
pass
