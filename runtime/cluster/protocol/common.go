package protocol

import "time"

// ReadOptions are part of each request that reads from a server.
type ReadOptions struct {
	Region    string // required by all methods but Status.Ping
	Namespace string // empty means "default"
	AuthToken string
	// MinQueryIndex makes the server answer when its Index is higher than it, or after MaxQueryTime. With zero the server
	// answers at once.
	MinQueryIndex uint64
	MaxQueryTime  time.Duration // zero means five minutes
	AllowStale    bool          // any server answers from its own state; otherwise the leader answers

	Prefix, Filter, NextToken string
	PerPage                   int32
	Reverse                   bool
	Forwarded                 bool // set by servers only
}

// ReadMeta is part of each response to ReadOptions.
type ReadMeta struct {
	Index       uint64
	LastContact time.Duration
	KnownLeader bool
	NextToken   string

	// Server is the address of the server that has sent the response. Package servers sets it.
	Server string `codec:"-"`
}

// SetServer sets Server.
func (m *ReadMeta) SetServer(addr string) { m.Server = addr }

// WriteOptions are part of each request that writes. A server that is not the leader forwards it to the leader.
type WriteOptions struct {
	Region           string
	Namespace        string
	AuthToken        string
	IdempotencyToken string
	Forwarded        bool // set by servers only
}

// WriteMeta is part of the response to a write.
type WriteMeta struct {
	Index uint64 // zero means no write
}

// Server methods called by nodes.
const (
	MethodPing               = "Status.Ping"
	MethodRegisterNode       = "Node.Register"
	MethodUpdateNodeStatus   = "Node.UpdateStatus"
	MethodGetClientAllocs    = "Node.GetClientAllocs"
	MethodUpdateAllocs       = "Node.UpdateAlloc"
	MethodEmitNodeEvents     = "Node.EmitEvents"
	MethodUpdateNodeDrain    = "Node.UpdateDrain"
	MethodGetNode            = "Node.GetNode"
	MethodGetAllocs          = "Alloc.GetAllocs"
	MethodGetAlloc           = "Alloc.GetAlloc"
	MethodSignIdentities     = "Alloc.SignIdentities"
	MethodUpsertServices     = "ServiceRegistration.Upsert"
	MethodDeleteService      = "ServiceRegistration.DeleteByID"
	MethodGetService         = "ServiceRegistration.GetService"
	MethodListServices       = "ServiceRegistration.List"
	MethodReadVariable       = "Variables.Read"
	MethodListVariables      = "Variables.List"
	MethodWhoAmI             = "ACL.WhoAmI"
	MethodGetPolicies        = "ACL.GetPolicies"
	MethodGetRoles           = "ACL.GetRolesByID"
	MethodGetClaimedPolicies = "ACL.GetClaimPolicies"
)

// PingRequest and PingResponse are the Status.Ping messages.
type (
	PingRequest  struct{ ReadOptions }
	PingResponse struct{}
)
