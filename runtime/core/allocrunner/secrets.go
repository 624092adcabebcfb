package allocrunner

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
)

// HandOutVariable must be called before a variable's items are given to a task or its hooks, or to the allocation's
// hooks if task is empty. From then on the values are removed from events, errors and logs, also by the next agent. An
// empty namespace means the job's. It may block until the path is stored.
func (r *Runner) HandOutVariable(task, namespace, path string, items map[string]string) {
	if namespace != "" && namespace != r.config.Alloc.Namespace {
		path += namespaceSeparator + namespace
	}
	r.secrets.Add(slices.Collect(maps.Values(items))...)
	for _, t := range r.tasks.taskSet {
		if task == "" || t.Name() == task {
			taskrunner.RecordReadVariable(t, path)
		}
	}
}

// namespaceSeparator separates a variable's path from its namespace, if that differs from the job's.
const namespaceSeparator = "@"

// maxReadAgainTime is how long an earlier agent's tasks wait until the variables they have read are known again. A node
// without a connection to its servers must not wait longer.
const maxReadAgainTime = time.Second

// readVariablesAgain reads the variables that an earlier agent has handed out, because the allocation's programs still
// have the values. It blocks until they are known, at most for a second, and then tries in the background until they are
// or ctx ends.
func (r *Runner) readVariablesAgain(ctx context.Context) {
	if !r.startedByEarlierAgent {
		return
	}
	var running sync.WaitGroup
	for _, t := range r.tasks.taskSet {
		for _, path := range taskrunner.ReadVariables(t) {
			running.Go(func() {
				path, namespace, _ := strings.Cut(path, namespaceSeparator)
				items, err := r.workspace.ReadVariable(ctx, t.Name(), namespace, path)
				if err != nil {
					r.logger.Warn("the agent cannot remove the items of a variable from logs and events, because it cannot read them", "variable", path, "namespace", namespace, "error", err)
				}
				r.secrets.Add(slices.Collect(maps.Values(items))...)
			})
		}
	}
	known := make(chan struct{})
	r.backgroundWG.Go(func() {
		running.Wait()
		close(known)
	})
	select {
	case <-known:
	case <-time.After(maxReadAgainTime):
	}
}
