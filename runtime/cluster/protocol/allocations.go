package protocol

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// GetClientAllocsRequest is the "Node.GetClientAllocs" request.
type GetClientAllocsRequest struct {
	NodeID   string
	SecretID string
	ReadOptions
}

// GetClientAllocsResponse lists all the node's allocations, ended ones included.
type GetClientAllocsResponse struct {
	Allocs        map[string]uint64 // AllocModifyIndex by allocation id
	MigrateTokens map[string]string // token for the previous allocation's directory, by allocation ID
	ReadMeta
}

// GetAllocsRequest is the Alloc.GetAllocs request.
type GetAllocsRequest struct {
	AllocIDs []string
	ReadOptions
}

// GetAllocsResponse has the allocations that exist. Unknown IDs are missing.
type GetAllocsResponse struct {
	Allocs []*Allocation
	ReadMeta
}

// Allocation is an allocation as servers send it.
type Allocation struct {
	api.Allocation
	SignedIdentities map[string]string // default workload identity by task, secret
}

// GetAllocRequest is the Alloc.GetAlloc request.
type GetAllocRequest struct {
	AllocID string
	ReadOptions
}

// GetAllocResponse has the allocation, or nil if it does not exist.
type GetAllocResponse struct {
	Alloc *Allocation
	ReadMeta
}

// UpdateAllocsRequest reports allocation states; its response is a WriteMeta.
type UpdateAllocsRequest struct {
	Alloc []*AllocStatus
	WriteOptions
}

// AllocStatus is an allocation's state. TaskStates must have all tasks, because it replaces the server's.
type AllocStatus struct {
	ID                string
	NodeID            string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	DeploymentStatus  *DeploymentStatus       `codec:",omitempty"`
	NetworkStatus     *api.AllocNetworkStatus `codec:",omitempty"`
}

// DeploymentStatus is an allocation's health in its deployment.
type DeploymentStatus struct {
	Healthy     *bool
	Timestamp   time.Time
	Canary      bool
	ModifyIndex uint64
}

// SignIdentitiesRequest is the Alloc.SignIdentities request.
type SignIdentitiesRequest struct {
	Identities []*IdentityRequest
	ReadOptions
}

// IdentityRequest names a workload identity.
type IdentityRequest struct {
	AllocID                        string
	WorkloadIdentifier             string // task or service name
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
