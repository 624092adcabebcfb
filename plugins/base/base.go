package base

import (
	"context"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// Type says what a plugin does.
type Type int32

// The numbers are those of the wire.
const (
	TypeUnknown Type = 0
	TypeDriver  Type = 2
	TypeDevice  Type = 3
	TypeHook    Type = 100 // ours: not of the task driver protocol
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

// Info is how a plugin names itself.
type Info struct {
	Type        Type
	APIVersions []string // versions of the protocol for its type that it speaks
	Version     string   // its own version
	Name        string   // what a job calls it, whatever its file is called
}

// Plugin is the contract between the host and any plugin, on both sides of the
// wire. Its methods may be called concurrently, and more than once.
type Plugin interface {
	PluginInfo(ctx context.Context) (*Info, error)

	// ConfigSchema says what the plugin block accepts; a nil Spec means that
	// there must be none.
	ConfigSchema(ctx context.Context) (*hclspec.Spec, error)

	// SetConfig hands over the configuration. It comes several times, also in
	// a process that is only there to check it, so it must be cheap and
	// without side effects. It does not come after a reattach.
	SetConfig(ctx context.Context, config *Config) error
}

// Config is what SetConfig carries.
type Config struct {
	// Plugin is the plugin block in the shape of ConfigSchema
	// (hclspec.Unmarshal). Empty means that there is no configuration.
	Plugin []byte

	// APIVersion is the one of Info.APIVersions that the host has chosen.
	APIVersion string

	// Driver is what the host tells to drivers. It is nil while the
	// configuration is only checked, and for other types of plugin.
	Driver *DriverConfig
}

// DriverConfig is what a driver may know about its host.
type DriverConfig struct {
	ClientMinPort uint32
	ClientMaxPort uint32
	Topology      *Topology // nil if the host does not say
}

// Topology is the host's processors.
type Topology struct {
	NodeIDs   []uint32
	Distances [][]uint32 // between the nodes
	Cores     []Core

	// What the operator says in place of the sum over the cores, in MHz.
	OverrideTotalCompute    uint64
	OverrideWithholdCompute uint64
}

// Core is one processor core. Its speed is the first of max, base and guess
// that is known; all are in MHz.
type Core struct {
	SocketID uint32
	NodeID   uint32
	CoreID   uint32
	Grade    CoreGrade
	Disable  bool

	BaseSpeed  uint64
	MaxSpeed   uint64
	GuessSpeed uint64
}

// CoreGrade is the kind of a core.
type CoreGrade int32

// The numbers are those of the wire.
const (
	CorePerformance CoreGrade = iota
	CoreEfficiency
)
