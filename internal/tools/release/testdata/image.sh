#!/bin/sh
# Runs the commands of docs/how-to/install.md for the image, with an engine of its own, in namespaces of its own for mounts, processes
# and networks. /var/lib and /run are directories of the test.
#
#   image.sh docker|podman DIR
#
# DIR has the image, the jobs, the directory rootfs of an image for tasks, and the file commands with a command a line.
set -eu
engine=$1 dir=$2 commands=$2/commands

fail() {
	echo "FAIL: $*"
	"$engine" logs nomad-lite || true
	tail -n 20 "$dir/engine.log" 2>/dev/null || true
	exit 1
}

# until_prints repeats a command until its output contains a text.
until_prints() {
	text=$1
	shift
	i=0
	until out=$("$@" 2>&1) && case $out in *"$text"*) true ;; *) false ;; esac; do
		i=$((i + 1))
		[ $i -lt 300 ] || fail "$* does not print '$text', but: $out"
		sleep 0.2
	done
}
agent() { "$engine" exec -i nomad-lite nomad-lite "$@"; }

# documented executes the commands of the document that contain a text.
documented() {
	grep -F -e "$1" "$commands" >"$dir/step" || fail "docs/how-to/install.md has no command with '$1'"
	echo "+ $(cat "$dir/step")"
	cat "$dir/step" >>"$dir/steps"
	(cd "$dir" && . "$dir/step") || fail "$(cat "$dir/step")"
}

mount --make-rprivate /
mount -t proc proc /proc
busybox ip link set lo up
mkdir "$dir/lib"
mount --bind "$dir/lib" /var/lib
mount -t tmpfs tmpfs /run
mkdir /var/lib/nomad-lite # podman does not make it

if [ "$engine" = docker ]; then
	dockerd --iptables=false --ip-masq=false --ip-forward=false >"$dir/engine.log" 2>&1 &
	until_prints Server docker version
fi

echo "== load and run"
documented " load -i "
documented " run -d --name nomad-lite -v /var/lib/nomad-lite:/var/lib/nomad-lite nomad-lite:"
until_prints ready agent node status
documented " node status"
documented " job run - <hello.nomad.hcl"
until_prints "nomad-lite 0.1.0" agent alloc logs -job hello
documented " alloc logs -job hello"

echo "== the agent stops at once, and the next one continues with its state"
documented " stop nomad-lite"
[ "$("$engine" inspect -f '{{.State.ExitCode}}' nomad-lite)" = 0 ] || fail "the agent did not stop in order"
documented " rm nomad-lite"

if [ "$engine" = docker ]; then
	echo "== containers beside the agent"
	documented "docker.sock:/var/run/docker.sock nomad-lite:"
	tar -C "$dir/rootfs" -c . | docker import - busybox:1
	until_prints complete agent job status hello
	agent job run - <"$dir/container.nomad.hcl"
	until_prints "from the template, tick" agent alloc logs -job container
	before=$(docker ps -q --no-trunc --filter label=com.hashicorp.nomad.alloc_id)
	[ -n "$before" ] || fail "the task is no container"
	documented " stop nomad-lite"
	documented " rm nomad-lite"
	documented "docker.sock:/var/run/docker.sock nomad-lite:"
	until_prints running agent job status container
	after=$(docker ps -q --no-trunc --filter label=com.hashicorp.nomad.alloc_id)
	[ "$before" = "$after" ] || fail "the container of the task was $before and is $after"
	agent job stop -purge container
	[ -z "$(docker ps -q --filter label=com.hashicorp.nomad.alloc_id)" ] || fail "the container of the task remains"
	documented " stop nomad-lite"
	documented " rm nomad-lite"
fi

sort -u "$dir/steps" >"$dir/executed"
[ "$engine" != docker ] || sort -u "$commands" | cmp - "$dir/executed" || fail "a command of docs/how-to/install.md was not executed"

echo "== nothing left"
[ -z "$("$engine" ps -aq)" ] || fail "containers are left: $("$engine" ps -a)"
if [ "$engine" = docker ]; then
	kill "$(cat /run/docker.pid)"
	wait
fi
