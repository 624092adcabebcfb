#!/bin/sh
# Ends all tasks of the nomad-lite agent of this machine, and removes its data directory, with its mounts and cgroups.
# An error ends it before it removes anything that a process of a task may still use. It can be repeated after an error.
set -eu

fail() {
	echo "purge: $*" >&2
	exit 1
}

link=/var/lib/nomad-lite # the data directory, or a link to it
[ -d "$link" ] || exit 0
data=$(readlink -f "$link")
case $data in
/ | *[!A-Za-z0-9/._-]*) fail "$link is a link to '$data', whose name this script does not support: end the tasks by nomad-lite agent stop -all, and remove the directory by hand" ;;
esac

# set_program finds the program of this script's installation, or another one. After the package was removed, only the copy
# in the data directory is there.
set_program() {
	own=$(dirname "$(readlink -f "$0")")
	for program in "$own/nomad-lite" "$own/../../bin/nomad-lite" "$data/removed/nomad-lite" /usr/bin/nomad-lite /usr/local/bin/nomad-lite; do
		if [ -x "$program" ]; then return; fi
	done
	[ ! -e "$data/removed/nomad-lite" ] ||
		fail "$data/removed/nomad-lite cannot be executed, and so ends no tasks: mount its file system with exec (mount -o remount,exec), and repeat"
	fail "no program nomad-lite ends the tasks of $data: install nomad-lite, and repeat"
}

if [ -d /run/systemd/system ]; then
	systemctl stop nomad-lite.service 2>/dev/null || true # systemd would start it again
fi
if [ -e "$data/lock" ]; then # otherwise no agent has used the directory
	set_program
	status=0
	stopped=$("$program" agent stop -all "$data") || status=$?
	printf '%s\n' "$stopped"
	[ $status -eq 0 ] || exit $status
	case $stopped in
	*"Still running:"*) fail "nothing is removed, because processes still run: end them, and repeat" ;;
	*"may still run."*)
		echo "purge: containers and virtual machines that other programs run for the allocations above are not ended, and their files in $data are removed." >&2
		echo "purge: docker ps --filter label=com.hashicorp.nomad.alloc_id lists the containers of Docker; docker rm -f ends one." >&2
		;;
	esac
	case $stopped in
	*"is a copy:"*) ;; # the allocations and their network namespaces belong to the original
	*)
		for dir in "$data"/alloc/*/; do
			namespace=/run/netns/$(basename "$dir")
			if [ -e "$namespace" ]; then
				umount -l "$namespace" 2>/dev/null || true # fails if it is a file without a mount
				rm -f "$namespace"
			fi
		done
		;;
	esac
fi

# The last mount is unmounted first, because mounts can lie below others. The kernel writes special characters in octal.
# Nothing is removed while a mount remains, because find enters mounts of the same file system.
mounts_below() { awk -v dir="$1/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo; }
while mount=$(mounts_below "$data" | tail -n 1) && [ -n "$mount" ]; do
	mount=$(printf '%b' "$(printf '%s' "$mount" | sed 's/\\/\\0/g')")
	umount -l "$mount" || fail "cannot unmount '$mount': unmount it, and repeat"
done

# Last are removed the file lock and then the copy of the program, with which a repetition ends the tasks. -xdev: nothing of another
# file system is removed, whatever was mounted in the meantime.
find "$data" -xdev -mindepth 1 -path "$data/removed" -prune -o ! -type d ! -path "$data/lock" -exec rm -f {} + || true
find "$data" -xdev -mindepth 1 -depth -type d ! -path "$data/removed" -exec rmdir {} + || true
remaining=$(find "$data" -mindepth 1 -maxdepth 1 ! -name lock ! -name removed)
[ -z "$remaining" ] || fail "cannot remove $remaining: mend the cause, and repeat"
rm -f "$data/lock"
rm -rf "$data/removed"
rmdir "$data" 2>/dev/null || true # the directory can be a file system of its own
[ -e "$link" ] || rm -f "$link"

# Nomad has cgroups of the same names. Only cgroups without processes can be removed.
if ! command -v nomad >/dev/null; then
	find /sys/fs/cgroup -depth -type d \( -path '*/nomad.slice' -o -path '*/nomad.slice/*' -o -path '/sys/fs/cgroup/*/nomad' -o -path '/sys/fs/cgroup/*/nomad/*' \) \
		-exec rmdir {} + 2>/dev/null || true
fi
