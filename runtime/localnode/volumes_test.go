package localnode

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// The node offers the volumes whose paths exist. A volume of the configuration hides a dynamic one of the same name.
func TestHostVolumesOfTheNode(t *testing.T) {
	s, dir := openStore(t), t.TempDir()
	later := filepath.Join(dir, "later")
	n := New(Config{ID: "n", Store: s, Logger: hclog.NewNullLogger(), Settings: Settings{HostVolumes: map[string]*api.HostVolumeInfo{
		"static": {Path: dir, ReadOnly: true}, "later": {Path: later},
	}}})
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error {
		for id, name := range map[string]string{"1": "static", "2": "dynamic", "3": "pending"} {
			v := &api.HostVolume{ID: id, Name: name, HostPath: filepath.Join(dir, "."), State: api.HostVolumeStateReady}
			if name == "pending" {
				v.State = api.HostVolumeStatePending
			}
			tx.PutHostVolume(&state.HostVolume{Volume: v})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	found := n.checkHostVolumes()
	if len(found) != 2 || found["static"] == nil || found["static"].ID != "" || !found["static"].ReadOnly || found["dynamic"] == nil || found["dynamic"].ID != "2" {
		t.Errorf("volumes %+v", found)
	}
	if err := os.Mkdir(later, 0o700); err != nil {
		t.Fatal(err)
	}
	if found := n.checkHostVolumes(); len(found) != 3 || found["later"] == nil {
		t.Errorf("after the path was made: %+v", found)
	}
	if v, err := n.FindHostVolume(t.Context(), "later"); err != nil || v == nil || v.Path != later {
		t.Errorf("%+v, %v", v, err)
	}
	if !n.HasConfiguredVolume("later") || n.HasConfiguredVolume("dynamic") {
		t.Error("names of the configuration")
	}
}
