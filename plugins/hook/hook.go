package hook

import (
	"fmt"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// Alloc describes the allocation of a request.
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
	Meta      map[string]string // meta of job and group, merged
	// JSON is the whole allocation with its job, as the HTTP API shows it. It is empty
	// unless the hook requests it by IncludeAllocJSON of sdk.HookInfo.
	JSON []byte
}

// RequestMeta is the part of a request that only a hook in a plugin process gets. It is
// empty for a hook in the agent.
type RequestMeta struct {
	// Token is the capability token for calls of the Host: it is valid for the allocation or the task
	// of the request, and expires with it.
	Token string
	// AttachmentJSON is the configuration that the job or the operator has attached the hook
	// with, as JSON in the shape of the hook's AttachmentSchema, with the defaults of the schema; nil if the hook has no
	// AttachmentSchema. DecodeConfig decodes it.
	AttachmentJSON []byte
	// Traceparent is the context of the call in the trace of the allocation, in the format of the
	// HTTP header traceparent of W3C Trace Context. A hook that exports spans, or calls a service that
	// does, uses it as their parent. It is empty if the host exports no traces.
	Traceparent string
}

// Scope returns the Scope of the allocation or task of the request.
func (m RequestMeta) Scope() Scope { return Scope{Token: m.Token} }

// TaskScope returns the Scope of one task, with the token of its allocation.
func (m RequestMeta) TaskScope(task string) Scope { return Scope{Token: m.Token, Task: task} }

// DecodeConfig decodes the attachment into dst, a pointer to a struct whose fields are
// matched by the tag `codec`. A nested block is a struct, or a pointer that is nil if the block is absent; a list
// of blocks is a slice. An argument that is absent and has no hclspec.Default resets its field to the zero value. Without an
// AttachmentSchema dst is unchanged. A key of the attachment without a field, or with a value of another type, is an
// error that names the key.
func (m RequestMeta) DecodeConfig(dst any) error {
	if len(m.AttachmentJSON) == 0 {
		return nil
	}
	if err := hclspec.UnmarshalJSON(m.AttachmentJSON, dst); err != nil {
		return fmt.Errorf("decode the configuration of the attachment: %w", err)
	}
	return nil
}

// Task describes the task of a request.
type Task struct {
	Name      string
	Driver    string
	User      string
	Lifecycle string // "", "prestart", "poststart" or "poststop"
	Sidecar   bool
	Leader    bool
	Meta      map[string]string // meta of job, group and task, merged
}

// TaskDir holds the directories of one task as paths of the host.
type TaskDir struct {
	AllocDir       string // directory of the allocation
	Dir            string // directory of the task: AllocDir/<task name>
	SharedAllocDir string // AllocDir/alloc
	SharedTaskDir  string // Dir/alloc, where the task sees SharedAllocDir
	LocalDir       string // Dir/local
	LogDir         string // AllocDir/alloc/logs
	SecretsDir     string // Dir/secrets
	// PrivateDir is Dir/private: a place for files of the driver and of the hooks about the task, such as sockets and
	// key material that a command of Exec reads. It has 1 MiB, in memory if the agent can mount there, so that a reboot
	// empties it. It belongs to the user of the task, who can change it unless the driver hides it: a hook keeps in its State
	// what must last, or must be trusted.
	PrivateDir         string
	UnveiledAllocDir   string // SharedAllocDir for a driver with FSIsolationUnveil
	UnveiledTaskDir    string // LocalDir for a driver with FSIsolationUnveil
	UnveiledSecretsDir string // SecretsDir for a driver with FSIsolationUnveil
}
