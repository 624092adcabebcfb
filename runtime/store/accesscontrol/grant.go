package accesscontrol

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// AnonymousPolicy is the name of the policy for requests without a token.
const AnonymousPolicy = "anonymous"

var (
	// ErrTokenNotFound: no token has the secret of a request.
	ErrTokenNotFound = errors.New("ACL token not found")
	// ErrTokenExpired: the token of a request has expired.
	ErrTokenExpired = errors.New("ACL token expired")
)

// tables are the tables of access control.
var tables = []store.Table{store.ACLPolicies, store.ACLRoles, store.ACLTokens}

// A Grant is what a token permits in one state of the store.
type Grant struct {
	Rights *acl.Rights
	// Token is nil for a request without a token, and for a workload.
	Token *api.ACLToken
	// PolicyNames and RoleIDs are the existing policies, directly or through roles, and the existing roles. A management token has
	// none.
	PolicyNames, RoleIDs []string
}

// FindGrant returns what a token's secret permits in the snapshot. An empty secret is that of a request without a token. Watch
// channels for the changes that can end or change the Grant are added to ws, which may be nil; its expiry is none of these. The
// error is ErrTokenNotFound or ErrTokenExpired.
func (c *Control) FindGrant(s *store.Snapshot, ws store.WatchSet, secret string) (*Grant, error) {
	index := s.LatestTableIndex(ws, tables...)
	if secret == "" {
		return c.rights.get(s, index, "", func() *Grant { return c.newGrant(s, []string{AnonymousPolicy}, nil) }), nil
	}
	t := s.ACLTokenBySecret(nil, secret)
	switch {
	case t == nil:
		return nil, ErrTokenNotFound
	case isExpired(t, time.Now()):
		return nil, ErrTokenExpired
	}
	return c.rights.get(s, index, t.AccessorID, func() *Grant {
		if t.Type == TypeManagement {
			return &Grant{Rights: acl.Management(), Token: t}
		}
		g := c.newGrant(s, t.Policies, t.Roles)
		g.Token = t
		return g
	}), nil
}

// FindWorkloadGrant is like FindGrant for the identity of a task: the policies of its job, and its own rights.
func (c *Control) FindWorkloadGrant(s *store.Snapshot, ws store.WatchSet, w *identity.Workload) *Grant {
	index := s.LatestTableIndex(ws, tables...)
	return c.rights.get(s, index, w.Namespace+"\x00"+w.JobID+"\x00"+w.Group+"\x00"+w.Task, func() *Grant {
		var names []string
		for _, p := range s.ACLPolicies(nil, "") {
			if p.JobACL != nil && reaches(p.JobACL, w) {
				names = append(names, p.Name)
			}
		}
		g := c.newGrant(s, names, nil)
		g.Rights = g.Rights.WithWorkload(acl.Workload{Namespace: w.Namespace, Job: w.JobID, Group: w.Group, Task: w.Task})
		return g
	})
}

// reaches reports whether a policy for jobs holds for a task.
func reaches(j *api.JobACL, w *identity.Workload) bool {
	return j.Namespace == w.Namespace && (j.JobID == "" || j.JobID == w.JobID) && (j.Group == "" || j.Group == w.Group) && (j.Task == "" || j.Task == w.Task)
}

func isExpired(t *api.ACLToken, now time.Time) bool {
	return t.ExpirationTime != nil && !now.Before(*t.ExpirationTime)
}

// newGrant returns a Grant of policies and roles. A policy or role that does not exist grants nothing.
func (c *Control) newGrant(s *store.Snapshot, policyNames []string, roles []*api.ACLTokenRoleLink) *Grant {
	g := new(Grant)
	names := slices.Clone(policyNames)
	for _, link := range roles {
		role := s.ACLRole(nil, link.ID)
		if role == nil {
			continue
		}
		g.RoleIDs = append(g.RoleIDs, role.ID)
		for _, policy := range role.Policies {
			names = append(names, policy.Name)
		}
	}
	var rules []*acl.Rules
	for _, name := range compactInOrder(names) {
		p := s.ACLPolicy(nil, name)
		if p == nil {
			continue
		}
		parsed, err := c.rights.parse(p)
		if err != nil {
			// The policy could deny what others grant, so no policy grants anything.
			c.logger.Error("policy cannot be read, so its tokens have no rights: store the policy again", "policy", name, "error", err)
			return &Grant{Rights: new(acl.Rights)}
		}
		g.PolicyNames = append(g.PolicyNames, name)
		rules = append(rules, parsed)
	}
	slices.Sort(g.PolicyNames)
	g.Rights = acl.Merge(rules...)
	return g
}

// TokenWithCurrentRoles returns a copy of a token with the present names of its roles, without the roles that were deleted.
func TokenWithCurrentRoles(s *store.Snapshot, ws store.WatchSet, t *api.ACLToken) *api.ACLToken {
	if t.Roles == nil {
		return t
	}
	c := *t
	c.Roles = []*api.ACLTokenRoleLink{}
	for _, link := range t.Roles {
		if role := s.ACLRole(ws, link.ID); role != nil {
			c.Roles = append(c.Roles, &api.ACLTokenRoleLink{ID: role.ID, Name: role.Name})
		}
	}
	return &c
}

// rightsCache keeps the Grants of one state of access control, and the parsed policies.
type rightsCache struct {
	mu     sync.Mutex
	index  uint64 // of the change after which the grants were computed
	grants map[string]*Grant
	parsed map[*api.ACLPolicy]parsedPolicy // stored policies do not change
}

type parsedPolicy struct {
	rules *acl.Rules
	err   error
}

// get returns the Grant with a key in a snapshot whose last change of access control has an index.
func (r *rightsCache) get(s *store.Snapshot, index uint64, key string, compute func() *Grant) *Grant {
	r.mu.Lock()
	if index == r.index {
		if g := r.grants[key]; g != nil {
			r.mu.Unlock()
			return g
		}
	}
	r.mu.Unlock()
	g := compute()
	r.mu.Lock()
	defer r.mu.Unlock()
	if index > r.index || r.grants == nil {
		r.index, r.grants = index, make(map[string]*Grant)
		stored := make(map[*api.ACLPolicy]bool)
		for _, p := range s.ACLPolicies(nil, "") {
			stored[p] = true
		}
		maps.DeleteFunc(r.parsed, func(p *api.ACLPolicy, _ parsedPolicy) bool { return !stored[p] })
	}
	if index == r.index {
		r.grants[key] = g
	}
	return g
}

// parse returns a policy's rules.
func (r *rightsCache) parse(p *api.ACLPolicy) (*acl.Rules, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, found := r.parsed[p]
	if !found {
		rules, err := acl.Parse(p.Rules)
		known = parsedPolicy{rules, err}
		if r.parsed == nil {
			r.parsed = make(map[*api.ACLPolicy]parsedPolicy)
		}
		r.parsed[p] = known
	}
	return known.rules, known.err
}
