package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Config configures a Manager.
type Config struct {
	Store      *store.Store
	NodeID     string
	VolumesDir string // directory in which plugins make volumes
	PluginDir  string // external plugin directory; empty if there are none
	// IsVolumeInAgentConfig reports whether the agent's configuration has a host_volume block with the name.
	IsVolumeInAgentConfig func(name string) bool
	// OnVolumesOrPluginsChange is called after volumes or plugins have changed.
	OnVolumesOrPluginsChange func()
	Logger                   hclog.Logger
}

// Manager manages this node's dynamic host volumes. Its methods may be called concurrently.
type Manager struct {
	config        Config
	restored      chan struct{} // closed when RestoreVolumesAndPlugins returns
	operationLock chan struct{} // has one value while unlocked: lockOperation receives it, unlockOperation sends it

	mu           sync.Mutex
	pluginByName map[string]pluginWithVersion // by name
}

type pluginWithVersion struct {
	volumePlugin
	version string
}

// New returns a Manager. The caller must call RestoreVolumesAndPlugins once.
func New(c Config) *Manager {
	c.Logger = c.Logger.Named("volumes")
	m := &Manager{config: c, restored: make(chan struct{}), operationLock: make(chan struct{}, 1)}
	m.operationLock <- struct{}{}
	m.pluginByName = map[string]pluginWithVersion{MkdirPlugin: {mkdirPlugin{c.VolumesDir}, mkdirVersion}}
	return m
}

// PluginVersionByName returns the available plugins' versions by name.
func (m *Manager) PluginVersionByName() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	versions := make(map[string]string, len(m.pluginByName))
	for name, p := range m.pluginByName {
		versions[name] = p.version
	}
	return versions
}

// FindReadyVolume returns the volume with a name if allocations can use the volume, otherwise nil. It waits until
// RestoreVolumesAndPlugins has returned, so that the plugin has mounted the volume.
func (m *Manager) FindReadyVolume(ctx context.Context, name string) (*api.HostVolumeInfo, error) {
	if ReadyVolumeByName(m.config.Store.Snapshot().Reader)[name] == nil {
		return nil, nil
	}
	if err := m.waitRestored(ctx); err != nil {
		return nil, err
	}
	return ReadyVolumeByName(m.config.Store.Snapshot().Reader)[name], nil
}

// ReadyVolumeByName returns name -> volume for the volumes that allocations can use.
func ReadyVolumeByName(r store.Reader) map[string]*api.HostVolumeInfo {
	volumes := make(map[string]*api.HostVolumeInfo)
	for _, v := range r.HostVolumes(nil, "") {
		if v.IsReady() {
			volumes[v.Volume.Name] = &api.HostVolumeInfo{ID: v.Volume.ID, Path: v.Volume.HostPath}
		}
	}
	return volumes
}

// waitRestored waits until RestoreVolumesAndPlugins has returned. Before that, the external plugins are unknown, and an
// earlier agent's operations are pending.
func (m *Manager) waitRestored(ctx context.Context) error {
	select {
	case <-m.restored:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RestoreVolumesAndPlugins kills an interrupted plugin call's processes, finds the external plugins, and completes the
// operations during which an earlier agent has died. It then calls create again for each volume made by a plugin, so that the
// plugin mounts it after a reboot. It blocks until all plugin calls have returned.
func (m *Manager) RestoreVolumesAndPlugins(ctx context.Context) {
	defer m.config.OnVolumesOrPluginsChange()
	defer close(m.restored)
	if err := m.lockOperation(ctx); err != nil {
		return
	}
	defer m.unlockOperation()
	if err := (pluginCallRecorder{m.config.Store}).killProcessesOfInterruptedCall(ctx); err != nil {
		// The interrupted call's processes may be running, beside which no other external plugin call may run.
		m.config.Logger.Error("host volume plugins not used until the agent is restarted", "error", err)
	} else {
		m.runAndAddExternalPlugins(ctx)
	}
	for _, v := range m.config.Store.Snapshot().HostVolumes(nil, "") {
		if err := m.finishPendingOrRecreateVolume(ctx, v); err != nil && ctx.Err() == nil {
			m.config.Logger.Error("host volume not restored", "volume", v.Volume.Name, "volume_id", v.Volume.ID, "operation", v.PendingOperation, "error", err)
		}
	}
}

// finishPendingOrRecreateVolume completes a volume's pending operation, or calls create again for it. If this fails, it
// deletes a volume that an earlier agent has not created completely. Another volume becomes unavailable, because it may not be
// mounted.
func (m *Manager) finishPendingOrRecreateVolume(ctx context.Context, v *state.HostVolume) error {
	switch {
	case v.PendingOperation == state.HostVolumeDelete:
		return m.callDeleteAndRemoveRecord(ctx, v, false)
	case v.Volume.PluginID == "":
		return nil
	}
	p, err := m.findPluginByName(v.Volume.PluginID)
	if err != nil {
		return errors.Join(err, m.updateVolumeRecordIfChanged(ctx, v, func(next *state.HostVolume) {
			next.Volume.State = api.HostVolumeStateUnavailable // with its pending operation, which an agent with the plugin completes
		}))
	}
	result, err := m.callPluginCreate(ctx, p, v)
	switch {
	case err == nil:
		return m.storeCreateResult(ctx, v, result)
	case ctx.Err() != nil:
		return err // the next agent calls the plugin again
	case v.Volume.HostPath == "":
		return errors.Join(err, m.callDeleteAndRemoveRecord(ctx, v, false))
	}
	return errors.Join(err, m.updateVolumeRecordIfChanged(ctx, v, func(next *state.HostVolume) {
		// The client can request another change. The next agent calls create again also without a pending operation.
		next.PendingOperation, next.Volume.State = "", api.HostVolumeStateUnavailable
	}))
}

// runAndAddExternalPlugins adds the programs in the plugin directory to m.plugins. It runs each program to get its
// version, and logs the errors.
func (m *Manager) runAndAddExternalPlugins(ctx context.Context) {
	dir := m.config.PluginDir
	if dir == "" {
		return
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		m.config.Logger.Error("host volume plugins not found", "error", err)
		return
	}
	var names []string
	for _, f := range files {
		if f.Name() != MkdirPlugin && !strings.HasPrefix(f.Name(), ".") {
			names = append(names, f.Name())
		}
	}
	if len(names) == 0 {
		return
	}
	found, err := catalog.New(catalog.Config{PluginDir: dir, RequestedNames: names, Logger: m.config.Logger})
	if err != nil {
		m.config.Logger.Error("host volume plugins not found", "error", err)
		return
	}
	for _, entry := range found.Entries() {
		p := &externalPlugin{catalogEntry: entry, pluginDir: dir, volumesDir: m.config.VolumesDir, callRecorder: pluginCallRecorder{m.config.Store}, logger: m.config.Logger}
		version, err := p.runForVersion(ctx)
		if err != nil {
			m.config.Logger.Error("host volume plugin is not usable", "plugin", entry.Name, "error", err)
			continue
		}
		m.mu.Lock()
		m.pluginByName[entry.Name] = pluginWithVersion{p, version}
		m.mu.Unlock()
	}
}

// lockOperation waits until no other operation is in progress. If it returns nil, the caller must call unlockOperation.
func (m *Manager) lockOperation(ctx context.Context) error {
	select {
	case <-m.operationLock:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *Manager) unlockOperation() { m.operationLock <- struct{}{} }

// findPluginByName returns the plugin with the name, or a RequestError.
func (m *Manager) findPluginByName(name string) (volumePlugin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, found := m.pluginByName[name]; found {
		return p.volumePlugin, nil
	}
	known := strings.Join(slices.Sorted(maps.Keys(m.pluginByName)), ", ")
	return nil, &RequestError{fmt.Sprintf("this node has no host volume plugin %q, only %s: put its program into the directory that client.host_volume_plugin_dir names", name, known)}
}

// RequestError is an error in a client's request, which the client can correct.
type RequestError struct{ Text string }

func (e *RequestError) Error() string { return e.Text }

// ErrNotFound means that no volume has the id, ErrClaimNotFound that no claim has the id.
var (
	ErrNotFound      = errors.New("volume not found")
	ErrClaimNotFound = errors.New("claim not found")
)

// CreateOrChangeVolume makes a volume with its plugin. If v has an id, CreateOrChangeVolume changes that volume's capacity and
// capabilities. It waits for RestoreVolumesAndPlugins, and returns the stored volume. A plugin call continues when ctx ends.
func (m *Manager) CreateOrChangeVolume(ctx context.Context, v *api.HostVolume) (*api.HostVolume, error) {
	if err := m.waitRestored(ctx); err != nil {
		return nil, err
	}
	v.PluginID = cmp.Or(v.PluginID, MkdirPlugin)
	if v.HostPath != "" {
		return nil, &RequestError{"host_path cannot be set for a volume that a plugin creates: remove it, or register the volume"}
	}
	p, err := m.findPluginByName(v.PluginID)
	if err != nil {
		return nil, err
	}
	if _, builtin := p.(mkdirPlugin); builtin {
		if _, err := parseMkdirParameters(v.Parameters); err != nil {
			return nil, &RequestError{err.Error()}
		}
	}
	return m.storeVolumeAndCallPlugin(ctx, v, p)
}

// RegisterOrChangeVolume stores a volume in a directory made by the operator. It waits for RestoreVolumesAndPlugins, and
// returns the stored volume.
func (m *Manager) RegisterOrChangeVolume(ctx context.Context, v *api.HostVolume) (*api.HostVolume, error) {
	if err := m.waitRestored(ctx); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(v.HostPath) {
		return nil, &RequestError{fmt.Sprintf("host_path is %q: it must be the absolute path of the directory", v.HostPath)}
	}
	v.HostPath = filepath.Clean(v.HostPath)
	if _, err := safepath.Locate(v.HostPath); err != nil {
		return nil, &RequestError{"host_path: " + err.Error()}
	}
	if v.PluginID != "" {
		if _, err := m.findPluginByName(v.PluginID); err != nil {
			return nil, err
		}
	}
	return m.storeVolumeAndCallPlugin(ctx, v, nil)
}

// storeVolumeAndCallPlugin stores a new or changed volume, and calls the plugin p's create. If the plugin fails for a changed
// volume, storeVolumeAndCallPlugin stores the former volume again. For a new volume, it calls delete, and removes the record;
// if delete fails too, the record stays, and the volume is unavailable until a client deletes it. It calls no plugin if p is
// nil.
func (m *Manager) storeVolumeAndCallPlugin(ctx context.Context, requested *api.HostVolume, p volumePlugin) (*api.HostVolume, error) {
	if err := m.checkAndSetDefaults(requested); err != nil {
		return nil, err
	}
	if err := m.lockOperation(ctx); err != nil {
		return nil, err
	}
	defer m.unlockOperation()
	ctx = context.WithoutCancel(ctx)
	newID := uuid.NewString() // outside the transaction, because its function must be deterministic
	var next, before *state.HostVolume
	point := failpoint.EnterStep(failpoint.StepVolumeRecord)
	_, err := m.config.Store.Update(ctx, func(tx *store.Txn) error {
		v := *requested
		next, before = &state.HostVolume{Volume: &v}, nil
		if p != nil {
			next.PendingOperation = state.HostVolumeCreate
		}
		if err := m.checkAndSetNode(tx, &v); err != nil {
			return err
		}
		if v.ID != "" {
			before = tx.HostVolume(nil, v.ID)
		}
		if err := checkNameAndMergeStoredVolume(tx, &v, before); err != nil {
			return err
		}
		if v.ID == "" {
			v.ID = newID
		}
		if p == nil {
			v.State = api.HostVolumeStateReady
		}
		tx.PutHostVolume(next)
		return nil
	})
	point.Leave()
	if err != nil {
		return nil, err
	}
	defer m.config.OnVolumesOrPluginsChange()
	if p != nil {
		result, err := m.callPluginCreate(ctx, p, next)
		switch {
		case err == nil:
			err = m.storeCreateResult(ctx, next, result)
		case before == nil:
			err = errors.Join(err, m.callDeleteAndRemoveRecord(ctx, next, false))
		default:
			err = errors.Join(err, m.putVolumeRecord(ctx, before))
		}
		if err != nil {
			return nil, err
		}
	}
	stored := m.config.Store.Snapshot().HostVolume(nil, next.Volume.ID)
	if stored == nil {
		return nil, ErrNotFound
	}
	return stored.Volume, nil
}

// checkAndSetNode checks the request fields that depend on the node or on the namespaces, and sets NodeID and NodePool.
func (m *Manager) checkAndSetNode(tx *store.Txn, v *api.HostVolume) error {
	node := tx.Node(nil, m.config.NodeID)
	switch {
	case node == nil:
		return errors.New("this node is not registered yet: try again")
	case v.NodeID != "" && v.NodeID != m.config.NodeID:
		return &RequestError{fmt.Sprintf("node %q does not exist: this agent has the node %q", v.NodeID, m.config.NodeID)}
	case v.NodePool != "" && v.NodePool != node.NodePool && v.NodePool != api.NodePoolAll:
		return &RequestError{fmt.Sprintf("this node is in pool %q, not in %q", node.NodePool, v.NodePool)}
	case v.Namespace != api.DefaultNamespace && tx.Namespace(nil, v.Namespace) == nil:
		return &RequestError{fmt.Sprintf("namespace %q does not exist", v.Namespace)}
	}
	facts := model.NodeFactsOf(node)
	for _, c := range v.Constraints {
		if !model.ConstraintHolds(c, facts.ResolveConstraintTarget) {
			return &RequestError{fmt.Sprintf("this node does not satisfy the constraint %q", strings.TrimSpace(c.LTarget+" "+c.Operand+" "+c.RTarget))}
		}
	}
	v.NodeID, v.NodePool = m.config.NodeID, node.NodePool
	return nil
}

// checkNameAndMergeStoredVolume checks that the name is not in use, and sets v's state and times. If v changes a stored
// volume, checkNameAndMergeStoredVolume rejects impossible changes, and copies the stored volume's unchanged fields.
func checkNameAndMergeStoredVolume(tx *store.Txn, v *api.HostVolume, stored *state.HostVolume) error {
	for _, other := range tx.HostVolumes(nil, "") {
		if other.Volume.Name == v.Name && other.Volume.ID != v.ID {
			return &RequestError{fmt.Sprintf("the volume %s of this node has the name %q: choose another name, or change that volume by its id", other.Volume.ID, v.Name)}
		}
	}
	now := time.Now().UnixNano()
	v.State, v.CreateTime, v.ModifyTime = api.HostVolumeStatePending, now, now
	switch {
	case v.ID == "":
		return nil
	case stored == nil:
		return &RequestError{fmt.Sprintf("volume %q does not exist: remove the id to create a new volume", v.ID)}
	case stored.PendingOperation != "":
		return &RequestError{fmt.Sprintf("the operation %q of volume %q has failed: delete the volume", stored.PendingOperation, v.ID)}
	}
	old := stored.Volume
	if old.Namespace != v.Namespace || old.Name != v.Name || old.PluginID != v.PluginID || v.HostPath != "" && old.HostPath != v.HostPath {
		return &RequestError{fmt.Sprintf("volume %q cannot change its namespace, name, plugin or host path: delete it, and create another one", v.ID)}
	}
	// The volume stays ready, because a task that uses it can restart during the change.
	v.State, v.CreateTime, v.HostPath, v.CapacityBytes = old.State, old.CreateTime, old.HostPath, cmp.Or(v.CapacityBytes, old.CapacityBytes)
	return nil
}

const (
	maxNameLen        = 128      // bytes in a volume's name
	maxParameterBytes = 64 << 10 // bytes in all parameters, which are one environment variable for a plugin
)

// checkAndSetDefaults checks the request fields independent of the store, and sets defaults.
func (m *Manager) checkAndSetDefaults(v *api.HostVolume) error {
	v.Namespace = cmp.Or(v.Namespace, api.DefaultNamespace)
	switch {
	case v.Name == "":
		return &RequestError{"missing name"}
	case len(v.Name) > maxNameLen || strings.ContainsFunc(v.Name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return &RequestError{fmt.Sprintf("the name %q is longer than %d bytes or has control characters", v.Name, maxNameLen)}
	case m.config.IsVolumeInAgentConfig(v.Name):
		return &RequestError{fmt.Sprintf("a host_volume block of the agent's configuration has the name %q: choose another name", v.Name)}
	case v.RequestedCapacityMinBytes < 0 || v.RequestedCapacityMaxBytes < 0 || v.CapacityBytes < 0:
		return &RequestError{"capacities must not be negative"}
	case v.RequestedCapacityMaxBytes > 0 && v.RequestedCapacityMaxBytes < v.RequestedCapacityMinBytes:
		return &RequestError{fmt.Sprintf("capacity_max (%d) must be larger than capacity_min (%d)", v.RequestedCapacityMaxBytes, v.RequestedCapacityMinBytes)}
	}
	size := 0
	for name, text := range v.Parameters {
		size += len(name) + len(text)
	}
	if size > maxParameterBytes {
		return &RequestError{fmt.Sprintf("the parameters have %d bytes, and %d are allowed", size, maxParameterBytes)}
	}
	if v.ID != "" {
		if err := uuid.Validate(v.ID); err != nil || len(v.ID) != 36 {
			return &RequestError{fmt.Sprintf("the id %q is not the id of a volume", v.ID)}
		}
		v.ID = strings.ToLower(v.ID)
	}
	if len(v.RequestedCapabilities) == 0 {
		v.RequestedCapabilities = []*api.HostVolumeCapability{{}}
	}
	for _, c := range v.RequestedCapabilities {
		if c == nil {
			return &RequestError{"a capability must not be null"}
		}
		c.AccessMode = cmp.Or(c.AccessMode, api.HostVolumeAccessModeSingleNodeWriter)
		c.AttachmentMode = cmp.Or(c.AttachmentMode, api.HostVolumeAttachmentModeFilesystem)
		if !slices.Contains(model.HostAccessModes, string(c.AccessMode)) {
			return &RequestError{fmt.Sprintf("invalid access mode: %q; it must be one of %s", c.AccessMode, strings.Join(model.HostAccessModes, ", "))}
		}
		if c.AttachmentMode != api.HostVolumeAttachmentModeFilesystem && c.AttachmentMode != api.HostVolumeAttachmentModeBlockDevice {
			return &RequestError{fmt.Sprintf(`invalid attachment mode: %q; it must be "file-system" or "block-device"`, c.AttachmentMode)}
		}
	}
	return nil
}

func (m *Manager) newPluginRequest(v *state.HostVolume) pluginRequest {
	return pluginRequest{
		volumeID: v.Volume.ID, volumeName: v.Volume.Name, namespace: v.Volume.Namespace, nodeID: v.Volume.NodeID, nodePool: v.Volume.NodePool,
		minCapacityBytes: v.Volume.RequestedCapacityMinBytes, maxCapacityBytes: v.Volume.RequestedCapacityMaxBytes, parameters: v.Volume.Parameters,
		createdPath: v.Volume.HostPath, alreadyCreated: v.Volume.HostPath != "",
	}
}

// callPluginCreate calls create on a stored volume's plugin.
func (m *Manager) callPluginCreate(ctx context.Context, p volumePlugin, v *state.HostVolume) (createResult, error) {
	calling, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	point := failpoint.EnterStep(failpoint.StepVolumeCreate)
	result, err := p.create(calling, m.newPluginRequest(v))
	point.Leave()
	if err != nil {
		return result, fmt.Errorf("create volume %q with plugin %q: %w", v.Volume.Name, v.Volume.PluginID, err)
	}
	return result, nil
}

// storeCreateResult stores the plugin's create result.
func (m *Manager) storeCreateResult(ctx context.Context, v *state.HostVolume, result createResult) error {
	point := failpoint.EnterStep(failpoint.StepVolumeReady)
	defer point.Leave()
	return m.updateVolumeRecordIfChanged(ctx, v, func(next *state.HostVolume) {
		next.PendingOperation = ""
		next.Volume.State, next.Volume.HostPath = api.HostVolumeStateReady, result.Path
		next.Volume.CapacityBytes = max(result.CapacityBytes, 0)
	})
}

// putVolumeRecord stores a copy of a volume's record.
func (m *Manager) putVolumeRecord(ctx context.Context, v *state.HostVolume) error {
	_, err := m.config.Store.Update(ctx, func(tx *store.Txn) error {
		volume := *v.Volume
		tx.PutHostVolume(&state.HostVolume{Volume: &volume, PendingOperation: v.PendingOperation})
		return nil
	})
	return err
}

// updateVolumeRecordIfChanged stores a copy of a volume's record that edit has changed.
func (m *Manager) updateVolumeRecordIfChanged(ctx context.Context, v *state.HostVolume, edit func(*state.HostVolume)) error {
	_, err := m.config.Store.Update(ctx, func(tx *store.Txn) error {
		next, volume := *v, *v.Volume
		next.Volume = &volume
		edit(&next)
		if stored := tx.HostVolume(nil, volume.ID); stored != nil && stored.PendingOperation == next.PendingOperation &&
			stored.Volume.State == volume.State && stored.Volume.HostPath == volume.HostPath && stored.Volume.CapacityBytes == volume.CapacityBytes {
			return nil // a restored volume has not changed, so nothing is stored
		}
		tx.PutHostVolume(&next)
		return nil
	})
	return err
}

// DeleteUnusedVolume deletes a volume without allocations or group claims. With force it deletes the claims too, and removes
// the record even if the plugin fails. DeleteUnusedVolume waits for RestoreVolumesAndPlugins. The plugin call continues when
// ctx ends.
func (m *Manager) DeleteUnusedVolume(ctx context.Context, namespace, volumeID string, force bool) error {
	if err := m.waitRestored(ctx); err != nil {
		return err
	}
	if err := m.lockOperation(ctx); err != nil {
		return err
	}
	defer m.unlockOperation()
	ctx = context.WithoutCancel(ctx)
	var next state.HostVolume
	point := failpoint.EnterStep(failpoint.StepVolumeDeleteRecord)
	_, err := m.config.Store.Update(ctx, func(tx *store.Txn) error {
		stored := tx.HostVolume(nil, volumeID)
		if stored == nil || stored.Volume.Namespace != namespace {
			return ErrNotFound
		}
		var users []string
		for _, a := range AllocsUsingVolume(tx.Reader, nil, stored.Volume) {
			users = append(users, a.ID)
		}
		if len(users) > 0 {
			return &RequestError{fmt.Sprintf("volume %s in use by allocations: [%s]", volumeID, strings.Join(users, " "))}
		}
		for _, c := range tx.VolumeClaims(nil) {
			if c.VolumeID != volumeID {
				continue
			}
			if !force {
				return &RequestError{fmt.Sprintf("volume %s is claimed by the group %q of job %q: delete the claim %s, or write -force", volumeID, c.TaskGroupName, c.JobID, c.ID)}
			}
			tx.DeleteVolumeClaim(c.ID)
		}
		volume := *stored.Volume
		volume.State, volume.ModifyTime = api.HostVolumeStateUnavailable, time.Now().UnixNano()
		next = state.HostVolume{Volume: &volume, PendingOperation: state.HostVolumeDelete}
		tx.PutHostVolume(&next)
		return nil
	})
	point.Leave()
	if err != nil {
		return err
	}
	defer m.config.OnVolumesOrPluginsChange()
	return m.callDeleteAndRemoveRecord(ctx, &next, force)
}

// callDeleteAndRemoveRecord calls delete on a volume's plugin, and removes the record. If the plugin fails and force is false,
// the record stays with the pending operation, and the volume is unavailable.
func (m *Manager) callDeleteAndRemoveRecord(ctx context.Context, v *state.HostVolume, force bool) error {
	err := m.callPluginDelete(ctx, v)
	if err != nil && !force {
		return errors.Join(err, m.updateVolumeRecordIfChanged(ctx, v, func(next *state.HostVolume) {
			next.PendingOperation, next.Volume.State = state.HostVolumeDelete, api.HostVolumeStateUnavailable
		}))
	}
	if err != nil {
		m.config.Logger.Warn("host volume forgotten although its plugin has not deleted it", "volume", v.Volume.Name, "volume_id", v.Volume.ID, "path", v.Volume.HostPath, "error", err)
	}
	point := failpoint.EnterStep(failpoint.StepVolumeForget)
	_, err = m.config.Store.Update(ctx, func(tx *store.Txn) error {
		tx.DeleteHostVolume(v.Volume.ID)
		return nil
	})
	point.Leave()
	return err
}

func (m *Manager) callPluginDelete(ctx context.Context, v *state.HostVolume) error {
	if v.Volume.PluginID == "" {
		return nil // the operator has made the directory
	}
	p, err := m.findPluginByName(v.Volume.PluginID)
	if err != nil {
		return err
	}
	calling, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	point := failpoint.EnterStep(failpoint.StepVolumeDelete)
	err = p.delete(calling, m.newPluginRequest(v))
	point.Leave()
	if err != nil {
		return fmt.Errorf("delete volume %q with plugin %q: %w", v.Volume.Name, v.Volume.PluginID, err)
	}
	return nil
}

// AllocsUsingVolume returns the allocations that request a volume and have not ended, sorted by id.
func AllocsUsingVolume(r store.Reader, ws store.WatchSet, v *api.HostVolume) []*api.Allocation {
	node := r.Node(ws, v.NodeID)
	if node == nil {
		return nil
	}
	facts := model.NodeFactsOf(node)
	var users []*api.Allocation
	for _, a := range r.WithoutEndedEvents().Allocations(ws, "") {
		g := model.FindGroup(a.Job, a.TaskGroup)
		if a.Namespace != v.Namespace || g == nil || len(g.Volumes) == 0 || r.AllocationEnded(a.ID) {
			continue
		}
		if slices.ContainsFunc(model.HostVolumeRequests(g, a.Name, &facts), func(h model.HostVolumeRequest) bool { return h.ResolvedSource == v.Name }) {
			users = append(users, a)
		}
	}
	return users
}

// DeleteClaim deletes a group's claim, so that the group's next allocation can use another volume.
func (m *Manager) DeleteClaim(ctx context.Context, namespace, claimID string) error {
	_, err := m.config.Store.Update(ctx, func(tx *store.Txn) error {
		if !slices.ContainsFunc(tx.VolumeClaims(nil), func(c *api.TaskGroupHostVolumeClaim) bool { return c.ID == claimID && c.Namespace == namespace }) {
			return ErrClaimNotFound
		}
		tx.DeleteVolumeClaim(claimID)
		return nil
	})
	if err == nil {
		m.config.OnVolumesOrPluginsChange()
	}
	return err
}
