package template

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// config is the configuration that the task runner attaches.
type config struct {
	Templates []block `json:"templates"`
	// RenderAgain is restart.render_templates: a restart of the task renders all
	// templates again.
	RenderAgain bool   `json:"render_templates"`
	Limits      limits `json:"limits"`
}

// limits is the operator's configuration, with the names of Nomad's client {
// template {} }.
type limits struct {
	Wait            *wait    `json:"wait"`                 // default for blocks without wait
	WaitBounds      wait     `json:"wait_bounds"`          // bounds for blocks with wait
	DeniedFunctions []string `json:"function_denylist"`    // denied functions, besides those that are always denied
	AllFiles        bool     `json:"disable_file_sandbox"` // templates may read the files of the machine
}

// block is a template block of a job, in Nomad's JSON.
type block struct {
	SourcePath    string
	DestPath      string
	EmbeddedTmpl  string
	ChangeMode    string
	ChangeSignal  string
	ChangeScript  *script
	Once          bool
	Splay         time.Duration
	Perms         string
	Uid, Gid      *int
	LeftDelim     string
	RightDelim    string
	Envvars       bool
	Wait          *wait
	ErrMissingKey bool
}

type script struct {
	Command          string
	Args             []string
	Timeout          time.Duration
	FailOnError      bool
	RunOnFirstRender bool
}

type wait struct{ Min, Max time.Duration }

// Nomad's defaults for how long a change must settle.
const (
	defaultWaitMin = 5 * time.Second
	defaultWaitMax = 4 * time.Minute
)

func parseConfig(attachment []byte) (*config, error) {
	c := &config{}
	if len(attachment) == 0 {
		return c, nil // an attachment of an operator or a job has no configuration
	}
	if err := json.Unmarshal(attachment, c); err != nil {
		return nil, fmt.Errorf("read the template blocks: %w", err)
	}
	return c, nil
}

// quiet returns how long no further change must occur before a change is
// handled, and how long further changes can delay that.
func (b *block) quiet(l *limits) (least, most time.Duration) {
	w, bounds := b.Wait, l.WaitBounds
	if w == nil {
		w, bounds = l.Wait, wait{}
	}
	if w == nil {
		return defaultWaitMin, defaultWaitMax
	}
	least, most = max(w.Min, bounds.Min), w.Max
	if most == 0 {
		most = 4 * least
	}
	if bounds.Max > 0 {
		most = min(most, bounds.Max)
	}
	return least, max(least, most)
}

// mode returns the permissions of the file. A template cannot set setuid, setgid
// and sticky bits.
func (b *block) mode() (uint32, error) {
	if b.Perms == "" {
		return 0o644, nil
	}
	perms, err := strconv.ParseUint(b.Perms, 8, 12)
	if err != nil {
		return 0, permanentErrorf("perms %q: %v", b.Perms, err)
	}
	return uint32(perms) & 0o777, nil
}

// owner returns the ids of the file's owner; -1 means no change.
func (b *block) owner() (uid, gid int) {
	id := func(p *int) int {
		if p == nil || *p < 0 {
			return -1
		}
		return *p
	}
	return id(b.Uid), id(b.Gid)
}
