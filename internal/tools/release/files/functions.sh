#!/bin/sh
# A maintainer script of the package nomad-lite. The functions are the same in all scripts and package formats; the
# lines at the end call those that the package manager asks for.
set -e

data=/var/lib/nomad-lite
kept=$data/removed # the script purge, and the program if tasks may still run, while the package is removed

has_systemd() { [ -d /run/systemd/system ]; }

# reload_units lets systemd read the unit, and warns of units that systemd prefers to the package's. An empty one, or a
# link to /dev/null, only masks the service.
reload_units() {
	systemctl daemon-reload || true
	for unit in /etc/systemd/system/nomad-lite.service /usr/local/lib/systemd/system/nomad-lite.service; do
		if [ -s "$unit" ]; then
			echo "systemd uses $unit instead of the unit of the package: remove it unless it is yours, and execute systemctl daemon-reload" >&2
		fi
	done
}

# service executes a command of systemctl that starts the service, unless Debian's policy-rc.d forbids it. A service that does
# not start is no error of the package.
service() {
	systemctl=$(command -v deb-systemd-invoke) || systemctl=systemctl
	$systemctl "$1" nomad-lite.service || echo "nomad-lite.service does not start: see journalctl -u nomad-lite" >&2
}

# start_if_enabled fails if the service is not enabled.
start_if_enabled() {
	systemctl is-enabled --quiet nomad-lite.service || return
	service start
}

after_install() {
	rm -rf "$kept"
	if ! has_systemd; then
		echo "nomad-lite is installed. To start its agent: nomad-lite agent -config /etc/nomad-lite.d"
		return
	fi
	reload_units
	if start_if_enabled; then return; fi # the package was removed, and not purged, before
	echo "nomad-lite is installed. To start its agent, now and at each boot:"
	echo "  systemctl enable nomad-lite"
	echo "  systemctl start nomad-lite"
}

after_upgrade() {
	rm -rf "$kept"
	if ! has_systemd; then
		echo "nomad-lite is upgraded. An agent that runs executes the previous version until it is started again; tasks continue meanwhile."
		return
	fi
	reload_units
	service try-restart # the unit stops the agent alone, and the next agent recovers the tasks
}

# after_failed_removal undoes before_remove.
after_failed_removal() {
	rm -rf "$kept"
	if has_systemd; then start_if_enabled || true; fi
}

# disable undoes the command enable, in formats that know no purge.
disable() {
	if has_systemd; then systemctl --no-reload disable nomad-lite.service || true; fi
}

# keep copies what ends the tasks and removes all data.
keep() {
	(umask 077 && mkdir -p "$kept") && cp /usr/lib/nomad-lite/purge "$kept/purge" || return
	if [ -e "$data/lock" ]; then cp /usr/bin/nomad-lite "$kept/nomad-lite"; fi
}

# before_remove stops the agent, and keeps the program for the tasks that continue. $1 is the command that ends them and
# removes all data. Without the file lock, no agent has used the data directory.
before_remove() {
	if has_systemd; then systemctl stop nomad-lite.service; fi
	if [ -e "$data/lock" ]; then
		/usr/bin/nomad-lite agent stop "$data" >/dev/null # an agent that systemd has not started
		echo "The agent is stopped. Tasks that run continue, and $data remains."
	fi
	if [ ! -d "$data" ]; then return; fi
	if ! keep; then
		rm -rf "$kept" # no part of it must seem complete
		echo "No copy of the program fits into $kept: to end tasks, or to remove $data, install nomad-lite again." >&2
	elif [ -e "$data/lock" ]; then
		echo "To end the tasks:                     $kept/nomad-lite agent stop -all $data"
		echo "To end them and to remove all data:   $1"
	fi
}

after_remove() {
	if has_systemd; then systemctl daemon-reload || true; fi
}

# after_purge runs without the package's files, and so without the program. Another installation may use the same data
# and configuration: install.sh removes $kept.
after_purge() {
	if [ -e /usr/local/bin/nomad-lite ]; then
		echo "$data and /etc/nomad-lite.d remain for /usr/local/bin/nomad-lite. The package manager has removed /etc/nomad-lite.d/agent.hcl." >&2
		mkdir -p /etc/nomad-lite.d # the unit names the directory, which dpkg removes if it is empty
		[ -e /etc/nomad-lite.d/agent.hcl ] || echo "# The package nomad-lite was purged, and with it the settings in this file." >/etc/nomad-lite.d/agent.hcl
		return
	fi
	if [ -e "$kept/purge" ]; then
		sh "$kept/purge" # its file system can be mounted with noexec
	elif [ -e "$data/lock" ]; then
		echo "$data and /etc/nomad-lite.d remain, because $kept has no program that ends the tasks. Unless another installation uses them, install nomad-lite again, and purge it." >&2
		return
	fi
	# Configuration files that the user has added are not known to the package manager.
	if awk -v dir=/etc/nomad-lite.d '$5 == dir || index($5, dir "/") == 1 { found = 1 } END { exit !found }' /proc/self/mountinfo; then
		echo "/etc/nomad-lite.d remains, because something is mounted there: unmount it, and remove the directory." >&2
	else
		rm -rf /etc/nomad-lite.d
	fi
	rm -f /etc/systemd/system/multi-user.target.wants/nomad-lite.service
	after_remove
}
