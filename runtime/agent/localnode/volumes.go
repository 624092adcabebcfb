package localnode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/volumes"
)

// VolumeManager returns the dynamic host volume manager, nil if there is none.
func (n *Node) VolumeManager() *volumes.Manager { return n.volumes }

// HostVolumes returns the host volumes by name, including those with missing paths. A configured volume hides a dynamic host
// volume with the same name.
func (n *Node) HostVolumes() map[string]*api.HostVolumeInfo {
	all := volumes.ReadyVolumeByName(n.config.Store.Snapshot().Reader)
	maps.Copy(all, n.currentSettings().HostVolumes)
	return all
}

// hasConfiguredVolume reports whether the configuration has a host volume with the name.
func (n *Node) hasConfiguredVolume(name string) bool {
	return n.currentSettings().HostVolumes[name] != nil
}

// FindHostVolume implements builtinhooks.FindVolumeFunc. The path in the result has no symbolic links, and no other user and no
// task with another volume can replace it.
func (n *Node) FindHostVolume(ctx context.Context, name string) (found *api.HostVolumeInfo, allowsBidirectional bool, err error) {
	settings := n.currentSettings()
	v, options, parent := settings.HostVolumes[name], settings.HostVolumeOptions[name], ""
	if v == nil {
		if v, err = findDirOfAlloc(settings, name); err != nil {
			return nil, false, fmt.Errorf("host volume %q: %w", name, err)
		}
		if v != nil {
			parent, _ = model.CutAllocIndex(name)
			options = settings.HostVolumeOptions[parent]
		}
	} else if options.PerAlloc {
		return nil, false, fmt.Errorf("host volume %q: only its directories for allocations are mounted: write per_alloc = true in the volume block", name)
	}
	if v == nil && n.volumes != nil {
		if v, err = n.volumes.FindReadyVolume(ctx, name); err != nil {
			return nil, false, err
		}
	}
	if v == nil {
		return nil, false, nil
	}
	location, err := safepath.Locate(v.Path)
	if err == nil {
		all := n.HostVolumes()
		delete(all, parent) // no task has it
		err = checkNotBelowWritableVolume(location, all, n.volumePathResolver.resolvePathsWithTimeout(volumePaths(all)))
	}
	if err != nil {
		return nil, false, fmt.Errorf("host volume %q: %w", name, err)
	}
	located := *v
	located.Path = location.Path
	return &located, options.Bidirectional, nil
}

// findDirOfAlloc returns the directory with this name below the host volume whose directories are mounted, such as data[0] below
// data, nil if there is no such volume. It makes a missing directory with the mode of the volume.
func findDirOfAlloc(s Settings, name string) (*api.HostVolumeInfo, error) {
	parent, ok := model.CutAllocIndex(name)
	if !ok || s.HostVolumes[parent] == nil || !s.HostVolumeOptions[parent].PerAlloc {
		return nil, nil
	}
	v := *s.HostVolumes[parent]
	location, err := safepath.Locate(v.Path)
	if err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(location.Path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	v.Path = filepath.Join(location.Path, name)
	info, err := dir.Lstat(name)
	switch {
	case err == nil && !info.IsDir():
		return nil, fmt.Errorf("%s is no directory: a job that had the volume can have made it", v.Path)
	case err == nil || v.ReadOnly:
		return &v, err
	}
	if info, err = dir.Stat("."); err == nil {
		err = dir.Mkdir(name, info.Mode().Perm())
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // another task of the allocation can have made it
		return nil, err
	}
	return &v, dir.Chmod(name, info.Mode().Perm()) // independent of the umask
}

// checkNotBelowWritableVolume returns an error if a location is below a volume that tasks can write to: a task could replace it,
// also if the directories between them belong to root, because a task in a container can be root.
func checkNotBelowWritableVolume(l *safepath.Location, volumes map[string]*api.HostVolumeInfo, resultByPath map[string]pathResult) error {
	for _, name := range slices.Sorted(maps.Keys(volumes)) {
		v := volumes[name]
		below := strings.HasPrefix(l.Path, filepath.Clean(v.Path)+"/") // for a volume on a file system that does not answer
		if other := resultByPath[v.Path].location; other != nil {
			below = l.IsBelow(other)
		}
		if below && !v.ReadOnly {
			return fmt.Errorf("%s is below the host volume %q, whose tasks could replace it: give it a directory that is in no other volume, or write read_only = true in the host_volume block %q", l.Path, name, name)
		}
	}
	return nil
}

func volumePaths(volumes map[string]*api.HostVolumeInfo) []string {
	var paths []string
	for _, v := range volumes {
		paths = append(paths, v.Path)
	}
	return paths
}

// notifyVolumesChanged updates the node record after dynamic host volumes or their plugins have changed. It does not block.
func (n *Node) notifyVolumesChanged() {
	n.notifyStored() // called here too, because a volume's changed capabilities do not change the record
	n.triggerRecordUpdate()
}

// usableHostVolumes returns the host volumes for which FindHostVolume does not fail. It logs the error for each other volume
// once. It waits for pathTimeout at most, because an unresponsive file system must not delay node updates. When the file system
// answers later, pathResolver triggers another update.
func (n *Node) usableHostVolumes() map[string]*api.HostVolumeInfo {
	all := n.HostVolumes()
	results := n.volumePathResolver.resolvePathsWithTimeout(volumePaths(all))
	found := make(map[string]*api.HostVolumeInfo, len(all))
	errs := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		err := results[v.Path].unusableReason
		if err == nil {
			err = checkNotBelowWritableVolume(results[v.Path].location, all, results)
		}
		if err != nil {
			errs[name] = err.Error()
			switch {
			case n.lastLoggedErrorByVolume[name] == errs[name]:
			case errors.Is(err, errPathTimeout):
				n.config.Logger.Warn("host volume is not offered to jobs until its file system answers", "volume", name, "path", v.Path, "error", err)
			default:
				n.config.Logger.Warn("host volume is not offered to jobs until its path is usable and the configuration is loaded again", "volume", name, "error", err)
			}
			continue
		}
		found[name] = v
	}
	n.lastLoggedErrorByVolume = errs
	return found
}
