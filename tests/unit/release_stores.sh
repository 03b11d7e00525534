#!/bin/bash
# Would ThreadSanitizer find a release that is missing?  In a copy of the source each store with release order is made relaxed, one after the other, and the
# tests must then report a data race.  Needs the libraries and tests of SAN=thread.
#
# All releases in libcomm are found by their text, so a new one is tried without being named here.  What ThreadSanitizer can't find is named with the reason.
set -u
build=$PWD/build/san-thread
copy=$build/mutation
mkdir -p "$copy" || exit 1
[ -e "$build/lib/libcomm.a" ] || { echo "build first: make SAN=thread all unit-tests"; exit 1; }
tests='engine transport_shm'
releases='atomic_(store|fetch_[a-z]+|exchange)_explicit\(.*memory_order_(release|seq_cst|acq_rel)'

# FILE|TEXT|REASON: a text on the line.
beyond='
libcomm/transport_shm.c|own->entered[i]|only atomics are ordered by it: a reader that mixes two versions refuses them by their number
libcomm/transport_shm.c|own->version, version + 1|likewise
libcomm/launcher_pmix.c|memory_order_release|stored by a thread of PMIx, which is not built for ThreadSanitizer
libcomm/recorder.c|memory_order_release|read by another program, when this process has ended or hangs
libcomm/transport_shm_lend.c|line->number, event + 1|not shown: test_transport_lend_threads, which checks every value, reports no race without it
libcomm/transport_shm_lend.c|own->returned|likewise
libcomm/transport_shm_lend.c|own->asleep|as in transport_shm.c below
libcomm/transport_shm.c|own->asleep, 1|orders no data: it keeps a sleeper from missing a wake-up, which a_sleeper_is_woken looks for
'
export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1
libraries=$(pkg-config --libs json-c libcrypto libxxhash pmix)
tried=0 result=0

races() { # TEST OBJECT: whether the test with this object in place of the library's reports a race
	# shellcheck disable=SC2086
	cc -fsanitize=thread -Wl,--wrap=mmap,--wrap=munmap -o "$copy/test" "$build/obj/tests/unit/test_$1.o" "$2" "$build/obj/tests/unit/one_mapping.o" \
		"$build"/lib/lib{trainer,comm,topology,common}.a $libraries -ldnnl -lm -ldl -lpthread || { result=1; return 0; }
	LONG='' timeout -k 5 100 "$copy/test" >"$copy/out" 2>&1 </dev/null
	grep -q 'ThreadSanitizer: data race' "$copy/out"
}

compile() { # SOURCE FLAGS_OF: as the Makefile compiles it
	local flags
	flags=$(make --no-print-directory -n SAN=thread V=1 -W "$2" "build/san-thread/obj/${2%.c}.o" 2>/dev/null | grep -- " -c $2 " | head -n 1)
	[ -n "$flags" ] || { echo "can't learn how $2 is compiled"; return 1; }
	eval "$(sed "s| -MMD -MP||; s| -c $2 -o .*| -I$(dirname "$2") -c $1 -o $copy/mutant.o|" <<<"$flags")"
}

for file in $(grep -lE "$releases" libcomm/*.c); do
	# Stores and read-modify-writes with release, from their line's number.
	while IFS=: read -r number text; do
		text=${text#"${text%%[![:space:]]*}"}
		reason=$(awk -F'|' -v f="$file" -v t="$text" '$1 == f && index(t, $2) { print $3; exit }' <<<"$beyond")
		if [ -n "$reason" ]; then
			echo "not by ThreadSanitizer: $file:$number: $text ($reason)"
			continue
		fi
		sed "$number s/memory_order_\(release\|seq_cst\)/memory_order_relaxed/; $number s/memory_order_acq_rel/memory_order_acquire/" "$file" >"$copy/mutant.c"
		if ! cmp -s "$file" "$copy/mutant.c" && compile "$copy/mutant.c" "$file"; then
			found=
			for test in $tests; do
				if races "$test" "$copy/mutant.o"; then found=$test; break; fi
			done
			tried=$((tried + 1))
			[ -n "$found" ] && echo "found by test_$found: $file:$number: $text" || { echo "NOT FOUND: $file:$number: $text"; result=1; }
		else
			echo "can't change $file:$number"
			result=1
		fi
	done < <(grep -nE "$releases" "$file")
done
# Those that are named must be there.
while IFS='|' read -r file text _; do
	[ -z "$file" ] || grep -qF -- "$text" "$file" || { echo "no longer in $file: $text"; result=1; }
done <<<"$beyond"
echo "$tried releases taken away"
[ "$tried" -ge 2 ] || result=1
exit $result
