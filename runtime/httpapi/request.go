package httpapi

import (
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

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// request is one request, as far as it is common to all routes.
type request struct {
	*http.Request
	w         http.ResponseWriter
	control   *http.ResponseController
	query     url.Values
	id        string
	namespace string
	minIndex  uint64
	wait      time.Duration
	index     uint64 // of the answer; 0 sets no header
	read      bool   // the answer is a read of the state
	perPage   int    // 0 is all
	nextToken string // of the page after the answer
	filter    *bexpr.Evaluator
	readOnly  bool // the read-only token is all that the client has shown
	code      int  // of an answer that is no error; 0 is 200
	answered  bool // the route has written the answer itself

	conn      *limitConn // nil: it is not counted
	uncounted bool       // the connection is counted when the body has been read
	bodies    *budget
	held      int64 // of bodies, for the body of this request
}

const (
	defaultWait = 5 * time.Minute
	maxWait     = 5 * time.Minute
)

// errNoRegion is what is said of a region that is not ours.
//
//lint:ignore ST1005 Nomad's clients match on the text
var errNoRegion = errors.New("No path to region")

// parse reads the parameters that all routes have.
func (r *request) parse(region string) error {
	if other := r.query.Get("region"); other != "" && other != region && other != api.GlobalRegion && !strings.HasPrefix(r.URL.Path, "/v1/client/") {
		return errNoRegion
	}
	r.namespace = r.query.Get("namespace")
	if r.namespace == "" {
		r.namespace = api.DefaultNamespace
	}
	if stale, ok := r.query["stale"]; ok && stale[0] != "" {
		if _, err := strconv.ParseBool(stale[0]); err != nil {
			return bad("Expect `true` or `false` for `stale` query string parameter")
		}
	}
	if text := r.query.Get("wait"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			return bad("Invalid wait time")
		}
		r.wait = d
	}
	if text := r.query.Get("index"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			if r.URL.Path == eventsPath {
				return bad("Unable to parse index: " + err.Error())
			}
			return bad("Invalid index")
		}
		r.minIndex = n
	}
	if text := r.query.Get("per_page"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return bad("Expect a number for `per_page` query string parameter")
		}
		r.perPage = int(n)
	}
	if r.wait <= 0 {
		r.wait = defaultWait
	}
	r.wait = min(r.wait, maxWait)
	r.wait += rand.N(r.wait/16 + 1)
	return nil
}

// sees tells whether the namespace is one of those that a list is asked for.
func (r *request) sees(namespace string) bool {
	return r.namespace == store.AnyNamespace || r.namespace == namespace
}

// key is the job that the path names.
func (r *request) key() scheduler.JobKey { return scheduler.JobKey{Namespace: r.namespace, ID: r.id} }

// flag reads a parameter that is true or false.
func (r *request) flag(name string) (bool, error) {
	text := r.query.Get(name)
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, unparsed(name, text, "a bool", err)
	}
	return b, nil
}

// unparsed is the error of a parameter that is of another type.
func unparsed(name, text, kind string, err error) error {
	//lint:ignore ST1005 the text is Nomad's
	return fmt.Errorf("Failed to parse value of %q (%v) as %s: %v", name, text, kind, err)
}

// limit gives a client a time in which its body must be here: one that sends
// byte by byte must not hold what it gets. Connections that have no deadlines
// serve as well.
func (r *request) limit() {
	_ = r.control.SetWriteDeadline(time.Time{}) // it was that of the answer before
	if r.ContentLength != 0 {
		_ = r.control.SetReadDeadline(time.Now().Add(bodyTimeout))
	}
}

// begin gives a client a time in which it must take the answer. A route that
// writes the answer itself calls it when it has something to write.
func (r *request) begin() { _ = r.control.SetWriteDeadline(time.Now().Add(writeTimeout)) }

// countConn counts the connection among those of authenticated clients. Without room for
// it the connection is closed after the answer.
func (r *request) countConn() error {
	if r.conn.authenticate() {
		return nil
	}
	r.refuseBody()
	r.w.Header().Set("Connection", "close")
	return errTooMany
}

// refuseBody has the body of a request not read, but for what the server throws away
// after the answer for the sake of clients that read the answer last.
func (r *request) refuseBody() {
	if r.ContentLength == 0 {
		return
	}
	r.w.Header().Set("Connection", "close")
	_ = r.control.SetReadDeadline(time.Now().Add(refuseTimeout))
	r.Body, r.ContentLength = http.NoBody, 0
}

// bytes reads the body, which is counted until releaseBody. From then on the client may
// take its time: a deadline would end the request, however long that may wait.
func (r *request) bytes(limit int64) (text []byte, err error) {
	err = r.readBody(limit, func(body io.Reader) (err error) {
		text, r.held, err = r.bodies.readAll(body, r.ContentLength)
		return err
	})
	return text, err
}

// releaseBody is called when the body is not in memory any more.
func (r *request) releaseBody() {
	r.bodies.give(r.held)
	r.held = 0
}

// skipBody reads a body that means nothing, because nothing is known of a client
// that is gone before its body has been read. It keeps nothing of it.
func (r *request) skipBody() error {
	if r.ContentLength == 0 {
		return nil
	}
	return r.readBody(maxBody, func(body io.Reader) error {
		_, err := io.Copy(io.Discard, body)
		return err
	})
}

// readBody reads the body in some way, and explains what goes wrong.
func (r *request) readBody(limit int64, read func(io.Reader) error) error {
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	err := read(http.MaxBytesReader(r.w, r.Body, limit))
	var larger *http.MaxBytesError
	var status *statusError
	switch {
	case errors.As(err, &larger):
		return tooLarge(limit)
	case errors.As(err, &status):
		return err
	case err != nil:
		return bad("read the body of the request: " + err.Error())
	}
	_ = r.control.SetReadDeadline(time.Time{})
	if r.uncounted {
		r.uncounted = false
		return r.countConn()
	}
	return nil
}

func tooLarge(limit int64) error {
	return &statusError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body of the request is larger than %d bytes", limit)}
}

// body reads the JSON of a request. An empty one is an error unless it may be
// empty.
func (r *request) body(into any, limit int64, mayBeEmpty bool) error {
	text, err := r.bytes(limit)
	switch {
	case err != nil:
		return err
	case len(text) == 0 && mayBeEmpty:
		return nil
	case len(text) == 0:
		return bad("Request body is empty")
	}
	err = json.Unmarshal(text, into)
	r.releaseBody()
	if err != nil {
		return bad(err.Error())
	}
	return nil
}

// bodyOf reads a body that says again what the path names.
func (r *request) bodyOf(into interface{ of(*request) error }, mayBeEmpty bool) error {
	if err := r.body(into, maxBody, mayBeEmpty); err != nil {
		return err
	}
	return into.of(r)
}

// reader makes an answer from a state. It adds to the set, which may be nil, what
// tells that the answer may have changed; an object that is missing is watched
// too. The index is given with an error as well.
type reader func(s *store.Snapshot, ws store.WatchSet) (value any, index uint64, err error)

// state answers from the state, when it has an index that is higher than the one
// that the client has seen. It waits for that, but not for ever.
func (r *request) state(a *API, read reader) (any, error) {
	r.read = true
	ctx, cancel := context.WithTimeout(r.Context(), r.wait)
	defer cancel()
	for {
		var ws store.WatchSet
		if r.minIndex > 0 {
			ws = store.NewWatchSet()
		}
		value, index, err := read(a.config.Store.Snapshot(), ws)
		r.index = max(index, 1)
		if r.minIndex == 0 || r.index > r.minIndex || isBadRequest(err) {
			return value, err
		}
		if ws.WatchCtx(ctx) != nil {
			return value, err
		}
	}
}

// isBadRequest tells whether waiting does not help: the request is wrong.
func isBadRequest(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == http.StatusBadRequest
}
