package builtinhooks

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func TestVolumesMountsHostVolumes(t *testing.T) {
	dir := t.TempDir()
	volumes := map[string]*api.HostVolumeInfo{
		"rw": {Path: dir}, "shared": {Path: dir},
		"ro": {Path: dir, ReadOnly: true},
	}
	request := func(source string, readOnly bool) model.HostVolumeRequest {
		return model.HostVolumeRequest{VolumeRequest: &api.VolumeRequest{ReadOnly: readOnly}, Label: "v", ResolvedSource: source}
	}
	text := func(s string) *string { return &s }
	for _, c := range []struct {
		name    string
		request model.HostVolumeRequest
		mount   *api.VolumeMount
		want    driver.Mount
		err     string
	}{
		{"writable", request("rw", false), &api.VolumeMount{Volume: text("v"), Destination: text("$d"), PropagationMode: text("private")},
			driver.Mount{TaskPath: "/data", HostPath: dir, PropagationMode: "private", RequestName: "rw"}, ""},
		{"all attributes", request("rw", false), &api.VolumeMount{Volume: text("v"), Destination: text("/x"), ReadOnly: new(true), PropagationMode: text("host-to-task"), SELinuxLabel: text("z")},
			driver.Mount{TaskPath: "/x", HostPath: dir, Readonly: true, PropagationMode: "host-to-task", SELinuxLabel: "z", RequestName: "rw"}, ""},
		{"read-only in the volume block", request("rw", true), &api.VolumeMount{Volume: text("v"), Destination: text("/x")}, driver.Mount{TaskPath: "/x", HostPath: dir, Readonly: true, RequestName: "rw"}, ""},
		{"read-only in the configuration", request("ro", true), &api.VolumeMount{Volume: text("v"), Destination: text("/x"), ReadOnly: new(false)}, driver.Mount{TaskPath: "/x", HostPath: dir, Readonly: true, RequestName: "ro"}, ""},

		{"bidirectional", request("shared", false), &api.VolumeMount{Volume: text("v"), Destination: text("/x"), PropagationMode: text("bidirectional")},
			driver.Mount{TaskPath: "/x", HostPath: dir, PropagationMode: "bidirectional", RequestName: "shared"}, ""},

		{"bidirectional without the operator's word", request("rw", false), &api.VolumeMount{Volume: text("v"), Destination: text("/x"), PropagationMode: text("bidirectional")}, driver.Mount{},
			`write allow_bidirectional = true into the block host_volume "rw"`},
		{"become read-only", request("ro", false), &api.VolumeMount{Volume: text("v"), Destination: text("/x")}, driver.Mount{}, `has become read-only on this node`},
		{"removed from the configuration", request("no", false), &api.VolumeMount{Volume: text("v"), Destination: text("/x")}, driver.Mount{}, `this node no longer has the host volume "no"`},
		{"not usable", request("gone", false), &api.VolumeMount{Volume: text("v"), Destination: text("/x")}, driver.Mount{}, `gone: not usable`},
		{"without a destination", request("rw", false), &api.VolumeMount{Volume: text("v")}, driver.Mount{}, `the volume_mount has no destination`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := NewVolumesHook([]*api.VolumeMount{{}, c.mount}, func() []model.HostVolumeRequest { return []model.HostVolumeRequest{c.request} },
				func(_ context.Context, name string) (*api.HostVolumeInfo, bool, error) {
					if name == "gone" {
						return nil, false, errors.New("gone: not usable")
					}
					return volumes[name], name == "shared", nil
				}, func(s string) string { return strings.ReplaceAll(s, "$d", "/data") })
			got, err := h.Prestart(t.Context(), hook.TaskPrestartRequest{})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), `host volume validation error: volume "v": `) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			// The response is not Done: a later task start uses the volume's path at that time.
			if want := (hook.TaskPrestartResponse{Mounts: []driver.Mount{c.want}}); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, %v\nwant %+v", got, err, want)
			}
		})
	}
}
