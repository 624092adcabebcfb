package hook

import (
	"fmt"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// Hook is what every hook has: a name, unique among the hooks of its
// allocation or task. Users see it in events, and its state is kept under it.
//
// What a request holds belongs to the caller, and a hook must not change it: Env is
// the environment itself, for a hook in the agent.
type Hook interface {
	Name() string
}

// Alloc says which allocation a request is about.
type Alloc struct {
	ID        string
	Name      string // "<job>.<group>[<index>]"
	Namespace string
	JobID     string
	JobName   string
	JobType   string
	TaskGroup string
	NodeID    string
	NodeName  string
	Meta      map[string]string // of job and group, merged
	// JSON is the whole allocation with its job, as the HTTP API shows it. It is
	// empty unless the hook asks for it (Description.WholeAlloc).
	JSON []byte
}

// RequestMeta is what a hook in a process of its own gets with each request. It is
// empty for a hook in the agent.
type RequestMeta struct {
	// Capability is what the hook shows to the Host: it is good for the
	// allocation or the task of the request, and ends with it.
	Capability string
	// Attachment is the configuration with which the hook is attached, as JSON
	// in the shape of Description.Schema; nil if there is none.
	Attachment []byte
}

// Scope says to a Host that a call is about what the request is about.
func (g RequestMeta) Scope() Scope { return Scope{Capability: g.Capability} }

// ScopeOf is Scope for one task, with the capability of its allocation.
func (g RequestMeta) ScopeOf(task string) Scope { return Scope{Capability: g.Capability, Task: task} }

// Config decodes the attachment into dst, a pointer to a struct whose fields are
// matched by the tag `codec`. Without an attachment dst stays as it is. A key of the
// attachment without a field, or of another type, is an error that names it.
func (g RequestMeta) Config(dst any) error {
	if len(g.Attachment) == 0 {
		return nil
	}
	if err := hclspec.UnmarshalJSON(g.Attachment, dst); err != nil {
		return fmt.Errorf("decode the configuration of the attachment: %w", err)
	}
	return nil
}

// Task says which task of the allocation a request is about.
type Task struct {
	Name      string
	Driver    string
	User      string
	Lifecycle string // "", "prestart", "poststart" or "poststop"
	Sidecar   bool
	Leader    bool
	Meta      map[string]string // of job, group and task, merged
}

// TaskDir holds the directories of one task as paths of the host.
type TaskDir struct {
	AllocDir         string // <alloc_dir>/<alloc id>
	Dir              string // <alloc>/<task>
	SharedAllocDir   string // <alloc>/alloc
	SharedTaskDir    string // <task>/alloc
	LocalDir         string // <task>/local
	LogDir           string // <alloc>/alloc/logs
	SecretsDir       string // <task>/secrets
	PrivateDir       string // <task>/private
	MountsAllocDir   string
	MountsTaskDir    string
	MountsSecretsDir string
}
