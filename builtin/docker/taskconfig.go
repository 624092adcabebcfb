package docker

import (
	"errors"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// taskConfig is the `config` block of a task.
// It is large because the options of all parts stand in one block of a job.
type taskConfig struct {
	imageConfig
	commandConfig
	networkConfig
	storageConfig
	isolationConfig
	limitConfig

	ContainerExistsAttempts int               `codec:"container_exists_attempts"` // 0 means container_exists_attempts of the plugin
	Logging                 taskLoggingConfig `codec:"logging"`
}

type taskLoggingConfig struct {
	loggingConfig
	Driver string `codec:"driver"` // another name of the option type
}

type imageConfig struct {
	Image            string      `codec:"image"`
	Load             string      `codec:"load"` // path of an archive below the task's local directory
	ForcePull        bool        `codec:"force_pull"`
	ImagePullTimeout string      `codec:"image_pull_timeout"`
	Auth             *authConfig `codec:"auth"`
	AuthSoftFail     bool        `codec:"auth_soft_fail"`

	imagePullTimeout time.Duration // parsed ImagePullTimeout; 0 means the timeout of the plugin
}

// authConfig has the credentials of a task for the registry of its image.
type authConfig struct {
	Username   string `codec:"username"`
	Password   string `codec:"password"`
	Email      string `codec:"email"` // registries ignore the address
	ServerAddr string `codec:"server_address"`
}

type commandConfig struct {
	Entrypoint   []string          `codec:"entrypoint"`
	Command      string            `codec:"command"`
	Args         []string          `codec:"args"`
	WorkDir      string            `codec:"work_dir"`
	Labels       map[string]string `codec:"labels"`
	GroupAdd     []string          `codec:"group_add"`
	Init         bool              `codec:"init"`
	Interactive  bool              `codec:"interactive"`
	TTY          bool              `codec:"tty"`
	Healthchecks struct {
		Disable bool `codec:"disable"`
	} `codec:"healthchecks"`
}

type networkConfig struct {
	Hostname             string            `codec:"hostname"`
	NetworkMode          string            `codec:"network_mode"`
	NetworkAliases       []string          `codec:"network_aliases"`
	IPv4Address          string            `codec:"ipv4_address"`
	IPv6Address          string            `codec:"ipv6_address"`
	AdvertiseIPv6Address bool              `codec:"advertise_ipv6_address"`
	MACAddress           string            `codec:"mac_address"`
	Ports                []string          `codec:"ports"`
	PortMap              map[string]uint16 `codec:"port_map"`
	ExtraHosts           []string          `codec:"extra_hosts"`
	DNSServers           []string          `codec:"dns_servers"`
	DNSSearchDomains     []string          `codec:"dns_search_domains"`
	DNSOptions           []string          `codec:"dns_options"`
}

type storageConfig struct {
	Volumes        []string          `codec:"volumes"`
	VolumeDriver   string            `codec:"volume_driver"`
	Mount          []mountConfig     `codec:"mount"`
	Mounts         []mountConfig     `codec:"mounts"`
	Devices        []deviceConfig    `codec:"devices"`
	ReadonlyRootfs bool              `codec:"readonly_rootfs"`
	StorageOpt     map[string]string `codec:"storage_opt"`
}

type mountConfig struct {
	Type        string `codec:"type"`
	Target      string `codec:"target"`
	Source      string `codec:"source"`
	Readonly    bool   `codec:"readonly"`
	BindOptions struct {
		Propagation string `codec:"propagation"`
	} `codec:"bind_options"`
	TmpfsOptions struct {
		SizeBytes int64 `codec:"size"` // bytes
		Mode      int64 `codec:"mode"`
	} `codec:"tmpfs_options"`
	VolumeOptions struct {
		NoCopy       bool              `codec:"no_copy"`
		Labels       map[string]string `codec:"labels"`
		DriverConfig struct {
			Name    string            `codec:"name"`
			Options map[string]string `codec:"options"`
		} `codec:"driver_config"`
	} `codec:"volume_options"`
}

type deviceConfig struct {
	HostPath          string `codec:"host_path"`
	ContainerPath     string `codec:"container_path"`
	CgroupPermissions string `codec:"cgroup_permissions"`
}

type isolationConfig struct {
	Privileged  bool              `codec:"privileged"`
	CapAdd      []string          `codec:"cap_add"`
	CapDrop     []string          `codec:"cap_drop"`
	IPCMode     string            `codec:"ipc_mode"`
	PIDMode     string            `codec:"pid_mode"`
	UTSMode     string            `codec:"uts_mode"`
	UsernsMode  string            `codec:"userns_mode"`
	CgroupNS    string            `codec:"cgroupns"`
	Isolation   string            `codec:"isolation"` // only for engines on Windows
	Runtime     string            `codec:"runtime"`
	SecurityOpt []string          `codec:"security_opt"`
	Sysctl      map[string]string `codec:"sysctl"`
}

type limitConfig struct {
	CPUHardLimit      bool              `codec:"cpu_hard_limit"`
	CpusetCpus        string            `codec:"cpuset_cpus"`
	CPUCFSPeriod      int64             `codec:"cpu_cfs_period"`    // microseconds
	MemoryHardLimitMB int64             `codec:"memory_hard_limit"` // MB; 0 means the task's memory
	OOMScoreAdj       *int              `codec:"oom_score_adj"`     // nil means the score of the plugin
	PidsLimit         int64             `codec:"pids_limit"`        // 0 means the limit of the plugin
	ShmSizeBytes      int64             `codec:"shm_size"`          // bytes
	Ulimit            map[string]string `codec:"ulimit"`
}

var mountSpec = hclspec.Object(map[string]*hclspec.Spec{
	"type":     stringAttrWithDefault("type", "volume"),
	"target":   hclspec.Attr("target", "string", false),
	"source":   hclspec.Attr("source", "string", false),
	"readonly": hclspec.Attr("readonly", "bool", false),
	"bind_options": hclspec.Block("bind_options", hclspec.Object(map[string]*hclspec.Spec{
		"propagation": hclspec.Attr("propagation", "string", false),
	}), false),
	"tmpfs_options": hclspec.Block("tmpfs_options", hclspec.Object(map[string]*hclspec.Spec{
		"size": hclspec.Attr("size", "number", false),
		"mode": hclspec.Attr("mode", "number", false),
	}), false),
	"volume_options": hclspec.Block("volume_options", hclspec.Object(map[string]*hclspec.Spec{
		"no_copy": hclspec.Attr("no_copy", "bool", false),
		"labels":  hclspec.Attr("labels", "list(map(string))", false),
		"driver_config": hclspec.Block("driver_config", hclspec.Object(map[string]*hclspec.Spec{
			"name":    hclspec.Attr("name", "string", false),
			"options": hclspec.Attr("options", "list(map(string))", false),
		}), false),
	}), false),
})

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"image":              hclspec.Attr("image", "string", true),
	"load":               hclspec.Attr("load", "string", false),
	"force_pull":         hclspec.Attr("force_pull", "bool", false),
	"image_pull_timeout": hclspec.Attr("image_pull_timeout", "string", false),
	"auth": hclspec.Block("auth", hclspec.Object(map[string]*hclspec.Spec{
		"username":       hclspec.Attr("username", "string", false),
		"password":       hclspec.Attr("password", "string", false),
		"email":          hclspec.Attr("email", "string", false),
		"server_address": hclspec.Attr("server_address", "string", false),
	}), false),
	"auth_soft_fail": hclspec.Attr("auth_soft_fail", "bool", false),

	"entrypoint":  hclspec.Attr("entrypoint", "list(string)", false),
	"command":     hclspec.Attr("command", "string", false),
	"args":        hclspec.Attr("args", "list(string)", false),
	"work_dir":    hclspec.Attr("work_dir", "string", false),
	"labels":      hclspec.Attr("labels", "list(map(string))", false),
	"group_add":   hclspec.Attr("group_add", "list(string)", false),
	"init":        hclspec.Attr("init", "bool", false),
	"interactive": hclspec.Attr("interactive", "bool", false),
	"tty":         hclspec.Attr("tty", "bool", false),
	"healthchecks": hclspec.Block("healthchecks", hclspec.Object(map[string]*hclspec.Spec{
		"disable": hclspec.Attr("disable", "bool", false),
	}), false),

	"hostname":               hclspec.Attr("hostname", "string", false),
	"network_mode":           hclspec.Attr("network_mode", "string", false),
	"network_aliases":        hclspec.Attr("network_aliases", "list(string)", false),
	"ipv4_address":           hclspec.Attr("ipv4_address", "string", false),
	"ipv6_address":           hclspec.Attr("ipv6_address", "string", false),
	"advertise_ipv6_address": hclspec.Attr("advertise_ipv6_address", "bool", false),
	"mac_address":            hclspec.Attr("mac_address", "string", false),
	"ports":                  hclspec.Attr("ports", "list(string)", false),
	"port_map":               hclspec.Attr("port_map", "list(map(number))", false),
	"extra_hosts":            hclspec.Attr("extra_hosts", "list(string)", false),
	"dns_servers":            hclspec.Attr("dns_servers", "list(string)", false),
	"dns_search_domains":     hclspec.Attr("dns_search_domains", "list(string)", false),
	"dns_options":            hclspec.Attr("dns_options", "list(string)", false),

	"volumes":       hclspec.Attr("volumes", "list(string)", false),
	"volume_driver": hclspec.Attr("volume_driver", "string", false),
	"mount":         hclspec.BlockList("mount", mountSpec, 0, 0),
	"mounts":        hclspec.BlockList("mounts", mountSpec, 0, 0),
	"devices": hclspec.BlockList("devices", hclspec.Object(map[string]*hclspec.Spec{
		"host_path":          hclspec.Attr("host_path", "string", false),
		"container_path":     hclspec.Attr("container_path", "string", false),
		"cgroup_permissions": hclspec.Attr("cgroup_permissions", "string", false),
	}), 0, 0),
	"readonly_rootfs": hclspec.Attr("readonly_rootfs", "bool", false),
	"storage_opt":     hclspec.BlockAttrs("storage_opt", "string", false),

	"privileged":   hclspec.Attr("privileged", "bool", false),
	"cap_add":      hclspec.Attr("cap_add", "list(string)", false),
	"cap_drop":     hclspec.Attr("cap_drop", "list(string)", false),
	"ipc_mode":     hclspec.Attr("ipc_mode", "string", false),
	"pid_mode":     hclspec.Attr("pid_mode", "string", false),
	"uts_mode":     hclspec.Attr("uts_mode", "string", false),
	"userns_mode":  hclspec.Attr("userns_mode", "string", false),
	"cgroupns":     hclspec.Attr("cgroupns", "string", false),
	"isolation":    hclspec.Attr("isolation", "string", false),
	"runtime":      hclspec.Attr("runtime", "string", false),
	"security_opt": hclspec.Attr("security_opt", "list(string)", false),
	"sysctl":       hclspec.Attr("sysctl", "list(map(string))", false),

	"cpu_hard_limit":    hclspec.Attr("cpu_hard_limit", "bool", false),
	"cpu_cfs_period":    numberAttrWithDefault("cpu_cfs_period", 100000),
	"cpuset_cpus":       hclspec.Attr("cpuset_cpus", "string", false),
	"memory_hard_limit": hclspec.Attr("memory_hard_limit", "number", false),
	"oom_score_adj":     hclspec.Attr("oom_score_adj", "number", false),
	"pids_limit":        hclspec.Attr("pids_limit", "number", false),
	"shm_size":          hclspec.Attr("shm_size", "number", false),
	"ulimit":            hclspec.Attr("ulimit", "list(map(string))", false),

	"container_exists_attempts": hclspec.Attr("container_exists_attempts", "number", false),
	"logging": hclspec.Block("logging", hclspec.Object(map[string]*hclspec.Spec{
		"type":   hclspec.Attr("type", "string", false),
		"driver": hclspec.Attr("driver", "string", false),
		"config": hclspec.Attr("config", "list(map(string))", false),
	}), false),
})

// validateAndParseDurations checks the parts of the block that do not depend on the operator's policy, and
// parses its durations.
func (c *taskConfig) validateAndParseDurations() (err error) {
	if c.Image == "" {
		return errors.New("image is empty; name the image of the container")
	}
	if c.ImagePullTimeout != "" {
		if c.imagePullTimeout, err = time.ParseDuration(c.ImagePullTimeout); err != nil || c.imagePullTimeout <= 0 {
			return fmt.Errorf("image_pull_timeout is %q; it must be a duration such as \"5m\"", c.ImagePullTimeout)
		}
	}
	if c.CPUCFSPeriod < 1000 || c.CPUCFSPeriod > 1000000 {
		return fmt.Errorf("cpu_cfs_period is %d; it must be between 1000 and 1000000 microseconds", c.CPUCFSPeriod)
	}
	if c.OOMScoreAdj != nil {
		if err := checkOOMScoreAdj(*c.OOMScoreAdj); err != nil {
			return err
		}
	}
	if c.PidsLimit < 0 || c.MemoryHardLimitMB < 0 || c.ShmSizeBytes < 0 || c.ContainerExistsAttempts < 0 {
		return errors.New("pids_limit, memory_hard_limit, shm_size and container_exists_attempts cannot be negative")
	}
	if c.Isolation != "" && c.Isolation != "default" {
		return fmt.Errorf("isolation is %q; only \"default\" exists on Linux, remove the option", c.Isolation)
	}
	if len(c.Ports) > 0 && len(c.PortMap) > 0 {
		return errors.New("ports and port_map are both set; port_map is for network blocks of the task, remove one of them")
	}
	if l := c.Logging; l.Type != "" && l.Driver != "" && l.Type != l.Driver {
		return fmt.Errorf("logging: type is %q and driver is %q; they are two names of one option, remove one", l.Type, l.Driver)
	}
	return nil
}

// checkOOMScoreAdj returns an error if the score would protect a task against the programs of the machine.
func checkOOMScoreAdj(score int) error {
	if score < 0 || score > 1000 {
		return fmt.Errorf("oom_score_adj is %d; it must be between 0 and 1000", score)
	}
	return nil
}
