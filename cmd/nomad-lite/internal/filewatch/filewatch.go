// Package filewatch detects changes of files by looking at them again and again. It needs no support of
// the file system. It reads no content: a file has changed if its size, its time or its name has.
package filewatch

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

// interval is the time between two looks at the watched files.
const interval = 200 * time.Millisecond

// Watcher detects changes of files and directories, which need not exist.
type Watcher struct {
	ignore func(path string) bool
	states map[string]uint64 // last known state of each path
}

// New returns a watcher that compares with the present state of the paths. It ignores the files and directories
// below a path for which ignore returns true; nil ignores none.
func New(paths []string, ignore func(path string) bool) *Watcher {
	w := &Watcher{ignore: ignore, states: make(map[string]uint64)}
	w.add(paths)
	return w
}

// add reads the states of the paths that the watcher does not know.
func (w *Watcher) add(paths []string) {
	for _, path := range paths {
		if _, known := w.states[path]; !known {
			w.states[path] = w.readState(path)
		}
	}
}

// Wait blocks until paths have changed and the changes have stopped, because an editor can write a file in
// several steps. It returns the changed paths, or nil when ctx ends. The first wait for a path compares with
// its present state. Wait must not be called concurrently.
func (w *Watcher) Wait(ctx context.Context, paths []string) []string {
	w.add(paths)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	before := maps.Clone(w.states)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		states := make(map[string]uint64, len(paths))
		for _, path := range paths {
			states[path] = w.readState(path)
		}
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

// readState returns a hash of the names, sizes and times of a file, or of all files in a directory. It
// ignores the directories of version control.
func (w *Watcher) readState(path string) uint64 {
	hash := fnv.New64a()
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	_ = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && name != path && w.ignore != nil && w.ignore(name) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
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
