package template

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// hookConfig has the template blocks of a task and the operator's settings. The
// task runner attaches the hook with it.
type hookConfig struct {
	Templates []templateBlock `json:"templates"`
	// RenderOnRestart is the option render_templates of the restart block: when the
	// task restarts, all templates are rendered again.
	RenderOnRestart bool             `json:"render_templates"`
	Settings        operatorSettings `json:"limits"`
}

// operatorSettings are the operator's settings, with the names of the template block
// in Nomad's client block.
type operatorSettings struct {
	DefaultWait        *waitConfig `json:"wait"`                 // wait of template blocks without a wait
	WaitBounds         waitConfig  `json:"wait_bounds"`          // bounds for the wait of template blocks with a wait
	DeniedFunctions    *[]string   `json:"function_denylist"`    // patterns of functions that templates cannot call; nil means Nomad's default
	DisableFileSandbox bool        `json:"disable_file_sandbox"` // true lets templates read all files of the machine
	Retry              retryConfig `json:"nomad_retry"`          // delays after a failed read of data
}

// retryConfig has the first and the longest delay after a failed read; zero means Nomad's default.
type retryConfig struct {
	Backoff    time.Duration `json:"backoff"`
	MaxBackoff time.Duration `json:"max_backoff"`
}

// withDefaults replaces zero delays by Nomad's defaults. The default of one delay respects the other delay.
func (r retryConfig) withDefaults() retryConfig {
	longest := cmp.Or(r.MaxBackoff, time.Minute)
	r.Backoff = cmp.Or(r.Backoff, min(250*time.Millisecond, longest))
	r.MaxBackoff = max(r.Backoff, longest)
	return r
}

// functionDenylist returns the patterns of the functions that templates cannot call.
func (o *operatorSettings) functionDenylist() []string {
	if o.DeniedFunctions == nil {
		return []string{"executeTemplate"} // package evaluate always denies plugin and writeToFile
	}
	return *o.DeniedFunctions
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

// Nomad's defaults for the wait of a template block.
const (
	defaultWaitMin = 5 * time.Second
	defaultWaitMax = 4 * time.Minute
)

func parseConfig(attachment []byte) (*hookConfig, error) {
	c := &hookConfig{}
	if len(attachment) == 0 {
		return c, nil // the attachment is empty if a job or the operator attaches the hook explicitly
	}
	if err := json.Unmarshal(attachment, c); err != nil {
		return nil, fmt.Errorf("read the template blocks: %w", err)
	}
	return c, nil
}

// effectiveWait returns the minimum and the maximum of the block's wait: a change
// is handled after no further change has occurred for the minimum, and at the
// latest after the maximum.
func (b *templateBlock) effectiveWait(o *operatorSettings) (minWait, maxWait time.Duration) {
	w, bounds := b.Wait, o.WaitBounds
	if w == nil {
		w, bounds = o.DefaultWait, waitConfig{}
	}
	if w == nil {
		return defaultWaitMin, defaultWaitMax
	}
	minWait, maxWait = max(w.Min, bounds.Min), w.Max
	if maxWait == 0 {
		maxWait = 4 * minWait
	}
	if bounds.Max > 0 {
		maxWait = min(maxWait, bounds.Max)
	}
	return minWait, max(minWait, maxWait)
}

// fileMode returns the permission bits of the file. setuid, setgid and sticky bits
// are ignored.
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
