package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// Config has the settings of an agent's configuration files. Without files it is the zero value. It is
// large because it has a field for each setting of the agent.
type Config struct {
	DataDir     string
	LogLevel    string
	LogJSON     bool
	LogLocation bool // add the source location to each log line

	PluginDir           string
	Plugins             []catalog.PluginBlock
	Hooks               []pluginhooks.Rule // in the order of the files
	HostVolumePluginDir string             // directory of host volume plugins; empty means the default
	Artifact            map[string]any     // the client's artifact block; nil if there is none
	Template            map[string]any     // the client's template block; nil if there is none

	BindAddr      string // default for addresses that are not set
	HTTPAddr      string // listen address of the API
	HTTPAdvertise string // address of the API for other machines; the port is optional
	HTTPPort      *int   // nil: not set; 0: any free port is used
	HTTPHeaders   map[string]string
	HTTPConns     int    // maximum number of open connections per client; 0: no limit
	SocketGroup   string // members of this group may use the unix socket; empty: none
	TLS           TLS
	OIDCIssuer    string // address at which other services find the public keys of workload identities; empty: they do not
	// HandshakeTimeout is the timeout of a TLS handshake; 0: not set.
	HandshakeTimeout time.Duration
	NoTokens         bool // access control is disabled explicitly
	Debug            bool // the API serves profiles of the agent and host data
	NoPage           bool // the web page is not served
	NoPageHints      bool // the API asks clients not to print addresses of the web page
	Telemetry        metrics.Settings
	OTLP             otlp.Settings // export of traces and metrics; an empty Endpoint: environment variables decide

	LeaveOnInterrupt bool
	LeaveOnTerminate bool
	DrainOnExit      *DrainOnExit // how tasks are stopped; nil: tasks continue when the agent shuts down

	Node           localnode.Settings
	HostVolumesDir string // directory in which plugins make dynamic host volumes; empty means the default
	MaxKillTimeout time.Duration
	DynamicUsers   DynamicUsers
	EnvDenylist    []string // nil: Nomad's default
	EnvAllowlist   []string // nil: all variables
	UserDenylist   []string
	UserDrivers    []string
	ChrootEnv      map[string]string // files of the host that tasks with isolation chroot see; nil means Nomad's default
	NomadFileModes bool              // the agent uses Nomad's file modes if it cannot make alloc directories inaccessible to other accounts
	AllowSetuid    bool              // set-user-id programs and devices in alloc directories have an effect
	DriverAllow    []string          // nil: all drivers
	DriverDeny     []string
	RawExec        *bool // legacy client option that enables raw_exec without a plugin block; nil: not set
	GC             noderunner.GC
	SchedulerGC    scheduler.GCConfig
}

// DynamicUsers is the range of the user ids of tasks that name no user. 0 means the default, and a
// negative number that there are none.
type DynamicUsers struct{ Min, Max int }

// The default range of DynamicUsers is Nomad's.
const minDynamicUser, maxDynamicUser = 80000, 89999

// IDs returns the range. enabled is false if there are no such users.
func (u DynamicUsers) IDs() (ids idrange.Range, enabled bool) {
	if u.Min < 0 || u.Max < 0 {
		return idrange.Range{}, false
	}
	return idrange.Range{First: uint32(cmp.Or(u.Min, minDynamicUser)), Last: uint32(cmp.Or(u.Max, maxDynamicUser))}, true
}

// TLS has the TLS settings of the API.
type TLS struct {
	HTTP              bool   // the API must be served with TLS
	CAFile            string // file with the CA of the client certificates
	CertFile, KeyFile string
	VerifyClient      bool     // reject clients without a certificate of the CA
	MinVersion        uint16   // TLS version number, as in crypto/tls
	CipherSuites      []uint16 // allowed suites of TLS 1.2; nil: Go's default
}

// DrainOnExit has the settings for stopping the tasks when the agent shuts down.
type DrainOnExit struct {
	Deadline time.Duration // zero: no limit
	Force    bool          // stop all tasks at once
}

// Load reads the configuration files at the given paths. Files in a directory are read in the order of
// their names. The diagnostics contain errors and warnings. The configuration contains all valid
// settings, even with errors.
func Load(paths []string) (*Config, hcl.Diagnostics) {
	c := &Config{}
	var diags hcl.Diagnostics
	for _, path := range paths {
		files, err := configFilesAt(path)
		if err != nil {
			return c, append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "configuration: " + err.Error()})
		}
		for _, file := range files {
			src, err := os.ReadFile(file)
			if err != nil {
				return c, append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "configuration file: " + err.Error()})
			}
			diags = append(diags, c.Parse(file, src)...)
		}
	}
	if first, last := cmp.Or(c.Node.MinDynamicPort, scheduler.MinDynamicPort), cmp.Or(c.Node.MaxDynamicPort, scheduler.MaxDynamicPort); first > last {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: min_dynamic_port %d is above max_dynamic_port %d", first, last)})
	}
	if first, last := cmp.Or(c.Node.ClientMinPort, localnode.ClientMinPort), cmp.Or(c.Node.ClientMaxPort, localnode.ClientMaxPort); first > last {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: client_min_port %d is above client_max_port %d", first, last)})
	}
	if ids, enabled := c.DynamicUsers.IDs(); enabled && ids.First > ids.Last {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: client.users: dynamic_user_min %d is above dynamic_user_max %d", ids.First, ids.Last)})
	} else if enabled && c.DownloadUIDs().Overlaps(ids) {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: client.users: the ids %d-%d overlap with download_uids of the artifact block: choose another range for one of them", ids.First, ids.Last)})
	}
	return c, diags
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

// Parse reads the text of a further file. Its settings replace the settings of earlier files.
func (c *Config) Parse(filename string, src []byte) hcl.Diagnostics {
	r := &configReader{config: c}
	if len(src) > maxFileSize {
		start := hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
		r.addDiagnostic(hcl.DiagError, start, "Configuration file refused: the file is larger than 1 MiB: split it")
		return r.diags
	}
	var configItems []*configItem
	if filepath.Ext(filename) == ".json" {
		configItems = r.parseJSON(filename, src)
	} else {
		configItems = r.parseHCL(filename, src)
	}
	if !r.diags.HasErrors() {
		r.applySettings("", configItems, topLevelSettings)
	}
	return r.diags
}

// configReader stores the settings of one file in a Config.
type configReader struct {
	config  *Config
	plugins pluginBlocks // of this file
	diags   hcl.Diagnostics
}

func (r *configReader) addDiagnostic(severity hcl.DiagnosticSeverity, rng hcl.Range, format string, args ...any) {
	r.diags = append(r.diags, &hcl.Diagnostic{Severity: severity, Summary: fmt.Sprintf(format, args...), Subject: &rng})
}

// applySettings stores settings in the Config, in the order of the file.
func (r *configReader) applySettings(within string, items []*configItem, known map[string]setting) {
	for _, i := range items {
		s, ok := known[i.name]
		switch {
		case !ok && within == "":
			r.addDiagnostic(hcl.DiagWarning, i.rng, "%s is not a setting that is known here, and is ignored", i.name)
		case !ok:
			r.addDiagnostic(hcl.DiagWarning, i.rng, "%s is not a setting of %s that is known here, and is ignored", i.name, within)
		case s.ignoredReason != "":
			r.addDiagnostic(hcl.DiagWarning, i.rng, "%s is ignored: %s", strings.TrimPrefix(within+"."+i.name, "."), s.ignoredReason)
		case s.blockSettings != nil:
			if !i.isBlock() {
				r.addDiagnostic(hcl.DiagError, i.rng, "%s is a block: %s { … }", i.name, i.name)
				continue
			}
			if s.initBlock != nil {
				s.initBlock(r.config)
			}
			r.applySettings(strings.TrimPrefix(within+"."+i.name, "."), i.children, s.blockSettings)
		default:
			err := s.set(r.config, *i)
			var unusedErr *unknownOptionsError
			var weakSettingErr *weakSettingError
			var positionedErr *positionedError
			switch {
			case errors.As(err, &weakSettingErr):
				r.addDiagnostic(hcl.DiagWarning, i.rng, "%s: %v", i.name, weakSettingErr)
			case errors.As(err, &unusedErr):
				for _, name := range unusedErr.names {
					r.addDiagnostic(hcl.DiagWarning, i.settingPosition(name), "option %q is ignored: it has no meaning here", name)
				}
			case errors.As(err, &positionedErr):
				r.addDiagnostic(hcl.DiagError, positionedErr.at, "%v", positionedErr.err)
			case err != nil:
				r.addDiagnostic(hcl.DiagError, i.rng, "%s: %v", i.name, err)
			}
		}
	}
}

// positionedError is an error whose message is complete and has its own position in the file.
type positionedError struct {
	at  hcl.Range
	err error
}

func (e *positionedError) Error() string { return e.err.Error() }
