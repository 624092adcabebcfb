package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Under Nomad nobody keeps the exit status of a task that ends while the plugin is down.
// The process of a task therefore writes its exit code into a file before it exits by
// itself. A process that is killed leaves none: its exit status is unknown then.

type exitRecord struct {
	PID  int `json:"pid"`
	Code int `json:"code"`
}

// exitName is the path of the file in the directory of the task. The user of the task can
// write to local.
const exitName = "local/.clock-exit"

func writeExit(file string, code int) {
	data, err := json.Marshal(exitRecord{PID: os.Getpid(), Code: code})
	if err != nil {
		return
	}
	temporary := file + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err == nil {
		_ = os.Rename(temporary, file)
	}
}

// readExit returns the exit code of the process, if it has written it. The task can write
// anything to its directory: no link leads out of it, and only a regular file is read.
func readExit(taskDir string, pid int) (int, bool) {
	root, err := os.OpenRoot(taskDir)
	if err != nil {
		return 0, false
	}
	defer root.Close()
	f, err := root.OpenFile(exitName, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, false
	}
	var record exitRecord
	if err := json.NewDecoder(io.LimitReader(f, 1024)).Decode(&record); err != nil {
		return 0, false
	}
	return record.Code, record.PID == pid
}

// endedTask is a task of which only the exit code is left.
type endedTask struct {
	state taskState
	code  int
}

var errEnded = errors.New("the task has exited")

func (t *endedTask) Wait(context.Context) (driver.ExitResult, error) {
	return driver.ExitResult{ExitCode: t.code}, nil
}

func (*endedTask) Kill(context.Context) error { return nil }

func (*endedTask) Signal(context.Context, string) error { return errEnded }

func (*endedTask) Exec(context.Context, driver.Exec) (driver.ExitResult, error) {
	return driver.ExitResult{}, errEnded
}

func (*endedTask) Stats(context.Context) (driver.TaskStats, error) {
	return driver.TaskStats{}, errEnded
}

func (t *endedTask) State() any { return t.state }

func (t *endedTask) Attributes() map[string]string {
	return map[string]string{"pid": strconv.Itoa(t.state.Process.PID), "timezone": t.state.Zone}
}

func (*endedTask) Destroy(context.Context) error { return nil }
