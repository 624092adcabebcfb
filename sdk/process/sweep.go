package process

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// Sweep kills what runs of a task that no Process is known for: all that is in
// the cgroup of its name, and all that carries the task's names in its
// environment. It is what sdk.Sweeper asks for.
func Sweep(ctx context.Context, allocID, taskName string) (found bool, err error) {
	for _, path := range cgroupPaths(allocID, taskName) {
		g := &cgroup{path: path}
		if len(g.pids()) > 0 {
			found = true
		}
		if killErr := g.kill(ctx); killErr != nil {
			err = killErr
		} else {
			g.remove()
		}
	}
	return killMarked(ctx, allocID, taskName) || found, err
}

// killMarked kills what the process has started and what has left its group,
// where there is no cgroup to find it by.
func (p *Process) killMarked(ctx context.Context) {
	if p.start.Env["NOMAD_ALLOC_ID"] == p.start.AllocID && p.start.Env["NOMAD_TASK_NAME"] == p.start.Name {
		killMarked(ctx, p.start.AllocID, p.start.Name)
	}
}

// killMarked kills every process that was started with the names of a task in
// its environment, until there is none.
func killMarked(ctx context.Context, allocID, taskName string) (found bool) {
	if allocID == "" || taskName == "" {
		return false
	}
	for delay := time.Millisecond; ctx.Err() == nil; delay *= 2 {
		marked := marked(allocID, taskName)
		if len(marked) == 0 || delay > 500*time.Millisecond {
			return found
		}
		found = true
		for _, id := range marked {
			id.Signal(unix.SIGKILL)
		}
		time.Sleep(delay)
	}
	return found
}

func marked(allocID, taskName string) (ids []keeper.Process) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	want := [][]byte{[]byte("NOMAD_ALLOC_ID=" + allocID), []byte("NOMAD_TASK_NAME=" + taskName)}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		id, err := keeper.ProcessOf(pid)
		if err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + name.Name() + "/environ") // empty for a zombie
		if err != nil {
			continue
		}
		matches := 0
		for _, entry := range bytes.Split(env, []byte{0}) {
			if bytes.Equal(entry, want[0]) || bytes.Equal(entry, want[1]) {
				matches++
			}
		}
		if matches == len(want) {
			ids = append(ids, id)
		}
	}
	return ids
}
