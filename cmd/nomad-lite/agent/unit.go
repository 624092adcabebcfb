package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// writeSystemdUnit writes a systemd unit that starts the agent with the flags of o. Stopping the unit must stop only the
// agent, and leave the tasks running, whose cgroups the agent manages.
func writeSystemdUnit(w io.Writer, o options) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	line := []string{program, "agent"}
	add := func(name, value string, isPath bool) error {
		if value == "" {
			return nil
		}
		if isPath {
			if value, err = filepath.Abs(value); err != nil {
				return err
			}
		}
		line = append(line, "-"+name, value)
		return nil
	}
	var errs []error
	for _, c := range o.configPaths {
		errs = append(errs, add("config", c, true))
	}
	errs = append(errs, add("data-dir", o.dataDir, true), add("bind", o.bindAddr, false), add("node", o.nodeName, false), add("dc", o.datacenter, false),
		add("region", o.region, false), add("node-class", o.nodeClass, false), add("plugin-dir", o.pluginDir, true), add("log-level", o.logLevel, false))
	if o.logJSON {
		line = append(line, "-log-json")
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, word := range line {
		line[i] = quoteSystemdArg(word)
	}
	_, err = fmt.Fprintf(w, systemdUnitTemplate, strings.Join(line, " "))
	return err
}

// quoteSystemdArg quotes a word of a command line for systemd.
func quoteSystemdArg(word string) string {
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(word)
	if strings.ContainsAny(escaped, " \t\"'\\;") {
		return `"` + escaped + `"`
	}
	return escaped
}

const systemdUnitTemplate = `[Unit]
Description=nomad-lite agent
Documentation=https://github.com/nomad-lite/nomad-lite
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart=%s
ExecReload=/bin/kill -HUP $MAINPID
# Only the agent is stopped: tasks go on, and so do the processes that watch them.
KillMode=process
KillSignal=SIGINT
TimeoutStopSec=30
Restart=on-failure
RestartSec=2
# The cgroups of the tasks are made by the agent.
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
`

// systemdNotifier notifies systemd of the agent's state. Without a socket path it does nothing.
type systemdNotifier struct{ socketPath string }

// systemdNotifierFromEnv returns the notifier for the socket in NOTIFY_SOCKET, and removes the variable from the
// environment, so that tasks do not inherit it.
func systemdNotifierFromEnv() systemdNotifier {
	const notifySocketVar = "NOTIFY_SOCKET"
	defer os.Unsetenv(notifySocketVar)
	return systemdNotifier{os.Getenv(notifySocketVar)}
}

// notify sends a state of sd_notify(3), such as "READY=1".
func (s systemdNotifier) notify(state string) {
	if s.socketPath == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: s.socketPath})
	if err != nil {
		return // the socket of systemd no longer exists
	}
	defer c.Close()
	_, _ = c.Write([]byte(state))
}
