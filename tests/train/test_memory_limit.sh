#!/bin/bash
# In a real memory cgroup: what does not fit is refused with what is needed and what there is, before anything is taken, and the kernel kills nobody.
set -u
BUILD=${BUILD:-$PWD/build}
sudo=
[ "$(id -u)" = 0 ] || sudo='sudo -n'
${sudo:-true} true 2>/dev/null || { echo "a memory cgroup can be made by root only, and sudo asks for a password"; exit 77; }
case $BUILD in */san-*) echo "sanitizers take memory as they like"; exit 77 ;; esac
tmp=$(mktemp -d /tmp/synctrain-test-memory-XXXXXX) || exit 1
group=
# Its processes have ended; the kernel may take a moment to believe it.
remove() { for _ in $(seq 50); do $sudo rmdir "$group" 2>/dev/null && return; sleep 0.1; done; }
trap 'rm -rf "$tmp"; [ -z "$group" ] || remove' EXIT
result=0
check() { # WHAT EXPECTED SEEN
	[ "$2" = "$3" ] && { echo "ok    $1"; return; }
	printf 'FAIL  %s\n  expected: %s\n  seen:     %s\n' "$1" "$2" "$3"
	sed 's/^/  | /' "$tmp/out" | head -n 20
	result=1
}

# Version 1 where it is mounted with the memory controller, else version 2 where the controller is handed down.
v1=$(awk '$9 == "cgroup" && $0 ~ /[ ,]memory(,|$)/ { print $5; exit } $8 == "cgroup" && $0 ~ /[ ,]memory(,|$)/ { print $5; exit }' /proc/self/mountinfo)
v2=$(awk '/ - cgroup2 / { print $5; exit }' /proc/self/mountinfo)
if [ -n "$v1" ]; then
	own=$v1$(awk -F: '$2 ~ /(^|,)memory(,|$)/ { print $3 }' /proc/self/cgroup)
	parent=$([ -d "$own" ] && echo "$own" || echo "$v1") limit=memory.limit_in_bytes
	kills() { awk '$1 == "oom_kill" { print $2 }' "$group/memory.oom_control"; }
elif [ -n "$v2" ] && grep -qw memory "$v2/cgroup.subtree_control"; then
	parent=$v2 limit=memory.max
	kills() { awk '$1 == "oom_kill" { print $2 }' "$group/memory.events"; }
else
	echo "no memory controller: cgroup v1 memory is not mounted, and ${v2:-cgroup v2, which is not mounted,} hands none down"
	exit 77
fi
group=$parent/synctrain-test-$$
$sudo mkdir "$group" 2>"$tmp/out" || { group=; echo "can't make a cgroup below $parent: $(tail -n 1 "$tmp/out")"; exit 77; }
[ -e "$group/$limit" ] || { echo "$group has no $limit"; exit 77; }
mib() { echo $(($1 * 1048576)) | $sudo tee "$group/$limit" >/dev/null || { echo "can't set $group/$limit"; exit 1; }; }
within() { # COMMAND...: in the group; its code in $code, its output in out
	code=0
	# shellcheck disable=SC2016
	$sudo env "PATH=$PATH" SYNCTRAIN_CHUNK_BYTES="${SYNCTRAIN_CHUNK_BYTES:-131072}" sh -c 'echo $$ >"$0/cgroup.procs" && exec timeout 60 "$@"' "$group" "$@" \
		>"$tmp/out" 2>&1 || code=$?
}

# Segments of 4 slots of 16 MiB, three for each of four ranks: 768 MiB.  None of them alone is too large.
export SYNCTRAIN_CHUNK_BYTES=16777216
mib 256
within synctrain run -n 4 --no-prefix synctrain bench allreduce -e 8 -n 1 -w 0
check "links that don't fit: exit code" 71 "$code"
line='shared memory for the links of 4 ranks on [^ ]*: [0-9]+ bytes are needed, [0-9]+ are available in [^ ]*/synctrain-test-[0-9]+, whose limit is 268435456$'
check "all ranks say so, and nothing else" "4 1" "$(grep -cE "^synctrain.*$line" "$tmp/out") $(grep -vcE "$line|flight recorder: " "$tmp/out")"
check "and by the same numbers" 1 "$(grep -oE "$line" "$tmp/out" | sort -u | wc -l)"
needed=$(grep -oE '[0-9]+ bytes are needed' "$tmp/out" | head -n 1 | cut -d' ' -f1)
check "needed is the sum over ranks" yes "$([ "${needed:-0}" -gt 536870912 ] && echo yes)"
check "nobody was killed" 0 "$(kills)"
mib $((needed / 1048576 + 256))
within synctrain run -n 4 --no-prefix synctrain bench allreduce -e 8 -n 1 -w 0
check "with room for that much they run" 0 "$code"
check "nobody was killed then" 0 "$(kills)"

# Buffers of 64 MiB, allocated by all four at once: each alone fits.  It is the example for C programs with more elements.
unset SYNCTRAIN_CHUNK_BYTES
mkdir "$tmp/include" && ln -s "$PWD/libcomm" "$tmp/include/synctrain" || exit 1
sed 's/^#define COUNT .*/#define COUNT (16 << 20)/' etc/examples/allreduce.c >"$tmp/buffers.c"
cc -I"$tmp/include" -I. "$tmp/buffers.c" -o "$tmp/buffers" -L"$BUILD/lib" -Wl,-rpath,"$BUILD/lib" -lsynctrain-comm >"$tmp/out" 2>&1
check "a program that allocates buffers" "" "$(cat "$tmp/out")"
mib 230
within synctrain run -n 4 --no-prefix "$tmp/buffers"
check "buffers that don't fit: a failure, not a signal" yes "$([ "$code" = 71 ] || [ "$code" = 1 ] && echo yes)"
check "somebody says so" yes "$(grep -qE 'memory of a communicator: [0-9]+ bytes are needed, [0-9]+ are available in .*/synctrain-test-[0-9]+, whose limit is 241172480' "$tmp/out" && echo yes)"
check "still nobody was killed" 0 "$(kills)"
mib 512
within synctrain run -n 4 --no-prefix "$tmp/buffers"
check "with room they run" "0 4" "$code $(grep -c 'the sum is 6' "$tmp/out")"
exit $result
