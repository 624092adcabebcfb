#!/bin/sh
# A maintainer script of the package nomad-lite. The functions are the same in all scripts and package formats; the
# lines at the end call those that the package manager asks for.
set -e

data=/var/lib/nomad-lite
kept=$data/removed # the program and the script purge, while the package is removed and tasks may still run

has_systemd() { [ -d /run/systemd/system ]; }

after_install() {
	rm -rf "$kept"
	if ! has_systemd; then
		echo "nomad-lite is installed. To start its agent: nomad-lite agent -config /etc/nomad-lite.d"
		return
	fi
	systemctl daemon-reload || true
	if systemctl is-enabled --quiet nomad-lite.service; then # the package was removed, and not purged, before
		systemctl start nomad-lite.service || echo "nomad-lite.service does not start: see journalctl -u nomad-lite" >&2
		return
	fi
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
	systemctl daemon-reload || true
	# The unit stops the agent alone, and the next agent recovers the tasks.
	systemctl try-restart nomad-lite.service || echo "nomad-lite.service does not start: see journalctl -u nomad-lite" >&2
}

# disable undoes the command enable, in formats that know no purge.
disable() {
	if has_systemd; then systemctl --no-reload disable nomad-lite.service || true; fi
}

# before_remove stops the agent, and keeps the program for the tasks that continue. $1 is the command that ends them and
# removes all data.
before_remove() {
	if has_systemd; then
		systemctl stop nomad-lite.service
	elif [ -d "$data" ]; then
		/usr/bin/nomad-lite agent stop "$data" >/dev/null
	fi
	if [ ! -d "$data" ]; then return; fi
	mkdir -p -m 0700 "$kept"
	cp /usr/bin/nomad-lite "$kept/nomad-lite"
	cp /usr/lib/nomad-lite/purge "$kept/purge"
	echo "The agent is stopped. Tasks that run continue, and $data remains."
	echo "To end the tasks:                     $kept/nomad-lite agent stop -all $data"
	echo "To end them and to remove all data:   $1"
}

after_remove() {
	if has_systemd; then systemctl daemon-reload || true; fi
}

# after_purge runs without the package's files, and so without the program.
after_purge() {
	if [ -x "$kept/purge" ]; then "$kept/purge"; fi
	# Configuration files that the user has added are not known to the package manager.
	rm -rf /etc/nomad-lite.d
	rm -f /etc/systemd/system/multi-user.target.wants/nomad-lite.service
	after_remove
}
