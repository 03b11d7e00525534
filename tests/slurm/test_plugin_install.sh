#!/bin/bash
# `make install DESTDIR=` lays out a tree from which the plugin works as an admin would have it: Slurm includes the installed
# plugstack.conf, and the helper program is found where that says.
. "${0%/*}/lib.sh"

root=$SCRATCH/root
make -C "$TREE" --no-print-directory install DESTDIR="$root" > "$SCRATCH/make.log" 2>&1 || fail "make install: $(tail -n 5 "$SCRATCH/make.log")"
lib=$root/usr/local/lib/slurm/synctrain.so conf=$root/etc/synctrain/plugstack.conf helper=$root/usr/local/libexec/synctrain/profile
expect "modes" "755 644 755" "$(stat -c %a "$lib" "$conf" "$helper" | xargs)"
expect "the plugin is optional, with its path and its helpers" \
	"optional /usr/local/lib/slurm/synctrain.so helpers=/usr/local/libexec/synctrain" "$(grep -v '^#' "$conf")"
expect "no name is left open" '' "$(grep @ "$conf")"
expect_match "the file says how it is included" 'include /etc/synctrain/plugstack.conf' "$(< "$conf")"
expect "the helper reads a profile" "transport=shm+tcp end" "$(echo '{ "transport": "tcp+shm" }' > "$SCRATCH/p.json" && "$helper" -- "$SCRATCH/p.json" | xargs)"

cluster_start
# The installed tree is not at / on this machine: its paths in plugstack.conf get the place where the cluster sees it.
as_root cp -r "$root" "$STATE/home/root"
as_root sed -i 's|/usr/local|/mnt/c/home/root/usr/local|g' "$STATE/home/root/etc/synctrain/plugstack.conf"
echo "include /mnt/c/home/root/etc/synctrain/plugstack.conf" | as_root tee "$STATE/etc/plugstack.conf" > /dev/null
as_user_home true
echo '{ "transport": "tcp" }' | as_root tee "$STATE/home/$ACCOUNT/p.json" > /dev/null
# shellcheck disable=SC2016  # for the shell in the job
expect "a step with a profile" "tcp 0 tcp 1" "$(as_user_home srun -n2 --synctrain=p.json bash -c 'echo $SYNCTRAIN_TRANSPORT $RANK' 2>&1 | sort | xargs)"
pass
