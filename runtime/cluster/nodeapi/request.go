package nodeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// replyError is an API error with its HTTP status.
type replyError struct {
	code int
	text string
}

// Error returns the text servers expect as a call's error: they recognise some texts, and read the others' status from the
// prefix.
func (e *replyError) Error() string {
	switch {
	case e.code == http.StatusInternalServerError,
		e.code == http.StatusNotFound && (strings.HasPrefix(e.text, "Unknown allocation ") || strings.HasPrefix(e.text, "Unknown node ")),
		e.code == http.StatusForbidden && strings.HasPrefix(e.text, "Permission denied"),
		strings.Contains(e.text, "no such file or directory"):
		return e.text
	}
	return fmt.Sprintf("RPC Error:: %d,%s", e.code, e.text)
}

// apiRequest is a request to the API.
type apiRequest struct {
	method string // HTTP method
	path   string // not escaped
	query  url.Values
	body   any // encoded as JSON unless it is nil
}

// errReplyAborted means the API has aborted a reply.
var errReplyAborted = errors.New("the agent has aborted its reply")

// serve passes the request to the API. It blocks until the reply is complete.
func (n *node) serve(ctx context.Context, r apiRequest, w http.ResponseWriter) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler: // net/http recovers from it only in its own servers
			err = errReplyAborted
		default:
			panic(p)
		}
	}()
	target := url.URL{Path: r.path, RawQuery: r.query.Encode()}
	var body []byte
	if r.body != nil {
		if body, err = json.Marshal(r.body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, r.method, target.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	n.API.ServeHTTP(w, request)
	return nil
}

// call passes the request to the API, and decodes the reply's JSON into the value reply points to, unless reply is nil. An error
// reply is a replyError.
func (n *node) call(ctx context.Context, r apiRequest, reply any) error {
	_, body, err := n.read(ctx, r)
	if err != nil || reply == nil {
		return err
	}
	if err := json.Unmarshal(body, reply); err != nil {
		return fmt.Errorf("decode the reply of %s: %w", r.path, err)
	}
	return nil
}

// read passes the request to the API, and returns the reply. An error reply is a replyError.
func (n *node) read(ctx context.Context, r apiRequest) (http.Header, []byte, error) {
	w := &bufferedReply{header: make(http.Header)}
	if err := n.serve(ctx, r, w); err != nil {
		return nil, nil, err
	}
	if w.code >= http.StatusBadRequest {
		return nil, nil, &replyError{w.code, w.body.String()}
	}
	return w.header, w.body.Bytes(), nil
}

// bufferedReply keeps an API reply.
type bufferedReply struct {
	header http.Header
	code   int // zero before the first WriteHeader or Write call
	body   bytes.Buffer
}

func (w *bufferedReply) Header() http.Header { return w.header }

func (w *bufferedReply) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
}

func (w *bufferedReply) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush implements http.Flusher, because handlers for profiles and files flush their replies.
func (w *bufferedReply) Flush() {}
