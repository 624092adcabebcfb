package datadirectory

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// checkNoAllocsOfPermanentAgent returns an error if the data directory has allocations from an agent with a permanent state. A
// foreground run cannot use such a directory: when the run ends, it would end the agent's keeper and tasks. A foreground run has
// a separate state file, so all allocations in the file store.FileName belong to an agent.
func checkNoAllocsOfPermanentAgent(dataDir string) error {
	contents, err := store.InspectFile(filepath.Join(dataDir, store.FileName))
	if errors.Is(err, fs.ErrNotExist) {
		contents, err = new(store.FileContents), nil
	}
	const remedyText = "use another directory, or give the job to the agent: nomad-lite job run"
	if err == nil {
		err = contents.DamageErr()
	}
	if err != nil {
		return fmt.Errorf("data directory %s: it has the state of an agent, whose tasks would end with this run, and that state cannot be read: %w\n%s", dataDir, err, remedyText)
	}
	if ids := recordedAllocIDs(contents); len(ids) > 0 {
		return fmt.Errorf("data directory %s: it belongs to an agent with %d allocations (%s), whose tasks would end with this run\n%s",
			dataDir, len(ids), strings.Join(abbreviateFirstThreeIDs(ids), ", "), remedyText)
	}
	ids, err := findUnrecordedAllocIDs(dataDir, contents)
	if err != nil {
		return fmt.Errorf("data directory %s: tasks of an agent, which would end with this run, can run in it: %w", dataDir, err)
	}
	if len(ids) > 0 {
		return fmt.Errorf("data directory %s: it has %d allocations (%s) whose agent has lost its state file, and whose tasks would end with this run\nuse another directory, or start the agent once with -adopt-unknown or -end-unknown",
			dataDir, len(ids), strings.Join(abbreviateFirstThreeIDs(ids), ", "))
	}
	return nil
}

// recordedAllocIDs returns the ids of the allocations recorded in an agent's state, including those being removed, and unknown
// allocations, which lost their records together with an earlier state.
func recordedAllocIDs(contents *store.FileContents) []string {
	ids := make(map[string]bool)
	for _, r := range contents.Records {
		if r.Table == store.Allocations {
			ids[r.Key] = true
		}
	}
	for _, prefix := range []string{state.PendingRemovalPrefix, state.UnknownAllocPrefix} {
		for id := range contents.AgentRecordsByNameSuffix(prefix) {
			ids[id] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// findUnrecordedAllocIDs returns the ids of allocations in a data directory with tasks that may belong to an agent, although the
// agent's state has no allocations. These are allocations with running processes and, if the directory's agent state file was
// removed or emptied, all allocations, because their tasks may be containers. The result is empty after a killed foreground run:
// its tasks belong to no agent.
func findUnrecordedAllocIDs(dataDir string, contents *store.FileContents) (ids []string, err error) {
	if _, err := os.Lstat(filepath.Join(dataDir, RunStateFile)); err == nil {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(dataDir, allocDir))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	isStateLost := readOwnerFileOrNil(dataDir) != nil && contents.AgentRecordsByNameSuffix(state.DirectoryOwnerName)[""] == nil
	dir, err := keeper.OpenOrCreateDataDir(dataDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var keeperPIDs []int
	if p, running, err := dir.Keeper(); err != nil {
		return nil, err
	} else if running {
		keeperPIDs = append(keeperPIDs, p.PID)
	}
	inDir := make(map[string]bool)
	for _, e := range entries {
		inDir[e.Name()] = true
	}
	tasks, err := findTaskProcesses(osprocess.TaskSearch{
		IncludesAlloc: func(allocID string) bool { return inDir[allocID] }, AllocDirRoot: filepath.Join(dataDir, allocDir),
		IsTrustedParent: TrustedParents(keeperPIDs),
	})
	if err != nil {
		return nil, err
	}
	running := make(map[string]bool)
	for task := range tasks {
		running[task.AllocID] = true
	}
	for _, e := range entries {
		if isStateLost || running[e.Name()] {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// abbreviateFirstThreeIDs returns the first eight characters of the first three ids, followed by "…" if there are more ids.
func abbreviateFirstThreeIDs(ids []string) (short []string) {
	for _, id := range ids[:min(len(ids), 3)] {
		short = append(short, id[:min(len(id), 8)])
	}
	if len(ids) > len(short) {
		short = append(short, "…")
	}
	return short
}
