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

	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// Config is what the files say. The zero value is that of no file.
type Config struct {
	DataDir  string
	LogLevel string
	LogJSON  bool
	LogPlace bool // where in the program each line comes from

	PluginDir string
	Plugins   []catalog.Block
	Hooks     []hookplugin.Rule // in the order of the files
	Artifact  map[string]any    // the client's artifact block; nil: there is none
	Template  map[string]any    // its template block

	BindAddr      string // for all addresses that are not named
	HTTPAddr      string // that the API listens on
	HTTPAdvertise string // by which others reach it, with a port or without
	HTTPPort      *int   // nil: not said; 0: any that is free
	HTTPHeaders   map[string]string
	HTTPConns     int    // that one client may have open; 0: any number
	SocketGroup   string // whose members may use the unix socket; empty: none
	TLS           TLS
	// HandshakeTimeout is the limit of a TLS handshake; 0: not said.
	HandshakeTimeout time.Duration
	NoTokens         bool // access control is switched off in so many words
	Debug            bool // profiles of the agent are given away
	Telemetry        httpapi.Telemetry

	LeaveOnInterrupt bool
	LeaveOnTerminate bool
	Drain            *Drain // nil: tasks go on when the agent leaves

	Node           agent.NodeConfig
	MaxKillTimeout time.Duration
	EnvDenylist    []string // nil means Nomad's
	EnvAllowlist   []string // nil means all
	UserDenylist   []string
	UserDrivers    []string
	NomadModes     bool     // of directories that cannot be closed to other accounts
	DriverAllow    []string // nil: all
	DriverDeny     []string
	RawExec        bool // enabled by the old option, not by a plugin block
	GC             noderunner.GC
	Records        scheduler.GCConfig
}

// TLS is how the API is served encrypted.
type TLS struct {
	HTTP              bool   // the API must not be served in the clear
	CAFile            string // that signs the certificates of clients
	CertFile, KeyFile string
	VerifyClient      bool     // who has no such certificate is not let in
	MinVersion        uint16   // of crypto/tls
	CipherSuites      []uint16 // of TLS 1.2; nil: Go's choice
}

// Drain is how tasks are stopped when the agent leaves.
type Drain struct {
	Deadline time.Duration // zero: as long as they are allowed to take
	Force    bool          // at once
}

// Load reads files, and the files of directories in the order of their names.
// Errors and warnings are among the diagnostics; the configuration is what could
// be read.
func Load(paths []string) (*Config, hcl.Diagnostics) {
	c := &Config{}
	var diags hcl.Diagnostics
	for _, path := range paths {
		files, err := expand(path)
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
	if first, last := cmp.Or(c.Node.ClientMinPort, agent.ClientMinPort), cmp.Or(c.Node.ClientMaxPort, agent.ClientMaxPort); first > last {
		diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("configuration: client_min_port %d is above client_max_port %d", first, last)})
	}
	return c, diags
}

// expand returns the files that a path stands for.
func expand(path string) ([]string, error) {
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
	var files []string
	for _, e := range entries {
		name := e.Name()
		ext := filepath.Ext(name)
		if e.IsDir() || ext != ".hcl" && ext != ".json" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") {
			continue // editors leave such files
		}
		files = append(files, filepath.Join(path, name))
	}
	slices.Sort(files)
	if len(files) == 0 {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("no .hcl or .json file in this directory")}
	}
	return files, nil
}

// Parse reads the text of one more file, whose settings win over those that are
// there.
func (c *Config) Parse(filename string, src []byte) hcl.Diagnostics {
	r := &reader{config: c}
	var items []*item
	if filepath.Ext(filename) == ".json" {
		items = r.json(filename, src)
	} else {
		items = r.native(filename, src)
	}
	if !r.diags.HasErrors() {
		r.apply("", items, settings)
	}
	return r.diags
}

// reader applies one file.
type reader struct {
	config *Config
	file   catalog.File // the plugin blocks of this file
	diags  hcl.Diagnostics
}

func (r *reader) report(severity hcl.DiagnosticSeverity, rng hcl.Range, format string, args ...any) {
	r.diags = append(r.diags, &hcl.Diagnostic{Severity: severity, Summary: fmt.Sprintf(format, args...), Subject: &rng})
}

// apply goes through settings in the order of the file.
func (r *reader) apply(within string, items []*item, known map[string]setting) {
	for _, i := range items {
		s, ok := known[i.name]
		switch {
		case !ok && within == "":
			r.report(hcl.DiagWarning, i.rng, "%s is not a setting that is known here, and is ignored", i.name)
		case !ok:
			r.report(hcl.DiagWarning, i.rng, "%s is not a setting of %s that is known here, and is ignored", i.name, within)
		case s.ignored != "":
			r.report(hcl.DiagWarning, i.rng, "%s is ignored: %s", strings.TrimPrefix(within+"."+i.name, "."), s.ignored)
		case s.block != nil:
			if !i.isBlock() {
				r.report(hcl.DiagError, i.rng, "%s is a block: %s { … }", i.name, i.name)
				continue
			}
			if s.begin != nil {
				s.begin(r.config)
			}
			r.apply(strings.TrimPrefix(within+"."+i.name, "."), i.body, s.block)
		default:
			err := s.set(r.config, *i)
			var unused *unusedError
			var weak *weakError
			var placed *placedError
			switch {
			case errors.As(err, &weak):
				r.report(hcl.DiagWarning, i.rng, "%s: %v", i.name, weak)
			case errors.As(err, &unused):
				for _, name := range unused.names {
					r.report(hcl.DiagWarning, i.place(name), "option %q is ignored: it has no meaning here", name)
				}
			case errors.As(err, &placed):
				r.report(hcl.DiagError, placed.at, "%v", placed.err)
			case err != nil:
				r.report(hcl.DiagError, i.rng, "%s: %v", i.name, err)
			}
		}
	}
}

// placedError says all that is to be said, and where.
type placedError struct {
	at  hcl.Range
	err error
}

func (e *placedError) Error() string { return e.err.Error() }
