package mock

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// pluginConfig is the `plugin "mock_driver" { config { … } }` block.
type pluginConfig struct {
	ConfigError string `codec:"config_error"` // Configure fails with this error
	InitError   string `codec:"init_error"`   // Init fails with this error

	Health            string       `codec:"health"`             // healthy, unhealthy or undetected
	HealthDescription string       `codec:"health_description"` // description of health
	UnhealthyAfter    durationText `codec:"unhealthy_after"`    // time since the start of the process; 0 means never
	UnhealthyFor      durationText `codec:"unhealthy_for"`      // duration of the unhealthy state; 0 means forever

	FSIsolation          string `codec:"fs_isolation"` // none, chroot, image or unveil
	DisableLogCollection bool   `codec:"disable_log_collection"`
	NoMounts             bool   `codec:"no_mounts"`
}

var configSchema = hclspec.Object(map[string]*hclspec.Spec{
	"config_error":           hclspec.Attr("config_error", "string", false),
	"init_error":             hclspec.Attr("init_error", "string", false),
	"health":                 hclspec.Default(hclspec.Attr("health", "string", false), hclspec.Literal(`"healthy"`)),
	"health_description":     hclspec.Attr("health_description", "string", false),
	"unhealthy_after":        hclspec.Attr("unhealthy_after", "string", false),
	"unhealthy_for":          hclspec.Attr("unhealthy_for", "string", false),
	"fs_isolation":           hclspec.Default(hclspec.Attr("fs_isolation", "string", false), hclspec.Literal(`"none"`)),
	"disable_log_collection": hclspec.Attr("disable_log_collection", "bool", false),
	"no_mounts":              hclspec.Attr("no_mounts", "bool", false),
})

var healthByName = map[string]driver.Health{
	"healthy":    driver.HealthHealthy,
	"unhealthy":  driver.HealthUnhealthy,
	"undetected": driver.HealthUndetected,
}

var fsIsolationByName = map[string]driver.FSIsolation{
	"none":   driver.FSIsolationNone,
	"chroot": driver.FSIsolationChroot,
	"image":  driver.FSIsolationImage,
	"unveil": driver.FSIsolationUnveil,
}

// taskConfig is the `config` block of a task. All durations are strings like
// "2s". It is large because each field is an independent fault or behaviour that a test can ask for.
type taskConfig struct {
	// Start.
	StartBlockFor         durationText `codec:"start_block_for"` // duration of StartTask
	StartError            string       `codec:"start_error"`     // StartTask fails with this error
	StartErrorRecoverable bool         `codec:"start_error_recoverable"`
	StartErrors           int          `codec:"start_errors"` // number of failed starts per task and alloc; 0 means always

	// Run.
	RunFor durationText `codec:"run_for"` // 0 means that the task exits immediately
	Events []string     `codec:"events"`  // task events that are emitted at the start

	// Exit.
	ExitCode   int    `codec:"exit_code"`
	ExitSignal int    `codec:"exit_signal"`
	ExitErrMsg string `codec:"exit_err_msg"`
	OOMKilled  bool   `codec:"oom_killed"`

	// Stop and recovery.
	KillAfter        durationText `codec:"kill_after"` // how long the task continues after StopTask
	StopError        string       `codec:"stop_error"` // StopTask fails with this error
	StopErrors       int          `codec:"stop_errors"`
	DestroyError     string       `codec:"destroy_error"`
	SignalError      string       `codec:"signal_error"`
	RecoverError     string       `codec:"recover_error"`
	FailAfterRecover bool         `codec:"bad_recover"`       // the task is recovered, and exits immediately with an error
	PluginExitAt     durationText `codec:"plugin_exit_after"` // the plugin process exits this long after the start of the task
	PluginExitOnce   bool         `codec:"plugin_exit_once"`  // a plugin process that has recovered the task ignores plugin_exit_after

	// Output.
	StdoutString         string       `codec:"stdout_string"`
	StdoutRepeat         int          `codec:"stdout_repeat"` // number of repetitions
	StdoutRepeatDuration durationText `codec:"stdout_repeat_duration"`
	StderrString         string       `codec:"stderr_string"`
	StderrRepeat         int          `codec:"stderr_repeat"`
	StderrRepeatDuration durationText `codec:"stderr_repeat_duration"`

	// Network.
	DriverIP        string `codec:"driver_ip"`
	DriverAdvertise bool   `codec:"driver_advertise"`
	DriverPortMap   string `codec:"driver_port_map"` // "http:80 db:5432"

	// Statistics.
	StatsCPUPercent float64 `codec:"stats_cpu_percent"`
	StatsRSS        uint64  `codec:"stats_rss"`

	// Exec is the behavior of every command that is run in the task.
	Exec execConfig `codec:"exec_command"`
}

type execConfig struct {
	RunFor       durationText `codec:"run_for"`
	ExitCode     int          `codec:"exit_code"`
	ExitSignal   int          `codec:"exit_signal"`
	ExitErrMsg   string       `codec:"exit_err_msg"`
	StdoutString string       `codec:"stdout_string"`
	StderrString string       `codec:"stderr_string"`
}

var taskSchema = func() *hclspec.Spec {
	parts := map[string]*hclspec.Spec{
		"events": hclspec.Attr("events", "list(string)", false),
		"exec_command": hclspec.Block("exec_command", attrSpecs(map[string]string{
			"run_for": "string", "exit_code": "number", "exit_signal": "number", "exit_err_msg": "string",
			"stdout_string": "string", "stderr_string": "string",
		}), false),
	}
	for typ, names := range map[string][]string{
		"string": {
			"start_block_for", "start_error", "run_for", "exit_err_msg", "kill_after", "stop_error",
			"destroy_error", "signal_error", "recover_error", "plugin_exit_after", "stdout_string",
			"stdout_repeat_duration", "stderr_string", "stderr_repeat_duration", "driver_ip", "driver_port_map",
		},
		"number": {
			"start_errors", "exit_code", "exit_signal", "stop_errors", "stdout_repeat", "stderr_repeat",
			"stats_cpu_percent", "stats_rss",
		},
		"bool": {"start_error_recoverable", "oom_killed", "bad_recover", "plugin_exit_once", "driver_advertise"},
	} {
		for _, name := range names {
			parts[name] = hclspec.Attr(name, typ, false)
		}
	}
	return hclspec.Object(parts)
}()

func attrSpecs(types map[string]string) *hclspec.Spec {
	parts := map[string]*hclspec.Spec{}
	for name, typ := range types {
		parts[name] = hclspec.Attr(name, typ, false)
	}
	return hclspec.Object(parts)
}

// durationText is a duration as a string like "2s"; "" means 0.
type durationText string

func (d durationText) parse() (time.Duration, error) {
	if d == "" {
		return 0, nil
	}
	return time.ParseDuration(string(d))
}

// duration returns the duration. The string must be valid, which check ensures.
func (d durationText) duration() time.Duration {
	v, _ := d.parse()
	return v
}

func checkDurations(durations map[string]durationText) error {
	for name, d := range durations {
		if _, err := d.parse(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (c *pluginConfig) check() error {
	if _, ok := healthByName[c.Health]; !ok && c.Health != "" {
		return fmt.Errorf("health: %q is none of healthy, unhealthy, undetected", c.Health)
	}
	if _, ok := fsIsolationByName[c.FSIsolation]; !ok && c.FSIsolation != "" {
		return fmt.Errorf("fs_isolation: %q is none of none, chroot, image, unveil", c.FSIsolation)
	}
	return checkDurations(map[string]durationText{"unhealthy_after": c.UnhealthyAfter, "unhealthy_for": c.UnhealthyFor})
}

func (c *taskConfig) check() error {
	if _, err := c.portMap(); err != nil {
		return err
	}
	return checkDurations(map[string]durationText{
		"start_block_for":        c.StartBlockFor,
		"run_for":                c.RunFor,
		"kill_after":             c.KillAfter,
		"plugin_exit_after":      c.PluginExitAt,
		"stdout_repeat_duration": c.StdoutRepeatDuration,
		"stderr_repeat_duration": c.StderrRepeatDuration,
		"exec_command.run_for":   c.Exec.RunFor,
	})
}

func (c *taskConfig) portMap() (map[string]int, error) {
	ports := map[string]int{}
	for entry := range strings.FieldsSeq(strings.ReplaceAll(c.DriverPortMap, ",", " ")) {
		label, text, ok := strings.Cut(entry, ":")
		port, err := strconv.Atoi(text)
		if !ok || err != nil {
			return nil, fmt.Errorf("driver_port_map: %q is not label:port", entry)
		}
		ports[label] = port
	}
	return ports, nil
}
