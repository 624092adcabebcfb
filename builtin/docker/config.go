package docker

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// pluginConfig is the `plugin "docker" { config { … } }` block.
// It is large because the options of all parts stand in one block of the configuration.
type pluginConfig struct {
	Endpoint             string             `codec:"endpoint"` // address of the engine; empty means DOCKER_HOST, or the default socket
	TLS                  tlsConfig          `codec:"tls"`
	Auth                 registryAuthConfig `codec:"auth"`
	ExtraLabels          []string           `codec:"extra_labels"`
	Logging              loggingConfig      `codec:"logging"`
	GC                   gcConfig           `codec:"gc"`
	DisableLogCollection bool               `codec:"disable_log_collection"`
	PullActivityTimeout  string             `codec:"pull_activity_timeout"`
	defaultTaskOptions
	infraImageConfig
	taskPolicyConfig
	unsupportedPluginConfig

	pullActivityTimeout time.Duration // parsed PullActivityTimeout
}

// defaultTaskOptions has options for tasks that do not set these options themselves.
type defaultTaskOptions struct {
	ContainerExistsAttempts int    `codec:"container_exists_attempts"`
	ImagePullTimeout        string `codec:"image_pull_timeout"`
	OOMScoreAdj             int    `codec:"oom_score_adj"`

	imagePullTimeout time.Duration // parsed ImagePullTimeout
}

// infraImageConfig is the image of the containers that hold the networks of groups.
type infraImageConfig struct {
	InfraImage            string `codec:"infra_image"` // empty means the image that the driver makes
	InfraImagePullTimeout string `codec:"infra_image_pull_timeout"`

	infraImagePullTimeout time.Duration // parsed InfraImagePullTimeout
}

type tlsConfig struct {
	CertPath string `codec:"cert"`
	KeyPath  string `codec:"key"`
	CAPath   string `codec:"ca"`
}

// registryAuthConfig is where the driver finds credentials of registries.
type registryAuthConfig struct {
	ConfigPath           string `codec:"config"` // path of a file in the format of ~/.docker/config.json
	CredentialHelperName string `codec:"helper"` // suffix of the program docker-credential-…
}

type loggingConfig struct {
	Type   string            `codec:"type"`
	Config map[string]string `codec:"config"`
}

// gcConfig is what the driver removes when a task has ended.
type gcConfig struct {
	RemoveUnusedImages     bool                    `codec:"image"`
	ImageDelay             string                  `codec:"image_delay"`
	RemoveExitedContainers bool                    `codec:"container"`
	DanglingContainers     danglingContainerConfig `codec:"dangling_containers"`

	imageRemovalDelay time.Duration // parsed ImageDelay
}

type danglingContainerConfig struct {
	Enabled       bool   `codec:"enabled"`
	DryRun        bool   `codec:"dry_run"`
	Period        string `codec:"period"`
	CreationGrace string `codec:"creation_grace"`

	period, creationGrace time.Duration
}

// taskPolicyConfig is the operator's policy for what tasks may request.
type taskPolicyConfig struct {
	AllowPrivileged bool         `codec:"allow_privileged"`
	AllowedModes    allowedModes `codec:"allowed_modes"`
	AllowCaps       []string     `codec:"allow_caps"`
	AllowRuntimes   []string     `codec:"allow_runtimes"`
	AllowLogDrivers []string     `codec:"allow_log_drivers"` // log drivers that tasks can use with all options
	NvidiaRuntime   string       `codec:"nvidia_runtime"`
	PidsLimit       int64        `codec:"pids_limit"` // maximum number of processes of a task; 0 means no limit
	Volumes         volumeConfig `codec:"volumes"`
}

// allowedModes are the modes of namespaces that tasks can set without allow_privileged. A mode that starts with
// "container:" can be a pattern.
type allowedModes struct {
	PID    []string `codec:"pid"`
	IPC    []string `codec:"ipc"`
	Userns []string `codec:"userns"`
	UTS    []string `codec:"uts"`
}

type volumeConfig struct {
	Enabled      bool   `codec:"enabled"`
	SELinuxLabel string `codec:"selinuxlabel"`
}

// unsupportedPluginConfig has the options of Nomad's driver that this driver rejects.
type unsupportedPluginConfig struct {
	WindowsAllowInsecure bool `codec:"windows_allow_insecure_container_admin"`
}

func stringAttrWithDefault(name, defaultValue string) *hclspec.Spec {
	return hclspec.Default(hclspec.Attr(name, "string", false), hclspec.Literal(`"`+defaultValue+`"`))
}

func boolAttrWithDefault(name string, defaultValue bool) *hclspec.Spec {
	return hclspec.Default(hclspec.Attr(name, "bool", false), hclspec.Literal(fmt.Sprint(defaultValue)))
}

func numberAttrWithDefault(name string, defaultValue int) *hclspec.Spec {
	return hclspec.Default(hclspec.Attr(name, "number", false), hclspec.Literal(strconv.Itoa(defaultValue)))
}

func stringListAttrWithDefault(name string, defaultValues ...string) *hclspec.Spec {
	quoted := make([]string, 0, len(defaultValues))
	for _, value := range defaultValues {
		quoted = append(quoted, strconv.Quote(value))
	}
	return hclspec.Default(hclspec.Attr(name, "list(string)", false), hclspec.Literal("["+strings.Join(quoted, ", ")+"]"))
}

// defaultAllowCaps are the capabilities that a container has by default in Docker, except
// net_raw, which allows spoofing on the bridge.
var defaultAllowCaps = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
	"NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

var danglingSpec = hclspec.Object(map[string]*hclspec.Spec{
	"enabled":        boolAttrWithDefault("enabled", true),
	"dry_run":        boolAttrWithDefault("dry_run", false),
	"period":         stringAttrWithDefault("period", "5m"),
	"creation_grace": stringAttrWithDefault("creation_grace", "5m"),
})

const danglingDefaults = `{ enabled = true, period = "5m", creation_grace = "5m" }`

var configSchema = hclspec.Object(map[string]*hclspec.Spec{
	"endpoint": hclspec.Attr("endpoint", "string", false),
	"tls": hclspec.Block("tls", hclspec.Object(map[string]*hclspec.Spec{
		"cert": hclspec.Attr("cert", "string", false),
		"key":  hclspec.Attr("key", "string", false),
		"ca":   hclspec.Attr("ca", "string", false),
	}), false),
	"auth": hclspec.Block("auth", hclspec.Object(map[string]*hclspec.Spec{
		"config": hclspec.Attr("config", "string", false),
		"helper": hclspec.Attr("helper", "string", false),
	}), false),
	"extra_labels": hclspec.Attr("extra_labels", "list(string)", false),
	"logging": hclspec.Default(hclspec.Block("logging", hclspec.Object(map[string]*hclspec.Spec{
		"type":   hclspec.Attr("type", "string", false),
		"config": hclspec.BlockAttrs("config", "string", false),
	}), false), hclspec.Literal(`{ type = "json-file", config = { max-file = "2", max-size = "2m" } }`)),
	"gc": hclspec.Default(hclspec.Block("gc", hclspec.Object(map[string]*hclspec.Spec{
		"image":       boolAttrWithDefault("image", true),
		"image_delay": stringAttrWithDefault("image_delay", "3m"),
		"container":   boolAttrWithDefault("container", true),
		"dangling_containers": hclspec.Default(
			hclspec.Block("dangling_containers", danglingSpec, false), hclspec.Literal(danglingDefaults)),
	}), false), hclspec.Literal(`{ image = true, image_delay = "3m", container = true, dangling_containers = `+danglingDefaults+` }`)),
	"disable_log_collection": hclspec.Attr("disable_log_collection", "bool", false),
	"pull_activity_timeout":  stringAttrWithDefault("pull_activity_timeout", "2m"),

	"container_exists_attempts": numberAttrWithDefault("container_exists_attempts", 5),
	"image_pull_timeout":        stringAttrWithDefault("image_pull_timeout", "5m"),
	"oom_score_adj":             numberAttrWithDefault("oom_score_adj", 0),

	"allow_privileged": hclspec.Attr("allow_privileged", "bool", false),
	"allowed_modes": hclspec.Block("allowed_modes", hclspec.Object(map[string]*hclspec.Spec{
		"pid":    stringListAttrWithDefault("pid"),
		"ipc":    stringListAttrWithDefault("ipc"),
		"userns": stringListAttrWithDefault("userns"),
		"uts":    stringListAttrWithDefault("uts"),
	}), false),
	"allow_caps":        stringListAttrWithDefault("allow_caps", defaultAllowCaps...),
	"allow_log_drivers": hclspec.Attr("allow_log_drivers", "list(string)", false),
	"allow_runtimes":    stringListAttrWithDefault("allow_runtimes", "runc", "nvidia"),
	"nvidia_runtime":    stringAttrWithDefault("nvidia_runtime", "nvidia"),
	"pids_limit":        hclspec.Attr("pids_limit", "number", false),
	"volumes": hclspec.Default(hclspec.Block("volumes", hclspec.Object(map[string]*hclspec.Spec{
		"enabled":      hclspec.Attr("enabled", "bool", false),
		"selinuxlabel": hclspec.Attr("selinuxlabel", "string", false),
	}), false), hclspec.Literal(`{ enabled = false }`)),

	"infra_image":              hclspec.Attr("infra_image", "string", false),
	"infra_image_pull_timeout": stringAttrWithDefault("infra_image_pull_timeout", "5m"),

	"windows_allow_insecure_container_admin": hclspec.Attr("windows_allow_insecure_container_admin", "bool", false),
})

// validateAndParseDurations checks the configuration and parses its durations.
func (c *pluginConfig) validateAndParseDurations() error {
	for _, d := range []struct {
		name string
		text string
		dst  *time.Duration
	}{
		{"pull_activity_timeout", c.PullActivityTimeout, &c.pullActivityTimeout},
		{"image_pull_timeout", c.ImagePullTimeout, &c.imagePullTimeout},
		{"infra_image_pull_timeout", c.InfraImagePullTimeout, &c.infraImagePullTimeout},
		{"gc.image_delay", c.GC.ImageDelay, &c.GC.imageRemovalDelay},
		{"gc.dangling_containers.period", c.GC.DanglingContainers.Period, &c.GC.DanglingContainers.period},
		{"gc.dangling_containers.creation_grace", c.GC.DanglingContainers.CreationGrace, &c.GC.DanglingContainers.creationGrace},
	} {
		var err error
		if *d.dst, err = time.ParseDuration(d.text); err != nil || *d.dst < 0 {
			return fmt.Errorf("%s is %q; it must be a duration such as \"3m\"", d.name, d.text)
		}
	}
	if c.pullActivityTimeout == 0 || c.imagePullTimeout == 0 {
		return errors.New("pull_activity_timeout and image_pull_timeout cannot be 0; every pull would fail")
	}
	if c.ContainerExistsAttempts < 0 {
		return fmt.Errorf("container_exists_attempts is %d; it cannot be negative", c.ContainerExistsAttempts)
	}
	if err := checkOOMScoreAdj(c.OOMScoreAdj); err != nil {
		return err
	}
	if err := c.AllowedModes.validate(); err != nil {
		return err
	}
	if c.GC.DanglingContainers.Enabled && c.GC.DanglingContainers.period == 0 {
		return errors.New("gc.dangling_containers.period is 0; write enabled = false to keep the containers")
	}
	if c.PidsLimit < 0 {
		return fmt.Errorf("pids_limit is %d; it cannot be negative", c.PidsLimit)
	}
	if s := c.Volumes.SELinuxLabel; s != "" && s != "z" && s != "Z" {
		return fmt.Errorf("volumes.selinuxlabel is %q; it must be \"z\" or \"Z\"", s)
	}
	for _, pattern := range c.ExtraLabels {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("extra_labels: the pattern %q: %w", pattern, err)
		}
		if !slices.ContainsFunc(extraLabelNames, func(name string) bool { ok, _ := path.Match(pattern, name); return ok }) {
			return fmt.Errorf("extra_labels: no label matches %q; the labels are %s", pattern, strings.Join(extraLabelNames, ", "))
		}
	}
	return c.unsupportedPluginConfig.validate()
}

func (c *unsupportedPluginConfig) validate() error {
	if c.WindowsAllowInsecure {
		return errors.New("windows_allow_insecure_container_admin is not supported: it is for engines on Windows; remove the option")
	}
	return nil
}

func (m *allowedModes) validate() error {
	for _, list := range []struct {
		option string
		modes  []string
		valid  func(string) bool
	}{
		{"pid", m.PID, func(mode string) bool { return container.PidMode(mode).Valid() }},
		{"ipc", m.IPC, func(mode string) bool { return container.IpcMode(mode).Valid() }},
		{"userns", m.Userns, func(mode string) bool { return container.UsernsMode(mode).Valid() }},
		{"uts", m.UTS, func(mode string) bool { return container.UTSMode(mode).Valid() }},
	} {
		for _, mode := range list.modes {
			if !list.valid(mode) {
				return fmt.Errorf("allowed_modes: %s has %q, which is not a mode; \"host\" is one", list.option, mode)
			}
			if _, err := path.Match(mode, ""); err != nil {
				return fmt.Errorf("allowed_modes: %s: the pattern %q: %w", list.option, mode, err)
			}
		}
	}
	return nil
}

// extraLabelNames are the labels that extra_labels can select.
var extraLabelNames = []string{"job_name", "job_id", "task_group_name", "task_name", "namespace", "node_name", "node_id", "short_alloc_id"}
