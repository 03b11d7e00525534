#!/bin/bash
# What `make install` puts on a machine is enough for a C and a C++ program: headers that compile alone, a library that exports what they declare and
# nothing else, a pkg-config file, the manual.  `make uninstall` takes all of it away again.
set -u
tree=$PWD
case ${BUILD:-} in */san-*) echo "a build for sanitizers installs nothing"; exit 77 ;; esac
tmp=$(mktemp -d /tmp/synctrain-test-install-XXXXXX) || exit 1
trap 'rm -rf "$tmp"' EXIT
result=0
check() { # WHAT EXPECTED SEEN
	[ "$2" = "$3" ] && { echo "ok    $1"; return; }
	printf 'FAIL  %s\n  expected: %s\n  seen:     %s\n' "$1" "$2" "$3"
	result=1
}
well() { # WHAT COMMAND...
	local what=$1
	shift
	"$@" >"$tmp/log" 2>&1 && { echo "ok    $what"; return; }
	printf 'FAIL  %s: %s exited with %d:\n' "$what" "$*" $?
	tail -n 12 "$tmp/log"
	result=1
}

root=$tmp/root
well "make install" make -C "$tree" --no-print-directory install DESTDIR="$root"
usr=$root/usr/local include=$root/usr/local/include/synctrain so=$root/usr/local/lib/libsynctrain-comm.so.0

# ---- the exports: declared in an installed header = listed in exports.map = exported by both libraries ----------------------
cat "$include"/*.h >/dev/null || exit 1
for header in "$include"/*.h; do echo "#include <synctrain/${header##*/}>"; done >"$tmp/all.c"
gcc -std=gnu17 -I"$usr/include" -fsyntax-only -aux-info "$tmp/prototypes" "$tmp/all.c" || exit 1
sed -n "s|^/\* $include/[^ ]* \*/ .*[ *]\([a-z_0-9]*\) (.*|\1|p" "$tmp/prototypes" | sort -u >"$tmp/declared"
sed -n 's/^\t\([a-z_0-9]*\);$/\1/p' "$tree/libcomm/exports.map" | sort >"$tmp/listed"
nm -D --defined-only "$so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$tmp/exported"
nm -g --defined-only "$usr/lib/libsynctrain-comm.a" | awk 'NF == 3 { print $3 }' | sort >"$tmp/static"
check "the headers declare functions" yes "$([ "$(wc -l <"$tmp/declared")" -gt 30 ] && echo yes)"
differ() { # WHAT ONE OTHER ADVICE
	local names
	names=$(comm -23 "$2" "$3" | xargs)
	check "$1" "" "${names:+$names ($4)}"
}
differ "each public function has its line in exports.map" "$tmp/declared" "$tmp/listed" "add these to libcomm/exports.map"
differ "exports.map lists public functions only" "$tmp/listed" "$tmp/declared" "take these out of libcomm/exports.map, or declare them in an installed header"
differ "each of them is defined" "$tmp/declared" "$tmp/exported" "declared, but the shared library defines no such function"
differ "the shared library exports nothing else" "$tmp/exported" "$tmp/declared" "not declared in an installed header"
differ "the static library has them all" "$tmp/declared" "$tmp/static" "missing in libsynctrain-comm.a"
differ "the static library shows nothing else" "$tmp/static" "$tmp/declared" "a program could collide with these"
check "every name has a version" "" "$(nm -D --defined-only "$so" | awk '$2 != "A" && $3 !~ /@@SYNCTRAIN_[0-9.]+$/ { print $3 }' | xargs)"
check "soname" libsynctrain-comm.so.0 "$(readelf -d "$so" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')"
check "no text relocations, immediate binding" "FLAGS_1 NOW" "$(readelf -d "$so" | awk '/TEXTREL/ { print $2 } /FLAGS_1/ { print "FLAGS_1", $NF }' | tr -d '()' | xargs)"
# Where PMIx says that it lies (Debian's does) and nowhere else.
check "no run path of our own" "" "$(readelf -d "$so" | sed -n 's/.*RUNPATH.*\[\(.*\)\]/\1/p' | tr ':' '\n' | grep -vxF "$(pkg-config --libs pmix | grep -o 'rpath -Wl,[^ ]*' | cut -d, -f2)")"

# ---- headers ---------------------------------------------------------------------------------------------------------------
check "headers include nothing that is not installed" "" "$(sed -n 's/^#include "\(.*\)"/\1/p' "$include"/*.h | while read -r h; do [ -e "$include/$h" ] || echo "$h"; done)"
for header in "$include"/*.h; do
	name=${header##*/}
	echo "#include <synctrain/$name>" >"$tmp/alone.c"
	for std in c11 c17; do
		well "$name alone as $std" gcc -std=$std -pedantic-errors -Wall -Wextra -Werror -I"$usr/include" -fsyntax-only "$tmp/alone.c"
	done
	for std in c++11 c++17; do
		well "$name alone as $std" g++ -x c++ -std=$std -pedantic-errors -Wall -Wextra -Werror -I"$usr/include" -fsyntax-only "$tmp/alone.c"
	done
done

# ---- pkg-config, and programs that use nothing else --------------------------------------------------------------------------
export PKG_CONFIG_PATH=$usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
check "pkg-config: version" "$(synctrain --version | cut -d' ' -f2)" "$(pkg-config --modversion synctrain-comm)"
check "pkg-config: flags" "-I$usr/include -L$usr/lib -lsynctrain-comm" "$(pkg-config --cflags --libs synctrain-comm | xargs)"
check "no name is left open" "" "$(grep @ "$usr/lib/pkgconfig/synctrain-comm.pc")"
needed=$(readelf -d "$so" | sed -n 's/.*NEEDED.*\[lib\(.*\)\.so.*/\1/p' | grep -vx c)
private=$(pkg-config --static --libs synctrain-comm)
for library in $needed; do
	[[ " $private " == *" -l$library "* ]] || check "pkg-config --static names what the library needs" "-l$library" "$private"
done
example=$usr/share/doc/synctrain/examples/allreduce.c
cd "$tmp" || exit 1
# shellcheck disable=SC2046
{
	well "the example as C" cc -Wall -Wextra -Werror "$example" -o in-c $(pkg-config --cflags --libs synctrain-comm)
	well "the example as C++" c++ -Wall -Wextra -Werror -x c++ "$example" -o in-c++ $(pkg-config --cflags --libs synctrain-comm)
	# With the static library: the program's own st_log() must not meet the library's.
	sed 's/^int main/int st_log(void);\nint st_log(void) { return 0; }\nint main/' "$example" >own.c
	mkdir only-static && cp "$usr/lib/libsynctrain-comm.a" only-static/
	well "the example, linked statically" cc own.c -o in-static $(pkg-config --cflags synctrain-comm) -Lonly-static $(pkg-config --static --libs synctrain-comm |
		sed "s|-L$usr/lib ||; s|-L$root[^ ]* ||g")
}
check "the static one needs no library of ours" "" "$(readelf -d in-static | grep -o 'libsynctrain[^]]*')"
export LD_LIBRARY_PATH=$usr/lib
expected=$(for r in 0 1 2 3; do echo "rank $r of 4 on $(uname -n): the sum is 6"; done)
for program in in-c in-c++ in-static; do
	check "$program on 4 ranks" "$expected" "$(timeout 60 "$usr/bin/synctrain" run -n 4 --no-prefix "./$program" 2>&1 | sort)"
done
check "alone" "rank 0 of 1 on $(uname -n): the sum is 0" "$(./in-c 2>&1)"
SYNCTRAIN_TRANSPORT=pigeon ./in-c >out 2>&1
check "a failure is one line and sysexits.h's code" "78 1" "$? $(wc -l <out)"

# ---- the manual --------------------------------------------------------------------------------------------------------------
commands=$(synctrain --help | awk '/^commands:/ { on = 1; next } on && NF == 0 { exit } on { print "synctrain-" $1 ".1" }' | sort | xargs)
check "a page for each command" "$commands synctrain.1" "$(cd "$usr/share/man/man1" && ls | sort | xargs)"
words() { tr -cs 'A-Za-z0-9_=' ' ' | xargs; } # what no typesetting can change
for page in "$usr"/share/man/man1/*.1; do
	name=$(basename "$page" .1) command=${page##*/synctrain}
	command=${command%.1} command=${command#-}
	help=$(synctrain $command --help | sed 's/^usage: //' | words)
	text=$(sed -n '/^\.SH SYNOPSIS/,/^\.SH SEE ALSO/p' "$page" | sed '/^\./d; s/\\&//; s/\\-/-/g; s/\\e/\\/g' | words)
	check "$name.1 is what --help says" "$help" "$text"
done

# ---- uninstall ---------------------------------------------------------------------------------------------------------------
unset PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR LD_LIBRARY_PATH
check "permissions" "" "$(find "$root" -type f -perm /022 -o -type f ! -perm -444)"
touch "$usr/bin/other"
well "make uninstall" make -C "$tree" --no-print-directory uninstall DESTDIR="$root"
check "nothing is left but what is not ours" "$usr/bin/other" "$(find "$root" ! -type d)"
check "and no directory of ours" "" "$(find "$root" -name '*synctrain*')"
exit $result
