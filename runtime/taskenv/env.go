package taskenv

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Env is the environment of a task, or of an allocation, at one moment. It
// never changes and is safe for concurrent use.
type Env struct {
	in   *inputs
	vars map[string]string

	// client holds the same variables with the directories as the host sees
	// them. It is made on first use, and seldom used.
	client func() map[string]string
}

func newEnv(in *inputs) *Env {
	e := &Env{in: in, vars: build(in, in.dirs())}
	e.client = func() map[string]string { return e.vars }
	if in.dirs() != in.hostDirs() {
		e.client = sync.OnceValue(func() map[string]string { return build(in, in.hostDirs()) })
	}
	return e
}

// Vars returns all variables. The map is the one of e and must not be changed.
func (e *Env) Vars() map[string]string { return e.vars }

// List returns all variables as "key=value", sorted.
func (e *Env) List() []string {
	list := make([]string, 0, len(e.vars))
	for key, value := range e.vars {
		list = append(list, key+"="+value)
	}
	slices.Sort(list)
	return list
}

// Replace replaces every ${name} in s that is a variable or a fact of the node
// (node.*, attr.*, meta.*); everything else stays as it is. This is the text
// engine, for all fields but a task's config (see [Env.ConfigVars]).
func (e *Env) Replace(s string) string { return e.replace(s, e.vars) }

func (e *Env) replace(s string, env map[string]string) string {
	left := budget
	return expand(s, &left, func(name string) (string, bool) { return lookup(env, &e.in.node, name) })
}

// WithTask returns the environment of the allocation with one task laid over
// it, for whoever has to interpolate what belongs to a task from outside its
// runner. The receiver is untouched; nil gives nil.
//
// The task's meta and env come in raw, without interpolation; what the
// directories and resources of the task add does not come in at all.
func (e *Env) WithTask(t Task) *Env {
	if e == nil {
		return nil
	}
	in := *e.in
	in.task = t
	overlay := func(below map[string]string) map[string]string {
		env := maps.Clone(below)
		for _, kv := range metaVars(in.meta(), func(key string) string { return key }) {
			env[kv.key], env[cleanKey(kv.key)] = kv.value, kv.value
		}
		for _, key := range slices.Sorted(maps.Keys(t.Env)) {
			env[key], env[cleanKey(key)] = t.Env[key], t.Env[key]
		}
		env["NOMAD_TASK_NAME"] = t.Name
		return env
	}
	return &Env{
		in:     &in,
		vars:   overlay(e.vars),
		client: sync.OnceValue(func() map[string]string { return overlay(e.client()) }),
	}
}

// ErrEscapes means that a path leads out of the allocation's directories.
var ErrEscapes = errors.New("path escapes the alloc directory")

// ClientPath interpolates path with the directories of the host, and returns it
// as an absolute path there. A relative path lies in the task's directory. An
// absolute one must lie in the task's directory or in the shared one, else the
// error is [ErrEscapes].
//
// This looks at the text alone: links on the way are for the one who opens it.
func (e *Env) ClientPath(path string) (string, error) {
	return e.clientPath(path, false)
}

// ClientDestination is [Env.ClientPath] for a place to write to: an absolute
// path that is outside is taken as relative to the task's directory.
func (e *Env) ClientDestination(path string) (string, error) {
	return e.clientPath(path, true)
}

func (e *Env) clientPath(path string, rejoin bool) (string, error) {
	task, shared := e.in.dir.Dir, e.in.dir.SharedAllocDir
	inside := func(p string) bool { return within(p, task) || within(p, shared) }

	resolved := e.replace(path, e.client())
	if !filepath.IsAbs(resolved) || rejoin && !inside(filepath.Clean(resolved)) {
		resolved = filepath.Join(task, resolved)
	}
	resolved = filepath.Clean(resolved)
	if !inside(resolved) {
		return "", fmt.Errorf("%q: %w", path, ErrEscapes)
	}
	return resolved, nil
}

// within reports whether the clean path p is dir or lies in it.
func within(p, dir string) bool {
	return dir != "" && (p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/"))
}
