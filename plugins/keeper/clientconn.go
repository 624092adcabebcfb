package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/plugins/rpcmux"
)

// errConnDown means that the connection ended before the response arrived.
var errConnDown = errors.New("connection to the keeper is down")

// clientConn is one connection of a client.
type clientConn struct {
	*rpcmux.PendingCalls[callResult]
	frameConn *frameConn
	keeperID  process.ID
	ephemeral bool
	wg        sync.WaitGroup
}

type callResult struct {
	resp *response
	fds  []int
}

// newClientConn sends the hello request on a connection, and becomes the owner of the
// connection.
func newClientConn(ctx context.Context, conn *net.UnixConn, agent bool) (*clientConn, error) {
	unwanted := func(r callResult) { closeFDs(r.fds) }
	l := &clientConn{PendingCalls: rpcmux.New(errConnDown, unwanted), frameConn: &frameConn{conn: conn}}
	l.wg.Go(l.readResponses)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, _, err := l.call(ctx, &request{Op: opHello, IsAgent: agent})
	if err == nil {
		err = resp.err()
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("introduce to keeper: %w", err)
	}
	l.keeperID, l.ephemeral = resp.Process, resp.Ephemeral
	return l, nil
}

// close ends the connection and waits for its goroutine.
func (l *clientConn) close() {
	l.frameConn.conn.Close()
	l.wg.Wait()
}

// call sends a request and waits for its response. The caller must close the received
// descriptors, and remains the owner of the passed ones.
func (l *clientConn) call(ctx context.Context, req *request, fds ...int) (*response, []int, error) {
	r := *req
	res, err := l.Call(ctx, func(id uint64) error {
		r.ID = id
		err := l.frameConn.sendFrame(&r, fds...)
		var op *net.OpError
		if errors.As(err, &op) {
			return errConnDown
		}
		return err // another type of error is caused by the request, not by the connection
	})
	if err != nil && ctx.Err() != nil {
		_ = l.frameConn.sendFrame(&request{ID: r.ID, Op: opCancelWait})
	}
	return res.resp, res.fds, err
}

// readResponses delivers responses until the connection ends.
func (l *clientConn) readResponses() {
	defer l.End()
	defer l.frameConn.conn.Close()
	for {
		resp := &response{}
		fds, err := l.frameConn.receiveFrame(resp)
		if errors.Is(err, errNoFreeFDs) {
			resp = &response{ID: resp.ID, Error: err.Error(), Errno: int(unix.EMFILE)}
		} else if err != nil {
			return
		}
		l.DeliverResponse(resp.ID, callResult{resp, fds})
	}
}
