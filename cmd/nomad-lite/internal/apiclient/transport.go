package apiclient

import (
	"errors"
	"io"
	"net/http"
	"strings"
)

// Headers with which an agent of nomad-lite explains a refusal, and the end of a stream. The second one is a trailer.
const (
	missingRightHeader  = "X-Nomad-Lite-Missing-Right"
	endOfStreamTrailer  = "X-Nomad-Lite-End-Of-Stream"
	permissionDeniedTip = "Permission denied: the token lacks "
)

// explainingTransport adds to replies what their headers explain: to the text of a refusal the missing right, and to the end of a
// stream the reason, as an error in place of io.EOF.
type explainingTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t explainingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if missing := reply.Header.Get(missingRightHeader); missing != "" && reply.StatusCode == http.StatusForbidden {
		_ = reply.Body.Close() // its text is known
		text := permissionDeniedTip + missing
		reply.Body, reply.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		return reply, nil
	}
	reply.Body = &explainedBody{reply.Body, reply}
	return reply, nil
}

// explainedBody is the body of a reply.
type explainedBody struct {
	io.ReadCloser
	reply *http.Response
}

func (b *explainedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if reason := b.reply.Trailer.Get(endOfStreamTrailer); err == io.EOF && reason != "" {
		err = errors.New(reason)
	}
	return n, err
}

// explain makes a transport explain the replies to its requests. The type of the transport stays, because the client of Nomad's API
// needs it.
func explain(transport *http.Transport) {
	next := transport.Clone()
	for _, scheme := range []string{"http", "https"} {
		transport.RegisterProtocol(scheme, explainingTransport{next})
	}
}
