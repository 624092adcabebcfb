package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// access is the right that a route needs. The zero value refuses everybody.
type access struct {
	// isOpen: everybody may use the route, also with an unknown token. The handler itself decides what it shows.
	isOpen bool
	// capabilities make the objects in a namespace visible for the handler.
	capabilities []acl.Capability
	// missingRight returns the name of the right that a client lacks for a request, "" if it lacks none.
	missingRight func(r *request, rights *acl.Rights) string
}

// readJobs are the capabilities that make the objects of jobs visible where a route names no others.
var readJobs = []acl.Capability{acl.ReadJob}

// openToAll is the access of a route that everybody may use.
func openToAll() access { return access{isOpen: true} }

// forEachToken is the access of a route for all valid tokens, and for clients without a token. The reply has only what the
// client may see.
func forEachToken() access {
	return access{capabilities: readJobs, missingRight: func(*request, *acl.Rights) string { return "" }}
}

// needs returns the access of a route that needs a right which no namespace limits.
func needs(name string, has func(*acl.Rights) bool) access {
	return access{capabilities: readJobs, missingRight: func(_ *request, rights *acl.Rights) string {
		if has(rights) {
			return ""
		}
		return name
	}}
}

func management() access    { return needs("management token", (*acl.Rights).IsManagement) }
func readNodes() access     { return needs("node:read", (*acl.Rights).ReadsNodes) }
func writeNodes() access    { return needs("node:write", (*acl.Rights).WritesNodes) }
func readAgents() access    { return needs("agent:read", (*acl.Rights).ReadsAgents) }
func writeAgents() access   { return needs("agent:write", (*acl.Rights).WritesAgents) }
func readOperator() access  { return needs("operator:read", (*acl.Rights).ReadsOperator) }
func writeOperator() access { return needs("operator:write", (*acl.Rights).WritesOperator) }
func listPlugins() access   { return needs("plugin:list", (*acl.Rights).ListsPlugins) }
func readPlugins() access   { return needs("plugin:read", (*acl.Rights).ReadsPlugins) }

// asOperator is the access of a route that needs a capability of operators.
func asOperator(c acl.Capability) access {
	return needs("operator capability "+string(c), func(rights *acl.Rights) bool { return rights.Operator(c) })
}

// missingCapability names the first of several capabilities, one of which is needed.
func missingCapability(namespace string, capabilities []acl.Capability) string {
	return string(capabilities[0]) + " in namespace " + strconv.Quote(namespace)
}

// hasInNamespace reports whether a client has one of the capabilities in a namespace or, for "*", in any namespace.
func hasInNamespace(rights *acl.Rights, namespace string, capabilities ...acl.Capability) bool {
	return namespace == store.AnyNamespace && rights.AnyNamespace(capabilities...) || rights.Namespace(namespace, capabilities...)
}

// inNamespace is the access of a route that needs one of the capabilities in the namespace of the query, or, if that is "*", in
// any namespace.
func inNamespace(capabilities ...acl.Capability) access {
	return access{capabilities: capabilities, missingRight: func(r *request, rights *acl.Rights) string {
		if hasInNamespace(rights, r.namespace, capabilities...) {
			return ""
		}
		return missingCapability(r.namespace, capabilities)
	}}
}

// listInNamespace is inNamespace for a list that is empty, and not refused, if it is asked for all namespaces.
func listInNamespace(capabilities ...acl.Capability) access {
	return inNamespace(capabilities...).exceptInAllNamespaces()
}

// ofObject is the access of a route whose namespace is that of an object, or of the body, and not of the query. A client with none of
// the capabilities in any namespace is refused; for others, the objects of other namespaces do not exist. A handler that does
// not read the object from its snapshot calls [request.requireIn].
func ofObject(capabilities ...acl.Capability) access {
	return access{capabilities: capabilities, missingRight: func(_ *request, rights *acl.Rights) string {
		if rights.AnyNamespace(capabilities...) {
			return ""
		}
		return string(capabilities[0])
	}}
}

// readService is the access of a route that reads the services with a name.
func readService() access {
	return access{capabilities: readJobs, missingRight: func(r *request, rights *acl.Rights) string {
		if rights.Service(r.namespace) || hasInNamespace(rights, r.namespace, readJobs...) {
			return ""
		}
		return missingCapability(r.namespace, readJobs)
	}}
}

// listServices is readService for a list that is empty, and not refused, if it is asked for all namespaces.
func listServices() access { return readService().exceptInAllNamespaces() }

// exceptInAllNamespaces returns the access of a list that is empty, and not refused, if it is asked for all namespaces.
func (a access) exceptInAllNamespaces() access {
	inOne := a.missingRight
	a.missingRight = func(r *request, rights *acl.Rights) string {
		if r.namespace == store.AnyNamespace {
			return ""
		}
		return inOne(r, rights)
	}
	return a
}

// ofVariable is the access of a route that needs a capability for the variable in the path.
func ofVariable(c acl.Capability) access {
	return access{missingRight: func(r *request, rights *acl.Rights) string {
		return missingVariableCapability(rights, r.namespace, r.pathID, c)
	}}
}

func missingVariableCapability(rights *acl.Rights, namespace, path string, c acl.Capability) string {
	if rights.Variable(namespace, path, c) {
		return ""
	}
	return string(c) + " of variable " + strconv.Quote(path) + " in namespace " + strconv.Quote(namespace)
}

// ofNamespace is the access of a route that reads the namespace in the path.
func ofNamespace() access {
	return access{capabilities: readJobs, missingRight: func(r *request, rights *acl.Rights) string {
		if rights.SeesNamespace(r.pathID) {
			return ""
		}
		return "any right in namespace " + strconv.Quote(r.pathID)
	}}
}

// ofNodePool is the access of a route that reads the node pool in the path.
func ofNodePool() access {
	return access{capabilities: []acl.Capability{acl.ListJobs}, missingRight: func(r *request, rights *acl.Rights) string {
		if rights.NodePool(r.pathID, acl.Read) {
			return ""
		}
		return "read of node pool " + strconv.Quote(r.pathID)
	}}
}

// and returns the access of a route that needs both rights.
func (a access) and(b access) access {
	first := a.missingRight
	a.missingRight = func(r *request, rights *acl.Rights) string {
		return cmp.Or(first(r, rights), b.missingRight(r, rights))
	}
	return a
}

// onWrite returns the access of a route that needs the right of a for GET, and that of b for other methods.
func (a access) onWrite(b access) access {
	return access{capabilities: a.capabilities, missingRight: func(r *request, rights *acl.Rights) string {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return a.missingRight(r, rights)
		}
		return b.missingRight(r, rights)
	}}
}

// deregisterJob is the access of the route that stops a job: with purge, it needs another right.
func deregisterJob() access {
	purges := inNamespace(acl.SubmitJob, acl.PurgeJob)
	a := inNamespace(acl.SubmitJob, acl.DeregisterJob, acl.PurgeJob)
	stops := a.missingRight
	a.missingRight = func(r *request, rights *acl.Rights) string {
		if purge, err := r.boolParam("purge"); err != nil || purge {
			return purges.missingRight(r, rights)
		}
		return stops(r, rights)
	}
	return a
}

// listVolumes is the access of the list of volumes: that of host volumes has only visible ones, that of CSI volumes, of which there
// are none, is refused.
func listVolumes() access {
	csi := inNamespace(acl.CSIListVolume, acl.CSIReadVolume, acl.CSIMountVolume, acl.ListJobs)
	return access{missingRight: func(r *request, rights *acl.Rights) string {
		if r.query.Get("type") == "host" {
			return ""
		}
		return csi.missingRight(r, rights)
	}}
}

// A permissionError refuses a request with a valid token. Its text is Nomad's; missingRight goes into a header.
type permissionError struct{ missingRight string }

func (*permissionError) Error() string { return errPermissionDenied.replyBody }

// Unwrap lets callers see the status of the reply.
func (*permissionError) Unwrap() error { return errPermissionDenied }

// missingRightHeader is the header in which the reply to a refused request has the name of a right that is missing. Nomad has
// no such header.
const missingRightHeader = "X-Nomad-Lite-Missing-Right"

// endOfStreamTrailer is the trailer in which a stream that has no frames says why the agent has ended it. Nomad has no such trailer.
const endOfStreamTrailer = "X-Nomad-Lite-End-Of-Stream"

// checkAccess refuses the request if the client lacks the right of the route.
func (r *request) checkAccess() error {
	switch {
	case r.access.isOpen || r.rights.acl.IsManagement():
		return nil
	case r.rights.tokenErr != nil:
		return errPermissionDenied
	case r.access.missingRight == nil:
		return errPermissionDenied
	}
	if missing := r.access.missingRight(r, r.rights.acl); missing != "" {
		return r.refuse(missing)
	}
	return nil
}

// refuse returns the reply to a client that lacks a right. A client without a token does not hear which.
func (r *request) refuse(missingRight string) error {
	if !r.hasACLToken() {
		return errPermissionDenied
	}
	return &permissionError{missingRight}
}

// hasACLToken reports whether the client has sent a valid token, or is a task.
func (r *request) hasACLToken() bool {
	g := r.rights.grant
	return r.rights.workload != nil || g != nil && g.Token != nil
}

// author returns the client with an ACL token, as the author of its changes, or a zero Author.
func (r *request) author() state.Author {
	if g := r.rights.grant; g != nil && g.Token != nil {
		return state.Author{AccessorID: g.Token.AccessorID, TokenName: g.Token.Name}
	}
	return state.Author{}
}

// requireIn refuses the request if the client lacks the capabilities of the route in a namespace that the body names.
func (r *request) requireIn(namespace string) error {
	return r.require(namespace, r.access.capabilities...)
}

// require refuses the request if the client lacks one of the capabilities in a namespace.
func (r *request) require(namespace string, capabilities ...acl.Capability) error {
	if hasInNamespace(r.rights.acl, namespace, capabilities...) {
		return nil
	}
	return r.refuse(missingCapability(namespace, capabilities))
}

// snapshot returns the present state as the client may see it: what it may not see is absent. If the token of a client has
// ended, or lacks the right of the route now, the error is the reply. Channels that announce such changes are added to ws, which
// may be nil.
func (r *request) snapshot(state *store.Store, ws store.WatchSet) (*store.Snapshot, error) {
	s := state.Snapshot()
	if r.rights.findGrant != nil {
		grant, err := r.rights.findGrant(s, ws)
		if err != nil {
			return nil, errPermissionDenied
		}
		r.rights.acl, r.rights.grant = grant.Rights, grant
		if err := r.checkAccess(); err != nil {
			return nil, err
		}
	}
	if r.rights.acl.IsManagement() {
		return s, nil
	}
	return s.Restrict(visibilityFor(r.rights.acl, r.access.capabilities)), nil
}

// visibilityFor returns which objects are visible for a client on a route that needs one of the capabilities.
func visibilityFor(rights *acl.Rights, capabilities []acl.Capability) store.Visibility {
	return func(t store.Table, namespace string, object any) bool {
		switch t {
		case store.Jobs, store.JobVersions, store.JobSubmissions, store.Evaluations, store.Allocations, store.Deployments, store.ScalingEvents, store.PeriodicLaunches:
			return rights.Namespace(namespace, capabilities...)
		case store.Services:
			return rights.Service(namespace) || rights.Namespace(namespace, capabilities...)
		case store.Variables:
			return rights.Variable(namespace, object.(*api.Variable).Path, acl.List)
		case store.Namespaces:
			return rights.SeesNamespace(object.(*api.Namespace).Name)
		case store.HostVolumes, store.VolumeClaims:
			return rights.Namespace(namespace, acl.HostVolumeRead)
		case store.Nodes, store.SchedulerConfig:
			return true // the route needs the right
		}
		return false
	}
}

// requireAllocation refuses the request if the allocation does not exist, or the client may not see it.
func (r *request) requireAllocation(state *store.Store, id string) error {
	s, err := r.snapshot(state, nil)
	if err == nil && s.Allocation(nil, id) == nil {
		return notFoundError("allocation not found")
	}
	return err
}

// requireDeployment refuses the request if the deployment does not exist, or the client may not see it.
func (r *request) requireDeployment(state *store.Store, id string) error {
	s, err := r.snapshot(state, nil)
	if err == nil && s.Deployment(nil, id) == nil {
		return &statusError{http.StatusInternalServerError, "deployment not found"}
	}
	return err
}

// requireRightsOfJob refuses the request if the client may not register a job because of its volumes.
func (r *request) requireRightsOfJob(job *api.Job) error {
	rights, namespace := r.rights.acl, pointer.Value(job.Namespace)
	for _, g := range job.TaskGroups {
		for _, v := range g.Volumes {
			switch {
			case v == nil:
			case v.Type == "host" && v.ReadOnly && !rights.HostVolume(v.Source, acl.MountReadOnly, acl.MountReadWrite):
				return r.refuse("mount-readonly of host volume " + strconv.Quote(v.Source))
			case v.Type == "host" && !v.ReadOnly && !rights.HostVolume(v.Source, acl.MountReadWrite):
				return r.refuse("mount-readwrite of host volume " + strconv.Quote(v.Source))
			case v.Type == "csi" && !rights.ReadsPlugins():
				return r.refuse("plugin:read")
			case v.Type == "csi":
				if err := r.require(namespace, acl.CSIMountVolume); err != nil {
					return err
				}
			}
		}
		for _, t := range g.Tasks {
			if t.CSIPluginConfig != nil {
				if err := r.require(namespace, acl.CSIRegisterPlugin); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// grantFinder returns what a request's token permits in a state. See accesscontrol.Control.FindGrant.
type grantFinder func(*store.Snapshot, store.WatchSet) (*accesscontrol.Grant, error)

// rightsOfToken returns the rights of a client under access control.
func (p *accessPolicy) rightsOfToken(r *http.Request) clientRights {
	token := requestToken(r)
	if token == "" && isFromAgentUser(r) {
		return clientRights{acl: acl.Management()}
	}
	grant, workload, err := p.findGrant(p.store.Snapshot(), nil, token)
	if err != nil {
		return clientRights{acl: new(acl.Rights), tokenErr: err}
	}
	return clientRights{acl: grant.Rights, grant: grant, workload: workload, findGrant: func(s *store.Snapshot, ws store.WatchSet) (*accesscontrol.Grant, error) {
		grant, _, err := p.findGrant(s, ws, token)
		return grant, err
	}}
}

// findGrant returns what a token permits in a state, and the task that the token belongs to, nil if it is not that of a task.
func (p *accessPolicy) findGrant(s *store.Snapshot, ws store.WatchSet, token string) (*accesscontrol.Grant, *identity.Workload, error) {
	if !isTaskToken(token) {
		grant, err := p.control.FindGrant(s, ws, token)
		return grant, nil, err
	}
	w := p.authenticateToken(token)
	if w == nil {
		return nil, nil, accesscontrol.ErrTokenNotFound
	}
	s.Allocation(ws, w.AllocID) // the token ends with the allocation
	return p.control.FindWorkloadGrant(s, ws, w), w, nil
}

// isFromAgentUser reports whether a request was sent to the unix socket of the agent by root or by the user of the agent.
func isFromAgentUser(r *http.Request) bool {
	peer, _ := r.Context().Value(unixSocketContextKey{}).(unixSocketPeer)
	return peer.isKnown && (peer.uid == 0 || int(peer.uid) == os.Geteuid())
}

// errRightsEnded is the cause of the end of a stream whose token has ended, or lacks the right now.
//
//lint:ignore ST1005 the text starts with Nomad's
var errRightsEnded = errors.New("Permission denied: the token has ended, or lacks the right now")

// endWithRights returns a context that ends with errRightsEnded as soon as the client's token ends, or lacks the right of the
// route. The caller calls stop.
func (r *request) endWithRights(state *store.Store) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	if r.rights.findGrant == nil {
		return ctx, func() { cancel(nil) }
	}
	done := make(chan struct{})
	watched := *r // the handler changes the rights of its own request
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			ws := store.NewWatchSet()
			s := state.Snapshot()
			grant, err := watched.rights.findGrant(s, ws)
			if err == nil {
				watched.rights.acl = grant.Rights
				err = watched.checkAccess()
			}
			if err != nil {
				cancel(errRightsEnded)
				return
			}
			waitCtx, end := ctx, context.CancelFunc(func() {})
			if t := grant.Token; t != nil && t.ExpirationTime != nil {
				waitCtx, end = context.WithDeadline(ctx, *t.ExpirationTime)
			}
			_ = ws.WatchCtx(waitCtx) // ends at the next change, or at the expiry
			end()
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// setEndOfStream sets the trailer of a stream. An empty reason does nothing.
func (r *request) setEndOfStream(reason string) {
	if reason != "" {
		r.w.Header().Set(http.TrailerPrefix+endOfStreamTrailer, reason)
	}
}

// endOfRights returns why the context of a stream has ended, if the client's rights are the reason, and "" otherwise.
func (r *request) endOfRights() string {
	if errors.Is(context.Cause(r.Context()), errRightsEnded) {
		return errRightsEnded.Error()
	}
	return ""
}
