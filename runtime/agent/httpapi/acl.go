package httpapi

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
)

// aclHandler serves the routes of ACL policies, roles and tokens.
type aclHandler struct {
	store   *store.Store
	control *accesscontrol.Control // nil if access control is not enabled
}

// ifEnabled returns a handler that calls handle, or that replies like Nomad without access control.
func (h *aclHandler) ifEnabled(handle func(*request) (any, error)) func(*request) (any, error) {
	if h.control == nil {
		return noACLHandler
	}
	return handle
}

// rejectUnknown replies to routes of Nomad's access control that do not exist here.
func (h *aclHandler) rejectUnknown(*request) (any, error) {
	return nil, notFoundError("auth methods, binding rules and logins do not exist here: create a token with nomad-lite acl token create")
}

// tokenView is a token in the API's JSON form.
type tokenView struct {
	AccessorID, SecretID, Name, Type string
	Policies                         []string
	Roles                            []*api.ACLTokenRoleLink
	Global                           bool
	Hash                             []byte
	CreateTime                       time.Time
	ExpirationTime                   *time.Time
	ExpirationTTL                    string
	CreateIndex, ModifyIndex         uint64
}

func newTokenView(t *api.ACLToken) tokenView {
	v := tokenView{
		AccessorID: t.AccessorID, SecretID: t.SecretID, Name: t.Name, Type: t.Type, Policies: t.Policies, Roles: t.Roles, Global: t.Global,
		CreateTime: t.CreateTime, ExpirationTime: t.ExpirationTime, CreateIndex: t.CreateIndex, ModifyIndex: t.ModifyIndex,
	}
	if t.ExpirationTTL != 0 {
		v.ExpirationTTL = t.ExpirationTTL.String()
	}
	v.Hash = hashJSON([]any{t.Name, t.Type, t.Policies, t.Roles, t.Global})
	return v
}

// tokenStub is an entry of a list of tokens: a token without its secret.
type tokenStub struct {
	AccessorID, Name, Type   string
	Policies                 []string
	Roles                    []*api.ACLTokenRoleLink
	Global                   bool
	Hash                     []byte
	CreateTime               time.Time
	ExpirationTime           *time.Time
	CreateIndex, ModifyIndex uint64
}

func newTokenStub(t *api.ACLToken) tokenStub {
	v := newTokenView(t)
	return tokenStub{v.AccessorID, v.Name, v.Type, v.Policies, v.Roles, v.Global, v.Hash, v.CreateTime, v.ExpirationTime, v.CreateIndex, v.ModifyIndex}
}

// policyStub is an entry of a list of policies: a policy without its rules.
type policyStub struct {
	Name, Description        string
	JobACL                   *api.JobACL
	Hash                     []byte
	CreateIndex, ModifyIndex uint64
}

func newPolicyStub(p *api.ACLPolicy) policyStub {
	return policyStub{p.Name, p.Description, p.JobACL, hashJSON([]any{p.Name, p.Description, p.Rules, p.JobACL}), p.CreateIndex, p.ModifyIndex}
}

// policyView is a policy in the API's JSON form.
type policyView struct {
	policyStub
	Rules     string
	RulesJSON *acl.Rules
}

// roleView is a role in the API's JSON form.
type roleView struct {
	ID, Name, Description    string
	Policies                 []*api.ACLRolePolicyLink
	Hash                     []byte
	CreateIndex, ModifyIndex uint64
}

func newRoleView(r *api.ACLRole) roleView {
	return roleView{r.ID, r.Name, r.Description, r.Policies, hashJSON([]any{r.Name, r.Description, r.Policies}), r.CreateIndex, r.ModifyIndex}
}

// decodeStream decodes the JSON of a request with the errors of a decoder that reads from a stream, as in Nomad.
func (r *request) decodeStream(into any, mayBeEmpty bool) error {
	text, err := r.readJSONBody(maxBodyBytes, mayBeEmpty)
	if err != nil || len(text) == 0 {
		return err
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(into); err != nil {
		return badRequestError(err.Error())
	}
	return nil
}

// owns reports whether a client may read a policy, or a role, that is one of its own.
func (r *request) owns(names func(*accesscontrol.Grant) []string, name string) bool {
	g := r.rights.grant
	return r.rights.acl.IsManagement() || g != nil && slices.Contains(names(g), name)
}

func policyNames(g *accesscontrol.Grant) []string { return g.PolicyNames }
func roleIDs(g *accesscontrol.Grant) []string     { return g.RoleIDs }

func (h *aclHandler) bootstrap(r *request) (any, error) {
	var body api.BootstrapRequest
	if err := r.decodeStream(&body, true); err != nil {
		return nil, badRequestError("failed to decode request body: " + err.Error())
	}
	t, err := h.control.Bootstrap(r.Context(), body.BootstrapSecret)
	if err != nil {
		return nil, err
	}
	r.auditObject = t.AccessorID
	r.replyIndex = t.ModifyIndex
	return newTokenView(t), nil
}

// listPolicies lists the policies that the client may read.
func (h *aclHandler) listPolicies(r *request) (any, error) {
	return h.replyWithPolicies(r, r.query.Get("prefix"), []policyStub{})
}

// listOwnPolicies lists the policies of the token.
func (h *aclHandler) listOwnPolicies(r *request) (any, error) {
	if !r.hasACLToken() && !r.rights.acl.IsManagement() {
		return nil, errPermissionDenied
	}
	return h.replyWithPolicies(r, "", nil) // null if there are none, as in Nomad
}

// replyWithPolicies replies with the policies with a prefix that the client may read, or with none if there are no such policies.
func (h *aclHandler) replyWithPolicies(r *request, prefix string, none []policyStub) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		stubs := none
		for _, p := range s.Unrestricted().ACLPolicies(ws, prefix) {
			if r.owns(policyNames, p.Name) {
				stubs = append(stubs, newPolicyStub(p))
			}
		}
		return stubs, s.LatestTableIndex(ws, store.ACLPolicies), nil
	})
}

func (h *aclHandler) readPolicy(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		p := s.Unrestricted().ACLPolicy(ws, r.pathID)
		if !r.owns(policyNames, r.pathID) && r.pathID != accesscontrol.AnonymousPolicy {
			return nil, 0, errPermissionDenied
		}
		if p == nil {
			return nil, s.LatestTableIndex(ws, store.ACLPolicies), notFoundError("ACL policy not found")
		}
		view := policyView{policyStub: newPolicyStub(p), Rules: p.Rules}
		view.RulesJSON, _ = acl.Parse(p.Rules) // the text was parsed before it was stored
		return view, p.ModifyIndex, nil
	})
}

func (h *aclHandler) rejectMissingPolicyName(*request) (any, error) {
	return nil, badRequestError("Missing Policy Name")
}

func (h *aclHandler) putPolicy(r *request) (any, error) {
	var p api.ACLPolicy
	if err := r.decodeStream(&p, false); err != nil {
		return nil, err
	}
	if p.Name != r.pathID {
		return nil, badRequestError("ACL policy name does not match request path")
	}
	index, err := h.control.PutPolicy(r.Context(), &p)
	r.replyIndex = index
	return noContent{}, err
}

func (h *aclHandler) deletePolicy(r *request) (any, error) {
	index, err := h.control.DeletePolicy(r.Context(), r.pathID)
	r.replyIndex = index
	return noContent{}, err
}

func (h *aclHandler) listTokens(r *request) (any, error) {
	prefix := r.query.Get("prefix")
	if digits := strings.ReplaceAll(prefix, "-", ""); len(digits)%2 != 0 {
		return nil, errors.New("acl token lookup failed: index error: Input (without hyphens) must be even length")
	} else if _, err := hex.DecodeString(digits); err != nil {
		return nil, fmt.Errorf("acl token lookup failed: index error: Invalid UUID: %w", err)
	}
	onlyGlobal, err := r.boolParam("global")
	if err != nil {
		return nil, err
	}
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		var found []*api.ACLToken
		for _, t := range s.ACLTokens(ws, prefix) {
			if t.Global || !onlyGlobal {
				found = append(found, accesscontrol.TokenWithCurrentRoles(s, ws, t))
			}
		}
		stubs, err := listPage(r, found, func(t *api.ACLToken) sortKey { return r.newCreationSortKey(t.CreateIndex, t.AccessorID) }, newTokenStub)
		return stubs, s.LatestTableIndex(ws, store.ACLTokens), err
	})
}

// readOwnToken describes the token of the request.
func (h *aclHandler) readOwnToken(r *request) (any, error) {
	g := r.rights.grant
	switch {
	case r.rights.workload != nil:
		return nil, notFoundError("ACL token not found")
	case g == nil: // the agent's user, over the unix socket
		return tokenView{AccessorID: "agent-user", Name: "user of the agent", Type: accesscontrol.TypeManagement}, nil
	case g.Token == nil:
		r.isReplyReadFromState, r.replyIndex = true, max(h.store.Snapshot().LatestTableIndex(nil, store.ACLTokens), 1)
		return tokenView{AccessorID: "anonymous", Name: "Anonymous Token", Type: accesscontrol.TypeClient, Policies: []string{accesscontrol.AnonymousPolicy}}, nil
	}
	return h.replyWithToken(r, g.Token.AccessorID)
}

// tokenRights is what a token permits, for pages and programs that show what their user may do.
type tokenRights struct {
	// Management: the token permits everything. The other fields are then empty.
	Management bool
	// ReadOnly: it is the read-only token of an agent without access control.
	ReadOnly bool
	// Rights are the rights that no namespace limits, such as "node:read"; "variables" is a right to some variable.
	Rights []string
	// Namespaces has the capabilities in each namespace that the token sees.
	Namespaces map[string][]acl.Capability
}

// rightsWithoutNamespace are the rights that no namespace limits, by name.
var rightsWithoutNamespace = []struct {
	name string
	has  func(*acl.Rights) bool
}{
	{"agent:read", (*acl.Rights).ReadsAgents}, {"agent:write", (*acl.Rights).WritesAgents},
	{"node:read", (*acl.Rights).ReadsNodes}, {"node:write", (*acl.Rights).WritesNodes},
	{"operator:read", (*acl.Rights).ReadsOperator}, {"operator:write", (*acl.Rights).WritesOperator},
	{"plugin:list", (*acl.Rights).ListsPlugins}, {"plugin:read", (*acl.Rights).ReadsPlugins},
	{"variables", func(rights *acl.Rights) bool { return rights.AnyVariable(acl.List, acl.Read, acl.Write) }},
}

// readOwnRights describes what the token of the request permits.
func (h *aclHandler) readOwnRights(r *request) (any, error) {
	rights := r.rights.acl
	switch {
	case r.rights.isReadOnly:
		return tokenRights{ReadOnly: true, Rights: []string{"agent:read", "node:read"}, Namespaces: map[string][]acl.Capability{}}, nil
	case rights.IsManagement():
		return tokenRights{Management: true, Rights: []string{}, Namespaces: map[string][]acl.Capability{}}, nil
	}
	s, err := r.snapshot(h.store, nil)
	if err != nil {
		return nil, err
	}
	reply := tokenRights{Rights: []string{}, Namespaces: make(map[string][]acl.Capability)}
	for _, right := range rightsWithoutNamespace {
		if right.has(rights) {
			reply.Rights = append(reply.Rights, right.name)
		}
	}
	for _, ns := range listNamespaces(s.Reader, nil, "", rights) {
		reply.Namespaces[ns.Name] = slices.DeleteFunc(acl.NamespaceCapabilities(), func(c acl.Capability) bool { return !rights.Namespace(ns.Name, c) })
	}
	return reply, nil
}

func (h *aclHandler) replyWithToken(r *request, accessorID string) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		s = s.Unrestricted()
		t := s.ACLToken(ws, accessorID)
		if t == nil {
			return nil, s.LatestTableIndex(ws, store.ACLTokens), notFoundError("ACL token not found")
		}
		return newTokenView(accesscontrol.TokenWithCurrentRoles(s, ws, t)), t.ModifyIndex, nil
	})
}

func (h *aclHandler) readToken(r *request) (any, error) {
	if g := r.rights.grant; !r.rights.acl.IsManagement() && (g == nil || g.Token == nil || g.Token.AccessorID != r.pathID) {
		return nil, errPermissionDenied
	}
	if err := checkIDIsUUID("acl token", r.pathID); err != nil {
		return nil, err
	}
	return h.replyWithToken(r, r.pathID)
}

func (h *aclHandler) rejectMissingAccessor(*request) (any, error) {
	return nil, badRequestError("Missing Token Accessor")
}

// putToken creates a token, or changes the token in the path.
func (h *aclHandler) putToken(r *request) (any, error) {
	var t api.ACLToken
	if err := r.decodeStream(&t, false); err != nil {
		return nil, err
	}
	if r.pathID != "" && t.AccessorID != r.pathID {
		return nil, badRequestError("ACL token accessor does not match request path")
	}
	stored, index, err := h.control.PutToken(r.Context(), &t)
	if err != nil {
		return nil, err
	}
	r.auditObject = stored.AccessorID
	r.replyIndex = index
	return newTokenView(stored), nil
}

func (h *aclHandler) deleteToken(r *request) (any, error) {
	index, err := h.control.DeleteToken(r.Context(), r.pathID)
	r.replyIndex = index
	return noContent{}, err
}

// oneTimeTokenReply is the reply to a request for a one-time token.
type oneTimeTokenReply struct {
	OneTimeToken *api.OneTimeToken
	Index        uint64
}

func (h *aclHandler) createOneTimeToken(r *request) (any, error) {
	r.w.Header().Set("Cache-Control", "no-store")
	if r.rights.workload != nil {
		return nil, errPermissionDenied
	}
	if r.rights.grant == nil || r.rights.grant.Token == nil {
		return nil, errors.New("acl token lookup failed: missing secret id")
	}
	made := h.control.CreateOneTimeToken(r.rights.grant.Token)
	r.replyIndex = made.ModifyIndex
	return oneTimeTokenReply{made, made.ModifyIndex}, nil
}

// exchangedTokenReply is the reply to the exchange of a one-time token.
type exchangedTokenReply struct {
	Token tokenView
	Index uint64
}

func (h *aclHandler) exchangeOneTimeToken(r *request) (any, error) {
	r.w.Header().Set("Cache-Control", "no-store")
	var body api.OneTimeTokenExchangeRequest
	if err := r.decodeStream(&body, false); err != nil {
		return nil, err
	}
	t, err := h.control.ExchangeOneTimeToken(body.OneTimeSecretID)
	if errors.Is(err, acl.ErrPermissionDenied) {
		return nil, errPermissionDenied
	}
	if err != nil {
		return nil, err
	}
	r.replyIndex = h.store.Index()
	return exchangedTokenReply{newTokenView(accesscontrol.TokenWithCurrentRoles(h.store.Snapshot(), nil, t)), r.replyIndex}, nil
}

// listRoles lists the roles that the client may read.
func (h *aclHandler) listRoles(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		roles := []roleView{}
		for _, role := range s.Unrestricted().ACLRoles(ws, r.query.Get("prefix")) {
			if r.owns(roleIDs, role.ID) {
				roles = append(roles, newRoleView(role))
			}
		}
		return roles, s.LatestTableIndex(ws, store.ACLRoles), nil
	})
}

// replyWithRole replies with a role that find returns.
func (h *aclHandler) replyWithRole(r *request, find func(*store.Snapshot, store.WatchSet) *api.ACLRole) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		role := find(s.Unrestricted(), ws)
		switch {
		case role == nil && !r.rights.acl.IsManagement(), role != nil && !r.owns(roleIDs, role.ID):
			return nil, 0, errPermissionDenied
		case role == nil:
			return nil, s.LatestTableIndex(ws, store.ACLRoles), notFoundError("ACL role not found")
		}
		return newRoleView(role), role.ModifyIndex, nil
	})
}

func (h *aclHandler) readRole(r *request) (any, error) {
	return h.replyWithRole(r, func(s *store.Snapshot, ws store.WatchSet) *api.ACLRole { return s.ACLRole(ws, r.pathID) })
}

func (h *aclHandler) readRoleByName(r *request) (any, error) {
	return h.replyWithRole(r, func(s *store.Snapshot, ws store.WatchSet) *api.ACLRole { return s.ACLRoleByName(ws, r.pathID) })
}

// putRole creates a role, or changes the role in the path.
func (h *aclHandler) putRole(r *request) (any, error) {
	var role api.ACLRole
	if err := r.decodeStream(&role, false); err != nil {
		return nil, err
	}
	if r.pathID != "" && role.ID != r.pathID {
		return nil, badRequestError("ACL role ID does not match request path")
	}
	stored, index, err := h.control.PutRole(r.Context(), &role)
	if err != nil {
		return nil, err
	}
	r.auditObject = stored.ID
	r.replyIndex = index
	return newRoleView(stored), nil
}

func (h *aclHandler) deleteRole(r *request) (any, error) {
	index, err := h.control.DeleteRole(r.Context(), r.pathID)
	r.replyIndex = index
	return noContent{}, err
}
