package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// testManager is a Manager on a state file, which can be replaced as by the next agent.
type testManager struct {
	*Manager
	t      *testing.T
	config Config
}

func newTestManager(t *testing.T) *testManager {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(dir, "state.db"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	m := &testManager{t: t, config: Config{
		Store: s, NodeID: "n", VolumesDir: filepath.Join(dir, "volumes"), Logger: hclog.NewNullLogger(),
		IsVolumeInAgentConfig: func(name string) bool { return name == "static" }, OnVolumesOrPluginsChange: func() {},
	}}
	m.write(func(tx *store.Txn) {
		tx.PutNodeWithStorageEvents(&api.Node{ID: "n", NodePool: "default", Meta: map[string]string{"disk": "ssd"}})
	})
	m.nextAgent()
	return m
}

func (m *testManager) write(edit func(*store.Txn)) {
	m.t.Helper()
	if _, err := m.config.Store.Update(m.t.Context(), func(tx *store.Txn) error { edit(tx); return nil }); err != nil {
		m.t.Fatal(err)
	}
}

func (m *testManager) nextAgent() {
	m.Manager = New(m.config)
	m.RestoreVolumesAndPlugins(m.t.Context())
}

func (m *testManager) mustCreate(v api.HostVolume) *api.HostVolume {
	m.t.Helper()
	created, err := m.CreateOrChangeVolume(m.t.Context(), &v)
	if err != nil {
		m.t.Fatal(err)
	}
	return created
}

func (m *testManager) stored(id string) *state.HostVolume {
	return m.config.Store.Snapshot().HostVolume(nil, id)
}

func TestMkdirVolume(t *testing.T) {
	m := newTestManager(t)
	v := m.mustCreate(api.HostVolume{Name: "data", Parameters: map[string]string{"mode": "0750"}})
	info, err := os.Stat(v.HostPath)
	switch {
	case err != nil || !info.IsDir() || info.Mode().Perm() != 0o750:
		t.Fatalf("%v, %v", info, err)
	case v.HostPath != filepath.Join(m.config.VolumesDir, v.ID) || v.State != api.HostVolumeStateReady || v.PluginID != "mkdir" || v.NodeID != "n" || v.NodePool != "default" || v.Namespace != "default":
		t.Errorf("%+v", v)
	case *v.RequestedCapabilities[0] != api.HostVolumeCapability{AttachmentMode: "file-system", AccessMode: "single-node-writer"}:
		t.Errorf("capability %+v", v.RequestedCapabilities[0])
	}
	if parent, err := os.Stat(m.config.VolumesDir); err != nil || parent.Mode().Perm() != 0o700 {
		t.Errorf("directory of the volumes: %v, %v", parent, err)
	}
	if found, err := m.FindReadyVolume(t.Context(), "data"); err != nil || found == nil || found.Path != v.HostPath || found.ID != v.ID {
		t.Errorf("found %+v, %v", found, err)
	}

	// A change by the id keeps the directory, with the mode that the operator has set since.
	if err := os.Chmod(v.HostPath, 0o777); err != nil {
		t.Fatal(err)
	}
	changed := m.mustCreate(api.HostVolume{ID: v.ID, Name: "data", RequestedCapabilities: []*api.HostVolumeCapability{{AccessMode: "single-node-multi-writer"}}})
	if info, err := os.Stat(changed.HostPath); err != nil || info.Mode().Perm() != 0o777 || changed.HostPath != v.HostPath || changed.RequestedCapabilities[0].AccessMode != "single-node-multi-writer" {
		t.Errorf("changed: %+v, %v, %v", changed, info, err)
	}

	outside := filepath.Join(t.TempDir(), "kept")
	if err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Symlink(filepath.Dir(outside), filepath.Join(v.HostPath, "link")),
		os.MkdirAll(filepath.Join(v.HostPath, strings.Repeat("d/", 300)), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(v.HostPath); !errors.Is(err, os.ErrNotExist) || m.stored(v.ID) != nil {
		t.Errorf("after the deletion: %v, %v", err, m.stored(v.ID))
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("the deletion has followed a link: %v", err)
	}
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, false); !errors.Is(err, ErrNotFound) {
		t.Errorf("second deletion: %v", err)
	}
}

func TestMkdirSetsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the owner of a directory")
	}
	m := newTestManager(t)
	v := m.mustCreate(api.HostVolume{Name: "data", Parameters: map[string]string{"uid": "1234", "gid": "4321", "mode": "2770"}})
	info, err := os.Stat(v.HostPath)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 4321 || st.Mode&0o7777 != 0o2770 {
		t.Errorf("uid %d, gid %d, mode %o", st.Uid, st.Gid, st.Mode)
	}
}

// A mount in a volume, for example the operator's disk, is not entered and not unmounted.
func TestDeleteKeepsMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	m := newTestManager(t)
	v := m.mustCreate(api.HostVolume{Name: "data"})
	mounted, source := filepath.Join(v.HostPath, "a", "mounted"), t.TempDir()
	if err := errors.Join(os.MkdirAll(mounted, 0o700), os.WriteFile(filepath.Join(source, "kept"), nil, 0o600), syscall.Mount(source, mounted, "", syscall.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	unmount := func() { _ = syscall.Unmount(mounted, syscall.MNT_DETACH) }
	t.Cleanup(unmount)
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, false); err == nil || !strings.Contains(err.Error(), mounted) {
		t.Errorf("deletion: %v", err)
	}
	if _, err := os.Stat(filepath.Join(mounted, "kept")); err != nil {
		t.Errorf("file of the mount: %v", err)
	}
	if s := m.stored(v.ID); s == nil || s.IsReady() || s.PendingOperation != state.HostVolumeDelete {
		t.Errorf("record %+v", s)
	}
	if _, err := m.CreateOrChangeVolume(t.Context(), &api.HostVolume{ID: v.ID, Name: "data"}); err == nil || !strings.Contains(err.Error(), "has failed: delete the volume") {
		t.Errorf("change of a volume that is being deleted: %v", err)
	}
	unmount()
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, false); err != nil || m.stored(v.ID) != nil {
		t.Errorf("second deletion: %v", err)
	}
}

func TestInvalidVolumes(t *testing.T) {
	m := newTestManager(t)
	existing := m.mustCreate(api.HostVolume{Name: "data"})
	for _, c := range []struct {
		volume api.HostVolume
		want   string
	}{
		{api.HostVolume{}, "missing name"},
		{api.HostVolume{Name: "a\x00b"}, "has control characters"},
		{api.HostVolume{Name: "data"}, "has the name \"data\": choose another name"},
		{api.HostVolume{Name: "static"}, "a host_volume block of the agent's configuration has the name"},
		{api.HostVolume{Name: "x", PluginID: "../x"}, `this node has no host volume plugin "../x", only mkdir`},
		{api.HostVolume{Name: "x", HostPath: "/srv"}, "host_path cannot be set"},
		{api.HostVolume{Name: "x", NodeID: "other"}, `node "other" does not exist`},
		{api.HostVolume{Name: "x", NodePool: "gpu"}, `this node is in pool "default"`},
		{api.HostVolume{Name: "x", Namespace: "other"}, `namespace "other" does not exist`},
		{api.HostVolume{Name: "x", ID: "../../etc"}, "is not the id of a volume"},
		{api.HostVolume{Name: "x", ID: "6c7d4bcc-7b7a-4a2b-9c7e-000000000000"}, "does not exist: remove the id"},
		{api.HostVolume{Name: "other", ID: existing.ID}, "cannot change its namespace, name, plugin or host path"},
		{api.HostVolume{Name: "x", RequestedCapacityMinBytes: 2, RequestedCapacityMaxBytes: 1}, "capacity_max (1) must be larger than capacity_min (2)"},
		{api.HostVolume{Name: "x", RequestedCapacityMinBytes: -1}, "must not be negative"},
		{api.HostVolume{Name: "x", RequestedCapabilities: []*api.HostVolumeCapability{{AccessMode: "multi-node-reader-only"}}}, `invalid access mode: "multi-node-reader-only"`},
		{api.HostVolume{Name: "x", RequestedCapabilities: []*api.HostVolumeCapability{{AttachmentMode: "tape"}}}, `invalid attachment mode: "tape"`},
		{api.HostVolume{Name: "x", RequestedCapabilities: []*api.HostVolumeCapability{nil}}, "must not be null"},
		{api.HostVolume{Name: "x", Constraints: []*api.Constraint{api.NewConstraint("${meta.disk}", "=", "tape")}}, `does not satisfy the constraint "${meta.disk} = tape"`},
		{api.HostVolume{Name: "x", Parameters: map[string]string{"mode": "0999"}}, "must be an octal mode"},
		{api.HostVolume{Name: "x", Parameters: map[string]string{"uid": "-1"}}, "must be a number"},
		{api.HostVolume{Name: "x", Parameters: map[string]string{"gid": "4294967295"}}, "must be a number"},
		{api.HostVolume{Name: "x", Parameters: map[string]string{"modus": "0700"}}, "the plugin mkdir has mode, uid and gid"},
	} {
		var invalid *RequestError
		if _, err := m.CreateOrChangeVolume(t.Context(), &c.volume); err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &invalid) {
			t.Errorf("%+v: %v, want %q", c.volume, err, c.want)
		}
	}
	if entries, err := os.ReadDir(m.config.VolumesDir); err != nil || len(entries) != 1 {
		t.Errorf("directories %v, %v", entries, err)
	}
}

func TestRegister(t *testing.T) {
	m := newTestManager(t)
	dir := t.TempDir()
	for path, want := range map[string]string{"": "must be the absolute path", "data": "must be the absolute path", dir + "/no": "no such file"} {
		if _, err := m.RegisterOrChangeVolume(t.Context(), &api.HostVolume{Name: "data", HostPath: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", path, err)
		}
	}
	v, err := m.RegisterOrChangeVolume(t.Context(), &api.HostVolume{Name: "data", HostPath: dir + "/.", CapacityBytes: 5})
	if err != nil || v.State != api.HostVolumeStateReady || v.HostPath != dir || v.PluginID != "" || v.CapacityBytes != 5 {
		t.Fatalf("%+v, %v", v, err)
	}
	m.nextAgent()
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, false); err != nil || m.stored(v.ID) != nil {
		t.Errorf("deletion: %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the directory of the operator: %v", err)
	}
}

func TestVolumeInUseIsNotDeleted(t *testing.T) {
	m := newTestManager(t)
	v := m.mustCreate(api.HostVolume{Name: "data[1]"})
	job := &api.Job{ID: new("j"), Namespace: new("default"), TaskGroups: []*api.TaskGroup{{
		Name: new("g"), Volumes: map[string]*api.VolumeRequest{"v": {Type: "host", Source: "data", PerAlloc: true}},
	}}}
	alloc := func(id, name, namespace string) *api.Allocation {
		return &api.Allocation{ID: id, Name: name, Namespace: namespace, JobID: "j", TaskGroup: "g", NodeID: "n", Job: job}
	}
	m.write(func(tx *store.Txn) {
		tx.PutScheduledAllocation(alloc("a0", "j.g[0]", "default"))
		tx.PutScheduledAllocation(alloc("a1", "j.g[1]", "default"))
		tx.PutScheduledAllocation(alloc("a2", "j.g[1]", "other"))
		tx.PutVolumeClaim(&api.TaskGroupHostVolumeClaim{ID: "c", JobID: "j", TaskGroupName: "g", VolumeID: v.ID})
	})
	if err := m.DeleteUnusedVolume(t.Context(), "other", v.ID, true); !errors.Is(err, ErrNotFound) {
		t.Errorf("deletion from another namespace: %v", err)
	}
	for _, force := range []bool{false, true} {
		if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, force); err == nil || err.Error() != fmt.Sprintf("volume %s in use by allocations: [a1]", v.ID) {
			t.Errorf("force %v: %v", force, err)
		}
	}
	m.write(func(tx *store.Txn) { tx.DeleteAllocationAndQueueRemoval("a1") })
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, false); err == nil || !strings.Contains(err.Error(), `is claimed by the group "g" of job "j": delete the claim c, or write -force`) {
		t.Errorf("claimed: %v", err)
	}
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, true); err != nil || len(m.config.Store.Snapshot().VolumeClaims(nil)) != 0 {
		t.Errorf("deletion with force: %v", err)
	}
}

// The next agent completes the operation during which an agent died.
func TestInterruptedOperationsAreCompleted(t *testing.T) {
	m := newTestManager(t)
	ids := map[string]string{}
	for i, name := range []string{"create", "created", "delete", "deleting", "deleted", "ready", "lost"} {
		id := fmt.Sprintf("6c7d4bcc-7b7a-4a2b-9c7e-00000000000%d", i)
		ids[name] = id
		path := filepath.Join(m.config.VolumesDir, id)
		v := &state.HostVolume{Volume: &api.HostVolume{ID: id, Name: name, Namespace: "default", PluginID: "mkdir", NodeID: "n", State: api.HostVolumeStatePending}}
		switch name {
		case "create", "created":
			v.PendingOperation = state.HostVolumeCreate
		case "ready", "lost":
			v.Volume.State, v.Volume.HostPath = api.HostVolumeStateReady, path
		default:
			v.PendingOperation, v.Volume.HostPath, v.Volume.State = state.HostVolumeDelete, path, api.HostVolumeStateUnavailable
		}
		if name != "create" && name != "deleted" && name != "lost" {
			if err := os.MkdirAll(filepath.Join(path, "file"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		m.write(func(tx *store.Txn) { tx.PutHostVolume(v) })
	}
	m.nextAgent()
	for name, want := range map[string]bool{"create": true, "created": true, "delete": false, "deleting": false, "deleted": false, "ready": true, "lost": true} {
		v := m.stored(ids[name])
		_, err := os.Stat(filepath.Join(m.config.VolumesDir, ids[name]))
		if want && (v == nil || !v.IsReady() || v.PendingOperation != "" || v.Volume.HostPath == "" || err != nil) || !want && (v != nil || err == nil) {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}

// A task waits for an earlier agent's volumes until Restore has created them again.
func TestFindWaitsForRestore(t *testing.T) {
	m := newTestManager(t)
	v := m.mustCreate(api.HostVolume{Name: "data"})
	m.Manager = New(m.config)
	if found, err := m.FindReadyVolume(t.Context(), "other"); found != nil || err != nil {
		t.Errorf("unknown volume: %v, %v", found, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := m.FindReadyVolume(ctx, "data"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before Restore: %v", err)
	}
	m.RestoreVolumesAndPlugins(t.Context())
	if found, err := m.FindReadyVolume(t.Context(), "data"); err != nil || found.ID != v.ID {
		t.Errorf("after Restore: %v, %v", found, err)
	}
}

// A directory that other accounts can change is refused, and so is a link in place of a volume.
func TestUnsafeDirectoryIsRefused(t *testing.T) {
	m := newTestManager(t)
	v := m.mustCreate(api.HostVolume{Name: "data"})
	target := t.TempDir()
	if err := errors.Join(os.Remove(v.HostPath), os.Symlink(target, v.HostPath)); err != nil {
		t.Fatal(err)
	}
	m.nextAgent()
	if s := m.stored(v.ID); s.IsReady() {
		t.Errorf("a link is used as the volume: %+v", s.Volume)
	}
	if err := os.Chmod(m.config.VolumesDir, 0o777); err != nil {
		t.Fatal(err)
	}
	if created, err := m.CreateOrChangeVolume(t.Context(), &api.HostVolume{Name: "x"}); err == nil || !strings.Contains(err.Error(), "0777") {
		t.Errorf("%+v, %v", created, err)
	}
}
