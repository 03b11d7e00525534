#!/bin/bash
# `synctrain bench` on a network that delivers wrong bytes: it counts the wrong elements, says FAILED, and exits with 1.
set -u
case ${BUILD:-} in */san-*) echo "sanitizers want to be preloaded first"; exit 77 ;; esac
tmp=$(mktemp -d /tmp/synctrain-test-bench-XXXXXX) || exit 1
trap 'rm -rf "$tmp"' EXIT
result=0
check() { # WHAT EXPECTED SEEN
	[ "$2" = "$3" ] && { echo "ok    $1"; return; }
	printf 'FAIL  %s\n  expected: %s\n  seen:     %s\n' "$1" "$2" "$3"
	result=1
}
cc -D_GNU_SOURCE -shared -fPIC -o "$tmp/bad.so" tests/train/bad_network.c -ldl || exit 1
export SYNCTRAIN_TRANSPORT=tcp
for preload in '' "$tmp/bad.so"; do
	for collective in allreduce reduce_scatter all_gather broadcast; do
		code=0
		timeout 60 synctrain run -n 2 --no-prefix env LD_PRELOAD="$preload" synctrain bench $collective -b 1M -e 1M -n 2 -w 0 >"$tmp/out" 2>&1 || code=$?
		check "$collective, ${preload:+bad }network" "$([ -n "$preload" ] && echo 1 FAILED || echo 0 OK)" "$code $(grep -oE "FAILED|OK" "$tmp/out" | head -n 1)"
	done
done
# Without the check nobody looks.
timeout 60 synctrain run -n 2 --no-prefix env LD_PRELOAD="$tmp/bad.so" synctrain bench allreduce -b 1M -e 1M -n 2 -w 0 -c 0 >"$tmp/out" 2>&1
check "-c 0" 0 $?
exit $result
