#!/bin/bash
# The fault campaign (tests/faults/README.md): in each of many short jobs one fault, and all survivors name the expected culprit.
#   SEED=N            another campaign; SEED=N:I repeats run I of it
#   KIND=kill COUNT=5 one kind of fault
. "${0%/*}/lib.sh"
need_programs ip nsenter
[ -x "$TREE/build/tests/faults/campaign" ] || fail "build/tests/faults/campaign is not built: make unit-tests"
[ "$(id -u)" = 0 ] || skip "needs to be root: it sends signals to other accounts' processes and cuts links"
ACCOUNT=nobody    # an ordinary account, whoever runs this
cluster_start
as_user_home true || fail "no home"
as_root chmod 755 "$STATE/home/$ACCOUNT"
as_user salloc -Q --no-shell -N4 -n8 --ntasks-per-node=2 -t 120 2> "$SCRATCH/salloc" || fail "no allocation: $(cat "$SCRATCH/salloc")"
job=$(as_user squeue -h -o %A -t RUNNING | head -n 1)
[ -n "$job" ] || fail "no job runs"
count=${COUNT:-$([ -n "${LONG:-}" ] && echo 300 || echo 0)}
"$TREE/build/tests/faults/campaign" "$STATE" "$job" "$count" "${SEED:-1}" ${KIND:+"$KIND"} || fail "the campaign; see above"
as_user scancel "$job"
pass
