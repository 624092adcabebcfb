#!/bin/bash
# Runs steps in the life of an installation on a machine with systemd. The kernel passes their names, which are names of the
# functions below, as vm_steps=NAME,NAME. The files of the releases and the commands of the documents are in the working directory.
#
# Each step starts with vm-begin NAME and ends with vm-end, and ok or the reason, on the console. The first step that fails
# is the last one.

data=/var/lib/nomad-lite
state=/var/tmp/life # what a step leaves for a later one, also across a boot
task_count=100
old=0.1.0
new=0.1.1
export DEBIAN_FRONTEND=noninteractive HOME=/root LANG=C TERM=dumb
mkdir -p $state

fail() {
	echo "FAIL: $*"
	exit 1
}

# wait_until repeats a command, for ten minutes at most, until it succeeds. The machine is emulated, and can be slow.
wait_until() {
	local deadline=$((SECONDS + 600))
	until "$@"; do
		[ $SECONDS -lt $deadline ] || fail "after ten minutes not yet: $*"
		sleep 1
	done
}

tasks() { pgrep -f '^/bin/sleep 100000$' | sort -n; }
all_tasks_run() { [ "$(tasks | wc -l)" = $task_count ]; }
agent_reports_all_tasks() { [ "$(task_states | grep -c '"running"')" = $task_count ]; }
task_states() {
	nomad-lite operator api '/v1/job/hundred/allocations' 2>/dev/null | grep -o '"ClientStatus":"[a-z]*"' | cut -d : -f 2
}
restarts() {
	nomad-lite operator api '/v1/job/hundred/allocations' | grep -o '"Restarts":[0-9]*' | cut -d : -f 2 | sort -u
}

# tasks_continue fails unless the processes of the tasks are those before, and the agent has restarted none.
tasks_continue() {
	tasks >$state/now
	diff $state/tasks $state/now >$state/difference || fail "the processes of the tasks have changed: $(cat $state/difference)"
	if systemctl is-active --quiet nomad-lite; then
		wait_until agent_reports_all_tasks
		[ "$(restarts)" = 0 ] || fail "numbers of restarts: $(restarts)"
	fi
}

# agent_is fails unless systemd runs an agent of a version.
agent_is() {
	systemctl is-active nomad-lite || fail "the service is not active"
	nomad-lite version | grep -qx "nomad-lite $1" || fail "the program is $(nomad-lite version)"
	agent=$(nomad-lite node status -self -verbose | grep -o 'nomad-lite.version *= .*')
	[ "${agent##* }" = "$1" ] || fail "the agent is of another version: $agent"
}

# machine prints what an installation can leave on the machine. The records of the system itself are left out: those of
# apt, dpkg and systemd, the journal, and caches that any command writes.
machine() {
	find / /run /dev/shm /dev/mqueue -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /var/lib/systemd \
		-o -path /run/systemd -o -path /run/log -o -path /run/user -o -path /run/udev -o -path /run/agetty.reload -o -path /tmp/systemd-private-\* -o -path /var/tmp/systemd-private-\* \
		-o -path $state -o -path "$PWD" -o -path /lost+found \) -prune -o -print 2>/dev/null | sed 's/^/file /' | sort -u
	echo "file hashes $(find /etc -type f ! -name ld.so.cache ! -name .pwd.lock -exec sha256sum {} + | sort | sha256sum)"
	getent passwd | sed 's/^/user /'
	getent group | sed 's/^/group /'
	# The numbers of peer groups are different after each boot.
	cut -d ' ' -f 5- /proc/self/mountinfo | sed -E 's/ (shared|master):[0-9]+//g; s/^/mount /' | grep -v binfmt | sort
	find /sys/fs/cgroup -type d | grep -E 'nomad' | sed 's/^/cgroup /'
	ip -o link | cut -d : -f 2 | sed 's/^/link /'
	ip netns list 2>/dev/null | sed 's/^/namespace /'
	systemctl list-unit-files --no-legend 'nomad*' | sed 's/^/unit file /'
	systemctl list-units --all --no-legend 'nomad*' | sed 's/^/unit /'
	systemctl --failed --no-legend | sed 's/^/failed unit /'
	sysctl -a 2>/dev/null | grep -E '^(fs\.(file-max|nr_open|inotify|pipe)|net\.ipv4\.(ip_forward|conf\.all)|kernel\.(pid_max|threads-max|yama))' | sed 's/^/sysctl /'
	pgrep -a -f 'nomad|sleep 100000' | sed 's/^/process /'
	true
}

record_machine() {
	[ ! -e /usr/sbin/policy-rc.d ] || fail "/usr/sbin/policy-rc.d forbids services to start"
	machine >$state/before
}

nothing_left() {
	machine >$state/after
	diff $state/before $state/after || fail "the installation has left what the lines with > show, or removed what those with < show"
}

# first_minute executes commands of a file, which install the program and run its example job, and prints when each ends.
first_minute() {
	local began=$(date +%s%N) command
	while read -r command <&3; do
		echo "+ $command"
		bash -c "$command" >$state/output 2>&1 || fail "$(cat $state/output)"
		cat $state/output
		case $command in *" logs "*) grep -q "hello from example" $state/output || fail "the log of the job lacks its output" ;; esac
		echo "= $((($(date +%s%N) - began) / 1000000)) ms after the start of the installation"
	done 3<"$1"
	agent_is $old
	systemctl is-enabled nomad-lite || fail "the service is not enabled"
	[ -z "$(pgrep -f 'hello')" ] || fail "the job runs: $(pgrep -af hello)"
	nomad-lite job stop -purge example || fail "job stop"
	rm example.nomad.hcl
}

install_package() { first_minute README.commands; }

install_archive() {
	# In README.md, these are the commands after the installation.
	(echo "NOMAD_LITE_URL=file://$PWD sh install-$old.sh" && tail -n +2 README.commands) >$state/commands
	first_minute $state/commands
}

# hundred_tasks starts ten isolated tasks, which have mounts, and ninety of the cheapest driver.
hundred_tasks() {
	cat >$state/hundred.nomad.hcl <<'JOB'
job "hundred" {
  group "raw" {
    count = 90
    task "sleep" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
  group "isolated" {
    count = 10
    task "sleep" {
      driver = "exec"
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
JOB
	dmesg --clear
	nomad-lite job run -detach $state/hundred.nomad.hcl || fail "job run"
	wait_until all_tasks_run
	wait_until agent_reports_all_tasks
	tasks >$state/tasks
	[ "$(dmesg | grep -c noswap)" -lt 20 ] || fail "the kernel has logged a line for each task: $(dmesg | grep noswap | tail -n 1)"
}

upgrade_package() {
	apt-get install -y ./nomad-lite_${new}_amd64.deb || fail "apt-get"
	agent_is $new
	tasks_continue
}

upgrade_archive() {
	NOMAD_LITE_URL=file://$PWD sh install-$new.sh >$state/output 2>&1 || fail "install.sh: $(cat $state/output)"
	cat $state/output
	! grep "To start the agent" $state/output || fail "install.sh asks to start the agent that runs"
	agent_is $new
	tasks_continue
}

save_snapshot() {
	nomad-lite operator snapshot save $state/backup.snap || fail "snapshot save"
	nomad-lite operator snapshot inspect $state/backup.snap || fail "snapshot inspect"
	tasks_continue
}

# restore_under_tasks loses the state while the tasks run.
restore_under_tasks() {
	systemctl kill --kill-whom=main --signal=KILL nomad-lite
	systemctl stop nomad-lite
	rm $data/state.db
	cp $state/backup.snap backup.snap
	bash -eux recovery.commands || fail "a command of docs/how-to/recovery.md"
	agent_is $new
	tasks_continue
}

# restore_all loses the data directory, and all tasks with it.
restore_all() {
	systemctl stop nomad-lite || fail "stop"
	nomad-lite agent stop -all $data | tail -n 3
	[ -z "$(tasks)" ] || fail "tasks run: $(tasks)"
	findmnt -o TARGET -rn | grep $data/ | sort -r | while read -r mount; do umount -l "$mount"; done
	rm -rf $data
	bash -eux recovery.commands || fail "a command of docs/how-to/recovery.md"
	agent_is $new
	wait_until all_tasks_run
	wait_until agent_reports_all_tasks
	tasks >$state/tasks
	rm backup.snap
}

go_back_package() {
	apt-get install -y --allow-downgrades ./nomad-lite_${old}_amd64.deb || fail "apt-get"
	agent_is $old
	tasks_continue
}

go_back_archive() {
	NOMAD_LITE_URL=file://$PWD sh install-$new.sh -v $old || fail "install.sh"
	agent_is $old
	tasks_continue
}

remove_again() { remove_package; }

remove_package() {
	apt-get remove -y nomad-lite >$state/output 2>&1 || fail "apt-get: $(cat $state/output)"
	cat $state/output
	grep -q "Tasks that run continue, and $data remains." $state/output || fail "the package does not say that tasks continue"
	[ ! -e /usr/bin/nomad-lite ] || fail "the program remains"
	! systemctl is-active --quiet nomad-lite || fail "the service is active"
	! pgrep -f 'nomad-lite agent' || fail "the agent runs"
	tasks_continue
}

install_again() {
	apt-get install -y ./nomad-lite_${new}_amd64.deb || fail "apt-get"
	agent_is $new
	tasks_continue
}

purge_package() {
	apt-get purge -y nomad-lite || fail "apt-get"
	[ -z "$(tasks)" ] || fail "tasks run: $(tasks)"
}

remove_archive() {
	bash -eux remove.commands || fail "a command of docs/how-to/install.md"
	[ -z "$(tasks)" ] || fail "tasks run: $(tasks)"
}

# lose_power waits until the power of the machine is cut.
lose_power() {
	sync # the tasks, and not the files of the test, are what the loss of power must not destroy
	echo vm-cut
	sleep infinity
}

tasks_run_again() {
	wait_until systemctl is-active --quiet nomad-lite
	agent_is $old
	wait_until all_tasks_run
	wait_until agent_reports_all_tasks
	tasks >$state/tasks
	nomad-lite job status hundred
}

cd "$(dirname "$0")" || exit 1
steps=$(grep -o 'vm_steps=[^ ]*' /proc/cmdline | cut -d = -f 2)
for step in ${steps//,/ }; do
	echo "vm-begin $step"
	began=$SECONDS
	($step)
	status=$?
	if [ $status != 0 ]; then
		nomad-lite job status hundred | head -n 60
		ps -eo pid,ppid,user,args | grep -v '\[' | tail -n 30
		journalctl --no-pager -b -u nomad-lite -n 40
		echo
		echo "vm-end failed with exit status $status after $((SECONDS - began))s"
		break
	fi
	echo
	echo "vm-end ok after $((SECONDS - began))s"
done
systemctl reboot # qemu ends instead
