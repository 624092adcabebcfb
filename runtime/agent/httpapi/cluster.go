package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// Cluster makes an API that of a node of a Nomad cluster: it answers requests about the node and about allocations that the
// node has, and forwards all others to a server. A client certificate then replaces no token, because each node has one.
type Cluster struct {
	// Forward forwards a request to a server. The only credential of the request is the header X-Nomad-Token.
	Forward http.Handler
	// ServerAddrs returns the addresses of the servers.
	ServerAddrs func() []string
	// Rights checks the tokens of the cluster; nil means that the servers have no access control, so that only tokens of
	// this agent count.
	Rights clusterRights
	// AllowExec returns an error if the owner of a token may not run commands in a task because of its driver. It may be nil.
	AllowExec func(ctx context.Context, token, allocID, task string) error
	// AuthenticateWorkload returns the task whose token is given, or nil if the token is not valid.
	AuthenticateWorkload func(token string) *identity.Workload
	// IsMigrateToken reports whether token permits to read the data of an allocation of this node.
	IsMigrateToken func(allocID, token string) bool
}

// clusterRights checks what the owner of a token of the cluster may do. access.Checker implements it.
type clusterRights interface {
	Namespace(ctx context.Context, token, namespace string, capabilities ...acl.Capability) error
	Node(ctx context.Context, token string, write bool) error
	Agent(ctx context.Context, token string, write bool) error
}

// metadataPath is the route of the metadata of a node.
const metadataPath = "/v1/client/metadata"

// nodeRight is what a token of the cluster must permit for a route of the node.
type nodeRight int

const (
	noRight       nodeRight = iota // the route is open, or checks a token itself
	operatorRight                  // no token of the cluster is enough
	nodeRightRead
	nodeRightWrite
	agentRightRead
	agentRightWrite
	allocRight // a capability in the namespace of the allocation
	jobRight   // a capability in the namespace of the request
)

// nodeRoute is a route that a node of a cluster answers itself.
type nodeRoute struct {
	get, write   nodeRight        // for GET, and for other methods
	capabilities []acl.Capability // a token needs one of them; for allocRight and jobRight
}

// nodeRoutes are the routes, by pattern, that a node of a cluster answers itself, unless their parameters name another node, a
// server, or an allocation that this node does not have.
var nodeRoutes = map[string]nodeRoute{
	"/v1/allocation/{id}/timeline":       {allocRight, operatorRight, []acl.Capability{acl.ReadJob}},
	"/v1/allocation/{id}/transitions":    {allocRight, operatorRight, []acl.Capability{acl.ReadJob}},
	"/v1/client/transitions":             {nodeRightRead, operatorRight, nil},
	"/v1/client/allocation/{id}/checks":  {allocRight, operatorRight, []acl.Capability{acl.ReadJob}},
	execPattern:                          {allocRight, operatorRight, []acl.Capability{acl.AllocExec}},
	"/v1/client/allocation/{id}/gc":      {allocRight, allocRight, []acl.Capability{acl.SubmitJob}},
	"/v1/client/allocation/{id}/pause":   {allocRight, allocRight, []acl.Capability{acl.AllocLifecycle}},
	"/v1/client/allocation/{id}/restart": {operatorRight, allocRight, []acl.Capability{acl.AllocLifecycle}},
	"/v1/client/allocation/{id}/signal":  {operatorRight, allocRight, []acl.Capability{acl.AllocLifecycle}},
	snapshotPattern:                      {noRight, operatorRight, nil},
	"/v1/client/allocation/{id}/stats":   {allocRight, operatorRight, []acl.Capability{acl.ReadJob}},
	"/v1/client/allocation/{id}/history": {allocRight, operatorRight, []acl.Capability{acl.ReadJob}},
	"/v1/client/history":                 {nodeRightRead, operatorRight, nil},
	"/v1/client/fs/ls/{id}":              {allocRight, operatorRight, []acl.Capability{acl.ReadFS}},
	"/v1/client/fs/stat/{id}":            {allocRight, operatorRight, []acl.Capability{acl.ReadFS}},
	"/v1/client/fs/cat/{id}":             {allocRight, operatorRight, []acl.Capability{acl.ReadFS}},
	"/v1/client/fs/readat/{id}":          {allocRight, operatorRight, []acl.Capability{acl.ReadFS}},
	"/v1/client/fs/stream/{id}":          {allocRight, operatorRight, []acl.Capability{acl.ReadFS}},
	"/v1/client/fs/logs/{id}":            {allocRight, operatorRight, []acl.Capability{acl.ReadLogs, acl.ReadFS}},
	jobLogsPattern:                       {jobRight, operatorRight, []acl.Capability{acl.ReadLogs, acl.ReadFS}}, // the output of the tasks on this node
	"/v1/client/gc":                      {nodeRightWrite, nodeRightWrite, nil},
	"/v1/client/stats":                   {nodeRightRead, operatorRight, nil},
	"/v1/client/metadata":                {nodeRightRead, nodeRightWrite, nil},
	"/v1/agent/health":                   {noRight, operatorRight, nil},
	"/v1/agent/host":                     {agentRightRead, operatorRight, nil},
	"/v1/agent/monitor":                  {agentRightRead, operatorRight, nil},
	"/v1/agent/monitor/export":           {agentRightRead, operatorRight, nil},
	"/v1/agent/pprof/{id}":               {agentRightWrite, operatorRight, nil},
	agentproof.Path:                      {noRight, operatorRight, nil},
	"/v1/agent/conditions":               {agentRightRead, operatorRight, nil},
	"/v1/agent/plugins":                  {agentRightRead, operatorRight, nil},
	"/v1/agent/plugins/{id}/restart":     {operatorRight, agentRightWrite, nil},
	"/v1/agent/reload":                   {operatorRight, agentRightWrite, nil},
	"/v1/agent/self":                     {agentRightRead, operatorRight, nil},
	"/v1/agent/servers":                  {agentRightRead, agentRightWrite, nil},
	loginPath:                            {noRight, noRight, nil},
	loginPath + "/secret":                {operatorRight, operatorRight, nil},
	"/v1/metrics":                        {agentRightRead, operatorRight, nil},
	"/v1/openapi.json":                   {noRight, operatorRight, nil},
	"/":                                  {noRight, operatorRight, nil},
	"/ui/":                               {noRight, operatorRight, nil},
	"/ui/{id...}":                        {noRight, operatorRight, nil},
}

// isForOtherNode reports whether a request to a route of the node names another node, a server, or an allocation that this
// node does not have. The timeline and the transitions of an allocation exist on its node only.
func (a *API) isForOtherNode(r *request, rt route) (bool, error) {
	if id := r.query.Get("node_id"); id != "" && id != a.config.NodeID {
		return true, nil
	}
	if r.query.Get("server_id") != "" {
		return true, nil
	}
	if rt.pattern == metadataPath && r.Method != http.MethodGet {
		return a.namesOtherNodeInBody(r)
	}
	isAboutAlloc := strings.HasPrefix(rt.pattern, "/v1/client/") && strings.Contains(rt.pattern, "{id}") && rt.pattern != snapshotPattern
	return isAboutAlloc && a.config.Store.Snapshot().Allocation(nil, r.pathID) == nil, nil
}

// namesOtherNodeInBody reports whether the body of a request has the id of another node. The body can be read again.
func (a *API) namesOtherNodeInBody(r *request) (bool, error) {
	text, err := r.readBodyBytes(maxBodyBytes)
	if err != nil {
		return false, err
	}
	r.releaseBody() // the handler reserves the memory again
	r.Body = io.NopCloser(bytes.NewReader(text))
	var named struct{ NodeID string }
	if json.Unmarshal(text, &named) != nil {
		return false, nil // the handler reports the error
	}
	return named.NodeID != "" && named.NodeID != a.config.NodeID, nil
}

// mustForward reports whether a node of a cluster forwards a request to a server. Requests of servers are never forwarded.
func (a *API) mustForward(r *request, rt route, pathExists bool) (bool, error) {
	if a.config.Cluster == nil || r.Context().Value(authorizedContextKey{}) != nil {
		return false, nil
	}
	if pathExists && (rt.pattern == tokenSelfPath || rt.pattern == tokenRightsPath) && r.rights.isReadOnly {
		return false, nil // the servers do not know this token
	}
	if _, isNodeRoute := nodeRoutes[rt.pattern]; pathExists && isNodeRoute {
		return a.isForOtherNode(r, rt)
	}
	return strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/.well-known/"), nil
}

var errNoForwardedExec = &statusError{http.StatusForbidden, "Permission denied: the task does not run on this node, which does not pass on the token of a session: use the web page of a server"}

// forward forwards a request to a server.
func (a *API) forward(r *request) error {
	if r.rights.isReadOnly {
		return &statusError{http.StatusForbidden, "Permission denied: the read-only token of this agent opens nothing of the cluster"}
	}
	if sendsTokenInExecSession(r.Request) {
		return errNoForwardedExec // the session could have the operator's token, which must not leave this machine
	}
	if err := r.countConnAfterBody(); err != nil {
		return err
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		if err := r.readAndDiscardBody(); err != nil {
			return err
		}
		r.Body, r.ContentLength = http.NoBody, 0
	}
	token := requestToken(r.Request)
	if a.access.isTokenOfAgent(token) {
		token = ""
	}
	r.Header.Del("Authorization")
	r.Header.Del("X-Nomad-Token")
	if token != "" {
		r.Header.Set("X-Nomad-Token", token)
	}
	r.Body = &forwardedBody{r.Body, r}
	r.isReplyWritten = true
	r.w.Header().Del("Vary") // the server sends its own
	a.config.Cluster.Forward.ServeHTTP(&forwardedReply{r}, r.Request)
	return nil
}

// forwardedBody is the body of a request that is forwarded. Its end removes the read deadline, which would end the request while
// it blocks.
type forwardedBody struct {
	io.ReadCloser
	request *request
}

func (f *forwardedBody) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = f.request.responseController.SetReadDeadline(time.Time{}) // fails only without a connection
	}
	return n, err
}

// forwardedReply writes the reply of a server to the client of a request. Each write has a timeout, as in a responseStream.
type forwardedReply struct{ request *request }

func (f *forwardedReply) Header() http.Header { return f.request.w.Header() }

func (f *forwardedReply) WriteHeader(code int) {
	f.request.setWriteDeadline()
	f.request.w.WriteHeader(code)
}

func (f *forwardedReply) Write(p []byte) (int, error) {
	f.request.setWriteDeadline()
	return f.request.w.Write(p)
}

// Unwrap lets http.ResponseController flush, and take over the connection of a websocket.
func (f *forwardedReply) Unwrap() http.ResponseWriter { return f.request.w }

// isTokenOfAgent reports whether a token is one of this agent, which no server knows.
func (p *accessPolicy) isTokenOfAgent(token string) bool {
	return p.operatorToken != "" && equalSecrets(token, string(p.operatorToken)) || p.readToken != "" && equalSecrets(token, string(p.readToken))
}

// checkNodeRights rejects a request with a token of the cluster, or without any token, that this node answers itself, if the
// token does not permit the request.
func (a *API) checkNodeRights(r *request, rt route) error {
	if !r.rights.isClusterUser || sendsTokenInExecSession(r.Request) {
		return nil
	}
	return a.access.checkClusterToken(r, rt.pattern, requestToken(r.Request))
}

// checkClusterToken returns an error if a token of the cluster does not permit a request that this node answers itself.
func (p *accessPolicy) checkClusterToken(r *request, pattern, token string) error {
	needed := nodeRoutes[pattern]
	right := needed.write
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		right = needed.get
	}
	rights := p.cluster.Rights
	var err error
	switch right {
	case noRight:
	case nodeRightRead, nodeRightWrite:
		err = rights.Node(r.Context(), token, right == nodeRightWrite)
	case agentRightRead, agentRightWrite:
		err = rights.Agent(r.Context(), token, right == agentRightWrite)
	case allocRight:
		namespace := ""
		if alloc := p.store.Snapshot().Allocation(nil, r.pathID); alloc != nil {
			namespace = alloc.Namespace
		}
		err = rights.Namespace(r.Context(), token, namespace, needed.capabilities...)
		if err == nil && pattern == execPattern && p.cluster.AllowExec != nil {
			err = p.cluster.AllowExec(r.Context(), token, r.pathID, r.query.Get("task"))
		}
	case jobRight:
		err = rights.Namespace(r.Context(), token, r.namespaceParam(), needed.capabilities...)
	default:
		err = errPermissionDenied
	}
	if errors.Is(err, acl.ErrPermissionDenied) {
		return &statusError{http.StatusForbidden, err.Error()}
	}
	return err
}

// isRepeatedThroughServer reports whether a client repeats a request through a server if the connection breaks, but not after a
// reply with an error. Nomad's commands that read files of an allocation try the address of its node first, and have no token
// of this agent.
func (p *accessPolicy) isRepeatedThroughServer(r *http.Request) bool {
	if p.cluster == nil || p.cluster.Rights != nil || isFromBrowser(r) || !strings.HasPrefix(r.URL.Path, "/v1/client/fs/") {
		return false
	}
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && !client.Addr().IsLoopback() // a client at a loopback address was given it by a person
}
