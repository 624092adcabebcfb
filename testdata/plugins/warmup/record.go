package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

const recordFile = "warmup.json"

// record is what the hook knows about a task, in a file of the task's private directory. The State of
// Prestart cannot hold it: a warm-up ends long after Prestart, and Poststart stores nothing.
type record struct {
	Warmups  int       `json:"warmups"`  // completed so far
	Start    int       `json:"start"`    // the start of the task that Deadline and Warm are about
	Deadline time.Time `json:"deadline"` // of the warm-up of Start
	Warm     bool      `json:"warm"`     // Start is warmed up
}

// operation identifies the warm-up among the events of the task.
func (r record) operation() string { return fmt.Sprintf("warmup-%d", r.Start) }

func loadRecord(dir string) (record, error) {
	var r record
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	} else if err != nil {
		return r, err
	}
	defer root.Close()
	content, err := root.ReadFile(recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	} else if err != nil {
		return r, err
	}
	return r, json.Unmarshal(content, &r)
}

// saving serializes saves: a call can still run when the agent has cancelled it and calls the hook again.
var saving sync.Mutex

func (r record) save(dir string) error {
	root, err := os.OpenRoot(dir) // the task may be able to write there: follow no link out of it
	if err != nil {
		return err
	}
	defer root.Close()
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	saving.Lock()
	defer saving.Unlock()
	if err := root.WriteFile(recordFile+".new", content, 0o600); err != nil {
		return err
	}
	return root.Rename(recordFile+".new", recordFile)
}
