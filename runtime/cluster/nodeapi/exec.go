package nodeapi

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
)

// maxQueuedInputs is how many server messages are received before the command reads them, so that a session's end is noticed
// while a command does not read its input.
const maxQueuedInputs = 64

// errPermissionDenied has a text servers recognise.
//
//lint:ignore ST1005 the text is Nomad's
var errPermissionDenied = errors.New("Permission denied")

func (n *node) exec(ctx context.Context, s *wire.Stream) {
	var r protocol.ExecRequest
	if s.Receive(&r) != nil {
		return
	}
	command, err := n.findCommand(ctx, &r)
	if err != nil {
		sendError(s, toReplyError(err))
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &execStream{stream: s, ctx: ctx, inputs: make(chan taskexec.Input, maxQueuedInputs)}
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer s.Interrupt()
	defer s.Close()
	defer cancel(nil) // ends a blocked send into the queue
	receiving.Go(func() {
		defer close(c.inputs)
		c.receiveInputs()
		cancel(taskexec.ErrClientGone)
		s.Interrupt()
	})
	taskexec.Run(ctx, c, command)
}

// findCommand checks a request in Nomad's order, and returns the command.
func (n *node) findCommand(ctx context.Context, r *protocol.ExecRequest) (taskexec.Command, error) {
	if err := n.checkAlloc(r.AllocID); err != nil {
		return taskexec.Command{}, err
	}
	if n.DisableRemoteExec {
		return taskexec.Command{}, errPermissionDenied
	}
	if n.AllowExec != nil {
		if err := n.AllowExec(ctx, r.AuthToken, r.AllocID, r.Task); err != nil {
			return taskexec.Command{}, err
		}
	}
	alloc := n.FindAlloc(r.AllocID)
	switch {
	case alloc == nil: // removed meanwhile
		return taskexec.Command{}, n.checkAlloc(r.AllocID)
	case r.Task == "":
		return taskexec.Command{}, taskexec.NewRequestError(http.StatusBadRequest, "must provide task name")
	case r.JobID != "" && r.JobID != alloc.JobID:
		return taskexec.Command{}, taskexec.NewRequestError(http.StatusBadRequest, "job %s does not have allocation %s", r.JobID, r.AllocID)
	}
	ask := taskexec.Request{Task: r.Task, Command: r.Cmd, Action: r.Action, TTY: r.Tty}
	return ask.FindCommand(alloc, n.FindRunner(r.AllocID))
}

// toReplyError converts an error from package taskexec.
func toReplyError(err error) error {
	if rejected := new(taskexec.RequestError); errors.As(err, &rejected) {
		return &replyError{rejected.Code, rejected.Text}
	}
	return err
}

// execStream is an exec session's stream.
type execStream struct {
	stream *wire.Stream
	ctx    context.Context // ends with the session
	inputs chan taskexec.Input
}

// receiveInputs queues the server's messages until the server closes its end or the session ends.
func (c *execStream) receiveInputs() {
	for {
		var message protocol.ExecInput
		if c.stream.Receive(&message) != nil {
			return
		}
		select {
		case c.inputs <- toInput(message):
		case <-c.ctx.Done():
			return
		}
	}
}

// toInput converts a server message. Without input and a size it is a heartbeat.
func toInput(message protocol.ExecInput) (in taskexec.Input) {
	if message.Stdin != nil {
		in.Stdin, in.CloseStdin = message.Stdin.Data, message.Stdin.Close
	}
	if message.TtySize != nil {
		in.TTYSize = driver.TerminalSize{Height: message.TtySize.Height, Width: message.TtySize.Width}
	}
	return in
}

// Receive implements taskexec.Conn.
func (c *execStream) Receive() (taskexec.Input, error) {
	in, open := <-c.inputs
	if !open {
		return in, taskexec.ErrClientGone
	}
	return in, nil
}

// Send implements taskexec.Conn.
func (c *execStream) Send(text []byte) error {
	if err := c.stream.Send(&protocol.StreamMessage{Payload: text}); err != nil {
		return taskexec.ErrClientGone
	}
	return nil
}

// Close implements taskexec.Conn.
func (c *execStream) Close(err error) {
	switch rejected := new(taskexec.RequestError); {
	case err == nil, errors.Is(err, taskexec.ErrClientGone):
	case errors.As(err, &rejected):
		sendError(c.stream, toReplyError(err))
	default:
		sendError(c.stream, &replyError{http.StatusInternalServerError, basewire.ErrorMessageWithoutGRPCPrefix(err)})
	}
	_ = c.stream.Close()
	c.stream.Interrupt()
}
