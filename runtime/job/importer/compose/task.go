package compose

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// task is the parts of a task that are written after the config block.
// It is large because a task comes from a service and from the rest of the file.
type task struct {
	*converter
	*service
	body, config *importer.Body
	templates    []template
	mounts       []mount
	volumes      []string // bind mounts as SOURCE:TARGET:MODE
}

// convertedKeys are the keys of a service that the converter handles. Of other keys it warns, also of those that only matter to
// other commands than docker compose up.
var convertedKeys = []string{
	"image", "build", "pull_policy", "command", "entrypoint", "environment", "env_file", "ports", "expose", "networks", "network_mode", "links",
	"volumes", "tmpfs", "secrets", "configs", "healthcheck", "depends_on", "restart", "deploy", "scale", "profiles", "extends", "container_name",
	"cpus", "cpu_quota", "cpu_period", "cpu_shares", "cpuset", "mem_limit", "mem_reservation", "pids_limit", "shm_size", "oom_score_adj",
	"user", "working_dir", "hostname", "domainname", "group_add", "cap_add", "cap_drop", "privileged", "read_only", "ulimits", "sysctls", "init",
	"stop_signal", "stop_grace_period", "logging", "labels", "tty", "stdin_open", "security_opt", "devices", "dns", "dns_search", "dns_opt", "extra_hosts",
	"pid", "ipc", "uts", "userns_mode", "cgroup", "runtime", "storage_opt", "mac_address",
}

func (c *converter) warnOfKeys(s *service) {
	c.warnOfFields(s.value, s.name, convertedKeys...)
	c.warnOfNestedKeys(s)
}

func (c *converter) writeTask(body *importer.Body, s *service, group []*service) error {
	c.warnOfKeys(s)
	t := &task{converter: c, service: s, body: body}
	body.Set("driver", "docker")
	body.SetNonZero("user", t.text("user"))
	body.SetNonZero("kill_signal", signalName(t.text("stop_signal")))
	killTimeout, err := t.duration("stop_grace_period", s.get("stop_grace_period"), defaultStopGracePeriod)
	if err != nil {
		return err
	}
	body.Set("kill_timeout", killTimeout)
	if s.hasHealthcheck {
		body.Set("shutdown_delay", shutdownDelay)
	}
	if killTimeout > maxKillTimeout {
		c.needs.maxKillTimeout = max(c.needs.maxKillTimeout, killTimeout)
	}
	importer.WriteStage(body, c.stages[s.name], c.dependenciesIn(s, group), "")
	t.config = body.Block("config")
	steps := []func() error{
		t.writeImage, t.writeCommand, t.writeResources, t.readVolumes, t.readSecretsAndConfigs, t.writeOptions, t.writeMounts,
		t.writeEnvironment, t.writeTemplates, t.writeRestart, t.writeService,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

const (
	defaultStopGracePeriod = 10 * time.Second
	maxKillTimeout         = 30 * time.Second // the default of the agent
	shutdownDelay          = time.Second      // from the removal of a service from the catalog until its task is stopped
)

// text returns the text of a key of the service.
func (s *service) text(key string) string { return fieldText(s.value, key) }

func (t *task) duration(key string, v *value, whenMissing time.Duration) (time.Duration, error) {
	if v == nil {
		return whenMissing, nil
	}
	d, err := parseDuration(v.text)
	if err != nil {
		return 0, importer.Errorf(v.at, "%s is %s, which is no duration such as 1m30s", key, describe(v))
	}
	return d, nil
}

func signalName(text string) string {
	if text == "" || strings.HasPrefix(text, "SIG") || text[0] >= '0' && text[0] <= '9' {
		return text
	}
	return "SIG" + text
}

// writeImage writes the image. A locally built image gets a tag other than latest: an image with the tag latest is pulled at each start.
func (t *task) writeImage() error {
	image, build := t.text("image"), t.get("build")
	if build != nil {
		if image == "" {
			image = t.converter.name + "-" + t.service.name
		}
		name, tag := splitTag(image)
		if tag == "" || tag == "latest" {
			image = name + ":local"
		}
		t.warnOfBuild(build, image)
	}
	if image == "" {
		return importer.Errorf(t.at, "the service %s has neither image nor build", t.service.name)
	}
	t.config.Set("image", importer.ConfigText(image))
	switch policy := t.text("pull_policy"); policy {
	case "always":
		t.config.Set("force_pull", true)
	case "", "missing", "if_not_present", "build":
	default:
		if _, tag := splitTag(image); policy != "never" || tag == "" || tag == "latest" {
			t.Add(t.get("pull_policy").at, "pull_policy %s has no counterpart: an image with the tag latest, or without a tag, is pulled at each start, others if they are missing", policy)
		}
	}
	return nil
}

// splitTag splits "NAME:TAG". A digest is part of the tag.
func splitTag(image string) (name, tag string) {
	if name, digest, found := strings.Cut(image, "@"); found {
		return name, digest
	}
	i := strings.LastIndex(image, ":")
	if i < 0 || strings.Contains(image[i:], "/") {
		return image, ""
	}
	return image[:i], image[i+1:]
}

// warnOfBuild prints the command that builds the image of a service.
func (t *task) warnOfBuild(build *value, image string) {
	words := []string{"docker", "build", "-t", image}
	context := fieldText(build, "context")
	for _, key := range build.keys {
		v := build.fields[key]
		switch key {
		case "context":
		case "dockerfile":
			path := v.text
			if !strings.HasPrefix(path, "/") && !isRemoteContext(context) {
				path = context + "/" + path
			}
			words = append(words, "-f", path)
		case "target", "platform", "network":
			words = append(words, "--"+key, v.text)
		case "no_cache", "pull":
			if v.text == "true" {
				words = append(words, "--"+strings.ReplaceAll(key, "_", "-"))
			}
		case "args":
			for _, name := range v.keys {
				arg := name
				if v.fields[name].kind == scalar && !importer.LooksSecret(name) {
					arg += "=" + v.fields[name].text
				}
				words = append(words, "--build-arg", arg)
			}
		default:
			t.Add(v.at, "%s of build is not in the command docker build", key)
		}
	}
	words = append(words, context)
	for i, word := range words {
		words[i] = shellquote.QuoteIfNeeded(word)
	}
	t.Add(build.at, "build the image before the job runs: %s (the agent removes unused images after three minutes, unless gc { image = false } is in the configuration of the driver)", strings.Join(words, " "))
}

// writeCommand writes the entrypoint and the command.
func (t *task) writeCommand() error {
	entrypoint, err := t.commandLine("entrypoint")
	if err != nil {
		return err
	}
	if t.get("entrypoint") != nil && len(entrypoint) == 0 {
		t.Add(t.get("entrypoint").at, "an empty entrypoint has no counterpart: that of the image is used")
	}
	t.config.SetNonZero("entrypoint", importer.ConfigTexts(entrypoint))
	command, err := t.commandLine("command")
	if err != nil || len(command) == 0 {
		return err
	}
	command = importer.ConfigTexts(command)
	t.config.Set("command", command[0])
	t.config.SetNonZero("args", command[1:])
	return nil
}

func (t *task) commandLine(key string) ([]string, error) {
	v := t.get(key)
	if v == nil || v.kind != scalar {
		return v.asTexts()
	}
	words, err := splitWords(v.text)
	return words, errAt(v.at, err)
}

// writeOptions writes the options of the driver that have a counterpart of the same meaning.
func (t *task) writeOptions() error {
	c := t.config
	c.SetNonZero("work_dir", importer.ConfigText(t.text("working_dir")))
	if hostname := t.text("hostname"); hostname != "" {
		if t.network == sharedNamespace && t.ownNetworkMode == "" {
			t.Add(t.get("hostname").at, "the containers share one hostname: %s is a name for the others, not the hostname of %s", hostname, t.service.name)
		} else {
			c.Set("hostname", importer.ConfigText(hostname))
		}
	}
	if v := t.get("domainname"); v != nil {
		t.Add(v.at, "domainname has no counterpart")
	}
	t.writeTaskNetwork(c, t.service)
	for _, option := range []struct{ key, name string }{{"init", "init"}, {"tty", "tty"}, {"stdin_open", "interactive"}, {"read_only", "readonly_rootfs"}, {"privileged", "privileged"}} {
		isSet, err := t.get(option.key).asBool()
		if err != nil {
			return err
		}
		c.SetNonZero(option.name, isSet)
		t.needs.privileged = t.needs.privileged || isSet && option.key == "privileged"
	}
	for _, option := range []struct{ key, name string }{
		{"group_add", "group_add"}, {"cap_add", "cap_add"}, {"cap_drop", "cap_drop"}, {"security_opt", "security_opt"},
		{"dns", "dns_servers"}, {"dns_search", "dns_search_domains"}, {"dns_opt", "dns_options"},
	} {
		texts, err := t.get(option.key).asTexts()
		if err != nil {
			return err
		}
		c.SetNonZero(option.name, importer.ConfigTexts(texts))
		if option.key == "cap_add" {
			for _, name := range texts {
				name = strings.TrimPrefix(strings.ToLower(name), "cap_")
				if !slices.Contains(defaultCaps, name) {
					t.needs.caps = append(t.needs.caps, name)
				}
			}
		}
	}
	for _, option := range []struct{ key, name string }{{"pid", "pid_mode"}, {"ipc", "ipc_mode"}, {"uts", "uts_mode"}, {"userns_mode", "userns_mode"}, {"cgroup", "cgroupns"}, {"runtime", "runtime"}, {"cpuset", "cpuset_cpus"}} {
		mode := t.text(option.key)
		if strings.HasPrefix(mode, "service:") {
			t.Add(t.get(option.key).at, "%s %q has no counterpart", option.key, mode)
			continue
		}
		c.SetNonZero(option.name, importer.ConfigText(mode))
		t.needs.privileged = t.needs.privileged || mode == "host"
	}
	if v := t.get("mac_address"); v != nil {
		if t.network == sharedNamespace {
			t.Add(v.at, "mac_address has no counterpart: the containers share one network namespace")
		} else {
			c.Set("mac_address", v.text)
		}
	}
	for _, key := range []string{"oom_score_adj", "pids_limit"} {
		if v := t.get(key); v != nil {
			n, err := v.asInt()
			if err != nil {
				return err
			}
			if n < 0 {
				t.Add(v.at, "%s of %d has no counterpart", key, n)
				continue
			}
			c.SetNonZero(key, n)
		}
	}
	if v := t.get("shm_size"); v != nil {
		n, err := v.asBytes()
		if err != nil {
			return err
		}
		c.SetNonZero("shm_size", n)
	}
	c.SetNonZero("volumes", importer.ConfigTexts(t.volumes))
	return t.writeMapOptions()
}

// defaultCaps are the capabilities that the driver allows by default.
var defaultCaps = []string{
	"audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
}

// writeMapOptions writes the options whose values are maps or blocks.
func (t *task) writeMapOptions() error {
	labels, err := textMap(t.get("labels"))
	if err != nil {
		return err
	}
	t.config.SetMap("labels", escapeConfigMap(labels))
	sysctls, err := textMap(t.get("sysctls"))
	if err != nil {
		return err
	}
	if len(sysctls) > 0 && t.network == sharedNamespace {
		for _, name := range slices.Sorted(maps.Keys(sysctls)) {
			if strings.HasPrefix(name, "net.") {
				t.Add(t.get("sysctls").at, "the engine refuses %s in a shared network namespace, and it is left out: with -docker-network it is set", name)
				delete(sysctls, name)
			}
		}
	}
	t.config.SetMap("sysctl", escapeConfigMap(sysctls))
	storage, err := textMap(t.get("storage_opt"))
	if err != nil {
		return err
	}
	t.config.SetMap("storage_opt", escapeConfigMap(storage))
	if ulimits := t.get("ulimits"); ulimits != nil {
		limits := map[string]string{}
		for _, name := range ulimits.keys {
			v := ulimits.fields[name]
			limits[name] = v.text
			if v.kind == mapping {
				limits[name] = fieldText(v, "soft") + ":" + fieldText(v, "hard")
			}
		}
		t.config.SetMap("ulimit", escapeConfigMap(limits))
	}
	if logging := t.get("logging"); logging != nil {
		options, err := textMap(logging.get("options"))
		if err != nil {
			return err
		}
		block := t.config.Block("logging")
		driver := fieldText(logging, "driver")
		if driver == "" {
			driver = "json-file"
		}
		block.Set("type", importer.ConfigText(driver))
		block.SetMap("config", escapeConfigMap(options))
		if !slices.Contains([]string{"json-file", "local", "journald"}, driver) {
			t.Add(logging.at, "the agent collects no output of %s: the engine cannot read from the log driver %s", t.service.name, driver)
		}
	}
	if devices := t.get("devices"); devices != nil {
		for _, item := range devices.items {
			host, container, permissions := fieldText(item, "source"), fieldText(item, "target"), fieldText(item, "permissions")
			if item.kind == scalar {
				parts := append(strings.SplitN(item.text, ":", 3), "", "")
				host, container, permissions = parts[0], parts[1], parts[2]
			}
			if !strings.HasPrefix(host, "/") {
				t.Add(item.at, "the device %s has no counterpart", host)
				continue
			}
			block := t.config.Block("devices")
			block.Set("host_path", importer.ConfigText(host))
			block.SetNonZero("container_path", importer.ConfigText(container))
			block.SetNonZero("cgroup_permissions", importer.ConfigText(permissions))
		}
	}
	return nil
}

func escapeConfigMap(m map[string]string) map[string]string {
	escaped := make(map[string]string, len(m))
	for key, text := range m {
		escaped[key] = importer.ConfigText(text)
	}
	return escaped
}

// textMap returns a mapping of texts. A value of null is an empty text.
func textMap(v *value) (map[string]string, error) {
	if v == nil {
		return nil, nil
	}
	if v.kind != mapping {
		return nil, importer.Errorf(v.at, "the value must be a mapping, not a %s", v.kind)
	}
	m := map[string]string{}
	for _, key := range v.keys {
		field := v.fields[key]
		if field.kind != scalar && field.kind != null {
			return nil, importer.Errorf(field.at, "the value of %s must be a text, not a %s", key, field.kind)
		}
		m[key] = field.text
	}
	return m, nil
}

// urlPassword matches a URL with a password.
var urlPassword = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`://[^/@:\s]*:[^/@\s]+@`) })

// writeEnvironment writes the env block, from the environment files and the key environment.
func (t *task) writeEnvironment() error {
	env := map[string]string{}
	at := map[string]importer.Position{}
	if files := t.get("env_file"); files != nil {
		for _, item := range files.items {
			if err := t.readEnvFile(item, env, at); err != nil {
				return err
			}
		}
	}
	if environment := t.get("environment"); environment != nil {
		if environment.kind != mapping {
			return importer.Errorf(environment.at, "environment must be a mapping or a list")
		}
		for _, name := range environment.keys {
			v := environment.fields[name]
			switch v.kind {
			case scalar:
				env[name] = v.text
			case null:
				inherited, ok := t.loader.lookupIn(t.loader.projectEnv)(name)
				if !ok {
					t.Add(v.at, "the variable %s has no value, and is left out", name)
					delete(env, name)
					continue
				}
				env[name] = inherited
			default:
				return importer.Errorf(v.at, "the variable %s must be a text, not a %s", name, v.kind)
			}
			at[name] = v.at
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return importer.Errorf(at[name], "%q is no name of a variable", name)
		}
		if env[name] != "" && (importer.LooksSecret(name) || urlPassword().MatchString(env[name])) {
			t.Add(at[name], "the job file contains the value of %s, which looks like a secret: a template with nomadVar can take its place", name)
		}
		if importer.HasReference(env[name]) {
			t.Add(at[name], "the agent replaces ${…} in the value of %s, if a variable or attribute has this name", name)
		}
	}
	t.body.SetMap("env", env)
	return nil
}

// readEnvFile adds the variables of an environment file.
func (t *task) readEnvFile(item *value, env map[string]string, at map[string]importer.Position) error {
	path := fieldText(item, "path")
	text, err := readFile(path)
	if err != nil {
		if fieldText(item, "required") == "false" {
			t.Add(item.at, "the environment file %s is left out: %v", t.loader.displayName(path), err)
			return nil
		}
		return errAt(item.at, err)
	}
	lookup := t.loader.lookupIn(t.loader.projectEnv)
	var names []string
	var values map[string]string
	if fieldText(item, "format") == "raw" {
		names, values = parseRawEnvFile(string(text))
	} else if names, values, err = parseEnvFile(string(text), lookup, t.loader.warnOfUnsetIn(path)); err != nil {
		return importer.Errorf(item.at, "%s: %w", t.loader.displayName(path), err)
	}
	t.Add(item.at, "the values of %s are copied into the job: later changes of the file have no effect", t.loader.displayName(path))
	for _, name := range names {
		env[name], at[name] = values[name], importer.Position{File: t.loader.displayName(path)}
	}
	return nil
}

// parseRawEnvFile parses an environment file whose values are literal.
func parseRawEnvFile(text string) (names []string, values map[string]string) {
	values = map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if name, v, found := strings.Cut(line, "="); found && !strings.HasPrefix(line, "#") {
			names, values[name] = append(names, name), v
		}
	}
	return names, values
}

// writeService writes the service with the health check of a task.
func (t *task) writeService() error {
	v := t.get("healthcheck")
	if v == nil || !t.hasHealthcheck {
		return nil
	}
	test := v.get("test")
	words, err := test.asTexts()
	if err != nil {
		return err
	}
	isShell := test.kind == scalar
	switch {
	case isShell:
	case words[0] == "CMD-SHELL" && len(words) == 2:
		isShell, words = true, words[1:]
	case words[0] == "CMD" && len(words) > 1:
		words = words[1:]
	default:
		return importer.Errorf(test.at, "test must be a text or a list that starts with CMD, CMD-SHELL or NONE")
	}
	if isShell {
		words = []string{"/bin/sh", "-c", words[0]}
	}
	for _, word := range words {
		if importer.HasReference(word) {
			t.Add(test.at, "the agent replaces ${…} in the health check, if a variable or attribute has this name")
		}
	}
	service := t.body.Block("service")
	service.Set("name", serviceName(t.converter.name+"-"+t.service.name))
	if len(t.ports) > 0 {
		service.Set("port", t.ports[0].label)
	}
	check := service.Block("check")
	check.Set("name", "healthcheck")
	check.Set("type", "script")
	check.Set("command", words[0])
	check.SetNonZero("args", words[1:])
	for _, option := range []struct {
		key  string
		name string
	}{{"interval", "interval"}, {"timeout", "timeout"}} {
		d, err := t.duration(option.key, v.get(option.key), 30*time.Second)
		if err != nil {
			return err
		}
		if d < time.Second {
			t.Add(v.at, "%s of the health check becomes 1s, the least that a check can have", option.key)
			d = time.Second
		}
		check.Set(option.name, d)
	}
	retries := 3
	if r := v.get("retries"); r != nil {
		if retries, err = r.asInt(); err != nil {
			return err
		}
	}
	if retries > 1 {
		check.Set("failures_before_critical", retries-1)
	}
	startPeriod, err := t.duration("start_period", v.get("start_period"), 0)
	if err != nil {
		return err
	}
	if si := v.get("start_interval"); si != nil {
		t.Add(si.at, "start_interval has no counterpart: checks run in the interval of the health check from the start")
	}
	if autoheal, err := textMap(t.get("labels")); err == nil && autoheal["autoheal"] == "true" {
		restart := check.Block("check_restart")
		restart.Set("limit", max(retries, 1))
		restart.SetNonZero("grace", startPeriod)
	} else if startPeriod > 0 {
		t.Add(v.get("start_period").at, "start_period of the health check has no counterpart: failures count from the start, but nothing restarts %s when its check fails", t.service.name)
	}
	return nil
}

// serviceName returns a name that a service can have.
func serviceName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r == '_' || r == '.' {
			return '-'
		}
		return r
	}, name)
	const maxLength = 63
	return strings.Trim(name[:min(len(name), maxLength)], "-")
}

// hasHealthcheck reports whether a health check has a test.
func hasHealthcheck(v *value) bool {
	if disabled, _ := v.get("disable").asBool(); disabled {
		return false
	}
	test := v.get("test")
	if test == nil || test.kind == list && len(test.items) == 0 {
		return false
	}
	return test.kind == scalar && test.text != "" || test.kind == list && test.items[0].text != "NONE"
}

// isHealthcheckDisabled reports whether the health check of the image is switched off.
func isHealthcheckDisabled(v *value) bool {
	if disabled, _ := v.get("disable").asBool(); disabled {
		return true
	}
	test := v.get("test")
	return test != nil && test.kind == list && len(test.items) > 0 && test.items[0].text == "NONE"
}

// writeRestart writes the restart block.
func (t *task) writeRestart() error {
	restart, err := t.restartOf()
	if err != nil {
		return err
	}
	if restart == nil {
		if !t.runsOnce {
			t.unrestarted = append(t.unrestarted, t.service.name)
			return nil
		}
		restart = &restartBlock{mode: "fail"}
	}
	block := t.body.Block("restart")
	block.Set("attempts", restart.attempts)
	if restart.attempts > 0 {
		block.Set("interval", restart.interval)
		block.Set("delay", restart.delay)
	}
	block.Set("mode", restart.mode)
	return nil
}

type restartBlock struct {
	attempts        int
	interval, delay time.Duration
	mode            string
}

// Docker doubles the delay between restarts up to a minute, without an end. With this policy a task gets three restarts in each
// minute, without an end.
var restartForever = restartBlock{attempts: 3, interval: time.Minute, delay: 2 * time.Second, mode: "delay"}

// restartPolicyOf returns the policy of the key restart, or that of deploy in the words of restart. It is empty if there is none.
func restartPolicyOf(s *value) string {
	policy := s.get("deploy").get("restart_policy")
	switch fieldText(policy, "condition") {
	case "none":
		return "no"
	case "on-failure":
		return "on-failure"
	case "any":
		return "always"
	}
	if policy != nil {
		return "always"
	}
	return fieldText(s, "restart")
}

// restartOf returns nil if the file has no policy.
func (t *task) restartOf() (*restartBlock, error) {
	kind, count, _ := strings.Cut(restartPolicyOf(t.value), ":")
	at := t.at
	if v := t.get("restart"); v != nil {
		at = v.at
	}
	var block restartBlock
	switch kind {
	case "":
		return nil, nil
	case "no", "false":
		return &restartBlock{mode: "fail"}, nil
	case "always", "unless-stopped":
		block = restartForever
		if t.runsOnce && !t.batch {
			t.Add(at, "%s ends by itself, because others wait for its success: it is restarted when it fails, not when it succeeds", t.service.name)
		}
	case "on-failure":
		block = restartForever
		if !t.runsOnce {
			t.Add(at, "%s is restarted when it succeeds too, not only on failure", t.service.name)
		}
	default:
		return nil, importer.Errorf(at, "the restart policy %q is unknown", kind)
	}
	policy := t.get("deploy").get("restart_policy")
	attempts := 0
	for _, text := range []string{count, fieldText(policy, "max_attempts")} {
		if text == "" {
			continue
		}
		n, err := newScalar(at, text).asInt()
		if err != nil {
			return nil, err
		}
		attempts = n
	}
	delay, err := t.duration("delay", policy.get("delay"), block.delay)
	if err != nil {
		return nil, err
	}
	const mostDelay = 24 * time.Hour
	block.delay = min(max(delay, 0), mostDelay)
	if attempts > 0 {
		const mostAttempts = 1000
		block.attempts, block.mode, block.interval = min(attempts, mostAttempts), "fail", 24*time.Hour
		window, err := t.duration("window", policy.get("window"), block.interval)
		if err != nil {
			return nil, err
		}
		block.interval = window
	}
	const leastInterval = 5 * time.Second
	block.interval = max(block.interval, leastInterval, time.Duration(block.attempts+1)*block.delay)
	return &block, nil
}
