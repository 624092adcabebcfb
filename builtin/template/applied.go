package template

import (
	"encoding/json"
	"maps"
)

// appliedOutputs records which outputs of the templates are applied: the task was started with the output, or the action
// of its change_mode was performed. The record is a file in the private directory of the task, so that a later process of
// the hook finds the actions that an earlier process has not performed. It has hashes, because outputs can be large.
type appliedOutputs struct {
	file              rootedPath
	hashOnDiskByDest  map[string]string // destination -> hash of the output on disk
	appliedHashByDest map[string]string // destination -> hash of the applied output

	mayHaveLostActions bool // an earlier process of the hook may have written outputs without performing their actions
}

// load reads the record. Without one, as for a task that has not started, the outputs on disk count as applied.
func (a *appliedOutputs) load() {
	text, err := a.file.readFile()
	a.mayHaveLostActions = err == nil && json.Unmarshal(text, &a.appliedHashByDest) == nil && a.appliedHashByDest != nil
	if !a.mayHaveLostActions {
		a.markAllApplied()
	}
}

// isUnapplied reports whether the output on disk of a template is not applied.
func (a *appliedOutputs) isUnapplied(dest string) bool {
	applied, ok := a.appliedHashByDest[dest]
	return ok && applied != a.hashOnDiskByDest[dest]
}

// markAllApplied records that all outputs on disk are applied.
func (a *appliedOutputs) markAllApplied() { a.store(maps.Clone(a.hashOnDiskByDest)) }

// markApplied records that the outputs of files are applied.
func (a *appliedOutputs) markApplied(files []*templateFile) {
	applied := maps.Clone(a.appliedHashByDest)
	if applied == nil {
		applied = make(map[string]string)
	}
	for _, f := range files {
		applied[f.DestPath] = a.hashOnDiskByDest[f.DestPath]
	}
	a.store(applied)
}

// store replaces the record. After an error the file has the earlier record: a later process of the hook may then perform
// an action again, which does less harm than the failure of a task that has its files.
func (a *appliedOutputs) store(applied map[string]string) {
	if maps.Equal(applied, a.appliedHashByDest) {
		return
	}
	a.appliedHashByDest = applied
	if text, err := json.Marshal(applied); err == nil {
		_ = a.file.replaceFileAtomically(text, 0o600, -1, -1)
	}
}
