package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// MaxVariable is how long the keys and values of a variable may be in all.
const MaxVariable = 64 << 10

var variablePath = lazily(`^[a-zA-Z0-9-_~/]{1,128}$`)

// VariablePathFault refuses a path that no variable can have.
func VariablePathFault(path string) error {
	first, rest, _ := strings.Cut(path, "/")
	second, _, _ := strings.Cut(rest, "/")
	switch {
	case !variablePath().MatchString(path):
		return fmt.Errorf("invalid path %q", path)
	case first == "nomad" && second != "jobs" && second != "job-templates":
		return errors.New(`only paths at "nomad/jobs" or "nomad/job-templates" and below are valid paths under the top-level "nomad" directory`)
	}
	return nil
}

// VariableItemsFault refuses items that are too large. It says nothing of what is
// in them.
func VariableItemsFault(items api.VariableItems) error {
	size := 0
	for key, value := range items {
		size += len(key) + len(value)
	}
	if size > MaxVariable {
		return fmt.Errorf("the keys and values of a variable must not be longer than %d bytes in all, these have %d", MaxVariable, size)
	}
	return nil
}

// VariableMetadata is what everybody may know of a variable: neither its items,
// nor the ID of its lock, by which the holder is known.
func VariableMetadata(v *api.Variable) *api.VariableMetadata {
	m := v.Metadata()
	m.Lock = withoutID(v.Lock)
	return m
}

// VariableForOthers is a variable for those who do not hold its lock.
func VariableForOthers(v *api.Variable) *api.Variable {
	c := *v
	c.Lock = withoutID(v.Lock)
	return &c
}

func withoutID(lock *api.VariableLock) *api.VariableLock {
	if lock == nil {
		return nil
	}
	return &api.VariableLock{TTL: lock.TTL, LockDelay: lock.LockDelay}
}
