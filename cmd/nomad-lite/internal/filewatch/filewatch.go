// Package filewatch detects changes of files by polling, so that it needs no support of the file system. It reads no
// content: a file has changed if its size, its modification time or its name has.
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

// interval is the time between two polls of the watched files.
const interval = 200 * time.Millisecond

// Watcher detects changes of files and directories, which need not exist.
type Watcher struct {
	isIgnored      func(path string) bool
	lastHashByPath map[string]uint64 // path -> hash of the last known state, from hashMetadataOfFileOrTree
}

// New returns a watcher that compares with the present state of the paths. The watcher ignores files and directories in
// these paths for which ignore returns true; a nil ignore means none.
func New(paths []string, ignore func(path string) bool) *Watcher {
	w := &Watcher{isIgnored: ignore, lastHashByPath: make(map[string]uint64)}
	w.startWatching(paths)
	return w
}

// startWatching reads the states of those paths that the watcher does not watch yet.
func (w *Watcher) startWatching(paths []string) {
	for _, path := range paths {
		if _, known := w.lastHashByPath[path]; !known {
			w.lastHashByPath[path] = w.hashMetadataOfFileOrTree(path)
		}
	}
}

// WaitForSettledChange blocks until some of the paths have changed and then have the same state in two polls, because
// an editor can write a file in several steps. It returns the changed paths, or nil when ctx ends. A path that is new
// to the watcher is compared with its state at the call. Calls must not be concurrent.
func (w *Watcher) WaitForSettledChange(ctx context.Context, paths []string) []string {
	w.startWatching(paths)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	before := maps.Clone(w.lastHashByPath)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		states := make(map[string]uint64, len(paths))
		for _, path := range paths {
			states[path] = w.hashMetadataOfFileOrTree(path)
		}
		changed := pathsWithChangedHash(w.lastHashByPath, states)
		settled := len(pathsWithChangedHash(before, states)) == 0
		before = states
		if len(changed) > 0 && settled {
			maps.Copy(w.lastHashByPath, states)
			return changed
		}
	}
}

// pathsWithChangedHash returns the sorted paths that are in both maps with different states.
func pathsWithChangedHash(before, after map[string]uint64) []string {
	var changed []string
	for path, state := range after {
		if old, known := before[path]; known && old != state {
			changed = append(changed, path)
		}
	}
	slices.Sort(changed)
	return changed
}

// hashMetadataOfFileOrTree returns a hash of the name, size and modification time of a file, or of all files in a
// directory. It ignores directories named .git, because version control changes them.
func (w *Watcher) hashMetadataOfFileOrTree(path string) uint64 {
	hash := fnv.New64a()
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	_ = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && name != path && w.isIgnored != nil && w.isIgnored(name) {
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
