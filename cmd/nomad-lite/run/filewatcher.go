package run

import (
	"context"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// watchInterval is the time between two looks at the watched files.
const watchInterval = 200 * time.Millisecond

// fileWatcher detects changes of files and directories, which need not exist.
type fileWatcher struct {
	states map[string]uint64 // last known state of each path
}

// newFileWatcher returns a watcher that compares with the present state of the paths.
func newFileWatcher(paths []string) *fileWatcher {
	w := &fileWatcher{states: make(map[string]uint64)}
	w.add(paths)
	return w
}

// add reads the states of the paths that the watcher does not know.
func (w *fileWatcher) add(paths []string) {
	for _, path := range paths {
		if _, known := w.states[path]; !known {
			w.states[path] = readPathState(path)
		}
	}
}

// wait blocks until paths have changed and the changes have stopped, because an editor can write a file in
// several steps. It returns the changed paths, or nil when ctx ends. The first wait for a path compares with
// its present state.
func (w *fileWatcher) wait(ctx context.Context, paths []string) []string {
	w.add(paths)
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	before := maps.Clone(w.states)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		states := readPathStates(paths)
		changed := changedPaths(w.states, states)
		settled := len(changedPaths(before, states)) == 0
		before = states
		if len(changed) > 0 && settled {
			maps.Copy(w.states, states)
			return changed
		}
	}
}

// changedPaths returns the paths of both maps whose states differ, sorted.
func changedPaths(before, after map[string]uint64) []string {
	var changed []string
	for path, state := range after {
		if old, known := before[path]; known && old != state {
			changed = append(changed, path)
		}
	}
	slices.Sort(changed)
	return changed
}

func readPathStates(paths []string) map[string]uint64 {
	states := make(map[string]uint64, len(paths))
	for _, path := range paths {
		states[path] = readPathState(path)
	}
	return states
}

// readPathState returns a hash of the names, sizes and times of a file, or of all files in a directory. It
// ignores the directories of version control.
func readPathState(path string) uint64 {
	hash := fnv.New64a()
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	_ = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintln(hash, name, "unreadable")
			return nil
		}
		if entry.IsDir() {
			if entry.Name() == ".git" {
				return fs.SkipDir
			}
			fmt.Fprintln(hash, name)
			return nil
		}
		if info, err := os.Stat(name); err == nil { // Stat follows a symbolic link in a directory
			fmt.Fprintln(hash, name, info.Size(), info.ModTime().UnixNano())
		}
		return nil
	})
	return hash.Sum64()
}
