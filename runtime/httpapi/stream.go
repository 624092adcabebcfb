package httpapi

import "net/http"

// stream is an answer that is written bit by bit. It ends when the route that
// writes it returns: when a write fails, which is when the client has gone or
// does not read, or when the context of the request ends, which is when the
// client has gone or the agent stops.
type stream struct {
	r *request
}

// stream begins an answer of the content type that has no end yet. The headers
// are sent at once. From here on the route returns nil and no error.
func (r *request) stream(contentType string) *stream {
	r.answered = true
	r.setHeaders()
	r.w.Header().Set("Content-Type", contentType)
	r.begin()
	r.w.WriteHeader(http.StatusOK)
	_ = r.control.Flush() // the next write says so if the client has gone
	return &stream{r}
}

// Write sends what is written at once. A client that does not take it within
// a minute is given up.
func (s *stream) Write(p []byte) (int, error) {
	s.r.begin()
	n, err := s.r.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, s.r.control.Flush()
}
