package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// writeSystemdUnit writes a systemd unit that starts the agent with the flags that are set, except "print-unit".
// Stopping the unit must stop only the agent, and leave the tasks running, whose cgroups the agent manages.
func writeSystemdUnit(w io.Writer, flags *pflag.FlagSet) error {
	words, err := agentCommandLine(flags)
	if err != nil {
		return err
	}
	for i, word := range words {
		words[i] = quoteSystemdArg(word)
	}
	_, err = fmt.Fprintf(w, systemdUnitTemplate, strings.Join(words, " "))
	return err
}

// agentCommandLine returns the program and the arguments that start an agent in the foreground with the flags that are set.
func agentCommandLine(flags *pflag.FlagSet) ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program: %w", err)
	}
	words := []string{program, "agent"}
	var errs []error
	flags.Visit(func(f *pflag.Flag) {
		args, err := flagArgs(f)
		words, errs = append(words, args...), append(errs, err)
	})
	return words, errors.Join(errs...)
}

// flagArgs returns the words of a command line that set a flag, which are none for a flag that an agent in the foreground ignores.
// Paths are absolute, because systemd starts the agent in the root directory.
func flagArgs(f *pflag.Flag) ([]string, error) {
	if f.Hidden {
		return nil, nil
	}
	switch f.Name {
	case "print-unit", "detach", "detach-timeout", "log-file":
		return nil, nil
	}
	values := []string{f.Value.String()}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		values = list.GetSlice()
	}
	var words []string
	for _, value := range values {
		switch f.Name {
		case "config", "data-dir", "plugin-dir":
			abs, err := filepath.Abs(value)
			if err != nil {
				return nil, err
			}
			value = abs
		case "meta": // Set does not accept the brackets that String adds
			value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
		}
		if f.Value.Type() == "bool" {
			words = append(words, "-"+f.Name+"="+value)
		} else {
			words = append(words, "-"+f.Name, value)
		}
	}
	return words, nil
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

// takeSystemdNotifierFromEnv returns the notifier for the socket in NOTIFY_SOCKET, and removes the variable from the
// environment, so that tasks do not inherit it.
func takeSystemdNotifierFromEnv() systemdNotifier {
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
