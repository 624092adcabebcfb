package protocol

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// GetClientAllocsRequest is the request of "Node.GetClientAllocs".
type GetClientAllocsRequest struct {
	NodeID   string
	SecretID string
	ReadOptions
}

// GetClientAllocsResponse lists all allocations of the node, ended ones included.
type GetClientAllocsResponse struct {
	Allocs        map[string]uint64 // AllocModifyIndex by allocation id
	MigrateTokens map[string]string // token for the directory of the previous allocation, by allocation id
	ReadMeta
}

// GetAllocsRequest is the request of Alloc.GetAllocs.
type GetAllocsRequest struct {
	AllocIDs []string
	ReadOptions
}

// GetAllocsResponse has the allocations that exist. An id that does not exist is missing.
type GetAllocsResponse struct {
	Allocs []*Allocation
	ReadMeta
}

// Allocation is an allocation as servers send it.
type Allocation struct {
	api.Allocation
	SignedIdentities map[string]string // default workload identity by task, secret
}

// GetAllocRequest is the request of Alloc.GetAlloc.
type GetAllocRequest struct {
	AllocID string
	ReadOptions
}

// GetAllocResponse has the allocation, or nil if it does not exist.
type GetAllocResponse struct {
	Alloc *Allocation
	ReadMeta
}

// UpdateAllocsRequest reports the states of allocations; its response is a WriteMeta.
type UpdateAllocsRequest struct {
	Alloc []*AllocStatus
	WriteOptions
}

// AllocStatus is the state of an allocation. TaskStates must have all tasks, because it replaces those of the server.
type AllocStatus struct {
	ID                string
	NodeID            string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	DeploymentStatus  *DeploymentStatus       `codec:",omitempty"`
	NetworkStatus     *api.AllocNetworkStatus `codec:",omitempty"`
}

// DeploymentStatus is the health of an allocation in its deployment.
type DeploymentStatus struct {
	Healthy     *bool
	Timestamp   time.Time
	Canary      bool
	ModifyIndex uint64
}

// SignIdentitiesRequest is the request of Alloc.SignIdentities.
type SignIdentitiesRequest struct {
	Identities []*IdentityRequest
	ReadOptions
}

// IdentityRequest names a workload identity.
type IdentityRequest struct {
	AllocID                        string
	WorkloadIdentifier             string // name of the task or service
	IdentityName                   string
	WorkloadType                   int // zero for a task, one for a service
	InterpolatedWorkloadIdentifier string
}

// SignIdentitiesResponse has the signed and the rejected identities.
type SignIdentitiesResponse struct {
	SignedIdentities []*SignedIdentity
	Rejections       []*IdentityRejection
	ReadMeta
}

// SignedIdentity is a signed workload identity.
type SignedIdentity struct {
	IdentityRequest
	JWT        string
	Expiration time.Time // zero means never
}

// IdentityRejection says why an identity was not signed.
type IdentityRejection struct {
	IdentityRequest
	Reason string
}
