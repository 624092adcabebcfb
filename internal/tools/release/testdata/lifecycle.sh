#!/bin/sh
# Installs, upgrades, removes and purges the package for Debian in a root directory, while an agent runs a task there. It
# runs in namespaces of its own for mounts, processes and networks, which end everything that it starts.
#
#   lifecycle.sh ROOT OLD.deb NEW.deb
set -eu
root=$1 old=$2 new=$3
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

fail() {
	echo "FAIL: $*"
	cat "$root/tmp/agent.log" 2>/dev/null || true
	exit 1
}
in_root() { chroot "$root" "$@"; }
package() { dpkg --root="$root" --force-unsafe-io --force-downgrade "$@" || fail "dpkg $*"; }
# executing prints the ids of the processes in this namespace whose program has the name, also if its file is removed.
executing() {
	for process in "$root"/proc/[0-9]*; do
		case $(readlink "$process/exe" 2>/dev/null) in
		*/"$1" | */"$1 (deleted)") echo "${process##*/}" ;;
		esac
	done
}
task() { executing task/sleep; }
# agents prints the agents of this namespace. The port does not tell whether one runs, because the keeper holds it.
agents() { grep -lsxz agent "$root"/proc/[0-9]*/cmdline || true; }
start_agent() {
	: >"$root/tmp/agent.log"
	in_root "${1:-/usr/bin/nomad-lite}" agent -config /etc/nomad-lite.d >"$root/tmp/agent.log" 2>&1 &
	i=0
	until grep -q 'agent is ready' "$root/tmp/agent.log"; do
		i=$((i + 1))
		[ $i -lt 600 ] || fail "the agent is not ready after a minute"
		sleep 0.1
	done
}

mount --make-rprivate /
mount --bind "$root" "$root" # so that the agent finds the mount of its root directory
mkdir -p "$root/bin" "$root/dev" "$root/etc" "$root/proc" "$root/run" "$root/tmp" "$root/usr" "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in $(busybox --list); do
	[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done
mkdir "$root/task"
cp "$root/bin/busybox" "$root/task/sleep"
: >"$root/var/lib/dpkg/status"
echo "root:x:0:0:root:/root:/bin/sh" >"$root/etc/passwd"
echo "root:x:0:" >"$root/etc/group"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
	mknod -m 666 "$root/dev/${device% *}" c 1 "${device#* }"
done
busybox ip link set lo up

# listens tells whether a process of this machine listens on a TCP port.
listens() { grep -q ":$(printf %04X "$1") [0-9A-F:]* 0A " /proc/net/tcp /proc/net/tcp6; }

echo "== install"
package -i "$old"
in_root /usr/bin/nomad-lite version | head -n 1
[ -z "$(executing nomad-lite)" ] || fail "the installation started a process"
start_agent
cat >"$root/tmp/sleep.nomad.hcl" <<'JOB'
job "sleep" {
  group "sleep" {
    task "sleep" {
      driver = "raw_exec"

      config {
        command = "/task/sleep"
        args    = ["100000"]
      }
    }
  }
}
JOB
in_root /usr/bin/nomad-lite job run /tmp/sleep.nomad.hcl >/dev/null || fail "job run"
pid=$(task)
[ -n "$pid" ] || fail "no task runs"
echo "# changed by the user" >>"$root/etc/nomad-lite.d/agent.hcl"

echo "== upgrade"
package -i "$new"
in_root /usr/bin/nomad-lite version | head -n 1
in_root /usr/bin/nomad-lite agent stop >/dev/null || fail "agent stop"
start_agent
[ "$(task)" = "$pid" ] || fail "the task did not survive the upgrade"
grep -q "changed by the user" "$root/etc/nomad-lite.d/agent.hcl" || fail "the upgrade replaced the configuration"

echo "== back"
package -i "$old"
in_root /usr/bin/nomad-lite version | head -n 1

echo "== remove"
package -r nomad-lite
[ ! -e "$root/usr/bin/nomad-lite" ] || fail "the program remains"
[ -x "$root/var/lib/nomad-lite/removed/nomad-lite" ] || fail "no copy of the program"
[ -z "$(agents)" ] || fail "the agent runs"
[ "$(task)" = "$pid" ] || fail "the removal ended the task"

echo "== install again"
package -i "$new"
[ ! -e "$root/var/lib/nomad-lite/removed" ] || fail "the copy of the program remains"
start_agent
[ "$(task)" = "$pid" ] || fail "the task did not survive"

echo "== an archive replaces the package"
package -r nomad-lite
busybox httpd -f -p 127.0.0.1:8000 -h "$(dirname "$new")" &
i=0
until listens 8000; do
	i=$((i + 1))
	[ $i -lt 100 ] || fail "no HTTP server after ten seconds"
	sleep 0.1
done
cp "$(dirname "$new")/install.sh" "$root/tmp/install.sh"
in_root env TMPDIR=/tmp NOMAD_LITE_URL=http://127.0.0.1:8000 sh /tmp/install.sh || fail "install.sh"
[ ! -e "$root/var/lib/nomad-lite/removed" ] || fail "the copy of the program remains"
start_agent /usr/local/bin/nomad-lite
package -P nomad-lite
[ -n "$(agents)" ] || fail "the purge of the package stopped the agent of the archive"
[ "$(task)" = "$pid" ] || fail "the purge of the package ended the task of the archive"
in_root /usr/local/bin/nomad-lite agent stop >/dev/null || fail "agent stop"
start_agent /usr/local/bin/nomad-lite
[ "$(task)" = "$pid" ] || fail "the purge of the package removed data of the archive"
in_root /usr/local/bin/nomad-lite agent stop >/dev/null || fail "agent stop"
rm -r "$root/usr/local" "$root/etc/nomad-lite.d"
package -i "$new"
start_agent

# A mount whose name has a space, as the kernel writes it in octal, and a file on it that a purge must not remove.
mkdir -p "$root/var/lib/nomad-lite/a mount" "$root/tmp/other"
touch "$root/tmp/other/file"
mount --bind "$root/tmp/other" "$root/var/lib/nomad-lite/a mount"
mount -t tmpfs tmpfs "$root/var/lib/nomad-lite/a mount"

echo "== purges that fail"
failing_purge() { ! dpkg --root="$root" --force-unsafe-io -P nomad-lite || fail "the purge succeeded $1"; }
package -r nomad-lite
chmod -x "$root/var/lib/nomad-lite/removed/nomad-lite"
failing_purge "without a program"
[ "$(task)" = "$pid" ] || fail "a purge without a program ended the task"
chmod +x "$root/var/lib/nomad-lite/removed/nomad-lite"
touch "$root/var/lib/nomad-lite/immutable"
if chattr +i "$root/var/lib/nomad-lite/immutable"; then # not each file system has the attribute
	failed=$(failing_purge "with an immutable file" 2>&1) || failed="FAIL: $failed"
	chattr -i "$root/var/lib/nomad-lite/immutable" # also for the removal of the root directory
	case $failed in FAIL*) fail "$failed" ;; esac
	[ -e "$root/var/lib/nomad-lite/lock" ] || fail "the failed purge removed the file lock"
	[ -x "$root/var/lib/nomad-lite/removed/nomad-lite" ] || fail "the failed purge removed the copy of the program"
fi

echo "== purge"
package -P nomad-lite
[ -z "$(task)" ] || fail "the task runs"
[ -z "$(executing nomad-lite)" ] || fail "processes remain: $(executing nomad-lite)"
[ ! -e "$root/var/lib/nomad-lite" ] || fail "data remains: $(find "$root/var/lib/nomad-lite")"
[ ! -e "$root/etc/nomad-lite.d" ] || fail "configuration remains"

echo "== purge of a linked data directory that no agent has used"
package -i "$new"
mkdir -p "$root/srv/data"
touch "$root/srv/data/file"
ln -s /srv/data "$root/var/lib/nomad-lite"
package -r nomad-lite
package -P nomad-lite
[ ! -e "$root/srv/data" ] || fail "data remains: $(find "$root/srv/data")"
[ ! -L "$root/var/lib/nomad-lite" ] || fail "the link remains"

[ -e "$root/tmp/other/file" ] || fail "the purge removed a file of another directory"
! grep "$root/var/lib/nomad-lite" /proc/self/mountinfo || fail "a mount remains"
remaining=$(find "$root" -xdev -path "$root/tmp" -prune -o -name '*nomad-lite*' -print)
[ -z "$remaining" ] || fail "files remain: $remaining"
echo "== nothing left"
