package base

import (
	"context"
	"errors"
	"regexp"
	"sync"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// ErrPluginDown means that the plugin process has exited. The caller requests another
// process from the supervisor. For hosts only.
var ErrPluginDown = errors.New("plugin is shut down")

// Type is the kind of a plugin. For hosts only.
type Type int32

// The numbers are those of the plugin protocol, in which they are sent. For hosts only.
const (
	TypeUnknown Type = 0
	TypeDriver  Type = 2
	TypeDevice  Type = 3
	TypeHook    Type = 100 // only nomad-lite has hooks: the protocol of Nomad does not have this number
)

func (t Type) String() string {
	switch t {
	case TypeDriver:
		return "driver"
	case TypeDevice:
		return "device"
	case TypeHook:
		return "hook"
	default:
		return "unknown"
	}
}

// namePattern matches plugin names, which become part of jobs, node attributes and file names. A
// name has no separator, so that it can only name a file directly in a directory.
var namePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`) })

// ValidName reports whether name can be the name of a plugin. For hosts only.
func ValidName(name string) bool { return len(name) <= 128 && namePattern().MatchString(name) }

// Info describes a plugin, as the plugin reports it. For hosts only.
type Info struct {
	Type        Type
	APIVersions []string // protocol versions that the plugin supports
	Version     string   // version of the plugin itself
	Name        string   // the name that jobs use, independent of the file name
}

// Plugin is the contract between the host and any plugin, on both sides of the
// wire. Package sdk implements Plugin for authors. Its methods may be called concurrently,
// and more than once. For hosts only.
type Plugin interface {
	// PluginInfo returns the type, name and versions of the plugin.
	PluginInfo(ctx context.Context) (*Info, error)

	// ConfigSchema returns the schema of the plugin block; a nil Spec means that a plugin
	// block is not allowed.
	ConfigSchema(ctx context.Context) (*hclspec.Spec, error)

	// SetConfig passes the configuration to the plugin. The host calls it several times,
	// also in a process that it starts only to validate the configuration, so it must be
	// cheap and without side effects. The host does not call it after a reattach.
	SetConfig(ctx context.Context, config *Config) error
}

// Config is the argument of SetConfig. For hosts only.
type Config struct {
	// MsgpackConfig is the plugin block in the shape of ConfigSchema
	// (hclspec.Unmarshal). Empty means that there is no configuration.
	MsgpackConfig []byte

	// APIVersion is the entry of Info.APIVersions that the host has chosen.
	APIVersion string

	// Driver is set for a task driver only. It is nil for other types of plugin, and while
	// the host only validates the configuration.
	Driver *ClientDriverConfig
}

// ClientDriverConfig is the information about the host that a driver gets. For hosts only.
type ClientDriverConfig struct {
	// ClientMinPort and ClientMaxPort limit the range of ports that the host reserves for helper
	// processes of drivers.
	ClientMinPort uint32
	ClientMaxPort uint32
	Topology      *Topology // nil if the host does not report its processors
}

// Topology describes the host's processors.
type Topology struct {
	NodeIDs   []uint32   // ids of the NUMA nodes
	Distances [][]uint32 // distance between each pair of NUMA nodes
	Cores     []Core

	// The overrides come from the operator's configuration, in MHz: the total compute of
	// all cores, and the part that tasks cannot use. Zero means not configured.
	OverrideTotalCompute    uint64
	OverrideWithholdCompute uint64
}

// Core is one processor core. Its speed is the first known value of MaxSpeed, BaseSpeed
// and GuessSpeed; all are in MHz.
type Core struct {
	SocketID uint32
	NodeID   uint32 // id of the NUMA node
	CoreID   uint32 // id of the logical processor
	Grade    CoreGrade
	Disable  bool // tasks cannot use the core, for example because the operator has reserved it

	BaseSpeed  uint64
	MaxSpeed   uint64
	GuessSpeed uint64
}

// CoreGrade is the kind of a core.
type CoreGrade int32

// The numbers are those of the plugin protocol, in which they are sent.
const (
	CorePerformance CoreGrade = iota
	CoreEfficiency
)
