package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// serverPool is the part of servers.Pool a Checker needs.
type serverPool interface {
	Call(ctx context.Context, method string, request, response any) error
}

// Checker checks the rights tokens have. It may be used concurrently.
type Checker struct {
	pool   serverPool
	region string

	identities    cache[*protocol.ACLIdentity]          // by token
	policies      cache[*protocol.ACLPolicy]            // by name; nil if the policy does not exist
	roles         cache[*protocol.ACLRole]              // by id; nil if the role does not exist
	claimPolicies cache[map[string]*protocol.ACLPolicy] // by workload identity token
}

// New returns a Checker that asks a region's servers.
func New(pool serverPool, region string) *Checker { return &Checker{pool: pool, region: region} }

// AllocNodeExec returns nil if token's owner has the capability alloc-node-exec in a namespace. Otherwise it is like Namespace.
func (c *Checker) AllocNodeExec(ctx context.Context, token, namespace string) error {
	return c.Namespace(ctx, token, namespace, acl.AllocNodeExec)
}

// Namespace returns nil if token's owner has one of the capabilities in a namespace. An empty token belongs to anonymous users.
// The error wraps acl.ErrPermissionDenied, also if the token's policies cannot be read. It blocks while it asks the servers; answers
// younger than 30 seconds are used without asking, and older ones if the servers cannot answer.
func (c *Checker) Namespace(ctx context.Context, token, namespace string, capabilities ...acl.Capability) error {
	return c.check(ctx, token, func(r *acl.Rights) bool { return r.Namespace(namespace, capabilities...) })
}

// Node returns nil if token's owner may read nodes or, with write, change them. Otherwise it is like Namespace.
func (c *Checker) Node(ctx context.Context, token string, write bool) error {
	if write {
		return c.check(ctx, token, (*acl.Rights).WritesNodes)
	}
	return c.check(ctx, token, (*acl.Rights).ReadsNodes)
}

// Agent returns nil if token's owner may read agents or, with write, change them. Otherwise it is like Namespace.
func (c *Checker) Agent(ctx context.Context, token string, write bool) error {
	if write {
		return c.check(ctx, token, (*acl.Rights).WritesAgents)
	}
	return c.check(ctx, token, (*acl.Rights).ReadsAgents)
}

// check returns nil if isGranted returns true for a token's rights.
func (c *Checker) check(ctx context.Context, token string, isGranted func(*acl.Rights) bool) error {
	rights, err := c.rights(ctx, token)
	switch {
	case err != nil:
		return fmt.Errorf("%w: read the policies of the token: %w", acl.ErrPermissionDenied, err)
	case !isGranted(rights):
		return acl.ErrPermissionDenied
	}
	return nil
}

func (c *Checker) rights(ctx context.Context, token string) (*acl.Rights, error) {
	identity, err := c.identify(ctx, token)
	if err != nil {
		return nil, err
	}
	var policies map[string]*protocol.ACLPolicy
	switch user := identity.ACLToken; {
	case user != nil && user.ExpirationTime != nil && !time.Now().Before(*user.ExpirationTime):
		return nil, errors.New("the token has expired")
	case user != nil && user.Type == "management":
		return acl.Management(), nil
	case user != nil:
		policies, err = c.policiesOfUser(ctx, token, user)
	case identity.Claims != nil:
		policies, err = c.policiesOfClaims(ctx, token)
	}
	if err != nil {
		return nil, err
	}
	return merge(policies)
}

// merge returns the rights of policies. A nil policy grants nothing.
func merge(policies map[string]*protocol.ACLPolicy) (*acl.Rights, error) {
	var all []*acl.Rules
	for _, policy := range policies {
		if policy == nil {
			continue
		}
		rules, err := acl.Parse(policy.Rules)
		if err != nil {
			return nil, fmt.Errorf("policy %q: %w", policy.Name, err)
		}
		all = append(all, rules)
	}
	return acl.Merge(all...), nil
}

func (c *Checker) readOptions(token string) protocol.ReadOptions {
	return protocol.ReadOptions{Region: c.region, AuthToken: token, AllowStale: true}
}

func (c *Checker) identify(ctx context.Context, token string) (*protocol.ACLIdentity, error) {
	found, err := c.identities.get([]string{token}, func([]string) (map[string]*protocol.ACLIdentity, error) {
		var response protocol.WhoAmIResponse
		if err := c.pool.Call(ctx, protocol.MethodWhoAmI, &protocol.WhoAmIRequest{ReadOptions: c.readOptions(token)}, &response); err != nil {
			return nil, err
		}
		if response.Identity == nil {
			response.Identity = &protocol.ACLIdentity{}
		}
		return map[string]*protocol.ACLIdentity{token: response.Identity}, nil
	})
	return found[token], err
}

// policiesOfUser returns the policies of a token and its roles. Missing policies are nil.
func (c *Checker) policiesOfUser(ctx context.Context, token string, user *protocol.ACLToken) (map[string]*protocol.ACLPolicy, error) {
	names := slices.Clone(user.Policies)
	var roleIDs []string
	for _, link := range user.Roles {
		if link != nil {
			roleIDs = append(roleIDs, link.ID)
		}
	}
	slices.Sort(roleIDs)
	roles, err := c.roles.get(slices.Compact(roleIDs), func(ids []string) (map[string]*protocol.ACLRole, error) {
		var response protocol.GetRolesResponse
		err := c.pool.Call(ctx, protocol.MethodGetRoles, &protocol.GetRolesRequest{ACLRoleIDs: ids, ReadOptions: c.readOptions(token)}, &response)
		return response.ACLRoles, err
	})
	if err != nil {
		return nil, err
	}
	for _, role := range roles {
		if role == nil {
			continue
		}
		for _, policy := range role.Policies {
			if policy != nil {
				names = append(names, policy.Name)
			}
		}
	}
	slices.Sort(names)
	return c.policies.get(slices.Compact(names), func(names []string) (map[string]*protocol.ACLPolicy, error) {
		var response protocol.GetPoliciesResponse
		err := c.pool.Call(ctx, protocol.MethodGetPolicies, &protocol.GetPoliciesRequest{Names: names, ReadOptions: c.readOptions(token)}, &response)
		return response.Policies, err
	})
}

func (c *Checker) policiesOfClaims(ctx context.Context, token string) (map[string]*protocol.ACLPolicy, error) {
	found, err := c.claimPolicies.get([]string{token}, func([]string) (map[string]map[string]*protocol.ACLPolicy, error) {
		var response protocol.GetClaimedPoliciesResponse
		err := c.pool.Call(ctx, protocol.MethodGetClaimedPolicies, &protocol.GetClaimedPoliciesRequest{ReadOptions: c.readOptions(token)}, &response)
		return map[string]map[string]*protocol.ACLPolicy{token: response.Policies}, err
	})
	return found[token], err
}
