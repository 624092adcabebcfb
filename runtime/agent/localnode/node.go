package localnode

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/volumes"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// pluginLister is the part of the supervisor used by a Node.
type pluginLister interface {
	// DriverInfoByName returns the drivers that are up, by name.
	DriverInfoByName() map[string]supervisor.DriverInfo
	// NotStartedDriverInfoByName returns the builtin drivers without a plugin, by name, with the reasons.
	NotStartedDriverInfoByName() map[string]supervisor.DriverInfo
	// DeviceGroups returns this machine's devices.
	DeviceGroups() []supervisor.DeviceGroup
	// DeviceFailureReasonByPlugin returns why device plugins report no devices, or no healthy one, by plugin name.
	DeviceFailureReasonByPlugin() map[string]string
	// LaunchFailureReasonByPlugin returns why plugins that may serve devices could not be launched, by plugin name.
	LaunchFailureReasonByPlugin() map[string]string
	// InfoChanged returns a channel that is closed when the result of one of these methods changes.
	InfoChanged() <-chan struct{}
	// WaitBrieflyForKnownPlugins waits for the reports of drivers and device plugins that have run before.
	WaitBrieflyForKnownPlugins(context.Context) error
	// WaitBrieflyForFirstReports waits until the drivers have reported their health, and device plugins their devices.
	WaitBrieflyForFirstReports(context.Context) error
}

// Config configures a Node.
type Config struct {
	ID       string           // node id, the result of LoadOrNewNodeID
	Settings Settings         // settings after Settings.WithDefaults
	Host     fingerprint.Host // result of Settings.Fingerprint
	Store    *store.Store
	Plugins  pluginLister
	Logger   hclog.Logger

	// VolumesDir is where plugins make dynamic host volumes, VolumePluginDir the directory of these plugins. Without a VolumesDir
	// there are no dynamic host volumes.
	VolumesDir, VolumePluginDir string
}

// Events are the functions that a running Node calls. Each may be nil.
type Events struct {
	// BeforeRegister is called once, when the known drivers are ready and before the node is stored: until it returns, the
	// scheduler places no allocation on the node. OnRegistered is called once, when the node is stored, and OnStored after each
	// change to the stored node.
	BeforeRegister         func(context.Context)
	OnRegistered, OnStored func()

	// OnDeviceHealthChanged is called, after the stored node has changed, with a text for each device with changed health, as
	// devices.HealthChanges returns them.
	OnDeviceHealthChanged func(textByDevice map[string]string)
}

// Node is this machine's node. Its methods may be called concurrently.
type Node struct {
	config  Config
	volumes *volumes.Manager // nil without dynamic host volumes

	registered              chan struct{}     // Run closes the channel when the node is registered
	firstReportsDone        chan struct{}     // Run closes the channel, see FirstReportsDone
	recordUpdateRequested   chan struct{}     // triggerRecordUpdate sends a value
	stateFileEventsStored   bool              // Run has stored the node events about the state file; used by Run only
	lastLoggedErrorByVolume map[string]string // volume name -> last logged error; used by Run only
	volumePathResolver      *pathResolver     // checks the paths of host volumes

	metaUpdateMu sync.Mutex // SetMeta holds metaUpdateMu, and locks it before mu

	mu             sync.Mutex
	events         Events // the argument of Run; the zero value before Run
	settings       Settings
	dynamicMeta    map[string]*string
	lastAttributes map[string]string // last result of reuseEqualAttributes; the map is replaced, never modified
}

// LoadOrNewNodeID returns the node id under earlier agents. If neither a node nor an allocation is stored, it returns
// idOfLostState or, if it is empty, a new random id.
func LoadOrNewNodeID(s *store.Store, idOfLostState string) string {
	snapshot := s.Snapshot()
	if nodes := snapshot.Nodes(nil, ""); len(nodes) > 0 {
		return nodes[0].ID
	}
	if allocs := snapshot.Allocations(nil, ""); len(allocs) > 0 {
		return allocs[0].NodeID
	}
	return cmp.Or(idOfLostState, uuid.NewString())
}

// New returns a Node with the metadata set under earlier agents.
func New(c Config) *Node {
	n := &Node{
		config:                c,
		registered:            make(chan struct{}),
		firstReportsDone:      make(chan struct{}),
		recordUpdateRequested: make(chan struct{}, 1),
		settings:              c.Settings,
	}
	if c.VolumesDir != "" {
		n.volumes = volumes.New(volumes.Config{
			Store: c.Store, NodeID: c.ID, VolumesDir: c.VolumesDir, PluginDir: c.VolumePluginDir, Logger: c.Logger,
			IsVolumeInAgentConfig: n.hasConfiguredVolume, OnVolumesOrPluginsChange: n.notifyVolumesChanged,
		})
	}
	n.volumePathResolver = newPathResolver(n.triggerRecordUpdate)
	n.loadDynamicMeta()
	return n
}

// ID returns the node id, which stays the same for a data directory.
func (n *Node) ID() string { return n.config.ID }

// Registered returns a channel that is closed when the node is stored with the drivers of earlier agents, so that jobs can be
// placed; see also Run.
func (n *Node) Registered() <-chan struct{} { return n.registered }

// FirstReportsDone returns a channel that is closed when the node is registered and its record has the drivers and devices of all
// plugins with a report in the normal start time. It is also closed if this record cannot be stored at once, and when Run ends.
func (n *Node) FirstReportsDone() <-chan struct{} { return n.firstReportsDone }

// TaskEnvNode returns the facts about the node for task environments and interpolation. Before the node is registered, it adds
// missing driver attributes from the stored node.
func (n *Node) TaskEnvNode() taskenv.Node {
	c := n.currentSettings()
	attributes := n.collectNodeAttributes(n.config.Plugins.DriverInfoByName())
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
			Attributes: n.reuseEqualAttributes(attributes), Meta: c.Meta,
		},
		ParentCgroup: n.config.Host.ParentCgroup,
	}
}

// reuseEqualAttributes returns the previous call's map if it has equal content. This saves memory, because each allocation keeps
// the map.
func (n *Node) reuseEqualAttributes(attributes map[string]string) map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !maps.Equal(n.lastAttributes, attributes) {
		n.lastAttributes = attributes
	}
	return n.lastAttributes
}

// currentSettings returns the settings. Their Meta has the static and the dynamic metadata.
func (n *Node) currentSettings() Settings {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.settings
	s.Meta = mergeMeta(s.Meta, n.dynamicMeta)
	return s
}

// SetAdvertisedHTTPAddr sets the API's advertised address, which may be unknown when the Node is created.
func (n *Node) SetAdvertisedHTTPAddr(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settings.AdvertisedHTTPAddr = address
}

// Reload applies the settings that can change while the agent runs: metadata, reservations and host volumes.
func (n *Node) Reload(s Settings) {
	n.mu.Lock()
	n.settings.Meta, n.settings.Reserved = s.Meta, s.Reserved
	n.settings.HostVolumes, n.settings.HostVolumeOptions = s.HostVolumes, s.HostVolumeOptions
	n.mu.Unlock()
	n.triggerRecordUpdate()
}

func (n *Node) currentEvents() Events {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.events
}

// notifyStored calls Events.OnStored.
func (n *Node) notifyStored() {
	if events := n.currentEvents(); events.OnStored != nil {
		events.OnStored()
	}
}

// triggerRecordUpdate makes Run call updateRecord. It does not block.
func (n *Node) triggerRecordUpdate() {
	wait.Notify(n.recordUpdateRequested)
}

// Run registers the node when the drivers that have run before are ready, and updates the stored node until ctx ends. If the
// write fails but an earlier agent has stored the node, the node counts as registered, and Run repeats the write. Run must be
// called at most once.
func (n *Node) Run(ctx context.Context, events Events) {
	n.mu.Lock()
	n.events = events
	n.mu.Unlock()
	completeFirstReports := sync.OnceFunc(func() { close(n.firstReportsDone) })
	defer completeFirstReports()
	firstReports := make(chan struct{}) // closed when no plugin is expected to report soon
	var waitWG sync.WaitGroup
	defer waitWG.Wait()
	waitWG.Go(func() {
		if err := n.config.Plugins.WaitBrieflyForFirstReports(ctx); err == nil {
			close(firstReports)
		}
	})
	if err := n.config.Plugins.WaitBrieflyForKnownPlugins(ctx); err != nil {
		return
	}
	if events.BeforeRegister != nil {
		events.BeforeRegister(ctx)
	}
	register := sync.OnceFunc(func() {
		close(n.registered)
		if events.OnRegistered != nil {
			events.OnRegistered()
		}
	})
	lastErr := ""
	for untilFirstReports := firstReports; ; {
		driversChanged := n.config.Plugins.InfoChanged()
		recordHasFirstReports := wait.IsClosed(firstReports)
		err := n.updateRecord(ctx)
		if err != nil && err.Error() != lastErr && ctx.Err() == nil {
			n.config.Logger.Error("node not stored", "error", err)
		}
		if err == nil || ctx.Err() == nil && n.config.Store.Snapshot().Node(nil, n.config.ID) != nil {
			register()
			if recordHasFirstReports {
				completeFirstReports()
				untilFirstReports = nil
			}
		}
		lastErr = ""
		var untilRetry <-chan time.Time
		if err != nil {
			lastErr = err.Error()
			untilRetry = time.After(retryDelay)
		}
		select {
		case <-driversChanged:
		case <-untilFirstReports:
		case <-untilRetry:
		case <-n.recordUpdateRequested:
		case <-ctx.Done():
			return
		}
	}
}

// errNodeUnchanged cancels the transaction in updateRecord if the record has not changed.
var errNodeUnchanged = errors.New("nothing has changed")

// updateRecord stores the node record if it has changed.
func (n *Node) updateRecord(ctx context.Context) error {
	s := n.config.Store
	hostVolumes := n.usableHostVolumes()
	var deviceChanges map[string]string
	_, err := s.Update(ctx, func(tx *store.Txn) error {
		old := tx.Node(nil, n.config.ID)
		record := n.newNodeRecord(old, hostVolumes)
		// An event about the state file is stored even if the record has not changed.
		if equalNodesIgnoringDriverTimes(record, old) && (n.stateFileEventsStored || !tx.HasStorageEvents()) {
			return errNodeUnchanged
		}
		putNodeWithEvents(tx, record, old, time.Now())
		if old != nil && old.NodeResources != nil {
			deviceChanges = devices.HealthChanges(old.NodeResources.Devices, record.NodeResources.Devices)
		}
		return nil
	})
	if errors.Is(err, errNodeUnchanged) {
		return nil
	}
	if err == nil {
		n.stateFileEventsStored = true
		n.notifyStored()
		if events := n.currentEvents(); events.OnDeviceHealthChanged != nil && len(deviceChanges) > 0 {
			events.OnDeviceHealthChanged(deviceChanges)
		}
	}
	return err
}
