#!/bin/sh
# Downloads an archive of nomad-lite, verifies its checksum, and installs it below /usr/local.
#
#   sh install.sh [-v VERSION] [-p PREFIX]
#
# NOMAD_LITE_URL replaces the URL of the directory with the archive and SHA256SUMS; a file:// URL needs curl. With
# NOMAD_LITE_PROGRAM_ONLY=1, or without root, nothing outside of PREFIX is changed: neither /etc/nomad-lite.d nor the service.
set -eu
umask 022 # all users execute the program and read the manual pages

version=@VERSION@
prefix=/usr/local
fail() {
	echo "install.sh: $*" >&2
	exit 1
}
while getopts v:p: option; do
	case $option in
	v) version=${OPTARG#v} ;;
	p) prefix=$OPTARG ;;
	*) fail "usage: sh install.sh [-v VERSION] [-p PREFIX]" ;;
	esac
done
prefix=${prefix%/}
case $prefix in
*[!A-Za-z0-9/._+-]*) fail "-p $prefix: choose a path of letters, digits and /._+-, because it is a part of the systemd unit" ;;
/*) ;;
*) fail "-p $prefix: write an absolute path below /" ;;
esac

case $(uname -s) in
Linux) system=linux ;;
Darwin) system=darwin ;;
*) fail "there is no archive for $(uname -s): build nomad-lite from its sources" ;;
esac
case $(uname -m) in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) fail "there is no archive for $(uname -m): build nomad-lite from its sources" ;;
esac

url=${NOMAD_LITE_URL:-https://github.com/nomad-lite/nomad-lite/releases/download/v$version}
name=nomad-lite_${version}_${system}_$arch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

download() {
	if command -v curl >/dev/null; then
		curl -fsSL -o "$work/$1" "$url/$1" || fail "cannot download $url/$1"
	elif command -v wget >/dev/null; then
		wget -q -O "$work/$1" "$url/$1" || fail "cannot download $url/$1"
	else
		fail "install curl or wget first"
	fi
}
download SHA256SUMS
download "$name.tar.gz"

expected=$(awk -v name="$name.tar.gz" '$2 == name { print $1 }' "$work/SHA256SUMS")
[ -n "$expected" ] || fail "SHA256SUMS of $url has no $name.tar.gz"
if command -v sha256sum >/dev/null; then
	actual=$(sha256sum "$work/$name.tar.gz" | cut -d ' ' -f 1)
elif command -v shasum >/dev/null; then
	actual=$(shasum -a 256 "$work/$name.tar.gz" | cut -d ' ' -f 1)
else
	fail "install sha256sum or shasum first"
fi
[ "$expected" = "$actual" ] || fail "the checksum of $name.tar.gz is $actual, and not $expected as in SHA256SUMS: nothing is installed, download again"

tar -xzf "$work/$name.tar.gz" -C "$work"
unit=$work/$name/lib/systemd/system/nomad-lite.service
if [ -f "$unit" ]; then
	sed "s|^ExecStart=/usr/local/bin/|ExecStart=$prefix/bin/|" "$unit" >"$unit.new"
	mv "$unit.new" "$unit"
fi
# Each file is renamed into its place, because a program that runs cannot be written to.
cd "$work/$name"
find bin lib share -type f 2>/dev/null | while read -r file; do
	mkdir -p "$prefix/$(dirname "$file")"
	cp -p "$file" "$prefix/$file.new"
	mv "$prefix/$file.new" "$prefix/$file"
done
installed=$("$prefix/bin/nomad-lite" version) || fail "$prefix/bin/nomad-lite is installed, but cannot be executed on this machine"
echo "installed: $(echo "$installed" | head -n 1), in $prefix"
[ "$system" = linux ] && [ "$(id -u)" = 0 ] && [ -z "${NOMAD_LITE_PROGRAM_ONLY:-}" ] || exit 0

if [ ! -e /etc/nomad-lite.d ]; then
	mkdir -p /etc/nomad-lite.d
	cp etc/nomad-lite.d/agent.hcl /etc/nomad-lite.d/agent.hcl
fi
rm -rf /var/lib/nomad-lite/removed # with it, a purge of a package that was removed before would end the tasks of this installation
if [ -d /run/systemd/system ]; then
	unit=$prefix/lib/systemd/system/nomad-lite.service
	preferred=/etc/systemd/system/nomad-lite.service # a link to /dev/null masks the service
	case $prefix in
	/usr | /usr/local) ;; # systemd reads the units there
	*) if [ -L "$preferred" ] && [ -s "$preferred" ] || [ ! -e "$preferred" ]; then ln -sf "$unit" "$preferred"; fi ;;
	esac
	if [ -s "$preferred" ] && [ "$(readlink -f "$preferred")" != "$(readlink -f "$unit")" ]; then
		echo "systemd uses $preferred instead of $unit: remove it unless it is yours, and execute systemctl daemon-reload" >&2
	fi
	systemctl daemon-reload
	# An upgrade restarts the agent; tasks continue.
	systemctl try-restart nomad-lite.service || echo "nomad-lite.service does not start: see journalctl -u nomad-lite" >&2
	if ! systemctl is-enabled --quiet nomad-lite.service || ! systemctl is-active --quiet nomad-lite.service; then
		echo "To start the agent, now and at each boot: systemctl enable --now nomad-lite"
	fi
else
	echo "To start the agent: $prefix/bin/nomad-lite agent -config /etc/nomad-lite.d"
fi
