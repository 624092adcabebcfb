package template

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// hookConfig is the configuration that the task runner attaches.
type hookConfig struct {
	Templates []templateBlock `json:"templates"`
	// RenderOnRestart is restart.render_templates: a restart of the task renders all
	// templates again.
	RenderOnRestart bool   `json:"render_templates"`
	Limits          limits `json:"limits"`
}

// limits is the operator's configuration, with the names of Nomad's client {
// template {} }.
type limits struct {
	Wait               *waitConfig `json:"wait"`                 // default for blocks without wait
	WaitBounds         waitConfig  `json:"wait_bounds"`          // bounds for blocks with wait
	DeniedFunctions    []string    `json:"function_denylist"`    // denied functions, besides those that are always denied
	DisableFileSandbox bool        `json:"disable_file_sandbox"` // templates may read the files of the machine
}

// templateBlock is a template block of a job, in Nomad's JSON.
type templateBlock struct {
	SourcePath    string
	DestPath      string
	EmbeddedTmpl  string
	ChangeMode    string
	ChangeSignal  string
	ChangeScript  *changeScript
	Once          bool
	Splay         time.Duration
	Perms         string
	Uid, Gid      *int
	LeftDelim     string
	RightDelim    string
	Envvars       bool
	Wait          *waitConfig
	ErrMissingKey bool
}

type changeScript struct {
	Command          string
	Args             []string
	Timeout          time.Duration
	FailOnError      bool
	RunOnFirstRender bool
}

type waitConfig struct{ Min, Max time.Duration }

// Nomad's defaults for how long a change must settle.
const (
	defaultWaitMin = 5 * time.Second
	defaultWaitMax = 4 * time.Minute
)

func parseConfig(attachment []byte) (*hookConfig, error) {
	c := &hookConfig{}
	if len(attachment) == 0 {
		return c, nil // an attachment of an operator or a job has no configuration
	}
	if err := json.Unmarshal(attachment, c); err != nil {
		return nil, fmt.Errorf("read the template blocks: %w", err)
	}
	return c, nil
}

// settleTimes returns how long no further change must occur before a change is
// handled, and how long further changes can delay that.
func (b *templateBlock) settleTimes(l *limits) (shortest, maxWait time.Duration) {
	w, bounds := b.Wait, l.WaitBounds
	if w == nil {
		w, bounds = l.Wait, waitConfig{}
	}
	if w == nil {
		return defaultWaitMin, defaultWaitMax
	}
	shortest, maxWait = max(w.Min, bounds.Min), w.Max
	if maxWait == 0 {
		maxWait = 4 * shortest
	}
	if bounds.Max > 0 {
		maxWait = min(maxWait, bounds.Max)
	}
	return shortest, max(shortest, maxWait)
}

// fileMode returns the permissions of the file. A template cannot set setuid, setgid
// and sticky bits.
func (b *templateBlock) fileMode() (uint32, error) {
	if b.Perms == "" {
		return 0o644, nil
	}
	perms, err := strconv.ParseUint(b.Perms, 8, 12)
	if err != nil {
		return 0, permanentErrorf("perms %q: %v", b.Perms, err)
	}
	return uint32(perms) & 0o777, nil
}

// fileOwner returns the ids of the file's owner; -1 means no change.
func (b *templateBlock) fileOwner() (uid, gid int) {
	id := func(p *int) int {
		if p == nil || *p < 0 {
			return -1
		}
		return *p
	}
	return id(b.Uid), id(b.Gid)
}
