package clustertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// maxBlock is the longest time that a read blocks, and the default.
const maxBlock = 5 * time.Minute

// errCut is the error of a call whose connection a fault has closed.
var errCut = errors.New("connection closed by a fault")

// errPermissionDenied is the error for tokens without the permission, and for tokens that are not valid.
var errPermissionDenied = wire.ServerError("Permission denied")

// object is an untyped message or a part of it.
type object = map[string]any

// method is a method that nodes can call.
type method struct {
	kind methodKind
	// answer answers a call with Cluster.mu held. For a read it is called again after changes.
	answer func(*Cluster, *request) (answer, error)
}

type methodKind int

const (
	read  methodKind = iota // executed by the server if AllowStale is set, else by the leader; it can block
	write                   // executed by the leader
	ping                    // executed by the server, without a region
)

// request is a call of a method.
type request struct {
	session *session
	caller  caller
	body    []byte
	protocol.ReadOptions
}

// decode reads the request into the value that dst points to.
func (r *request) decode(dst any) error { return wire.DecodeBytes(r.body, dst) }

// answer is the answer to a call. For a read, index becomes its Index, and a blocking read waits until wake changes.
type answer struct {
	body  object
	index uint64
	wake  uint64 // the same as index if zero
}

// methods are the methods of nodes, by name.
func (c *Cluster) methods() map[string]method {
	all := map[string]method{
		"Status.Ping":                    {ping, func(*Cluster, *request) (answer, error) { return answer{body: object{}}, nil }},
		"Node.Register":                  {write, (*Cluster).registerNode},
		"Node.UpdateStatus":              {write, (*Cluster).updateNodeStatus},
		"Node.GetClientAllocs":           {read, (*Cluster).getClientAllocs},
		"Node.UpdateAlloc":               {write, (*Cluster).updateAllocs},
		"Node.EmitEvents":                {write, (*Cluster).emitNodeEvents},
		"Node.UpdateDrain":               {write, (*Cluster).updateNodeDrain},
		"Node.GetNode":                   {read, (*Cluster).getNode},
		"Node.Deregister":                {write, (*Cluster).deregisterNode},
		"Alloc.GetAllocs":                {read, (*Cluster).getAllocs},
		"Alloc.GetAlloc":                 {read, (*Cluster).getAlloc},
		"Alloc.SignIdentities":           {read, (*Cluster).signIdentities},
		"ServiceRegistration.Upsert":     {write, (*Cluster).upsertServices},
		"ServiceRegistration.DeleteByID": {write, (*Cluster).deleteService},
		"ServiceRegistration.GetService": {read, (*Cluster).getService},
		"ServiceRegistration.List":       {read, (*Cluster).listServices},
		"Variables.Read":                 {read, (*Cluster).readVariable},
		"Variables.List":                 {read, (*Cluster).listVariables},
		"ACL.WhoAmI":                     {read, (*Cluster).whoAmI},
		"ACL.GetPolicies":                {read, (*Cluster).getPolicies},
		"ACL.GetRolesByID":               {read, (*Cluster).getRoles},
		"ACL.GetClaimPolicies":           {read, (*Cluster).getClaimPolicies},
	}
	if !c.config.Profile.signIdentities() {
		delete(all, "Alloc.SignIdentities")
	}
	return all
}

// execute executes a call on a server and returns the answer.
func (c *Cluster) execute(ctx context.Context, each *session, name string, body object) (object, error) {
	methods := c.methods()
	m, known := methods[name]
	if !known {
		service, _, _ := strings.Cut(name, ".")
		for other := range methods {
			if strings.HasPrefix(other, service+".") {
				return nil, fmt.Errorf("rpc: can't find method %s", name)
			}
		}
		return nil, fmt.Errorf("rpc: can't find service %s", name)
	}
	encoded, err := wire.EncodeBytes(body)
	if err != nil {
		return nil, err
	}
	r := &request{session: each, body: encoded}
	if err := r.decode(&r.ReadOptions); err != nil {
		return nil, err
	}
	if m.kind != ping {
		switch r.Region {
		case c.config.Region:
		case "":
			return nil, errors.New("missing region for target RPC")
		default:
			return nil, wire.ServerError("No path to region")
		}
	}
	return c.answerWhenChanged(ctx, m, r)
}

// answerWhenChanged answers a call, for a read that blocks when there is something new or its time is over.
func (c *Cluster) answerWhenChanged(ctx context.Context, m method, r *request) (object, error) {
	var deadline chan struct{}
	var firstWake uint64
	var restoresBefore int
	for {
		c.mu.Lock()
		leader, changed, restores := c.leader, c.changed, c.restores
		forward := m.kind == write || m.kind == read && !r.AllowStale
		if forward && leader == nil {
			c.mu.Unlock()
			return nil, wire.ServerError("No cluster leader")
		}
		if forward && leader.listener == nil && leader != r.session.server {
			c.mu.Unlock()
			return nil, errors.New("rpc error: EOF") // from the connection between the servers
		}
		if deadline == nil {
			r.caller = c.callerLocked(r.AuthToken) // a token that expires while the call blocks stays valid
		}
		result, err := m.answer(c, r)
		if err != nil {
			c.mu.Unlock()
			return nil, err
		}
		if result.wake == 0 {
			result.wake = result.index
		}
		blocks := m.kind == read && r.MinQueryIndex > 0 && result.index > 0
		timeout := deadline != nil && c.restores != restoresBefore
		select {
		case <-deadline:
			timeout = true
		default:
		}
		if !blocks || timeout || result.index > r.MinQueryIndex && (deadline == nil || result.wake != firstWake) {
			defer c.mu.Unlock() // the answer has parts of the state
			return c.encodeLocked(m, result)
		}
		c.mu.Unlock()

		if deadline == nil {
			firstWake, restoresBefore = result.wake, restores
			expired := make(chan struct{})
			limit := r.MaxQueryTime
			if limit <= 0 || limit > maxBlock {
				limit = maxBlock
			}
			stop := c.clock.AfterFunc(limit, func() { close(expired) })
			defer stop()
			deadline = expired
		}
		select {
		case <-changed:
		case <-deadline:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// encodeLocked returns the untyped form of an answer.
func (c *Cluster) encodeLocked(m method, result answer) (object, error) {
	if m.kind == read {
		meta := object{"Index": result.index, "LastContact": 0, "KnownLeader": c.leader != nil, "NextToken": ""}
		for key, value := range meta {
			if _, set := result.body[key]; !set {
				result.body[key] = value
			}
		}
	}
	encoded, err := wire.EncodeBytes(result.body)
	if err != nil {
		return nil, err
	}
	var untyped object
	err = wire.DecodeBytes(encoded, &untyped)
	return untyped, err
}

type callHeader struct {
	ServiceMethod string
	Seq           uint64
}

type answerHeader struct {
	Error         string
	Seq           uint64
	ServiceMethod string
}

// serveStream serves a stream that the node has opened, until the node closes it or ctx ends.
func (each *session) serveStream(ctx context.Context, stream net.Conn) {
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	first, err := readByte(stream)
	if err != nil {
		return
	}
	decoder := wire.NewDecoder(stream)
	switch first {
	case wire.CallsByte:
		for each.serveCall(ctx, stream, decoder) {
		}
	case wire.StreamByte:
		var header struct{ Method string }
		if decoder.Decode(&header) == nil {
			// The node is gone if this fails.
			wire.NewEncoder(stream).Encode(object{"Error": fmt.Sprintf("Unknown rpc method: %q", header.Method)})
		}
	}
}

// serveCall serves one call, and reports whether the stream can carry another.
func (each *session) serveCall(ctx context.Context, stream io.ReadWriter, decoder *wire.Decoder) bool {
	c := each.server.Cluster
	var header callHeader
	var body object
	if decoder.Decode(&header) != nil || decoder.Decode(&body) != nil {
		return false
	}
	call := &Call{Server: each.server, Method: header.ServiceMethod, Request: body, RequestBytes: sizeOf(body), Started: c.clock.Now()}
	fault := c.faults.take(each.server, *call) // before a test can see the call, and send another that the fault must not change
	c.calls.add(call)
	if fault == nil {
		fault = &Fault{}
	}
	response, err := each.executeWithFault(ctx, *call, fault)
	if err == nil && fault.Edit != nil {
		fault.Edit(response)
	}
	finish := func(text string) {
		ended, size := c.clock.Now(), sizeOf(response)
		c.calls.finish(func() {
			call.Ended, call.Error, call.Response, call.ResponseBytes = ended, text, response, size
		})
	}
	if errors.Is(err, errCut) || fault.Cut == CutBeforeResponse || ctx.Err() != nil {
		response = nil
		finish(errCut.Error())
		each.mux.Close()
		return false
	}

	answer := answerHeader{Seq: header.Seq, ServiceMethod: header.ServiceMethod}
	if err != nil {
		answer.Error, response = err.Error(), nil
	}
	message, err := encodeAnswer(answer, response)
	if err != nil {
		c.t.Errorf("answer %s: %v", header.ServiceMethod, err)
		return false
	}
	if fault.Raw != nil {
		message = fault.Raw
	}
	result := answer.Error
	if fault.Cut == CutWithinResponse {
		message, result = message[:len(message)/2], errCut.Error()
	}
	finish(result)
	for range 1 + fault.Repeat {
		if _, err := stream.Write(message); err != nil {
			return false
		}
	}
	switch fault.Cut {
	case CutAfterResponse:
		// yamux drops what a peer has not read when the session ends, so wait until the node closes the stream or uses it again.
		if _, err := readByte(stream); err != nil && !errors.Is(err, io.EOF) {
			return false
		}
		fallthrough
	case CutWithinResponse:
		each.mux.Close()
		return false
	}
	return fault.Raw == nil && !strings.HasPrefix(answer.Error, "rpc: can't find")
}

// executeWithFault executes a call, with the parts of fault that come before and instead of the execution.
func (each *session) executeWithFault(ctx context.Context, call Call, fault *Fault) (object, error) {
	c := each.server.Cluster
	var waits []<-chan struct{}
	if fault.Hold != nil {
		waits = append(waits, fault.Hold)
	}
	if fault.Delay > 0 {
		over := make(chan struct{})
		stop := c.clock.AfterFunc(fault.Delay, func() { close(over) })
		defer stop()
		waits = append(waits, over)
	}
	if err := waitAll(ctx, waits...); err != nil {
		return nil, err
	}
	if fault.Cut == CutBeforeExecution {
		return nil, errCut
	}
	if fault.Error != "" && !fault.Execute {
		return nil, errors.New(fault.Error)
	}
	response, err := c.execute(ctx, each, call.Method, call.Request)
	if fault.HoldResponse != nil {
		if err := waitAll(ctx, fault.HoldResponse); err != nil {
			return nil, err
		}
	}
	if fault.Error != "" {
		return nil, errors.New(fault.Error)
	}
	return response, err
}

// waitAll waits until all channels are closed.
func waitAll(ctx context.Context, channels ...<-chan struct{}) error {
	for _, channel := range channels {
		select {
		case <-channel:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// encodeAnswer returns the header and the body of an answer.
func encodeAnswer(header answerHeader, response object) ([]byte, error) {
	if response == nil {
		response = object{}
	}
	head, err := wire.EncodeBytes(&header)
	if err != nil {
		return nil, err
	}
	body, err := wire.EncodeBytes(response)
	return slices.Concat(head, body), err
}

// sizeOf returns the size of a message, which was decoded from one.
func sizeOf(message object) int {
	b, err := wire.EncodeBytes(message)
	if err != nil {
		return 0 // a fault has set a value that cannot be encoded, which serveCall reports
	}
	return len(b)
}
