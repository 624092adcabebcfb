package localnode

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/volumes"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// pluginLister is the part of the supervisor that a Node needs.
type pluginLister interface {
	// Drivers returns the drivers that are up, by name.
	Drivers() map[string]supervisor.DriverInfo
	// DriversNotStarted returns the builtin drivers that have no plugin, by name, with the reasons.
	DriversNotStarted() map[string]supervisor.DriverInfo
	// DeviceGroups returns the devices of this machine.
	DeviceGroups() []supervisor.DeviceGroup
	// Changed returns a channel that is closed when the result of Drivers or DeviceGroups changes.
	Changed() <-chan struct{}
	// Ready waits until the drivers have reported their health, and device plugins their devices.
	Ready(context.Context) error
}

// Config configures a Node.
type Config struct {
	ID       string           // see LoadID
	Settings Settings         // with defaults
	Host     fingerprint.Host // see Settings.Fingerprint
	Store    *store.Store
	Plugins  pluginLister
	Logger   hclog.Logger

	// Volumes are the dynamic host volumes; nil if there are none.
	Volumes *volumes.Manager

	// BeforeRegister is called once, when the drivers are ready and before the node
	// is stored, so that nothing is placed on it. OnRegistered is called once, when the
	// node is stored, and OnNodeStored after each change of the record.
	BeforeRegister             func(context.Context)
	OnRegistered, OnNodeStored func()
}

// Node is the node of this machine. Its methods may be called concurrently.
type Node struct {
	config Config

	registered        chan struct{}     // see Registered
	settingsChanged   chan struct{}     // the channel has a value when the settings have changed
	stateEventsStored bool              // Run has stored the node events about the state file; used by Run only
	reportedVolumes   map[string]string // errors of host volumes that were logged, by name; used by Run only
	paths             *pathChecker      // checks the paths of host volumes

	metaUpdateMu sync.Mutex // metaUpdateMu is held while the metadata is changed, and locked before mu

	mu          sync.Mutex
	settings    Settings
	dynamicMeta map[string]*string
	attributes  map[string]string // attributes of the last call of reuseAttributes; the map is replaced, never modified
}

// LoadID returns the id that earlier agents used, if a node or an allocation is stored,
// and otherwise a new id.
func LoadID(s *store.Store) string {
	snapshot := s.Snapshot()
	if nodes := snapshot.Nodes(nil, ""); len(nodes) > 0 {
		return nodes[0].ID
	}
	if allocs := snapshot.Allocations(nil, ""); len(allocs) > 0 {
		return allocs[0].NodeID
	}
	return uuid.NewString()
}

// New returns a Node with the metadata that was set under earlier agents.
func New(c Config) *Node {
	n := &Node{
		config:          c,
		registered:      make(chan struct{}),
		settingsChanged: make(chan struct{}, 1),
		settings:        c.Settings,
	}
	n.paths = newPathChecker(n.triggerUpdate)
	n.readMeta()
	return n
}

// ID returns the id of the node, which stays the same for a data directory.
func (n *Node) ID() string { return n.config.ID }

// Registered returns a channel that is closed when the node is stored with its
// drivers, so that jobs can be placed; see also Run.
func (n *Node) Registered() <-chan struct{} { return n.registered }

// TaskEnvNode returns the facts about the node as tasks see them. Before the node is
// registered, missing driver attributes are taken from the stored node.
func (n *Node) TaskEnvNode() taskenv.Node {
	c := n.currentSettings()
	attributes := n.readAttributes(n.config.Plugins.Drivers())
	select {
	case <-n.registered:
	default:
		if old := n.config.Store.Snapshot().Node(nil, n.config.ID); old != nil {
			for key, value := range old.Attributes {
				if _, known := attributes[key]; !known && strings.HasPrefix(key, "driver.") {
					attributes[key] = value
				}
			}
		}
	}
	return taskenv.Node{
		NodeFacts: model.NodeFacts{
			ID: n.config.ID, Name: c.Name, Datacenter: c.Datacenter, Region: c.Region, Class: c.Class, Pool: c.Pool,
			Attributes: n.reuseAttributes(attributes), Meta: c.Meta,
		},
		ParentCgroup: n.config.Host.ParentCgroup,
	}
}

// reuseAttributes returns the map of the previous call if the attributes are equal, to save
// memory: each allocation keeps the map.
func (n *Node) reuseAttributes(attributes map[string]string) map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !maps.Equal(n.attributes, attributes) {
		n.attributes = attributes
	}
	return n.attributes
}

// currentSettings returns the settings with the merged metadata.
func (n *Node) currentSettings() Settings {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.settings
	s.Meta = mergeMeta(s.Meta, n.dynamicMeta)
	return s
}

// AdvertiseHTTPAddr sets the address of the API if it was not known when the Node was
// created.
func (n *Node) AdvertiseHTTPAddr(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settings.HTTPAddr = address
}

// Reload applies the settings that can change while the agent runs: metadata, reservations and host
// volumes.
func (n *Node) Reload(s Settings) {
	n.mu.Lock()
	n.settings.Meta, n.settings.Reserved, n.settings.HostVolumes = s.Meta, s.Reserved, s.HostVolumes
	n.mu.Unlock()
	n.triggerUpdate()
}

// triggerUpdate requests an update of the node's record. It does not block.
func (n *Node) triggerUpdate() {
	select {
	case n.settingsChanged <- struct{}{}:
	default:
	}
}

// Run registers the node when the drivers are ready, and keeps its record up to date
// until ctx ends. If the state has a record of the node and cannot be changed, the node counts as registered with this
// record, and Run repeats the change. Run must be called at most once.
func (n *Node) Run(ctx context.Context) {
	if err := n.config.Plugins.Ready(ctx); err != nil {
		return
	}
	n.config.BeforeRegister(ctx)
	register := sync.OnceFunc(func() {
		close(n.registered)
		n.config.OnRegistered()
	})
	lastErr := ""
	for {
		driversChanged := n.config.Plugins.Changed()
		if err := n.update(ctx); err != nil && ctx.Err() == nil {
			if err.Error() != lastErr {
				lastErr = err.Error()
				n.config.Logger.Error("node not stored", "error", err)
			}
			if n.config.Store.Snapshot().Node(nil, n.config.ID) != nil {
				register()
			}
			select {
			case <-time.After(retryDelay):
				continue
			case <-ctx.Done():
			}
		} else if err == nil {
			lastErr = ""
			register()
		}
		select {
		case <-driversChanged:
		case <-n.settingsChanged:
		case <-ctx.Done():
			return
		}
	}
}

// errNodeUnchanged cancels an update that would change nothing.
var errNodeUnchanged = errors.New("nothing has changed")

// update stores the record of the node if it has changed.
func (n *Node) update(ctx context.Context) error {
	s := n.config.Store
	hostVolumes := n.checkHostVolumes()
	_, err := s.Update(ctx, func(tx *store.Txn) error {
		old := tx.Node(nil, n.config.ID)
		record := n.newNodeRecord(old, hostVolumes)
		// An event about the state file is stored even if the record has not changed.
		if sameNodeRecord(record, old) && (n.stateEventsStored || !tx.HasNodeEvents()) {
			return errNodeUnchanged
		}
		putNode(tx, record, old, time.Now())
		return nil
	})
	if errors.Is(err, errNodeUnchanged) {
		return nil
	}
	if err == nil {
		n.stateEventsStored = true
		n.config.OnNodeStored()
	}
	return err
}
