package httpapi

import "net/http"

// responseStream is a response that is written in pieces. It ends when the handler of its route returns: after a
// failed write, because the client has disconnected or does not read, or after the context of the request
// has ended, because the client has disconnected or the agent shuts down.
type responseStream struct {
	request *request
}

// startStream starts a response of a content type, without a known length. It sends the headers at once. After
// calling startStream, a handler returns nil as its reply and no error.
func (r *request) startStream(contentType string) *responseStream {
	r.isReplyWritten = true
	r.setReplyMetaHeaders()
	r.w.Header().Set("Content-Type", contentType)
	r.setWriteDeadline()
	r.w.WriteHeader(http.StatusOK)
	_ = r.responseController.Flush() // the next write fails if the connection is lost
	return &responseStream{r}
}

// Write sends p at once. It fails if the client does not accept p within a minute.
func (s *responseStream) Write(p []byte) (int, error) {
	s.request.setWriteDeadline()
	n, err := s.request.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, s.request.responseController.Flush()
}
