package clustertest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"time"
)

// Policy is a policy of access control. Servers send its text; the other fields are what they allow themselves.
type Policy struct {
	Name, Description string
	Namespaces        []NamespaceRule
	Node              string // "read", "write", "deny", or empty
	Agent             string // the same
	// JobNamespace and JobID name a job to whose tasks the policy is attached; both are empty for policies of users.
	JobNamespace, JobID string
}

// NamespaceRule is a rule for the namespaces that match Name, which can have the wildcard *.
type NamespaceRule struct {
	Name         string
	Policy       string // "read", "write", "scale", "deny", or empty
	Capabilities []string
	// ReadVariables are the paths of variables that can be read, with the wildcard *.
	ReadVariables []string
}

// Text returns the policy in HCL.
func (p Policy) Text() string {
	var out bytes.Buffer
	for _, rule := range p.Namespaces {
		fmt.Fprintf(&out, "namespace %q {\n", rule.Name)
		if rule.Policy != "" {
			fmt.Fprintf(&out, "  policy = %q\n", rule.Policy)
		}
		if len(rule.Capabilities) > 0 {
			fmt.Fprintf(&out, "  capabilities = [%s]\n", quoted(rule.Capabilities))
		}
		if len(rule.ReadVariables) > 0 {
			out.WriteString("  variables {\n")
			for _, each := range rule.ReadVariables {
				fmt.Fprintf(&out, "    path %q {\n      capabilities = [\"read\"]\n    }\n", each)
			}
			out.WriteString("  }\n")
		}
		out.WriteString("}\n")
	}
	for _, rule := range []struct{ name, policy string }{{"node", p.Node}, {"agent", p.Agent}} {
		if rule.policy != "" {
			fmt.Fprintf(&out, "%s {\n  policy = %q\n}\n", rule.name, rule.policy)
		}
	}
	return out.String()
}

func quoted(texts []string) string {
	var all []string
	for _, text := range texts {
		all = append(all, fmt.Sprintf("%q", text))
	}
	return strings.Join(all, ", ")
}

type policyEntry struct {
	Policy
	index uint64
}

// roleEntry is a role as servers send it.
type roleEntry struct {
	ID, Name, Description    string
	Policies                 []*roleLink
	Hash                     []byte
	CreateIndex, ModifyIndex uint64
}

type roleLink struct{ Name string }

// tokenEntry is a token as servers send it, with its policies.
type tokenEntry struct {
	AccessorID, SecretID, Name, Type string
	Policies                         []string
	Roles                            []*tokenRole
	Global                           bool
	Hash                             []byte
	CreateTime                       time.Time
	ExpirationTime                   *time.Time
	ExpirationTTL                    time.Duration
	CreateIndex, ModifyIndex         uint64

	rules []*policyEntry
}

type tokenRole struct{ ID, Name string }

func hashOf(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// AddPolicy adds a policy, or replaces the one with the same name for tokens that are added later.
func (c *Cluster) AddPolicy(p Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policies[p.Name] = &policyEntry{p, c.writeLocked("policies")}
}

// AddRole adds a role with policies, and returns its id.
func (c *Cluster) AddRole(name string, policies ...string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	role := &roleEntry{ID: newID(), Name: name, Hash: hashOf(name), CreateIndex: c.writeLocked("roles")}
	role.ModifyIndex = role.CreateIndex
	for _, p := range policies {
		role.Policies = append(role.Policies, &roleLink{p})
	}
	c.roles[role.ID] = role
	return role.ID
}

// AddToken adds a token of a user with policies and the ids of roles, and returns its secret.
func (c *Cluster) AddToken(name string, policies, roleIDs []string) string {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	token := c.newTokenLocked(name, "client")
	token.Policies = policies
	names := slices.Clone(policies)
	for _, id := range roleIDs {
		role := c.roles[id]
		if role == nil {
			c.t.Fatalf("no role %s", id)
		}
		token.Roles = append(token.Roles, &tokenRole{id, role.Name})
		for _, p := range role.Policies {
			names = append(names, p.Name)
		}
	}
	for _, name := range names {
		if p := c.policies[name]; p != nil {
			token.rules = append(token.rules, p)
		}
	}
	return token.SecretID
}

// ManagementToken returns the secret of a token that may do everything.
func (c *Cluster) ManagementToken() string { return c.managementSecret }

// RevokeToken removes the token of a user.
func (c *Cluster) RevokeToken(secret string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tokens, secret)
	c.writeLocked("tokens")
}

func (c *Cluster) addManagementToken() {
	c.mu.Lock()
	defer c.mu.Unlock()
	token := c.newTokenLocked("Bootstrap Token", "management")
	token.Global = true
	c.managementSecret = token.SecretID
}

func (c *Cluster) managementAccessor() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokens[c.managementSecret].AccessorID
}

func (c *Cluster) newTokenLocked(name, kind string) *tokenEntry {
	token := &tokenEntry{AccessorID: newID(), SecretID: newID(), Name: name, Type: kind, Hash: hashOf(name), CreateTime: c.clock.Now().UTC(), CreateIndex: c.writeLocked("tokens")}
	token.ModifyIndex = token.CreateIndex
	c.tokens[token.SecretID] = token
	return token
}

// isManagement reports whether the caller may do everything.
func (cl *caller) isManagement() bool { return cl.kind == userCaller && cl.token.Type == "management" }

// mayUseNodes reports whether a user may read or write nodes.
func (cl *caller) mayUseNodes(level string) bool {
	if cl.kind != userCaller {
		return false
	}
	allowed := cl.isManagement()
	for _, p := range cl.token.rules {
		allowed = allowed || p.Node == level || p.Node == "write"
	}
	return allowed
}

// capabilitiesOf has the capabilities of the policies of namespaces that the package checks.
var capabilitiesOf = map[string][]string{"read": {"read-job"}, "write": {"read-job", "submit-job"}}

// mayUseNamespace reports whether a user has a capability in a namespace.
func (cl *caller) mayUseNamespace(namespace, capability string) bool {
	if cl.kind != userCaller {
		return false
	}
	allowed := cl.isManagement()
	for _, rule := range rulesFor(cl.token.rules, namespace) {
		allowed = allowed || slices.Contains(rule.Capabilities, capability) || slices.Contains(capabilitiesOf[rule.Policy], capability)
	}
	return allowed
}

// rulesFor returns the rules of policies that match a namespace.
func rulesFor(policies []*policyEntry, namespace string) []NamespaceRule {
	var found []NamespaceRule
	for _, p := range policies {
		for _, rule := range p.Namespaces {
			if matched, err := path.Match(rule.Name, namespace); err == nil && matched {
				found = append(found, rule)
			}
		}
	}
	return found
}

// allowVariable reports whether policies allow to read a variable.
func allowVariable(policies []*policyEntry, namespace, variable string) bool {
	for _, rule := range rulesFor(policies, namespace) {
		for _, pattern := range rule.ReadVariables {
			if matched, err := path.Match(pattern, variable); err == nil && matched {
				return true
			}
		}
	}
	return false
}

// whoAmI answers ACL.WhoAmI.
func (c *Cluster) whoAmI(r *request) (answer, error) {
	identity := object{"ACLToken": nil, "Claims": nil, "ClientID": "", "TLSName": "", "RemoteIP": nil}
	var index uint64
	switch kind := r.caller.kind; {
	case kind == nodeCaller && !r.caller.bySecret, kind == taskCaller:
		identity["Claims"] = r.caller.claims.message()
	case kind == anonymous || !c.config.AccessControl:
		identity["ACLToken"], identity["RemoteIP"] = anonymousToken(c.config.AccessControl), remoteIP(r.session)
	case kind == nodeCaller:
		identity["ClientID"] = r.caller.nodeID
	case kind == userCaller:
		identity["ACLToken"], index = r.caller.token, r.caller.token.ModifyIndex
	case r.caller.err != nil:
		return answer{}, r.caller.err
	default:
		return answer{}, errPermissionDenied
	}
	return answer{body: object{"Identity": identity}, index: index}, nil
}

// anonymousToken returns the token of callers without a token.
func anonymousToken(accessControl bool) *tokenEntry {
	if accessControl {
		return &tokenEntry{AccessorID: "anonymous", Name: "Anonymous Token", Type: "client", Policies: []string{"anonymous"}}
	}
	return &tokenEntry{AccessorID: "acls-disabled", Name: "ACLs disabled token", Type: "client"}
}

func remoteIP(each *session) []byte {
	if addr, ok := each.mux.RemoteAddr().(*net.TCPAddr); ok {
		return addr.IP.To4()
	}
	return nil
}

// message returns the claims as ACL.WhoAmI has them. Claims of the other kind of identity are nil.
func (cl claims) message() object {
	audience := []string{}
	switch a := cl.Audience.(type) {
	case string:
		audience = append(audience, a)
	case []any:
		for _, each := range a {
			audience = append(audience, fmt.Sprint(each))
		}
	}
	m := object{
		"Audience": audience, "ID": cl.ID, "Subject": cl.Subject, "Issuer": "", "Expiry": nil, "IssuedAt": nil, "NotBefore": nil, "ExtraClaims": nil, "NodeName": nil,
		"NodeID": nil, "NodePool": nil, "NodeClass": nil, "NodeDatacenter": nil,
		"AllocationID": nil, "ConsulNamespace": nil, "JobID": nil, "Namespace": nil, "ServiceName": nil, "TaskName": nil, "VaultNamespace": nil, "VaultRole": nil,
	}
	if cl.NodeID != "" {
		m["NodeID"], m["NodePool"], m["NodeClass"], m["NodeDatacenter"] = cl.NodeID, cl.NodePool, cl.NodeClass, cl.NodeDatacenter
	} else {
		m["AllocationID"], m["JobID"], m["Namespace"], m["TaskName"] = cl.AllocationID, cl.JobID, cl.Namespace, cl.Task
		m["ConsulNamespace"], m["ServiceName"], m["VaultNamespace"], m["VaultRole"] = "", cl.Service, "", ""
	}
	return m
}

// errNoAccessControl is the error of a server without access control.
var errNoAccessControl = errors.New("RPC Error:: 400,ACL support disabled")

// getPolicies answers ACL.GetPolicies. A user sees its own policies.
func (c *Cluster) getPolicies(r *request) (answer, error) {
	var get struct{ Names []string }
	if err := r.decode(&get); err != nil {
		return answer{}, err
	}
	if !c.config.AccessControl {
		return answer{}, errNoAccessControl
	}
	if r.caller.kind != userCaller {
		return answer{}, errPermissionDenied
	}
	found := object{}
	for _, name := range get.Names {
		p, known := c.policies[name]
		if known && (r.caller.isManagement() || slices.Contains(r.caller.token.rules, p)) {
			found[name] = p.message()
		}
	}
	return answer{body: object{"Policies": found}, index: c.tableIndexLocked("policies")}, nil
}

// getRoles answers ACL.GetRolesByID. A user sees its own roles.
func (c *Cluster) getRoles(r *request) (answer, error) {
	var get struct{ ACLRoleIDs []string }
	if err := r.decode(&get); err != nil {
		return answer{}, err
	}
	if !c.config.AccessControl {
		return answer{}, errNoAccessControl
	}
	if r.caller.kind != userCaller {
		return answer{}, errPermissionDenied
	}
	found := object{}
	for _, id := range get.ACLRoleIDs {
		own := slices.ContainsFunc(r.caller.token.Roles, func(role *tokenRole) bool { return role.ID == id })
		if !own && !r.caller.isManagement() {
			return answer{}, errPermissionDenied
		}
		if role, known := c.roles[id]; known {
			found[id] = role
		}
	}
	return answer{body: object{"ACLRoles": found}, index: c.tableIndexLocked("roles")}, nil
}

// message returns the policy as servers send it. They leave the parsed rules out.
func (p *policyEntry) message() object {
	m := object{
		"Name": p.Name, "Description": p.Description, "Rules": p.Text(), "RulesJSON": nil, "JobACL": nil,
		"Hash": hashOf(p.Text()), "CreateIndex": p.index, "ModifyIndex": p.index,
	}
	if p.JobID != "" {
		m["JobACL"] = object{"Namespace": p.JobNamespace, "JobID": p.JobID, "Group": "", "Task": ""}
	}
	return m
}

// policiesOfTaskLocked returns the policies that are attached to the job of a task.
func (c *Cluster) policiesOfTaskLocked(cl claims) []*policyEntry {
	var found []*policyEntry
	for _, p := range c.policies {
		if p.JobID == cl.JobID && p.JobNamespace == cl.Namespace {
			found = append(found, p)
		}
	}
	return found
}

// getClaimPolicies answers ACL.GetClaimPolicies.
func (c *Cluster) getClaimPolicies(r *request) (answer, error) {
	if !c.config.AccessControl || r.caller.kind != taskCaller {
		return answer{}, errPermissionDenied
	}
	found := object{}
	var index uint64
	for _, p := range c.policiesOfTaskLocked(r.caller.claims) {
		found[p.Name] = p.message()
		index = max(index, p.index)
	}
	return answer{body: object{"Policies": found, "KnownLeader": false}, index: index}, nil
}
