package systemd

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/cronexpr"

	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// Options are the input of Convert.
type Options struct {
	Units   []string // paths or names; at least one
	JobName string   // empty: the name of the first unit
	Driver  string   // raw_exec or exec; empty means raw_exec
	Dirs    []string // where names are searched; nil means SystemDirs
}

// Convert returns the job for units. It reads files, and may be called concurrently.
func Convert(o Options) (*importer.Result, error) {
	if len(o.Units) == 0 {
		return nil, errors.New("name a unit")
	}
	if o.Dirs == nil {
		o.Dirs = SystemDirs
	}
	c := &converter{Warnings: &importer.Warnings{}, options: o, driver: cmp.Or(o.Driver, "raw_exec")}
	if c.driver != "raw_exec" && c.driver != "exec" {
		return nil, fmt.Errorf("the driver is %q; it must be raw_exec or exec", c.driver)
	}
	if err := c.loadUnits(); err != nil {
		return nil, err
	}
	return c.convert()
}

// converter converts the units of one job.
type converter struct {
	*importer.Warnings
	options  Options
	driver   string
	timer    *unit
	services []*service
}

// service is a service unit that is converted.
type service struct {
	*unit
	task        string
	user        string
	specifiers  specifiers
	env         map[string]string
	environment map[string]importer.Position // where each variable is
	runsOnce    bool
	after       []importer.Dependency
	restart     restartPolicy
	killTimeout time.Duration
	killSignal  string
	workDir     string

	start []unitCommand
	pre   []unitCommand // commands that precede start, as tasks of their own
}

// preTask returns the name of the task of a command of pre.
func (s *service) preTask(i int) string { return fmt.Sprintf("%s-pre-%d", s.task, i+1) }

// loadUnits reads the units, and the service of a timer.
func (c *converter) loadUnits() error {
	var services []*unit
	for _, name := range c.options.Units {
		u, err := load(name, c.options.Dirs)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(u.name, timerSuffix) {
			services = append(services, u)
			continue
		}
		if c.timer != nil {
			return fmt.Errorf("%s and %s: a job has one schedule, so convert each timer on its own", c.timer.name, u.name)
		}
		c.timer = u
	}
	if c.timer != nil {
		name := cmp.Or(c.timer.last("Timer", "Unit").value, c.timer.stem+serviceSuffix)
		if len(services) == 0 {
			u, err := load(name, append([]string{filepath.Dir(c.timer.path)}, c.options.Dirs...))
			if err != nil {
				return err
			}
			services = append(services, u)
		}
		if len(services) != 1 || services[0].name != name {
			return fmt.Errorf("%s starts %s: convert other units on their own", c.timer.name, name)
		}
	}
	for _, u := range services {
		s := &service{unit: u, task: taskName(u.stem)}
		if slices.ContainsFunc(c.services, func(other *service) bool { return other.task == s.task }) {
			return fmt.Errorf("%s is named twice", u.name)
		}
		c.services = append(c.services, s)
	}
	return nil
}

// taskName returns the name of a unit as the name of a task.
func taskName(stem string) string {
	return cmp.Or(strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, stem), "-"), "unit")
}

func (c *converter) convert() (*importer.Result, error) {
	for _, s := range c.services {
		if err := c.readService(s); err != nil {
			return nil, err
		}
	}
	c.readOrder()
	var programs []importer.Program
	for _, s := range c.services {
		if err := c.readCommands(s); err != nil {
			return nil, err
		}
		after := s.after
		for i := range s.pre {
			programs = append(programs, importer.Program{Name: s.preTask(i), RunsOnce: true, After: after})
			after = []importer.Dependency{{Name: s.preTask(i), Condition: importer.Succeeded}}
		}
		programs = append(programs, importer.Program{Name: s.task, RunsOnce: s.runsOnce, After: after})
	}
	stages, batch, err := importer.Stages(programs)
	if err != nil {
		return nil, err
	}
	name := cmp.Or(c.options.JobName, c.services[0].task)
	file := importer.NewFile()
	top := file.Body()
	for _, s := range c.services {
		if description := s.last("Unit", "Description"); description.value != "" {
			text, err := s.specifiers.expand(description.value)
			if err != nil {
				return nil, importer.Errorf(description.at, "%w", err)
			}
			top.Comment(s.name + ": " + text)
		}
	}
	job := top.Block("job", name)
	if batch {
		job.Set("type", "batch")
	}
	if err := c.writePeriodic(job, batch); err != nil {
		return nil, err
	}
	group := job.Block("group", name)
	if !batch {
		reschedule := group.Block("reschedule")
		reschedule.Set("attempts", 0)
		reschedule.Set("unlimited", false)
	}
	for _, s := range c.services {
		if err := c.writeService(group, s, stages); err != nil {
			return nil, err
		}
	}
	return &importer.Result{Job: file.Bytes(), Warnings: c.List()}, nil
}

// readService reads the settings of a service that several tasks need.
func (c *converter) readService(s *service) error {
	s.user = s.last("Service", "User").value
	s.specifiers = specifiers{unit: s.unit, user: s.user}
	expanded, err := s.specifiers.expand(s.user)
	if err != nil {
		return importer.Errorf(s.last("Service", "User").at, "%w", err)
	}
	s.user, s.specifiers.user = expanded, expanded
	c.warnOfKeys(s)
	switch kind := s.last("Service", "Type"); strings.ToLower(kind.value) {
	case "oneshot":
		s.runsOnce = true
		if remain := s.last("Service", "RemainAfterExit"); isTrue(remain.value) {
			c.Add(remain.at, "RemainAfterExit has no counterpart: the task is complete when the program ends")
		}
	case "forking":
		c.Add(kind.at, "Type=forking: the task ends when the first process ends; let the program stay in the foreground, with an option or without its daemon mode")
	case "notify", "notify-reload", "dbus":
		c.Add(kind.at, "Type=%s: the task counts as started at once, and programs get no NOTIFY_SOCKET; a check in a service block reports when it is ready", kind.value)
	}
	s.runsOnce = s.runsOnce || c.timer != nil
	if err := c.readEnvironment(s); err != nil {
		return err
	}
	if err := c.readStop(s); err != nil {
		return err
	}
	s.workDir = "/" // where programs of the machine start under systemd
	if dir := s.last("Service", "WorkingDirectory"); dir.value != "" {
		path, err := s.specifiers.expand(strings.TrimPrefix(dir.value, "-"))
		if err == nil && path == "~" {
			path, err = s.specifiers.valueOf('h')
		}
		if err != nil {
			return importer.Errorf(dir.at, "%w", err)
		}
		s.workDir = path
	}
	return c.readRestart(s)
}

func isTrue(text string) bool {
	return slices.Contains([]string{"yes", "true", "on", "1"}, strings.ToLower(text))
}

// readEnvironment sets the variables of a service. Those of files take precedence, as under systemd.
func (c *converter) readEnvironment(s *service) error {
	s.env, s.environment = map[string]string{}, map[string]importer.Position{}
	for _, setting := range s.all("Service", "Environment") {
		words, err := splitWords(setting.value)
		if err != nil {
			return importer.Errorf(setting.at, "%w", err)
		}
		for _, word := range words {
			name, v, found := strings.Cut(word, "=")
			if !found || !isVariableName(name) {
				return importer.Errorf(setting.at, "%q is not NAME=VALUE", word)
			}
			if v, err = s.specifiers.expand(v); err != nil {
				return importer.Errorf(setting.at, "%w", err)
			}
			s.env[name], s.environment[name] = v, setting.at
		}
	}
	for _, setting := range s.all("Service", "EnvironmentFile") {
		if err := c.readEnvironmentFile(s, setting); err != nil {
			return err
		}
	}
	for _, setting := range s.all("Service", "UnsetEnvironment") {
		for _, name := range strings.Fields(setting.value) {
			delete(s.env, name)
		}
	}
	for _, kind := range []struct{ key, name, dir string }{
		{"RuntimeDirectory", "RUNTIME_DIRECTORY", "/run"}, {"StateDirectory", "STATE_DIRECTORY", "/var/lib"}, {"CacheDirectory", "CACHE_DIRECTORY", "/var/cache"},
		{"LogsDirectory", "LOGS_DIRECTORY", "/var/log"}, {"ConfigurationDirectory", "CONFIGURATION_DIRECTORY", "/etc"},
	} {
		var paths []string
		for _, setting := range s.all("Service", kind.key) {
			text, err := s.specifiers.expand(setting.value)
			if err != nil {
				return importer.Errorf(setting.at, "%w", err)
			}
			for _, name := range strings.Fields(text) {
				name, _, _ = strings.Cut(name, ":")
				paths = append(paths, kind.dir+"/"+name)
			}
			c.Add(setting.at, "%s: the directory must exist before the job runs: install -d -o %s %s", kind.key, cmp.Or(s.user, "root"), strings.Join(paths, " "))
		}
		if len(paths) > 0 {
			s.env[kind.name] = strings.Join(paths, ":")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.env)) {
		at := s.environment[name]
		if s.env[name] != "" && importer.LooksSecret(name) {
			c.Add(at, "the job file contains the value of %s, which looks like a secret: a template with nomadVar can take its place", name)
		}
		if importer.HasReference(s.env[name]) {
			c.Add(at, "the agent replaces ${…} in the value of %s, if a variable or attribute has this name", name)
		}
	}
	return nil
}

func (c *converter) readEnvironmentFile(s *service, setting setting) error {
	pattern, optional := strings.CutPrefix(setting.value, "-")
	pattern, err := s.specifiers.expand(pattern)
	if err != nil {
		return importer.Errorf(setting.at, "%w", err)
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return importer.Errorf(setting.at, "%w", err)
	}
	if len(paths) == 0 {
		if optional {
			c.Add(setting.at, "there is no file %s, and the job has no variables of it: convert the unit again when there is", pattern)
			return nil
		}
		return importer.Errorf(setting.at, "there is no file %s", pattern)
	}
	for _, path := range paths {
		text, err := readFile(path)
		if err != nil {
			return importer.Errorf(setting.at, "%w", err)
		}
		names, values := parseEnvironmentFile(text)
		for _, name := range names {
			s.env[name], s.environment[name] = values[name], importer.Position{File: path}
		}
		c.Add(setting.at, "the values of %s are copied into the job: later changes of the file have no effect", path)
	}
	return nil
}

const maxKillTimeout = 30 * time.Second // the default of the agent

// readStop sets how the tasks of a service are stopped.
func (c *converter) readStop(s *service) error {
	s.killSignal, s.killTimeout = "SIGTERM", maxKillTimeout
	if signal := s.last("Service", "KillSignal"); signal.value != "" {
		s.killSignal = signal.value
	}
	for _, key := range []string{"TimeoutSec", "TimeoutStopSec"} {
		setting := s.last("Service", key)
		if setting.value == "" {
			continue
		}
		d, isFinite, err := parseTimeSpan(setting.value)
		if err != nil {
			return importer.Errorf(setting.at, "%w", err)
		}
		if !isFinite {
			d = 24 * time.Hour
		}
		s.killTimeout = d.Round(time.Millisecond)
		if d > maxKillTimeout {
			c.Add(setting.at, "the agent limits kill_timeout to %s, unless client { max_kill_timeout = %q } allows more", maxKillTimeout, d.String())
		}
	}
	for _, setting := range s.all("Service", "ExecStop") {
		fields := strings.Fields(strings.TrimLeft(setting.value, "-:+!@"))
		if signal, ok := signalOfKill(fields); ok {
			s.killSignal = signal
			continue
		}
		c.Add(setting.at, "ExecStop has no counterpart: the task is stopped with %s", s.killSignal)
	}
	return nil
}

// signalOfKill returns the signal of a command such as "/bin/kill -s QUIT $MAINPID".
func signalOfKill(words []string) (signal string, ok bool) {
	if len(words) < 2 || filepath.Base(words[0]) != "kill" || strings.Trim(words[len(words)-1], "${}") != "MAINPID" {
		return "", false
	}
	switch options := words[1 : len(words)-1]; {
	case len(options) == 0:
		return "SIGTERM", true
	case len(options) == 1 && strings.HasPrefix(options[0], "-"):
		signal = strings.TrimPrefix(options[0], "-")
	case len(options) == 2 && (options[0] == "-s" || options[0] == "-n"):
		signal = options[1]
	}
	numbers := map[string]string{"1": "HUP", "2": "INT", "3": "QUIT", "9": "KILL", "10": "USR1", "12": "USR2", "15": "TERM"}
	signal = strings.TrimPrefix(strings.TrimPrefix(cmp.Or(numbers[signal], signal), "s"), "SIG")
	return "SIG" + signal, signal != "" && signal == strings.ToUpper(signal)
}

// restartPolicy is a restart block.
type restartPolicy struct {
	attempts        int
	interval, delay time.Duration
	mode            string
}

var startLimitPlaces = [][2]string{{"Service", "StartLimitInterval"}, {"Unit", "StartLimitInterval"}, {"Unit", "StartLimitIntervalSec"}}

// readRestart sets the restart policy. systemd allows five starts in ten seconds by default.
func (c *converter) readRestart(s *service) error {
	span := func(section, key string, whenMissing time.Duration) (time.Duration, error) {
		setting := s.last(section, key)
		if setting.value == "" {
			return whenMissing, nil
		}
		d, isFinite, err := parseTimeSpan(setting.value)
		if err != nil {
			return 0, importer.Errorf(setting.at, "%w", err)
		}
		if !isFinite {
			d = 24 * time.Hour
		}
		return d.Round(time.Millisecond), nil
	}
	restart := s.last("Service", "Restart")
	switch restart.value {
	case "", "no":
		s.restart = restartPolicy{mode: "fail"}
		return nil
	case "always", "on-success":
	case "on-failure", "on-abnormal", "on-abort", "on-watchdog":
		if !s.runsOnce {
			c.Add(restart.at, "Restart=%s: the task is restarted when the program succeeds too", restart.value)
		}
	default:
		return importer.Errorf(restart.at, "Restart=%s is unknown", restart.value)
	}
	delay, err := span("Service", "RestartSec", 100*time.Millisecond)
	if err != nil {
		return err
	}
	interval := 10 * time.Second
	for _, place := range startLimitPlaces { // the earlier ones are of older versions of systemd
		if interval, err = span(place[0], place[1], interval); err != nil {
			return err
		}
	}
	burst := 5
	setting := s.last("Service", "StartLimitBurst")
	if inUnit := s.last("Unit", "StartLimitBurst"); inUnit.value != "" {
		setting = inUnit
	}
	if setting.value != "" {
		n, err := strconv.ParseUint(setting.value, 10, 16)
		if err != nil {
			return importer.Errorf(setting.at, "StartLimitBurst=%s is no number", setting.value)
		}
		burst = int(n)
	}
	const leastInterval, most = 5 * time.Second, 24 * time.Hour
	delay = min(delay, most)
	s.restart = restartPolicy{attempts: burst, interval: max(interval, leastInterval), delay: delay, mode: "fail"}
	if interval == 0 || burst == 0 || time.Duration(burst)*delay >= interval {
		// There is no limit, or so many starts never fit into the interval: systemd never gives up.
		const shortestDelay = 10 * time.Millisecond
		interval = max(leastInterval, delay)
		s.restart = restartPolicy{attempts: int(interval / max(delay, shortestDelay)), interval: interval, delay: delay, mode: "delay"}
	}
	return nil
}

// wellKnownSuffixes are those of units that have no meaning for a job.
var wellKnownSuffixes = []string{".target", ".slice", ".mount"}

// readOrder sets which services wait for each other, and warns of other units.
func (c *converter) readOrder() {
	byName := map[string]*service{}
	for _, s := range c.services {
		byName[s.name] = s
	}
	add := func(s, other *service) {
		dependency := importer.Dependency{Name: other.task, Condition: importer.Started}
		if other.runsOnce {
			dependency.Condition = importer.Succeeded
		}
		if s != other && !slices.Contains(s.after, dependency) {
			s.after = append(s.after, dependency)
		}
	}
	for _, s := range c.services {
		for _, key := range []string{"After", "Requires", "Requisite", "BindsTo", "PartOf", "Wants", "Before"} {
			for _, setting := range s.all("Unit", key) {
				for _, name := range strings.Fields(setting.value) {
					expanded, err := s.specifiers.expand(name)
					if err != nil {
						expanded = name
					}
					other := byName[expanded]
					switch {
					case other != nil && key == "After":
						add(s, other)
					case other != nil && key == "Before":
						add(other, s)
					case other != nil, key == "Before", c.timer != nil && expanded == c.timer.name,
						slices.ContainsFunc(wellKnownSuffixes, func(suffix string) bool { return strings.HasSuffix(expanded, suffix) }):
					default:
						c.Add(setting.at, "%s=%s: the job neither starts this unit nor waits for it; name it beside %s, or see that it runs", key, expanded, s.name)
					}
				}
			}
		}
	}
}

// writePeriodic writes the schedule of the timer.
func (c *converter) writePeriodic(job *importer.Body, batch bool) error {
	if c.timer == nil {
		return nil
	}
	var crons []string
	zone := ""
	for _, setting := range c.timer.settings {
		if setting.section != "Timer" || setting.value == "" {
			continue
		}
		switch setting.key {
		case "OnCalendar":
		case "OnUnitActiveSec", "OnUnitInactiveSec":
			d, _, err := parseTimeSpan(setting.value)
			if err != nil {
				return importer.Errorf(setting.at, "%w", err)
			}
			cron, err := cronEvery(d)
			if err != nil {
				return importer.Errorf(setting.at, "%s=%s: %w; write an OnCalendar", setting.key, setting.value, err)
			}
			c.Add(setting.at, "%s=%s becomes fixed times of the clock: %s", setting.key, setting.value, cron)
			crons = append(crons, cron)
		case "Unit", "AccuracySec", "Persistent":
			if setting.key == "Persistent" && !isTrue(setting.value) {
				c.Add(setting.at, "Persistent=%s: the agent makes up for the last run that was missed", setting.value)
			}
		case "OnBootSec", "OnStartupSec", "OnActiveSec":
			c.Add(setting.at, "%s has no counterpart: the first run is at a time of the schedule", setting.key)
		default:
			c.Add(setting.at, "%s has no counterpart", setting.key)
		}
	}
	for _, setting := range c.timer.all("Timer", "OnCalendar") {
		cron, ofValue, err := cronOf(setting.value)
		if err == nil {
			_, err = cronexpr.Parse(cron)
		}
		if err != nil {
			return importer.Errorf(setting.at, "OnCalendar=%s: %w", setting.value, err)
		}
		if len(crons) > 0 && zone != ofValue {
			return importer.Errorf(setting.at, "OnCalendar=%s: a job has one time zone", setting.value)
		}
		crons, zone = append(crons, cron), ofValue
	}
	if len(crons) == 0 {
		return importer.Errorf(importer.Position{File: c.timer.path}, "the timer has no OnCalendar and no OnUnitActiveSec")
	}
	periodic := job.Block("periodic")
	periodic.Set("crons", crons)
	periodic.Set("time_zone", cmp.Or(zone, "Local"))
	periodic.Set("prohibit_overlap", true)
	return nil
}

// readCommands sets the commands of a service. Those that precede the start of a oneshot service are part of its task.
func (c *converter) readCommands(s *service) (err error) {
	if s.start, err = c.commands(s, "ExecStart"); err != nil {
		return err
	}
	if len(s.start) == 0 {
		return importer.Errorf(importer.Position{File: s.path}, "the unit has no ExecStart")
	}
	if len(s.start) > 1 && !s.runsOnce {
		return importer.Errorf(s.start[1].at, "a service that is not oneshot has one ExecStart")
	}
	if first := &s.start[0]; first.ignoreFailure && !s.runsOnce {
		// A shell above the program would get the signals of a stop in its place.
		first.ignoreFailure = false
		c.Add(first.at, "the prefix - has no counterpart: the task fails when the program fails")
	}
	conditions, err := c.commands(s, "ExecCondition")
	if err != nil {
		return err
	}
	for _, condition := range conditions {
		c.Add(condition.at, "ExecCondition: the task fails if the condition is not met, where systemd skips the unit")
	}
	if s.pre, err = c.commands(s, "ExecStartPre"); err != nil {
		return err
	}
	s.pre = append(conditions, s.pre...)
	if s.runsOnce {
		s.start, s.pre = append(s.pre, s.start...), nil
	}
	return nil
}

// writeService writes the tasks of a service.
func (c *converter) writeService(group *importer.Body, s *service, stages map[string]importer.Stage) error {
	after, stage := s.after, stages[s.task]
	if len(s.pre) > 0 && stage != importer.Main {
		c.Add(s.pre[0].at, "ExecStartPre: %s starts before other tasks, so that these commands run once, not at each restart", s.name)
	}
	for i, command := range s.pre {
		name := s.preTask(i)
		task := group.Block("task", name)
		c.writeTask(task, s, []unitCommand{command}, command.privileged != "")
		importer.WriteStage(task, stages[name], after, "restart")
		c.writeRest(task, s, restartPolicy{mode: "fail"})
		after = []importer.Dependency{{Name: name, Condition: importer.Succeeded}}
	}
	task := group.Block("task", s.task)
	c.writeTask(task, s, s.start, s.start[0].privileged != "")
	importer.WriteStage(task, stage, after, "")
	c.writeRest(task, s, s.restart)
	return c.writeFollowing(group, s, stage)
}

// writeFollowing writes the tasks of ExecStartPost and ExecStopPost.
func (c *converter) writeFollowing(group *importer.Body, s *service, stage importer.Stage) error {
	for _, kind := range []struct{ key, suffix, hook string }{{"ExecStartPost", "post", "poststart"}, {"ExecStopPost", "stop", "poststop"}} {
		commands, err := c.commands(s, kind.key)
		if err != nil {
			return err
		}
		if len(commands) == 0 {
			continue
		}
		if kind.key == "ExecStartPost" && stage != importer.Main {
			c.Add(commands[0].at, "ExecStartPost of a unit that runs before or after others has no counterpart")
			continue
		}
		if kind.key == "ExecStopPost" {
			c.Add(commands[0].at, "ExecStopPost runs when the whole job has ended, not at each restart of %s", s.name)
		}
		task := group.Block("task", s.task+"-"+kind.suffix)
		c.writeTask(task, s, commands, commands[0].privileged != "")
		lifecycle := task.Block("lifecycle")
		lifecycle.Set("hook", kind.hook)
		if kind.hook == "poststart" {
			meta := task.Block("meta")
			meta.Set("lite_after", s.task+":started")
			meta.Set("lite_rerun", "restart")
		}
		c.writeRest(task, s, restartPolicy{mode: "fail"})
	}
	return nil
}

// unitCommand is a command with its position, whose specifiers and variables are replaced.
type unitCommand struct {
	command
	at importer.Position
}

func (c *converter) commands(s *service, key string) ([]unitCommand, error) {
	var commands []unitCommand
	for _, setting := range s.all("Service", key) {
		parsed, err := parseCommands(setting.value)
		if err != nil {
			return nil, importer.Errorf(setting.at, "%w", err)
		}
		for _, one := range parsed {
			for i, word := range one.words {
				if one.words[i], err = s.specifiers.expand(word); err != nil {
					return nil, importer.Errorf(setting.at, "%w", err)
				}
			}
			if !one.literal {
				one.words = expandVariables(one.words, func(name string) string {
					v, ok := s.env[name]
					if !ok {
						c.Add(setting.at, "the variable %s has no value in the unit, an empty text replaces it", name)
					}
					return v
				})
			}
			if one.arg0 != "" && one.arg0 != one.words[0] && one.arg0 != filepath.Base(one.words[0]) {
				c.Add(setting.at, "the program gets the name %s as its first argument, not %s", one.words[0], one.arg0)
			}
			commands = append(commands, unitCommand{one, setting.at})
		}
	}
	return commands, nil
}

// writeTask writes driver, user, stop and config of a task that runs commands in their order.
func (c *converter) writeTask(task *importer.Body, s *service, commands []unitCommand, asRoot bool) {
	task.Set("driver", c.driver)
	if !asRoot {
		task.SetNonZero("user", s.user)
	} else {
		c.Add(commands[0].at, "the command runs with all privileges, as the prefixes + and ! say: the task has no user, and runs as the agent's")
	}
	task.Set("kill_signal", s.killSignal)
	task.Set("kill_timeout", s.killTimeout)
	words := commands[0].words
	if len(commands) > 1 || commands[0].ignoreFailure || commands[0].shell {
		words = []string{"/bin/sh", "-c", shellScript(commands)}
	}
	config := task.Block("config")
	words = importer.ConfigTexts(words)
	config.Set("command", words[0])
	config.SetNonZero("args", words[1:])
	config.SetNonZero("work_dir", importer.ConfigText(s.workDir))
	if score := s.last("Service", "OOMScoreAdjust"); score.value != "" {
		if n, err := strconv.Atoi(score.value); err == nil && n >= 0 && n <= 1000 {
			config.SetNonZero("oom_score_adj", n)
		} else {
			c.Add(score.at, "OOMScoreAdjust=%s has no counterpart: 0 to 1000 have one", score.value)
		}
	}
}

// shellScript returns a script that runs commands in their order, until one fails. The last one takes the place of the shell, so that it gets the
// signals of a stop.
func shellScript(commands []unitCommand) string {
	var lines []string
	for i, one := range commands {
		var quoted []string
		for _, word := range one.words {
			quoted = append(quoted, shellquote.QuoteIfNeeded(word))
		}
		line := strings.Join(quoted, " ")
		switch {
		case one.shell:
			line = strings.Join(one.words, " ")
		case one.ignoreFailure:
			line = "{ " + line + " || :; }"
		case i == len(commands)-1:
			line = "exec " + line
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, " && ")
}

// writeRest writes the environment, the resources and the restart policy of a task.
func (c *converter) writeRest(task *importer.Body, s *service, restart restartPolicy) {
	task.SetMap("env", s.env)
	memory, hasMemory := c.memoryMB(s)
	cpu, hasCPU := c.cpuMHz(s)
	if hasMemory || hasCPU {
		resources := task.Block("resources")
		if hasCPU {
			resources.Set("cpu", cpu)
		}
		if hasMemory {
			resources.Set("memory", memory)
		}
	}
	block := task.Block("restart")
	block.Set("attempts", restart.attempts)
	if restart.attempts > 0 {
		block.Set("interval", restart.interval)
		block.Set("delay", restart.delay)
	}
	block.Set("mode", restart.mode)
}

func (c *converter) memoryMB(s *service) (mb int, ok bool) {
	for _, key := range []string{"MemoryMax", "MemoryLimit", "MemoryHigh"} {
		setting := s.last("Service", key)
		if setting.value == "" || setting.value == "infinity" {
			continue
		}
		number := strings.TrimRight(setting.value, "KMGT")
		n, err := strconv.ParseFloat(number, 64)
		i := strings.Index(" KMGT", cmp.Or(setting.value[len(number):], " "))
		const mostMB = 1 << 30
		if err != nil || i < 0 || !(n > 0) {
			c.Add(setting.at, "%s=%s has no counterpart: an absolute size has one", key, setting.value)
			continue
		}
		for range i {
			n *= 1024
		}
		const bytesOfMB, leastMB = 1 << 20, 10
		if n /= bytesOfMB; n > mostMB {
			continue
		}
		if c.driver == "raw_exec" {
			c.Add(setting.at, "%s: raw_exec reserves the memory and does not limit it; -driver exec limits it", key)
		}
		return max(int(n), leastMB), true
	}
	return 0, false
}

func (c *converter) cpuMHz(s *service) (mhz int, ok bool) {
	setting := s.last("Service", "CPUQuota")
	if setting.value == "" {
		return 0, false
	}
	const mhzOfPercent, most = 10, 1_000_000
	percent, err := strconv.ParseFloat(strings.TrimSuffix(setting.value, "%"), 64)
	if err != nil || !(percent > 0) || percent > most {
		c.Add(setting.at, "CPUQuota=%s has no counterpart", setting.value)
		return 0, false
	}
	c.Add(setting.at, "CPUQuota=%s becomes a share of the CPUs, with 1000 MHz for one, and no limit", setting.value)
	return max(int(percent*mhzOfPercent), 1), true
}

// convertedKeys are the keys that are converted, or have no meaning for a job.
var convertedKeys = map[string][]string{
	"Service": {
		"Type", "RemainAfterExit", "ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost", "ExecCondition", "Environment", "EnvironmentFile", "UnsetEnvironment",
		"User", "WorkingDirectory", "Restart", "RestartSec", "TimeoutStopSec", "TimeoutSec", "KillSignal", "MemoryMax", "MemoryLimit", "MemoryHigh", "CPUQuota", "OOMScoreAdjust",
		"RuntimeDirectory", "StateDirectory", "CacheDirectory", "LogsDirectory", "ConfigurationDirectory", "SyslogIdentifier", "SendSIGKILL", "StartLimitInterval", "StartLimitBurst", "GuessMainPID", "PIDFile", "NotifyAccess", "BusName",
	},
	"Unit": {
		"Description", "Documentation", "After", "Before", "Requires", "Requisite", "BindsTo", "PartOf", "Wants", "StartLimitIntervalSec", "StartLimitInterval", "StartLimitBurst", "DefaultDependencies", "SourcePath",
		"CollectMode",
	},
}

// isolationPrefixes start the names of settings that restrict what a service can do.
var isolationPrefixes = []string{"Protect", "Private", "Restrict", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "SystemCall", "Lock", "NoNewPrivileges", "Capability", "AmbientCapabilities", "MemoryDenyWriteExecute", "DevicePolicy", "DeviceAllow", "RemoveIPC", "ProcSubset", "IPAddress", "NoExecPaths", "ExecPaths", "TemporaryFileSystem", "BindPaths", "BindReadOnlyPaths", "UMask", "SecureBits", "KeyringMode"}

// warnOfKeys warns of the settings of a service that are not converted.
func (c *converter) warnOfKeys(s *service) {
	var isolation []string
	var isolationAt importer.Position
	for _, setting := range s.settings {
		known, isConvertedSection := convertedKeys[setting.section]
		switch {
		case setting.section == "Install" || strings.HasPrefix(setting.section, "X-") || strings.HasPrefix(setting.key, "X-") || setting.value == "":
		case isConvertedSection && slices.Contains(known, setting.key):
		case setting.key == "ExecReload":
			c.Add(setting.at, "ExecReload has no counterpart: nomad-lite alloc signal -s SIGHUP sends a signal to the task")
		case setting.key == "Group":
			c.warnOfGroup(s, setting)
		case setting.key == "StandardOutput" || setting.key == "StandardError":
			if !slices.Contains([]string{"journal", "inherit", "syslog", "journal+console"}, setting.value) {
				c.Add(setting.at, "%s=%s: the agent keeps the output of tasks, see nomad-lite logs", setting.key, setting.value)
			}
		case setting.key == "KillMode":
			if setting.value != "control-group" && setting.value != "mixed" {
				c.Add(setting.at, "KillMode=%s: all processes of the task are killed", setting.value)
			}
		case setting.key == "DynamicUser":
			c.Add(setting.at, "DynamicUser: the task runs as the user of the agent, unless it gets a user that exists")
		case setting.section == "Service" && slices.ContainsFunc(isolationPrefixes, func(prefix string) bool { return strings.HasPrefix(setting.key, prefix) }):
			if len(isolation) == 0 {
				isolationAt = setting.at
			}
			isolation = append(isolation, setting.key)
		default:
			c.Add(setting.at, "%s has no counterpart", setting.key)
		}
	}
	if len(isolation) == 0 {
		return
	}
	remedy := "-driver exec isolates the task"
	if c.driver == "exec" {
		remedy = "the driver exec isolates tasks in its own way"
	}
	c.Add(isolationAt, "%s have no counterpart: %s", strings.Join(slices.Compact(isolation), ", "), remedy)
}

// warnOfGroup warns of a group that is not that of the user.
func (c *converter) warnOfGroup(s *service, setting setting) {
	if setting.value == s.user {
		return
	}
	if account, err := user.Lookup(s.user); err == nil {
		if group, err := user.LookupGroupId(account.Gid); err == nil && group.Name == setting.value {
			return
		}
	}
	c.Add(setting.at, "Group=%s has no counterpart: the task has the groups of its user", setting.value)
}
