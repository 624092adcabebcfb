package scheduler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// volumeNode returns a node with static host volumes.
func volumeNode() Node {
	node := testNode()
	node.Meta = map[string]string{"volume": "data"}
	node.HostVolumes = map[string]*api.HostVolumeInfo{
		"data": {Path: "/srv/data"}, "fixed": {Path: "/srv/fixed", ReadOnly: true}, "each[0]": {Path: "/srv/0"}, "each[1]": {Path: "/srv/1"},
	}
	return node
}

func jobWithVolume(count int, v api.VolumeRequest) *jobFixture {
	return newJobFixture(func(f *jobFixture) {
		v.Type = "host"
		f.group.Count = &count
		f.group.Volumes = map[string]*api.VolumeRequest{"v": &v}
	})
}

func TestPlaceVolumes(t *testing.T) {
	for _, c := range []struct {
		name    string
		count   int
		request api.VolumeRequest
		want    string
	}{
		{"found", 1, api.VolumeRequest{Source: "data"}, ""},
		{"shared by allocations", 3, api.VolumeRequest{Source: "data"}, ""},
		{"read-only", 1, api.VolumeRequest{Source: "fixed", ReadOnly: true}, ""},
		{"writable request for a read-only volume", 1, api.VolumeRequest{Source: "fixed"}, `volume "v": the host volume "fixed" is read-only on this node: write read_only = true in the volume block`},
		{"missing", 1, api.VolumeRequest{Source: "no"}, `volume "v": this node has no host volume "no", only data, each[0], each[1], fixed: name its directory in a host_volume block of the agent's configuration`},
		{"source in the metadata of the node", 1, api.VolumeRequest{Source: "${meta.volume}"}, ""},
		{"source in missing metadata", 1, api.VolumeRequest{Source: "${meta.no}"}, `volume "v": the source "${meta.no}" is not set on this node`},
		{"one volume for each allocation", 2, api.VolumeRequest{Source: "each", PerAlloc: true}, ""},
		{"too few volumes for the allocations", 3, api.VolumeRequest{Source: "each", PerAlloc: true}, `volume "v": this node has no host volume "each[2]"`},
		{"one volume for each allocation, none with an index", 1, api.VolumeRequest{Source: "data", PerAlloc: true}, `volume "v": this node has no host volume "data[0]"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := jobWithVolume(c.count, c.request).job
			_, err := Place(job, volumeNode(), testEnv())
			got := strings.TrimPrefix(fmt.Sprint(err), `group "g": `)
			if err == nil {
				got = ""
			}
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			// The same requests are unmet for a client that asks which parts of the file do not fit.
			unmet := UnmetConstraints(job, volumeNode())
			if (len(unmet) == 0) != (c.want == "") || len(unmet) > 0 && strings.Join(unmet[0].Path, " ") != "group g volume v" {
				t.Errorf("unmet constraints: %v", unmet)
			}
		})
	}
}
