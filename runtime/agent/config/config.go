package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// TokenSettings are the settings for ACL tokens. 0 means the default.
type TokenSettings struct {
	MinExpirationTTL, MaxExpirationTTL time.Duration // limits for the lifetime of a token that expires
	GCThreshold                        time.Duration // how long an expired token is kept
}

// Config has the settings of an agent's configuration files. Without files it is the zero value. It is
// large because it has a field for each setting of the agent.
type Config struct {
	DataDir           string
	LogLevel          string
	LogJSON           bool
	LogSourceLocation bool // log lines have the file and line of their source code

	PluginDir           string
	Plugins             []catalog.PluginBlock
	HookRules           []pluginhooks.OperatorRule // rules of the hook blocks, in the order of the files
	HostVolumePluginDir string                     // directory of host volume plugins; empty means the default
	ArtifactSettings    map[string]any             // settings of the client's artifact block, by name; nil if there are none
	TemplateSettings    map[string]any             // settings of the client's template block, by name; nil if there are none

	BindAddr              string // default for listen addresses that are not set
	HTTPListenAddr        string // listen address of the API
	HTTPAdvertiseAddr     string // address of the API for other machines; the port is optional
	HTTPPort              *int   // port of the API; nil: not set; 0: any free port
	HTTPHeaders           map[string]string
	MaxHTTPConnsPerClient int    // maximum number of open connections per client; 0: no limit
	SocketGroup           string // group whose members can use the unix socket; empty: only the user of the agent can
	TLS                   TLS
	OIDCIssuer            string // URL below which other services find the public keys of workload identities; empty: not set
	// TLSHandshakeTimeout is the timeout of a TLS handshake; 0: not set.
	TLSHandshakeTimeout  time.Duration
	DisableAccessControl bool // access control is disabled explicitly
	Tokens               TokenSettings
	Audit                Audit
	// AccessControlSource is the file and the line of the setting acl.enabled; empty: not set.
	AccessControlSource string
	DisableRemoteExec   bool // no client can run commands and actions in tasks
	EnableDebug         bool // the API serves profiles of the agent and host data
	DisableWebPage      bool // the web page is not served
	WebPageLabel        WebPageLabel
	HideWebPageURLs     bool // the API asks clients not to print addresses of the web page
	Telemetry           metrics.Settings
	OTLP                otlp.Settings // export of traces and metrics; environment variables complete the settings

	LeaveOnInterrupt bool
	LeaveOnTerminate bool
	DrainOnExit      *DrainOnExit // stop tasks when the agent shuts down; nil: tasks continue

	Cluster                       Cluster // without server addresses, the agent schedules for itself
	Node                          localnode.Settings
	HostVolumesDir                string // directory in which plugins make dynamic host volumes; empty means the default
	MaxKillTimeout                time.Duration
	DynamicUserRange              DynamicUserRange
	EnvDenylist                   []string          // environment variables of the agent that no task inherits; nil: Nomad's default
	EnvAllowlist                  []string          // environment variables of the agent that tasks inherit; nil: all except EnvDenylist
	UserDenylist                  []string          // users as which no task may run
	UserCheckedDrivers            []string          // drivers for which UserDenylist applies
	ChrootEnv                     map[string]string // source path on the host -> path in the chroot of a task; nil means Nomad's default
	FallBackToNomadFileModes      bool              // the agent uses Nomad's file modes if it cannot make alloc directories inaccessible to other accounts
	AllowSetuidAndDevicesInAllocs bool              // set-user-id programs and devices in alloc directories have an effect
	DriverAllowlist               []string          // drivers that the agent starts; nil: all drivers
	DriverDenylist                []string
	LegacyDockerOptions           map[string]any // legacy client options: the configuration of the driver docker without a plugin block
	LegacyEnableRawExec           *bool          // legacy client option that enables raw_exec without a plugin block; nil: not set
	GC                            noderunner.GCLimits
	SchedulerGC                   scheduler.GCConfig
	JobLimits                     model.JobLimits
	Scheduler                     SchedulerSettings
	KeyLifetime                   identity.KeyLifetime
	EventBufferSize               int  // changes whose events the event stream keeps; 0: the default
	DisableEventStream            bool // the API does not serve the event stream
	Search                        SearchLimits
	CgroupParent                  string // cgroup for the cgroups of tasks, without the mount point; empty: the default
}

// SchedulerSettings are the scheduler's configuration until a request changes it. The zero value is Nomad's default.
type SchedulerSettings struct {
	MemoryOversubscription                                 bool // memory_max has an effect
	RejectJobRegistration                                  bool // jobs are not registered, dispatched, scaled or reverted
	PauseEvalBroker                                        bool // evaluations stay pending
	NoSystemPreemption                                     bool
	SysbatchPreemption, BatchPreemption, ServicePreemption bool
}

// ForAPI returns the settings in the form of the API, or nil for Nomad's default.
func (s SchedulerSettings) ForAPI() *api.SchedulerConfiguration {
	if s == (SchedulerSettings{}) {
		return nil
	}
	c := model.NewDefaultSchedulerConfig()
	c.MemoryOversubscriptionEnabled, c.RejectJobRegistration, c.PauseEvalBroker = s.MemoryOversubscription, s.RejectJobRegistration, s.PauseEvalBroker
	c.PreemptionConfig = api.PreemptionConfig{
		SystemSchedulerEnabled: !s.NoSystemPreemption, SysBatchSchedulerEnabled: s.SysbatchPreemption, BatchSchedulerEnabled: s.BatchPreemption, ServiceSchedulerEnabled: s.ServicePreemption,
	}
	return c
}

// SearchLimits are the limits of searches for a part of a name. A zero number is the default.
type SearchLimits struct {
	DisableFuzzy bool
	MaxObjects   int // searched objects of a kind
	MaxMatches   int // results of a kind
	MinTextLen   int // characters of the text
}

// WebPageLabel is a text at the top of the web page, with CSS colours.
type WebPageLabel struct{ Text, BackgroundColor, TextColor string }

// DynamicUserRange is the range of the user ids for tasks that name no user. 0 means Nomad's default, and a
// negative number means that such tasks get no user id.
type DynamicUserRange struct{ Min, Max int }

// Nomad's default range of dynamic users.
const minDynamicUser, maxDynamicUser = 80000, 89999

// UserIDs returns the range with its defaults. enabled is false if Min or Max is negative.
func (u DynamicUserRange) UserIDs() (ids idrange.Range, enabled bool) {
	if u.Min < 0 || u.Max < 0 {
		return idrange.Range{}, false
	}
	return idrange.Range{First: uint32(cmp.Or(u.Min, minDynamicUser)), Last: uint32(cmp.Or(u.Max, maxDynamicUser))}, true
}

// TLS has the TLS settings of the API.
type TLS struct {
	ServeHTTPS        bool   // the API must be served with TLS
	CAFile            string // file with the CA of the client certificates
	CertFile, KeyFile string
	VerifyClient      bool     // the API rejects clients without a certificate that the CA has signed
	MinVersion        uint16   // TLS version number, as in crypto/tls
	CipherSuites      []uint16 // allowed suites of TLS 1.2; nil: Go's default
}

// DrainOnExit has the settings for stopping the tasks when the agent shuts down, or for the drain of a node of a cluster.
type DrainOnExit struct {
	Deadline         time.Duration // zero: no limit
	StopAllAtOnce    bool          // stop all allocations at the same time
	IgnoreSystemJobs bool          // do not stop the allocations of system jobs; of a node of a cluster only
}

// Load reads the configuration files at the given paths. Files in a directory are read in the order of
// their names. The diagnostics contain errors and warnings. The configuration contains all valid
// settings, even with errors. A file that other users may write to is an error; one that belongs to another
// user is a warning, and an error if reload is true: the operator reads the warnings of a start, and not the warnings of a reload.
// servers, if there are any, replace client.servers of the files.
func Load(paths, servers []string, reload bool) (*Config, hcl.Diagnostics) {
	c := &Config{}
	var diags hcl.Diagnostics
	for _, path := range paths {
		files, err := configFilesAt(path)
		if err == nil && !slices.Contains(files, path) { // a directory, into which others could put a file
			var warning error
			if warning, err = safepath.CheckConfigDir(path); err == nil && reload {
				err = warning // at a start, each file in it has the warning
			}
		}
		if err != nil {
			return c, append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "configuration: " + err.Error()})
		}
		for _, file := range files {
			src, warning, err := readFile(file)
			if err == nil && reload {
				warning, err = nil, warning
			}
			if err != nil {
				return c, append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "configuration file: " + err.Error()})
			}
			if warning != nil {
				diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: "configuration file: warning: " + warning.Error()})
			}
			diags = append(diags, c.Parse(file, src)...)
		}
	}
	if len(servers) > 0 {
		c.Cluster.Servers = servers
	}
	if first, last := cmp.Or(c.Node.MinDynamicPort, scheduler.MinDynamicPort), cmp.Or(c.Node.MaxDynamicPort, scheduler.MaxDynamicPort); first > last {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: min_dynamic_port %d is above max_dynamic_port %d", first, last)})
	}
	if first, last := cmp.Or(c.Node.ClientMinPort, localnode.ClientMinPort), cmp.Or(c.Node.ClientMaxPort, localnode.ClientMaxPort); first > last {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: client_min_port %d is above client_max_port %d", first, last)})
	}
	if l := c.JobLimits.WithDefaults(); l.DefaultPriority > l.MaxPriority {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: server.job_default_priority %d is above job_max_priority %d", l.DefaultPriority, l.MaxPriority)})
	}
	if text := c.Cluster.warning(); text != "" {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: "configuration: warning: " + text})
	}
	for _, text := range c.singleModeWarnings() {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: "configuration: warning: " + text})
	}
	if ids, enabled := c.DynamicUserRange.UserIDs(); enabled && ids.First > ids.Last {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: client.users: dynamic_user_min %d is above dynamic_user_max %d", ids.First, ids.Last)})
	} else if enabled && c.DownloadUIDs().Overlaps(ids) {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: client.users: the ids %d-%d overlap with download_uids of the artifact block: choose another range for one of them", ids.First, ids.Last)})
	}
	return c, diags
}

// readFile returns the content of a configuration file. A file that other users may write to is an error: they would decide
// what the agent runs, and which directories it trusts. That the file or a directory on the way to it belongs to another
// user is only a warning, because an operator may have the file in their own directory.
func readFile(name string) (src []byte, warning, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	warning, err = safepath.CheckOpenFile(f)
	if err != nil {
		return nil, nil, err
	}
	if src, err = io.ReadAll(io.LimitReader(f, maxFileSize+1)); err != nil {
		return nil, nil, err
	}
	return src, warning, nil
}

// configFilesAt returns the configuration files at a path, which is a file or a directory.
func configFilesAt(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var configFiles []string
	for _, e := range entries {
		name := e.Name()
		ext := filepath.Ext(name)
		if e.IsDir() || ext != ".hcl" && ext != ".json" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") {
			continue // skips other files, among them backup and temporary files of editors
		}
		configFiles = append(configFiles, filepath.Join(path, name))
	}
	slices.Sort(configFiles)
	if len(configFiles) == 0 {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("no .hcl or .json file in this directory")}
	}
	return configFiles, nil
}

// Parse reads the content of a configuration file. Its settings replace the settings of files that were parsed before.
func (c *Config) Parse(filename string, src []byte) hcl.Diagnostics {
	r := &configFileReader{config: c}
	if len(src) > maxFileSize {
		start := hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
		r.addDiagnostic(hcl.DiagError, start, "Configuration file refused: the file is larger than 1 MiB: split it")
		return r.diags
	}
	var configItems []*configItem
	if filepath.Ext(filename) == ".json" {
		configItems = r.parseJSONAndAddPlugins(filename, src)
	} else {
		configItems = r.parseHCLAndAddPlugins(filename, src)
	}
	if !r.diags.HasErrors() {
		r.applySettings("", configItems, topLevelSettings)
	}
	return r.diags
}

// configFileReader stores the settings of one file in a Config.
type configFileReader struct {
	config  *Config
	plugins pluginBlocks // plugin blocks of the file
	diags   hcl.Diagnostics
}

func (r *configFileReader) addDiagnostic(severity hcl.DiagnosticSeverity, rng hcl.Range, format string, args ...any) {
	r.diags = append(r.diags, &hcl.Diagnostic{Severity: severity, Summary: fmt.Sprintf(format, args...), Subject: &rng})
}

// applySettings stores the items of a block in the Config, in the order of the file. blockPath is the dotted name of
// the block, and "" at the top level. specByName has the settings of the block.
func (r *configFileReader) applySettings(blockPath string, items []*configItem, specByName map[string]settingSpec) {
	for _, i := range items {
		s, ok := specByName[i.name]
		switch {
		case !ok && blockPath == "":
			r.addDiagnostic(hcl.DiagWarning, i.sourceRange, "%s is not a setting that is known here, and is ignored%s", i.name, didYouMean(i.name, maps.Keys(specByName)))
		case !ok:
			r.addDiagnostic(hcl.DiagWarning, i.sourceRange, "%s is not a setting of %s that is known here, and is ignored%s", i.name, blockPath, didYouMean(i.name, maps.Keys(specByName)))
		case s.ignoredReason != "":
			r.addDiagnostic(hcl.DiagWarning, i.sourceRange, "%s is ignored: %s", strings.TrimPrefix(blockPath+"."+i.name, "."), s.ignoredReason)
		case s.blockSettings != nil:
			if !i.isBlock() {
				r.addDiagnostic(hcl.DiagError, i.sourceRange, "%s is a block: %s { … }", i.name, i.name)
				continue
			}
			if s.initBlock != nil {
				s.initBlock(r.config)
			}
			r.applySettings(strings.TrimPrefix(blockPath+"."+i.name, "."), i.children, s.blockSettings)
		default:
			err := s.setInConfig(r.config, *i)
			var unusedErr *unknownLegacyOptionsError
			var weakSettingErr *settingWarning
			var positionedErr *errorWithRange
			switch {
			case errors.As(err, &weakSettingErr):
				r.addDiagnostic(hcl.DiagWarning, i.sourceRange, "%s: %v", i.name, weakSettingErr)
			case errors.As(err, &unusedErr):
				for _, name := range unusedErr.optionNames {
					r.addDiagnostic(hcl.DiagWarning, i.rangeOfSettingOrBlock(name), "option %q is ignored: it has no meaning here%s", name, didYouMean(name, slices.Values(legacyOptionNames)))
				}
			case errors.As(err, &positionedErr):
				r.addDiagnostic(hcl.DiagError, positionedErr.sourceRange, "%v", positionedErr.err)
			case err != nil:
				r.addDiagnostic(hcl.DiagError, i.sourceRange, "%s: %v", i.name, err)
			}
		}
	}
}

// errorWithRange is an error whose message is complete and has its own position in the file.
type errorWithRange struct {
	sourceRange hcl.Range
	err         error
}

func (e *errorWithRange) Error() string { return e.err.Error() }
