#!/bin/bash
# `synctrain report` as people and scripts call it: exit codes, the verdict on standard output, errors on standard error only.
set -u
tree=$(cd "${0%/*}/../.." && pwd)
BUILD=${BUILD:-$tree/build}
report="$BUILD/bin/synctrain report"
make="$BUILD/tests/test_report make"
[ -x "$BUILD/bin/synctrain" ] || { echo "no $BUILD/bin/synctrain: make"; exit 77; }
[ -x "$BUILD/tests/test_report" ] || { echo "no $BUILD/tests/test_report: make unit-tests"; exit 77; }
dir=$(mktemp -d /tmp/synctrain-report-XXXXXX) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0

fail() { echo "FAIL  $*"; failed=1; }
expect() { # WHAT CODE ARGUMENTS...: runs the report; output in $out, errors in $err
	local what=$1 code=$2 seen
	shift 2
	$report "$@" >"$dir/out" 2>"$dir/err"
	seen=$?
	out=$(cat "$dir/out") err=$(cat "$dir/err")
	if [ "$seen" = "$code" ]; then echo "ok    $what"; else fail "$what: exit $seen, expected $code: $err"; fi
}
holds() { # TEXT PART
	case $1 in *"$2"*) ;; *) fail "'$2' is not in: $1" ;; esac
}

for scenario in slow-host slow-rank even scattered two-ranks one-rank; do
	$make "$dir/$scenario" "$scenario" || fail "can't make $scenario"
done

expect "a slow host" 0 "$dir/slow-host"
holds "$(head -n 2 "$dir/out" | tr -s '\n ' '  ')" 'verdict: node3 (ranks 4, 5) is slow: 1.30x the median, slowest in 100 % of steps, costs 21 % of step time'
[ -z "$err" ] || fail "standard error: $err"
awk 'length > 80 { exit 1 }' "$dir/out" || fail "lines of more than 80 columns"
expect "a slow rank" 0 "$dir/slow-rank"
holds "$out" 'verdict: rank 5 (node2) is slow: 1.49x the median'
expect "no straggler" 0 "$dir/even"
holds "$out" 'verdict: no straggler'
expect "uneven work" 0 "$dir/scattered"
holds "$out" 'verdict: no single straggler'
expect "two ranks" 0 "$dir/two-ranks"
holds "$out" 'verdict: rank 1 (node2) needs 1.39x the time of rank 0 (node1)'
expect "one rank" 0 "$dir/one-rank"
holds "$out" 'verdict: one rank'

expect "JSON" 0 --json "$dir/slow-host" --steps 5-59 --warmup 10
holds "$out" '"verdict":"straggler"'
holds "$out" '"used":50'
if command -v python3 >/dev/null; then
	python3 -c 'import json,sys; r=json.load(sys.stdin); assert r["steps"]=={"first":10,"last":59,"used":50,"judged":50,"warmup":5}, r["steps"]; assert [h["host"] for h in r["hosts"] if h["flagged"]]==["node3"]' <"$dir/out" ||
		fail "JSON that Python can't use"
fi
expect "one step" 0 --steps 7 --warmup 0 "$dir/slow-host"
holds "$out" "verdict: can't tell"

expect "help" 0 --help
holds "$out" 'usage: synctrain report DIR'
expect "no directory named" 64
expect "two directories" 64 "$dir/even" "$dir/even"
expect "an unknown option" 64 --frobnicate "$dir/even"
for steps in 9-3 x - 1-x -x 1-2-3 ''; do
	expect "--steps '$steps'" 64 --steps "$steps" "$dir/even"
	holds "$err" "seen '$steps', expected"
done
expect "--warmup -1" 64 --warmup -1 "$dir/even"
expect "--launch 0" 64 --launch 0 "$dir/even"
expect "--launch 2" 64 --launch 2 "$dir/even"
expect "no such directory" 66 "$dir/nowhere"
[ -z "$out" ] || fail "standard output: $out"
mkdir "$dir/empty"
expect "no records" 65 "$dir/empty"
holds "$err" "synctrain report: $dir/empty: no steps-*.rec, expected the report directory of a run"
expect "no steps left" 65 --steps 5000- "$dir/even"
mkdir "$dir/garbage"
head -c 100000 /dev/urandom >"$dir/garbage/steps-x.rec"
expect "garbage" 65 "$dir/garbage"
holds "$err" 'steps-x.rec: does not start as a record file'
holds "$err" "$dir/garbage: no usable step records in its steps-*.rec"
if [ -w /dev/full ]; then
	$report "$dir/even" >/dev/full 2>"$dir/err"
	[ $? = 74 ] || fail "a full disk under standard output goes unnoticed"
fi
[ $failed = 0 ] && echo "all as expected"
exit $failed
