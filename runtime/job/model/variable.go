package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// MaxVariableSize is the maximum total length of a variable's keys and values, in bytes.
const MaxVariableSize = 64 << 10

var variablePathPattern = lazyRegexp(`^[a-zA-Z0-9-_~/]{1,128}$`)

// ValidateVariablePath returns an error if a variable's path is invalid.
func ValidateVariablePath(path string) error {
	first, rest, _ := strings.Cut(path, "/")
	second, _, _ := strings.Cut(rest, "/")
	switch {
	case !variablePathPattern().MatchString(path):
		return fmt.Errorf("invalid path %q", path)
	case first == "nomad" && second != "jobs" && second != "job-templates":
		return errors.New(`only paths at "nomad/jobs" or "nomad/job-templates" and below are valid paths under the top-level "nomad" directory`)
	}
	return nil
}

// CheckVariableSize returns an error if items are too large. The error does not contain
// their content.
func CheckVariableSize(items api.VariableItems) error {
	size := 0
	for key, value := range items {
		size += len(key) + len(value)
	}
	if size > MaxVariableSize {
		return fmt.Errorf("the keys and values of a variable must not be longer than %d bytes in all, these have %d", MaxVariableSize, size)
	}
	return nil
}

// PublicVariableMetadata returns a variable's public metadata: without its items, and without its lock ID, which proves that a
// client holds the lock.
func PublicVariableMetadata(v *api.Variable) *api.VariableMetadata {
	m := v.Metadata()
	m.Lock = withoutLockID(v.Lock)
	return m
}

// VariableWithoutLockID returns a variable for clients that do not hold its lock.
func VariableWithoutLockID(v *api.Variable) *api.Variable {
	c := *v
	c.Lock = withoutLockID(v.Lock)
	return &c
}

func withoutLockID(lock *api.VariableLock) *api.VariableLock {
	if lock == nil {
		return nil
	}
	return &api.VariableLock{TTL: lock.TTL, LockDelay: lock.LockDelay}
}
