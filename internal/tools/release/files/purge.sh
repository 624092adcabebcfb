#!/bin/sh
# Ends all tasks of the nomad-lite agent of this machine, and removes its data directory, with its mounts and cgroups.
# An error ends it before it removes anything that a task may still use.
set -eu

data=/var/lib/nomad-lite
[ -d "$data" ] || exit 0
data=$(readlink -f "$data")

# After the package was removed, only the copy in the data directory is there.
program=
for path in "$data/removed/nomad-lite" /usr/bin/nomad-lite /usr/local/bin/nomad-lite; do
	if [ -x "$path" ]; then
		program=$path
		break
	fi
done
if [ -z "$program" ]; then
	echo "purge: no program nomad-lite ends the tasks of $data: install nomad-lite, and repeat" >&2
	exit 1
fi
if [ -d /run/systemd/system ]; then
	systemctl stop nomad-lite.service 2>/dev/null || true # systemd would start it again
fi
"$program" agent stop -all "$data"

# The last mount is unmounted first, because mounts can lie below others. The kernel writes special characters in octal.
mounts_below() { awk -v dir="$1/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo; }
while mount=$(mounts_below "$data" | tail -n 1) && [ -n "$mount" ]; do
	umount -l "$(printf '%b' "$(printf '%s' "$mount" | sed 's/\\/\\0/g')")"
done

# -xdev: nothing of another file system is removed, whatever was mounted in the meantime.
find "$data" -xdev -mindepth 1 ! -type d -exec rm -f {} +
find "$data" -xdev -mindepth 1 -depth -type d -exec rmdir {} +
rmdir "$data" 2>/dev/null || true # the directory can be a file system of its own

# Nomad has cgroups of the same names. Only cgroups without processes can be removed.
if ! command -v nomad >/dev/null; then
	find /sys/fs/cgroup -depth -type d \( -path '*/nomad.slice' -o -path '*/nomad.slice/*' -o -path '/sys/fs/cgroup/*/nomad' -o -path '/sys/fs/cgroup/*/nomad/*' \) \
		-exec rmdir {} + 2>/dev/null || true
fi
