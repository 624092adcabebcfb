package scheduler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// volumeNode returns a node with static host volumes.
func volumeNode() PlacementNode {
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
		{"missing", 1, api.VolumeRequest{Source: "no"}, `volume "v": this node has no host volume "no", only data, each[0], each[1], fixed: name an existing directory in a host_volume block of the agent's configuration`},
		{"source in the metadata of the node", 1, api.VolumeRequest{Source: "${meta.volume}"}, ""},
		{"source in missing metadata", 1, api.VolumeRequest{Source: "${meta.no}"}, `volume "v": the source "${meta.no}" is not set on this node`},
		{"one volume for each allocation", 2, api.VolumeRequest{Source: "each", PerAlloc: true}, ""},
		{"too few volumes for the allocations", 3, api.VolumeRequest{Source: "each", PerAlloc: true}, `volume "v": this node has no host volume "each[2]"`},
		{"one volume for each allocation, none with an index", 1, api.VolumeRequest{Source: "data", PerAlloc: true}, `volume "v": this node has no host volume "data[0]"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := jobWithVolume(c.count, c.request).job
			_, err := PlaceOnEmptyNode(job, volumeNode(), testEnv())
			got := strings.TrimPrefix(fmt.Sprint(err), `group "g": `)
			if err == nil {
				got = ""
			}
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			// The same requests are unmet for a client that asks which parts of the file do not fit.
			node := volumeNode()
			unmet := node.UnmetRequirements(job)
			if (len(unmet) == 0) != (c.want == "") || len(unmet) > 0 && strings.Join(unmet[0].Path, " ") != "group g volume v" {
				t.Errorf("unmet constraints: %v", unmet)
			}
		})
	}
}

// dynamicVolumes adds a dynamic volume "dyn" with the access modes to a node, and returns the state.
func dynamicVolumes(node *PlacementNode, modes ...string) *HostVolumeState {
	v := &api.HostVolume{ID: "id1", Name: "dyn", Namespace: "default", State: api.HostVolumeStateReady}
	for _, mode := range modes {
		v.RequestedCapabilities = append(v.RequestedCapabilities, &api.HostVolumeCapability{AccessMode: api.HostVolumeAccessMode(mode), AttachmentMode: "file-system"})
	}
	node.HostVolumes["dyn"] = &api.HostVolumeInfo{ID: "id1", Path: "/dyn"}
	return &HostVolumeState{volumesByID: map[string]*state.HostVolume{"id1": {Volume: v}}}
}

// A client validating a job has the node, and not the state of its dynamic volumes.
func TestPlaceOnEmptyNodeAcceptsDynamicVolumes(t *testing.T) {
	node := volumeNode()
	dynamicVolumes(&node)
	job := jobWithVolume(1, api.VolumeRequest{Source: "dyn", AccessMode: model.SingleNodeWriter, Sticky: true}).job
	if _, err := PlaceOnEmptyNode(job, node, testEnv()); err != nil {
		t.Error(err)
	}
	delete(node.HostVolumes, "dyn")
	if _, err := PlaceOnEmptyNode(job, node, testEnv()); err == nil || !strings.Contains(err.Error(), "dyn") {
		t.Errorf("without the volume: %v", err)
	}
}

func TestVolumeAccessModes(t *testing.T) {
	const reader, writer, single, multi = model.SingleNodeReader, model.SingleNodeWriter, model.SingleNodeSingleWriter, model.SingleNodeMultiWriter
	request := func(mode string, readOnly bool) api.VolumeRequest {
		return api.VolumeRequest{Source: "dyn", AccessMode: mode, ReadOnly: readOnly}
	}
	for _, c := range []struct {
		name          string
		modes         []string
		first, second api.VolumeRequest
		want          string // part of the second request's error; empty if both are placed
	}{
		{"writers", []string{writer}, request("", false), request(writer, false), ""},
		{"many writers", []string{multi}, request(multi, false), request(multi, false), ""},
		{"second single writer", []string{single}, request(single, false), request(single, false), `has a single writer, and allocation "j1.g[0]" of job "j1" can write to it`},
		{"second single writer without a mode in the job", []string{single}, request("", false), request("", false), "has a single writer"},
		{"reader beside a single writer", []string{single}, request(single, false), request(single, true), ""},
		{"single writer beside readers", []string{single}, request(single, true), request(single, false), ""},
		{"other writer beside a single writer", []string{single, multi}, request(single, false), request(multi, false), "has a single writer"},
		{"single writer beside another writer", []string{single, multi}, request(multi, false), request(single, false), "has a single writer"},
		{"mode that the volume lacks", []string{writer, reader}, request("", true), request(multi, false), `does not have the access mode and attachment mode of the request: it has single-node-writer with file-system, single-node-reader-only with file-system`},
		{"writer of a volume for readers", []string{reader}, request("", true), request("", false), "it has single-node-reader-only with file-system"},
		{"attachment mode", []string{writer}, request("", false), api.VolumeRequest{Source: "dyn", AttachmentMode: "block-device"}, "it has single-node-writer with file-system"},
		{"single writer of a volume of the configuration", nil, api.VolumeRequest{Source: "data", AccessMode: single}, api.VolumeRequest{Source: "data"}, "has a single writer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := volumeNode()
			volumes, usage, env := dynamicVolumes(&node, c.modes...), NewEmptyNodeUsage(node), testEnv()
			place := func(id string, v api.VolumeRequest) (*api.Allocation, error) {
				f := jobWithVolume(1, v)
				f.job.ID = &id
				p := newAllocPlacer(f.job, node, env, usage)
				p.volumes = volumes
				return p.createAndReserveAlloc(f.group, id+".g[0]")
			}
			first, err := place("j1", c.first)
			if err != nil {
				t.Fatal(err)
			}
			_, err = place("j2", c.second)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if m := placementMetric(err, first.Job, node); m.ConstraintFiltered["missing compatible host volumes"] != 1 {
				t.Errorf("metric %+v", m)
			}
			if !strings.Contains(c.want, "single writer") {
				return
			}
			// The writer's replacement may write, and after its end another job.
			stopped := *first
			stopped.DesiredStatus, stopped.AllocModifyIndex = api.AllocDesiredStatusStop, 5
			usage.PutAlloc(&stopped)
			if _, err := place("j2", c.second); err == nil {
				t.Error("the volume is free while the writer stops")
			}
			replacement, err := place("j1", c.first)
			if err != nil {
				t.Fatalf("replacement: %v", err)
			}
			usage.RemoveAlloc(&stopped)
			usage = usage.Clone()
			if _, err := place("j2", c.second); err == nil {
				t.Error("the volume is free while the replacement runs")
			}
			usage.RemoveAlloc(replacement)
			if _, err := place("j2", c.second); err != nil {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

func TestVolumeOfAnotherNamespaceOrState(t *testing.T) {
	for want, edit := range map[string]func(*state.HostVolume){
		`the host volume "dyn" belongs to the namespace "other"`: func(v *state.HostVolume) { v.Volume.Namespace = "other" },
		`the host volume "dyn" (id1) is not ready`:               func(v *state.HostVolume) { v.Volume.State = api.HostVolumeStateUnavailable },
	} {
		node := volumeNode()
		volumes := dynamicVolumes(&node, model.SingleNodeWriter)
		edit(volumes.volumesByID["id1"])
		f := jobWithVolume(1, api.VolumeRequest{Source: "dyn"})
		p := newAllocPlacer(f.job, node, testEnv(), NewEmptyNodeUsage(node))
		p.volumes = volumes
		if _, err := p.createAndReserveAlloc(f.group, "j.g[0]"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A group with a sticky request claims the volume with its first allocation, and is not placed with another volume of the same
// name.
func TestStickyVolumes(t *testing.T) {
	p := newPlanCase("service", func(f *jobFixture) {
		f.group.Volumes = map[string]*api.VolumeRequest{"v": {Type: "host", Source: "dyn", Sticky: true}}
	})
	p.input.Node = volumeNode()
	p.input.Volumes = dynamicVolumes(&p.input.Node, model.SingleNodeWriter)
	p.input.NodeUsage = NewEmptyNodeUsage(p.input.Node)
	out := Plan(p.input)
	if len(out.PlacedAllocs) != 2 || len(out.NewVolumeClaims) != 1 {
		t.Fatalf("%d allocations, claims %+v", len(out.PlacedAllocs), out.NewVolumeClaims)
	}
	claim := out.NewVolumeClaims[0]
	if claim.ID == "" || claim.VolumeID != "id1" || claim.VolumeName != "dyn" || claim.AllocID != out.PlacedAllocs[0].ID || claim.JobID != *p.input.Job.ID || claim.TaskGroupName != "g" || claim.Namespace != "default" {
		t.Errorf("claim %+v", claim)
	}

	p.input.Volumes.storedClaims, p.input.Volumes.newClaims = out.NewVolumeClaims, nil
	p.input.NodeUsage = NewEmptyNodeUsage(p.input.Node)
	if again := Plan(p.input); len(again.PlacedAllocs) != 2 || len(again.NewVolumeClaims) != 0 {
		t.Errorf("with the claim: %d allocations, claims %+v", len(again.PlacedAllocs), again.NewVolumeClaims)
	}
	other := *claim
	other.VolumeID = "id0"
	p.input.Volumes.storedClaims = []*api.TaskGroupHostVolumeClaim{&other}
	p.input.NodeUsage = NewEmptyNodeUsage(p.input.Node)
	out = Plan(p.input)
	if m := out.ProcessedEval.FailedTGAllocs["g"]; len(out.PlacedAllocs) != 0 || m == nil || m.ConstraintFiltered["missing compatible host volumes"] == 0 {
		t.Errorf("with the claim of another volume: %d allocations, %+v", len(out.PlacedAllocs), m)
	}
}
