package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/rpcmux"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// errConnDown means that the connection ended before the response arrived.
var errConnDown = errors.New("connection to the keeper is down")

// clientConn is one connection of a client to a keeper.
type clientConn struct {
	*rpcmux.PendingCalls[callResult]
	conn              *framing.Conn
	keeperHello       framing.Hello
	keeperIsEphemeral bool // set by Client.syncFDsAndProcsWithKeeper
	responseReaderWG  sync.WaitGroup
}

type callResult struct {
	resp *keeperwire.Response
	fds  []int
}

// newClientConn exchanges the hello messages on a socket that is connected to a keeper. The clientConn owns the socket,
// which newClientConn closes after an error.
func newClientConn(ctx context.Context, socket *net.UnixConn, clientHello framing.Hello) (*clientConn, error) {
	conn := framing.NewConn(socket, keeperwire.MessageLimits)
	keeper, err := conn.ExchangeHello(ctx, clientHello)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("introduce to keeper: %w", err)
	}
	unwanted := func(r callResult) { framing.CloseAll(r.fds) }
	l := &clientConn{PendingCalls: rpcmux.New(errConnDown, unwanted), conn: conn, keeperHello: keeper}
	l.responseReaderWG.Go(l.readResponses)
	return l, nil
}

// closeAndWait closes the connection and waits until readResponses has returned.
func (c *clientConn) closeAndWait() {
	c.conn.Close()
	c.responseReaderWG.Wait()
}

// call sends a request and waits for its response. The caller must close the received
// descriptors, and remains the owner of the passed ones.
func (c *clientConn) call(ctx context.Context, req *keeperwire.Request, fds ...int) (resp *keeperwire.Response, receivedFDs []int, err error) {
	r := *req
	res, err := c.Call(ctx, func(id uint64) error {
		r.ID = id
		err := c.conn.Send(&r, fds...)
		if errors.Is(err, framing.ErrDown) {
			return errConnDown
		}
		return err
	})
	if err != nil && ctx.Err() != nil {
		_ = c.conn.Send(&keeperwire.Request{ID: r.ID, Op: keeperwire.OpCancelWait}) // Send fails only if the connection has ended
	}
	return res.resp, res.fds, err
}

// readResponses passes each response to the caller of its request, until the connection ends.
func (c *clientConn) readResponses() {
	defer c.End()
	defer c.conn.Close()
	for {
		resp := &keeperwire.Response{}
		fds, err := c.conn.Receive(resp)
		if errors.Is(err, framing.ErrNoFreeDescriptors) {
			resp = &keeperwire.Response{ID: resp.ID, Error: err.Error(), Errno: int(unix.EMFILE)}
		} else if err != nil {
			return
		}
		c.DeliverResponse(resp.ID, callResult{resp, fds})
	}
}
