#!/bin/bash
# Collectives on the four-node cluster: right results, and the counters prove that shared memory carried what stayed in a node
# and TCP what crossed; each transport alone where asked for.
. "${0%/*}/lib.sh"
cluster_start
bench() { as_user srun --mpi=pmix -N4 --ntasks-per-node=2 env "$1" synctrain bench "${@:2}" --json; } # VARIABLE=VALUE COLLECTIVE ARGUMENTS...
count() { python3 -c '
import json, sys
r = json.load(sys.stdin)
c = r["counters"]
wrong = sum(row[side]["wrong"] for row in r["results"] for side in ("out_of_place", "in_place") if side in row and row[side])
print("wrong=%d shm=%s tcp=%s" % (wrong, "yes" if c["shm_bytes"] else "no", "yes" if c["tcp_bytes"] else "no"))'; }

for collective in allreduce reduce_scatter all_gather broadcast; do
	json=$(bench SYNCTRAIN_TRANSPORT=auto $collective -b 8 -e 1M -f 16 -n 3 -w 1) || fail "$collective: $json"
	expect "$collective over both transports" "wrong=0 shm=yes tcp=yes" "$(count <<< "$json")"
done
json=$(bench SYNCTRAIN_TRANSPORT=tcp allreduce -b 8 -e 64K -f 16 -n 3 -w 1) || fail "tcp: $json"
expect "TCP alone" "wrong=0 shm=no tcp=yes" "$(count <<< "$json")"
json=$(as_user srun --mpi=pmix -N1 -n4 env SYNCTRAIN_TRANSPORT=shm synctrain bench allreduce -b 8 -e 64K -f 16 -n 3 -w 1 --json) || fail "shm: $json"
expect "shared memory alone, in one node" "wrong=0 shm=yes tcp=no" "$(count <<< "$json")"
expect_code "shared memory alone, across nodes, is refused" 69 as_user srun --mpi=pmix -N2 -n2 env SYNCTRAIN_TRANSPORT=shm synctrain bench allreduce -b 8 -e 8
expect_match "and says why" 'shm.*node' "$output"
pass
