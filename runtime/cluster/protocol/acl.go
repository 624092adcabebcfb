package protocol

import "time"

// WhoAmIRequest is the request of ACL.WhoAmI for the token in AuthToken.
type WhoAmIRequest struct{ ReadOptions }

// WhoAmIResponse is the response of ACL.WhoAmI.
type WhoAmIResponse struct {
	Identity *ACLIdentity
	ReadMeta
}

// ACLIdentity is the owner of a token.
type ACLIdentity struct {
	ACLToken *ACLToken      // nil for a workload identity
	Claims   map[string]any // claims of a workload identity
}

// ACLToken is a token of a user.
type ACLToken struct {
	AccessorID     string
	Name           string
	Type           string // client or management
	Policies       []string
	Roles          []*ACLRoleLink
	ExpirationTime *time.Time
}

// ACLRoleLink names a role of a token.
type ACLRoleLink struct{ ID, Name string }

// GetPoliciesRequest is the request of ACL.GetPolicies.
type GetPoliciesRequest struct {
	Names []string
	ReadOptions
}

// GetClaimedPoliciesRequest is the request of ACL.GetClaimPolicies for the workload identity in AuthToken. Its response is a GetClaimedPoliciesResponse.
type GetClaimedPoliciesRequest struct{ ReadOptions }

// GetPoliciesResponse is the response of ACL.GetPolicies.
type GetPoliciesResponse struct {
	Policies map[string]*ACLPolicy
	ReadMeta
}

// GetClaimedPoliciesResponse is the response of ACL.GetClaimPolicies.
type GetClaimedPoliciesResponse struct {
	Policies map[string]*ACLPolicy
	ReadMeta
}

// ACLPolicy is a policy.
type ACLPolicy struct {
	Name  string
	Rules string // the rules in HCL
	// RulesJSON has the rules that a node needs. Servers of Nomad 2.0 send nil, so that a node has to parse Rules.
	RulesJSON *ACLRules
}

// ACLRules are the rules of a policy.
type ACLRules struct {
	Namespaces []*ACLNamespaceRule
	Node       *ACLRule
	Agent      *ACLRule
}

// ACLNamespaceRule is a rule for the namespaces that match Name, which can have the wildcard *.
type ACLNamespaceRule struct {
	Name         string
	Policy       string // read, write, scale, deny, or empty
	Capabilities []string
}

// ACLRule is a rule for all nodes or agents.
type ACLRule struct{ Policy string }

// GetRolesRequest is the request of ACL.GetRolesByID.
type GetRolesRequest struct {
	ACLRoleIDs []string
	ReadOptions
}

// GetRolesResponse is the response of ACL.GetRolesByID.
type GetRolesResponse struct {
	ACLRoles map[string]*ACLRole
	ReadMeta
}

// ACLRole is a named list of policies.
type ACLRole struct {
	ID, Name string
	Policies []*ACLRolePolicy
}

// ACLRolePolicy names a policy of a role.
type ACLRolePolicy struct{ Name string }
