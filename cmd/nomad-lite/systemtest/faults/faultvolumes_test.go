package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// volumeSteps are the steps that only a job with volumes reaches.
var volumeSteps = []failpoint.Step{
	failpoint.StepVolumeRecord, failpoint.StepVolumeCreate, failpoint.StepVolumeReady, failpoint.StepVolumeMounts,
	failpoint.StepVolumeDeleteRecord, failpoint.StepVolumeDelete, failpoint.StepVolumeForget,
}

// mountedVolumeSteps are the steps that are also tested with a job whose task has volumes mounted: the driver mounts them
// when it starts the task, and they are unmounted when the task has ended.
var mountedVolumeSteps = []failpoint.Step{
	failpoint.StepStartTask, failpoint.StepExitObserved, failpoint.StepStopTask, failpoint.StepDestroyTask, failpoint.StepPostrun, failpoint.StepUpdateStop,
}

// faultVolumePlugin is a plugin whose volumes are mounted file systems. The sleeps widen the time in which a volume is
// incomplete. The first call of the operation %[1]q makes the directory %[2]s, and takes seconds, so that it can be killed.
const faultVolumePlugin = `#!/bin/sh
dir=$DHV_VOLUMES_DIR/$DHV_VOLUME_ID
block() { if [ $DHV_OPERATION = %[1]q ] && mkdir %[2]s 2>/dev/null; then sleep 10; fi; }
case $DHV_OPERATION in
fingerprint)
  echo '{"version": "1.0.0"}'
  ;;
create)
  mkdir -p "$dir"
  block
  sleep 0.05
  grep -q " $dir " /proc/self/mountinfo || mount -t tmpfs tmpfs "$dir"
  echo "{\"path\": \"$dir\", \"bytes\": 1000}"
  ;;
delete)
  while umount "$dir" 2>/dev/null; do :; done
  block
  sleep 0.05
  if [ -d "$dir" ]; then rmdir "$dir"; fi
  ;;
esac
`

// The blocks of the group and of the task of a job with volumes.
const (
	groupVolumeBlocks = `
    volume "data" {
      type   = "host"
      source = "data"
      sticky = true
    }
    volume "diary" {
      type   = "host"
      source = "diary"
    }`
	taskVolumeBlocks = `
      volume_mount {
        volume      = "data"
        destination = "/volume"
      }
      volume_mount {
        volume      = "diary"
        destination = %q
      }`
)

// installVolumePlugin installs the plugin of the volumes, and the driver that mounts them.
func (n *faultNode) installVolumePlugin() error {
	dir := filepath.Join(n.dataDir, "host_volume_plugins")
	blocked := ""
	switch {
	case n.fault.victim.name != systemtest.VolumePluginVictim:
	case n.fault.step == failpoint.StepVolumeCreate:
		blocked = "create"
	case n.fault.step == failpoint.StepVolumeDelete:
		blocked = "delete"
	}
	return errors.Join(
		os.Chmod(n.historyDir(), os.ModeSticky|0o777), // the driver runs the task as nobody, who writes the history
		os.MkdirAll(dir, 0o711),
		os.WriteFile(filepath.Join(dir, "mount"), fmt.Appendf(nil, faultVolumePlugin, blocked, n.volumePluginBlockedDir()), 0o755),
		linkProgram("chroot-driver", filepath.Join(n.pluginDir(), "chroot-driver")),
	)
}

// volumePluginBlockedDir returns the directory that the plugin of the volumes makes when it blocks.
func (n *faultNode) volumePluginBlockedDir() string { return filepath.Join(n.dir, "blocked") }

// waitVolumePluginBlocked waits until the plugin of the volumes blocks. A plugin that is killed earlier blocks in its next call.
func (n *faultNode) waitVolumePluginBlocked() {
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(n.volumePluginBlockedDir()); err == nil {
			return
		}
	}
	n.Error("the plugin of the volumes does not block")
}

func (n *faultNode) volumesDir() string { return filepath.Join(n.dataDir, "host_volumes") }

// volumeReport is an agent's report about the volume that the plugin creates.
type volumeReport struct {
	Volumes []*state.HostVolume
	Claims  int
}

func init() {
	programs.KillableAgentCommands["register-volume"] = func(ctx context.Context, a *agent.Agent, path string) any {
		<-a.Node().Registered()
		_, err := a.Node().VolumeManager().RegisterOrChangeVolume(ctx, &api.HostVolume{Name: systemtest.HistoryVolumeName, HostPath: path})
		return fmt.Sprint(err)
	}
	programs.KillableAgentCommands["create-volume"] = func(ctx context.Context, a *agent.Agent, name string) any {
		<-a.Node().Registered()
		_, err := a.Node().VolumeManager().CreateOrChangeVolume(ctx, &api.HostVolume{Name: name, PluginID: "mount"})
		return fmt.Sprint(err)
	}
	programs.KillableAgentCommands["delete-volume"] = func(ctx context.Context, a *agent.Agent, id string) any {
		var err error
		for _, c := range a.Store().Snapshot().VolumeClaims(nil) {
			err = errors.Join(err, a.Node().VolumeManager().DeleteClaim(ctx, c.Namespace, c.ID))
		}
		return fmt.Sprint(errors.Join(err, a.Node().VolumeManager().DeleteUnusedVolume(ctx, api.DefaultNamespace, id, false)))
	}
	programs.KillableAgentCommands["volumes"] = func(_ context.Context, a *agent.Agent, name string) any {
		s := a.Store().Snapshot()
		r := volumeReport{Claims: len(s.VolumeClaims(nil))}
		for _, v := range s.HostVolumes(nil, "") {
			if v.Volume.Name == name {
				r.Volumes = append(r.Volumes, v)
			}
		}
		return r
	}
}

// registerHistoryVolume registers a directory of the node as the volume in which a task writes its history.
func (n *faultNode) registerHistoryVolume() {
	n.Helper()
	var text string
	if n.do("register-volume "+n.historyDir(), &text); text != fmt.Sprint(nil) {
		n.Fatal(text)
	}
}

// createVolume creates the volume. It repeats the request as a client does whose agent has died or whose plugin was killed.
func (n *faultNode) createVolume() {
	n.Helper()
	n.waitVolumes("the volume is created", func(r volumeReport) bool {
		if len(r.Volumes) == 0 {
			var text string
			if n.do("create-volume "+systemtest.FaultVolumeName, &text); text == fmt.Sprint(nil) {
				n.volumeCreated = true
			}
			return false
		}
		if r.Volumes[0].PendingOperation == state.HostVolumeDelete { // the plugin could not delete what its failed call had left
			n.do("delete-volume "+r.Volumes[0].Volume.ID, new(string))
			return false
		}
		n.volumeCreated = n.volumeCreated || r.Volumes[0].IsReady() && r.Volumes[0].PendingOperation == ""
		return n.volumeCreated
	})
	n.checkVolumeMount()
}

// checkVolumeMount checks that the volume exists once and has one file system mounted.
func (n *faultNode) checkVolumeMount() {
	n.Helper()
	entries, err := os.ReadDir(n.volumesDir())
	if err != nil || len(entries) != 1 || n.volumeMountCount() != 1 {
		n.Errorf("I12: the volume has the directories %v and %d mounts: %v", entries, n.volumeMountCount(), err)
	}
}

func (n *faultNode) volumeMountCount() int {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.Fatal(err)
	}
	return strings.Count(string(mounts), " "+n.volumesDir()+"/")
}

// deleteVolume checks that the volume has what each allocation has written, deletes it, and checks that nothing is left.
func (n *faultNode) deleteVolume(allocs ...string) {
	n.Helper()
	n.checkVolumeMount()
	written, _ := filepath.Glob(filepath.Join(n.volumesDir(), "*", "*"))
	for _, id := range allocs {
		if files, _ := filepath.Glob(filepath.Join(n.volumesDir(), "*", id)); len(files) != 1 {
			n.Errorf("I12: what %s has written is lost: the volume has %v", id, written)
		}
	}
	n.volumeCreated = false
	n.waitVolumes("the volume is deleted", func(r volumeReport) bool {
		for _, v := range r.Volumes {
			var text string
			n.do("delete-volume "+v.Volume.ID, &text)
		}
		return len(r.Volumes) == 0 && r.Claims == 0
	})
	if entries, err := os.ReadDir(n.volumesDir()); err != nil || len(entries) != 0 || n.volumeMountCount() != 0 {
		n.Errorf("I12: the deleted volume has left %v and %d mounts: %v", entries, n.volumeMountCount(), err)
	}
}

// waitVolumes requests reports about the volume until ok accepts one.
func (n *faultNode) waitVolumes(what string, ok func(volumeReport) bool) {
	n.Helper()
	var r volumeReport
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		r = volumeReport{}
		n.do("volumes "+systemtest.FaultVolumeName, &r)
		if len(r.Volumes) > 1 || n.volumeCreated && len(r.Volumes) == 0 {
			n.Fatalf("I12: there are %d volumes", len(r.Volumes))
		}
		if ok(r) {
			return
		}
	}
	for _, v := range r.Volumes {
		n.Logf("%+v %s", v.Volume, v.PendingOperation)
	}
	n.Fatalf("I12: %s: not within %v", what, systemtest.WaitTimeout)
}
