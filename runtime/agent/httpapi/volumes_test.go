package httpapi

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/node/resources/volumes"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// The client of Nomad's module creates, reads, lists and deletes volumes and claims.
func TestHostVolumesWithTheClient(t *testing.T) {
	dir := t.TempDir()
	f := newFixture(t, func(c *Config) {
		m := volumes.New(volumes.Config{
			Store: c.Store, NodeID: c.NodeID, VolumesDir: filepath.Join(dir, "volumes"), Logger: hclog.NewNullLogger(),
			IsVolumeInAgentConfig: func(string) bool { return false }, OnVolumesOrPluginsChange: func() {},
		})
		if _, err := c.Store.Update(t.Context(), func(tx *store.Txn) error {
			tx.PutNodeWithStorageEvents(&api.Node{ID: c.NodeID, NodePool: "default"})
			tx.PutNamespace(&api.Namespace{Name: "other"})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		m.RestoreVolumesAndPlugins(t.Context())
		c.Volumes = m
	})
	c, err := api.NewClient(&api.Config{Address: "http://" + f.listen(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	created, _, err := c.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: &api.HostVolume{Name: "data"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	v := created.Volume
	if v.State != api.HostVolumeStateReady || v.HostPath == "" || v.Namespace != "default" || v.CreateIndex == 0 {
		t.Errorf("created %+v", v)
	}
	if _, _, err := c.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: &api.HostVolume{Name: "data"}}, nil); err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), "has the name") {
		t.Errorf("second volume of the name: %v", err)
	}
	if _, _, err := c.HostVolumes().Create(&api.HostVolumeCreateRequest{}, nil); err == nil || !strings.Contains(err.Error(), "missing volume definition") {
		t.Errorf("no volume: %v", err)
	}
	registered, _, err := c.HostVolumes().Register(&api.HostVolumeRegisterRequest{Volume: &api.HostVolume{Name: "here", Namespace: "other", HostPath: dir, NodeID: v.NodeID}}, nil)
	if err != nil || registered.Volume.Namespace != "other" || registered.Volume.HostPath != dir {
		t.Fatalf("registered %+v, %v", registered, err)
	}

	read, query, err := c.HostVolumes().Get(v.ID, nil)
	if err != nil || read.Name != "data" || query.LastIndex != read.ModifyIndex {
		t.Errorf("read %+v, %+v, %v", read, query, err)
	}
	if _, _, err := c.HostVolumes().Get(registered.Volume.ID, nil); err == nil || !strings.Contains(err.Error(), "volume not found") {
		t.Errorf("volume of another namespace: %v", err)
	}
	for _, l := range []struct {
		request *api.HostVolumeListRequest
		query   *api.QueryOptions
		want    int
	}{
		{nil, nil, 1}, {nil, &api.QueryOptions{Namespace: "*"}, 2}, {nil, &api.QueryOptions{Prefix: "da"}, 1}, {nil, &api.QueryOptions{Prefix: v.ID[:4]}, 1}, {nil, &api.QueryOptions{Prefix: strings.ReplaceAll(v.ID, "-", "")}, 1},
		{nil, &api.QueryOptions{Prefix: "x"}, 0}, {&api.HostVolumeListRequest{NodeID: v.NodeID[:8]}, nil, 1}, {&api.HostVolumeListRequest{NodeID: "x"}, nil, 0},
		{&api.HostVolumeListRequest{NodePool: "gpu"}, nil, 0}, {nil, &api.QueryOptions{Filter: `Name == "data"`, Namespace: "*"}, 1},
	} {
		list, _, err := c.HostVolumes().List(l.request, l.query)
		if err != nil || len(list) != l.want {
			t.Errorf("%+v, %+v: %d volumes, %v; want %d", l.request, l.query, len(list), err, l.want)
		}
	}
	if found, _, err := c.Search().PrefixSearch(v.ID[:8], "host_volumes", nil); err != nil || len(found.Matches["host_volumes"]) != 1 {
		t.Errorf("search: %+v, %v", found, err)
	}

	if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutVolumeClaim(&api.TaskGroupHostVolumeClaim{ID: "c1", Namespace: "default", JobID: "j", TaskGroupName: "g", VolumeName: "data", VolumeID: v.ID})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for want, request := range []*api.TaskGroupHostVolumeClaimsListRequest{{JobID: "x"}, {JobID: "j", TaskGroup: "g", VolumeName: "data"}} {
		if claims, _, err := c.TaskGroupHostVolumeClaims().List(request, nil); err != nil || len(claims) != want {
			t.Errorf("%+v: %v, %v", request, claims, err)
		}
	}
	if _, _, err := c.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: v.ID}, nil); err == nil || !strings.Contains(err.Error(), "is claimed by") {
		t.Errorf("deletion of a claimed volume: %v", err)
	}
	if _, err := c.TaskGroupHostVolumeClaims().Delete("c2", nil); err == nil || !strings.Contains(err.Error(), "claim not found") {
		t.Errorf("unknown claim: %v", err)
	}
	if _, err := c.TaskGroupHostVolumeClaims().Delete("c1", nil); err != nil {
		t.Error(err)
	}
	if _, _, err := c.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: v.ID}, nil); err != nil {
		t.Error(err)
	}
	if _, _, err := c.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: v.ID, Force: true}, nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("second deletion: %v", err)
	}
}
