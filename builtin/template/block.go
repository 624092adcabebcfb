package template

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// config is what the runner attaches.
type config struct {
	Templates []block `json:"templates"`
	// RenderAgain is restart.render_templates: a restart of the task renders
	// everything anew.
	RenderAgain bool   `json:"render_templates"`
	Limits      limits `json:"limits"`
}

// limits are what the operator says, as Nomad names it in client { template {} }.
type limits struct {
	Wait       *wait    `json:"wait"`                 // of blocks that say nothing
	WaitBounds wait     `json:"wait_bounds"`          // of those that do
	Denied     []string `json:"function_denylist"`    // besides those that nobody may call
	AllFiles   bool     `json:"disable_file_sandbox"` // templates may read the files of the machine
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

// What Nomad's clients wait for changes to settle, unless the block says
// otherwise.
const (
	defaultWaitMin = 5 * time.Second
	defaultWaitMax = 4 * time.Minute
)

func parseConfig(attachment []byte) (*config, error) {
	c := &config{}
	if len(attachment) == 0 {
		return c, nil // attached by a person, who cannot say anything here
	}
	if err := json.Unmarshal(attachment, c); err != nil {
		return nil, fmt.Errorf("read the template blocks: %w", err)
	}
	return c, nil
}

// quiet returns how long nothing must change before a change counts, and for how
// long others can put it off.
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

// mode returns the permissions of the file. The bits that change who a program
// runs as are no business of a template.
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

// owner returns the ids of the file's owner, -1 for one that stays.
func (b *block) owner() (uid, gid int) {
	id := func(p *int) int {
		if p == nil || *p < 0 {
			return -1
		}
		return *p
	}
	return id(b.Uid), id(b.Gid)
}
