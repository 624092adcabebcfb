package httpapi

import "net/http"

// stream is a response that is written in pieces. It ends when its route returns: after a failed
// write, if the client has disconnected or does not read, or after the context of the request has
// ended, if the client has disconnected or the agent shuts down.
type stream struct {
	r *request
}

// stream starts a response of a content type with no known length. It sends the headers at once.
// After this call the route returns nil and no error.
func (r *request) stream(contentType string) *stream {
	r.replyWritten = true
	r.setHeaders()
	r.w.Header().Set("Content-Type", contentType)
	r.startReply()
	r.w.WriteHeader(http.StatusOK)
	_ = r.control.Flush() // a lost connection makes the next write fail
	return &stream{r}
}

// Write sends p at once. It fails if the client does not accept p within a minute.
func (s *stream) Write(p []byte) (int, error) {
	s.r.startReply()
	n, err := s.r.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, s.r.control.Flush()
}
