package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-bexpr"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/agent/audit"
	"github.com/nomad-lite/nomad-lite/runtime/agent/connlimit"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// request is the state of one request that all routes share. It is large because each kind of parameter and reply is a
// method.
type request struct {
	*http.Request
	w                    http.ResponseWriter
	responseController   *http.ResponseController
	query                url.Values
	pathID               string
	namespace            string
	minIndex             uint64
	waitTime             time.Duration
	replyIndex           uint64 // the reply's X-Nomad-Index; 0 omits the header
	isReplyReadFromState bool   // the reply was read from the state
	perPage              int    // maximum number of objects on a page; 0 means no limit
	nextToken            string // token of the next page; empty on the last page
	filterEvaluator      *bexpr.Evaluator
	rights               clientRights
	access               access // of the route
	statusCode           int    // status of a successful reply; 0 means 200
	isReplyWritten       bool   // the handler of the route has written the reply

	conn                   *connlimit.Conn          // nil if the connection is not counted
	clientToCountAfterBody connlimit.ClientIdentity // client for which the connection is counted after the body was read; zero if it is counted already
	bodyBudget             *sharedMemoryBudget
	listCache              *listCache
	auditRecord            *audit.Record // of the request as it was received; nil if the audit log does not record it
	auditObject            string        // the object of the request, if the path does not name it
	reservedBodyBytes      int64         // bytes of the body budget that this request holds
}

// clientRights says what a client may do.
type clientRights struct {
	acl         *acl.Rights          // never nil after authorize
	grant       *accesscontrol.Grant // nil without access control, and for a client that needs no token
	findGrant   grantFinder          // finds the grant again in a later state; nil if the rights do not change
	tokenErr    error                // why the token of the client is not valid
	isUnchecked bool                 // the client uses an open path, or sends its token in the session
	isReadOnly  bool                 // the client has sent only the read-only token
	workload    *identity.Workload   // the task whose rights the client has; nil if it has other rights
	// isClusterUser means that the client has no token of this agent, and what the cluster permits to its token, which may
	// be missing.
	isClusterUser bool
}

const (
	defaultWait = 5 * time.Minute
	maxWait     = 5 * time.Minute
)

// errNoRegion is the error for a region other than the agent's.
//
//lint:ignore ST1005 Nomad's clients match on the text
var errNoRegion = errors.New("No path to region")

// parseCommonParams reads the query parameters that all routes accept.
func (r *request) parseCommonParams(agentRegion string) error {
	if other := r.query.Get("region"); other != "" && other != agentRegion && other != api.GlobalRegion && !strings.HasPrefix(r.URL.Path, "/v1/client/") {
		return errNoRegion
	}
	r.namespace = r.namespaceParam()
	if stale, ok := r.query["stale"]; ok && stale[0] != "" {
		if _, err := strconv.ParseBool(stale[0]); err != nil {
			return badRequestError("Expect `true` or `false` for `stale` query string parameter")
		}
	}
	if text := r.query.Get("wait"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			return badRequestError("Invalid wait time")
		}
		r.waitTime = d
	}
	if text := r.query.Get("index"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			if r.URL.Path == eventsPath {
				return badRequestError("Unable to parse index: " + err.Error())
			}
			return badRequestError("Invalid index")
		}
		r.minIndex = n
	}
	if text := r.query.Get("per_page"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return badRequestError("Expect a number for `per_page` query string parameter")
		}
		r.perPage = int(n)
	}
	if r.waitTime <= 0 {
		r.waitTime = defaultWait
	}
	r.waitTime = min(r.waitTime, maxWait)
	// As in Nomad, a random addition spreads the replies to clients that started to wait at the same time.
	r.waitTime += rand.N(r.waitTime/16 + 1)
	return nil
}

// namespaceParam returns the namespace of a request, also before its other parameters were read.
func (r *request) namespaceParam() string {
	return cmp.Or(r.query.Get("namespace"), api.DefaultNamespace)
}

// includesNamespace reports whether a list request includes the namespace.
func (r *request) includesNamespace(namespace string) bool {
	return r.namespace == store.AnyNamespace || r.namespace == namespace
}

// jobKey returns the namespace and the id of the job in the path.
func (r *request) jobKey() scheduler.JobKey {
	return scheduler.JobKey{Namespace: r.namespace, ID: r.pathID}
}

// boolParam reads a boolean parameter.
func (r *request) boolParam(name string) (bool, error) {
	text := r.query.Get(name)
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, parameterError(name, text, "a bool", err)
	}
	return b, nil
}

// parameterError returns the error for a parameter whose value has the wrong type.
func parameterError(name, text, kind string, err error) error {
	//lint:ignore ST1005 the text is Nomad's
	return fmt.Errorf("Failed to parse value of %q (%v) as %s: %v", name, text, kind, err)
}

// setBodyDeadline sets the deadline for reading the body of a request, so that a client that sends byte by byte
// does not hold the memory of its request. Errors of connections without deadlines are ignored.
func (r *request) setBodyDeadline() {
	_ = r.responseController.SetWriteDeadline(time.Time{}) // removes the write deadline of the previous reply on the connection
	if r.ContentLength != 0 {
		_ = r.responseController.SetReadDeadline(time.Now().Add(bodyTimeout))
	}
}

// setWriteDeadline sets the deadline for writing the reply. A handler that writes the reply itself calls
// setWriteDeadline before its first write.
func (r *request) setWriteDeadline() {
	_ = r.responseController.SetWriteDeadline(time.Now().Add(writeTimeout))
}

// countConnForClient counts the connection for the client of the request. If the limit is reached, the connection is
// closed after the reply.
func (r *request) countConnForClient(client connlimit.ClientIdentity) error {
	if r.conn.CountForClient(client) {
		return nil
	}
	r.discardBody()
	r.w.Header().Set("Connection", "close")
	return errTooManyConns
}

// discardBody discards the body of a request. After the reply, the server continues to read the body for a
// short time, for clients that read the reply only after they have sent the body.
func (r *request) discardBody() {
	if r.ContentLength == 0 {
		return
	}
	r.w.Header().Set("Connection", "close")
	_ = r.responseController.SetReadDeadline(time.Now().Add(discardBodyTimeout))
	r.Body, r.ContentLength = http.NoBody, 0
}

// readBodyBytes reads the body, whose memory stays reserved until releaseBody. It removes the read
// deadline, which would end the request while it blocks.
func (r *request) readBodyBytes(limit int64) (text []byte, err error) {
	err = r.readBody(limit, func(body io.Reader) (err error) {
		text, r.reservedBodyBytes, err = r.bodyBudget.readAll(body, r.ContentLength)
		return err
	})
	return text, err
}

// releaseBody releases the reserved memory of the body. The caller must no longer use the body.
func (r *request) releaseBody() {
	r.bodyBudget.release(r.reservedBodyBytes)
	r.reservedBodyBytes = 0
}

// readAndDiscardBody reads and discards a body that has no meaning for the route: net/http detects the disconnection
// of a client only after the body was read.
func (r *request) readAndDiscardBody() error {
	if r.ContentLength == 0 {
		return nil
	}
	return r.readBody(maxBodyBytes, func(body io.Reader) error {
		_, err := io.Copy(io.Discard, body)
		return err
	})
}

// readBody calls read, which reads the body of the request, and converts its errors to status errors.
func (r *request) readBody(limit int64, read func(io.Reader) error) error {
	if r.ContentLength > limit {
		return bodyTooLargeError(limit)
	}
	err := read(http.MaxBytesReader(r.w, r.Body, limit))
	var maxBytesErr *http.MaxBytesError
	var statusErr *statusError
	switch {
	case errors.As(err, &maxBytesErr):
		return bodyTooLargeError(limit)
	case errors.As(err, &statusErr):
		return err
	case err != nil:
		return badRequestError("read the body of the request: " + err.Error())
	}
	_ = r.responseController.SetReadDeadline(time.Time{})
	return r.countConnAfterBody()
}

// countConnAfterBody counts the connection for the client if that had to wait for the body.
func (r *request) countConnAfterBody() error {
	client := r.clientToCountAfterBody
	if client == (connlimit.ClientIdentity{}) {
		return nil
	}
	r.clientToCountAfterBody = connlimit.ClientIdentity{}
	return r.countConnForClient(client)
}

func bodyTooLargeError(limit int64) error {
	return &statusError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body of the request is larger than %d bytes", limit)}
}

// decodeBody decodes the JSON of a request. An empty body is an error unless mayBeEmpty is set.
func (r *request) decodeBody(into any, limit int64, mayBeEmpty bool) error {
	text, err := r.readJSONBody(limit, mayBeEmpty)
	if err != nil || len(text) == 0 {
		return err
	}
	err = json.Unmarshal(text, into)
	r.releaseBody()
	if err != nil {
		return badRequestError(err.Error())
	}
	return nil
}

// readJSONBody reads a body. An empty body is an error unless mayBeEmpty is set.
func (r *request) readJSONBody(limit int64, mayBeEmpty bool) ([]byte, error) {
	text, err := r.readBodyBytes(limit)
	if err == nil && len(text) == 0 && !mayBeEmpty {
		err = badRequestError("Request body is empty")
	}
	return text, err
}

// decodeBodyAndCheckID decodes a body that repeats the id in the path.
func (r *request) decodeBodyAndCheckID(into interface{ checkIDMatchesPath(*request) error }, mayBeEmpty bool) error {
	if err := r.decodeBody(into, maxBodyBytes, mayBeEmpty); err != nil {
		return err
	}
	return into.checkIDMatchesPath(r)
}

// readSnapshotFunc makes a reply from a snapshot. It adds to ws, which may be nil, the channels that report
// changes of the reply; a missing object is watched too. The index is valid even with an error.
type readSnapshotFunc func(s *store.Snapshot, ws store.WatchSet) (value any, index uint64, err error)

// readVisible calls read with the present state as the client may see it. See [request.snapshot].
func (r *request) readVisible(state *store.Store, ws store.WatchSet, read readSnapshotFunc) (value any, index uint64, err error) {
	s, err := r.snapshot(state, ws)
	if err != nil {
		return nil, 0, err
	}
	return read(s, ws)
}

// blockingQuery replies with the result of read. It blocks until the index of the result is higher than the
// index that the client has sent, or until the wait time has passed.
func (r *request) blockingQuery(state *store.Store, read readSnapshotFunc) (any, error) {
	r.isReplyReadFromState = true
	ctx, cancel := context.WithTimeout(r.Context(), r.waitTime)
	defer cancel()
	ctx, stop := r.untilExpiry(ctx)
	defer stop()
	for {
		var ws store.WatchSet
		if r.minIndex > 0 {
			ws = store.NewWatchSet()
		}
		value, index, err := r.readVisible(state, ws, read)
		if errors.Is(err, errPermissionDenied) {
			return nil, err
		}
		r.replyIndex = max(index, 1)
		if r.minIndex == 0 || r.replyIndex > r.minIndex || isBadRequest(err) {
			return value, err
		}
		if ws.WatchCtx(ctx) != nil {
			if r.rights.findGrant != nil {
				if _, err := r.snapshot(state, nil); err != nil {
					return nil, err // the token has expired meanwhile
				}
			}
			return value, err
		}
	}
}

// untilExpiry returns a context that ends when the token of the client expires, or when ctx ends.
func (r *request) untilExpiry(ctx context.Context) (context.Context, context.CancelFunc) {
	if g := r.rights.grant; g != nil && g.Token != nil && g.Token.ExpirationTime != nil {
		return context.WithDeadline(ctx, *g.Token.ExpirationTime)
	}
	return ctx, func() {}
}

// isBadRequest reports whether err means that the request is invalid, so that its reply need not wait for a
// change.
func isBadRequest(err error) bool {
	var statusErr *statusError
	return errors.As(err, &statusErr) && statusErr.statusCode == http.StatusBadRequest
}
