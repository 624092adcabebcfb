package nodeapi

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// maxPayloadBytes is the maximum size of plain text in one message, and of an error text.
const maxPayloadBytes = 64 << 10

// errStreamClosed is the cause when the server has closed the stream.
var errStreamClosed = errors.New("the server has closed the stream")

// sendError sends the error that ends a stream. An error without an HTTP status is sent without a code.
func sendError(s *wire.Stream, err error) {
	message := &protocol.StreamError{Message: err.Error()}
	if rejected := new(replyError); errors.As(err, &rejected) {
		message.Message, message.Code = rejected.text, new(int64(rejected.code))
	}
	_ = s.Send(&protocol.StreamMessage{Error: message}) // the server may have closed the stream
}

// checkAlloc rejects a request for an allocation this node does not know.
func (n *node) checkAlloc(id string) error {
	if err := checkAllocID(id); err != nil {
		return err
	}
	if n.FindAlloc(id) == nil {
		return &replyError{http.StatusNotFound, "Unknown allocation " + strconv.Quote(id)}
	}
	return nil
}

func (n *node) streamLogs(ctx context.Context, s *wire.Stream) {
	var r protocol.StreamLogsRequest
	if s.Receive(&r) != nil {
		return
	}
	if err := n.checkAlloc(r.AllocID); err != nil {
		sendError(s, err)
		return
	}
	n.sendReply(ctx, s, r.PlainText, "/v1/client/fs/logs/"+r.AllocID, url.Values{
		"task": {r.Task}, "type": {r.LogType}, "offset": {strconv.FormatInt(r.Offset, 10)}, "origin": {r.Origin},
		"plain": {strconv.FormatBool(r.PlainText)}, "follow": {strconv.FormatBool(r.Follow)},
	})
}

func (n *node) streamFile(ctx context.Context, s *wire.Stream) {
	var r protocol.StreamFileRequest
	if s.Receive(&r) != nil {
		return
	}
	err := n.checkAlloc(r.AllocID)
	if err == nil && r.Path == "" {
		err = &replyError{http.StatusBadRequest, "must provide a file path"}
	}
	if err != nil {
		sendError(s, err)
		return
	}
	n.sendReply(ctx, s, r.PlainText, "/v1/client/fs/stream/"+r.AllocID, url.Values{
		"path": {r.Path}, "offset": {strconv.FormatInt(r.Offset, 10)}, "origin": {r.Origin}, "limit": {strconv.FormatInt(r.Limit, 10)},
		"plain": {strconv.FormatBool(r.PlainText)}, "follow": {strconv.FormatBool(r.Follow)},
	})
}

func (n *node) monitorAgent(ctx context.Context, s *wire.Stream) {
	var r protocol.MonitorAgentRequest
	if s.Receive(&r) != nil {
		return
	}
	if err := n.checkNodeID(r.NodeID); err != nil {
		sendError(s, err)
		return
	}
	n.sendReply(ctx, s, r.PlainText, "/v1/agent/monitor", url.Values{
		"log_level": {r.LogLevel}, "log_json": {strconv.FormatBool(r.LogJSON)},
		"log_include_location": {strconv.FormatBool(r.LogIncludeLocation)}, "plain": {strconv.FormatBool(r.PlainText)},
	})
}

func rejectMonitorExport(_ context.Context, s *wire.Stream) {
	if s.Receive(nil) == nil {
		sendError(s, &replyError{http.StatusBadRequest, "the log of this agent is not kept: it goes to standard error"})
	}
}

// sendReply sends the API's reply to a GET request. It returns when the reply is complete or the server has closed its end of the
// stream, and closes the stream.
func (n *node) sendReply(ctx context.Context, s *wire.Stream, isPlain bool, path string, query url.Values) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer interruptAtPeerClose(s, cancel)()
	reply := &streamedReply{stream: s, isPlain: isPlain, header: make(http.Header)}
	if err := n.serve(ctx, apiRequest{http.MethodGet, path, query, nil}, reply); err != nil {
		sendError(s, err)
		return
	}
	reply.finish()
}

// interruptAtPeerClose drops the server's messages in a goroutine. When the server closes its end, the goroutine cancels the
// stream's context and interrupts a blocked Send. The returned function closes the stream and waits for the goroutine.
func interruptAtPeerClose(s *wire.Stream, cancel context.CancelCauseFunc) (closeStream func()) {
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for s.Receive(nil) == nil {
		}
		cancel(errStreamClosed)
		s.Interrupt()
	})
	return func() {
		_ = s.Close()
		s.Interrupt()
		receiving.Wait()
	}
}

// streamedReply sends an API reply: each part the handler flushes is a message, and an error reply is an error message.
type streamedReply struct {
	stream  *wire.Stream
	isPlain bool
	header  http.Header
	code    int    // zero before the first WriteHeader or Write call
	pending []byte // not sent yet
}

func (w *streamedReply) Header() http.Header { return w.header }

func (w *streamedReply) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
}

func (w *streamedReply) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.isError():
		w.pending = append(w.pending, p[:min(len(p), maxPayloadBytes-len(w.pending))]...)
	case w.isPlain && len(w.pending)+len(p) > maxPayloadBytes:
		if err := w.FlushError(); err != nil {
			return 0, err
		}
		for sent := 0; sent < len(p); sent += maxPayloadBytes {
			if err := w.send(p[sent:min(len(p), sent+maxPayloadBytes)]); err != nil {
				return sent, err
			}
		}
	default:
		w.pending = append(w.pending, p...)
	}
	return len(p), nil
}

func (w *streamedReply) isError() bool { return w.code >= http.StatusBadRequest }

// FlushError implements the method that http.ResponseController calls.
func (w *streamedReply) FlushError() error {
	if w.isError() || len(w.pending) == 0 {
		return nil
	}
	payload := w.pending
	w.pending = w.pending[:0]
	if !w.isPlain {
		payload = bytes.TrimSpace(payload) // a handler's encoder ends each object with a newline
	}
	return w.send(payload)
}

func (w *streamedReply) send(payload []byte) error {
	return w.stream.Send(&protocol.StreamMessage{Payload: payload})
}

// finish sends the unflushed rest, or the error.
func (w *streamedReply) finish() {
	if w.isError() {
		sendError(w.stream, &replyError{w.code, string(w.pending)})
		return
	}
	_ = w.FlushError() // the server may have closed the stream
}
