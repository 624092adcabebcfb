package protocol

import "time"

// WhoAmIRequest is the ACL.WhoAmI request for the token in AuthToken.
type WhoAmIRequest struct{ ReadOptions }

// WhoAmIResponse is the ACL.WhoAmI response.
type WhoAmIResponse struct {
	Identity *ACLIdentity
	ReadMeta
}

// ACLIdentity is a token's owner.
type ACLIdentity struct {
	ACLToken *ACLToken      // nil for a workload identity
	Claims   map[string]any // workload identity claims
}

// ACLToken is a user's token.
type ACLToken struct {
	AccessorID     string
	Name           string
	Type           string // client or management
	Policies       []string
	Roles          []*ACLRoleLink
	ExpirationTime *time.Time
}

// ACLRoleLink names one of a token's roles.
type ACLRoleLink struct{ ID, Name string }

// GetPoliciesRequest is the ACL.GetPolicies request.
type GetPoliciesRequest struct {
	Names []string
	ReadOptions
}

// GetClaimedPoliciesRequest is the ACL.GetClaimPolicies request for the workload identity in AuthToken. Its response is a
// GetClaimedPoliciesResponse.
type GetClaimedPoliciesRequest struct{ ReadOptions }

// GetPoliciesResponse is the ACL.GetPolicies response.
type GetPoliciesResponse struct {
	Policies map[string]*ACLPolicy
	ReadMeta
}

// GetClaimedPoliciesResponse is the ACL.GetClaimPolicies response.
type GetClaimedPoliciesResponse struct {
	Policies map[string]*ACLPolicy
	ReadMeta
}

// ACLPolicy is a policy.
type ACLPolicy struct {
	Name  string
	Rules string // the rules in HCL
}

// GetRolesRequest is the ACL.GetRolesByID request.
type GetRolesRequest struct {
	ACLRoleIDs []string
	ReadOptions
}

// GetRolesResponse is the ACL.GetRolesByID response.
type GetRolesResponse struct {
	ACLRoles map[string]*ACLRole
	ReadMeta
}

// ACLRole is a named list of policies.
type ACLRole struct {
	ID, Name string
	Policies []*ACLRolePolicy
}

// ACLRolePolicy names one of a role's policies.
type ACLRolePolicy struct{ Name string }
