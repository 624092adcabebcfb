package migration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
)

const (
	maxRetryDelay = 10 * time.Second
	dialTimeout   = 10 * time.Second
	// idleTimeout limits how long the other node may send nothing.
	idleTimeout = time.Minute
	maxErrText  = 1 << 10
)

// serverPool is the part of servers.Pool a Fetcher needs.
type serverPool interface {
	CallBlocking(ctx context.Context, maxBlock time.Duration, method string, request, response any) error
	WaitRetry(ctx context.Context, max time.Duration) error
}

// Config configures a Fetcher.
type Config struct {
	Region string
	NodeID string
	Pool   serverPool
	// NodeToken returns this node's token for server calls, MigrateToken the token for the data of the allocation the given one
	// replaces; empty means the servers have sent none.
	NodeToken    func() string
	MigrateToken func(allocID string) string
	// HasAlloc reports whether this node has an allocation.
	HasAlloc func(allocID string) bool
	// TLS returns the TLS settings for other nodes. They have this node's certificates and no server name. It is nil if the
	// configuration has no certificates.
	TLS    func() *tls.Config
	Logger hclog.Logger
}

// Fetcher fetches allocation data from other nodes. It may be used concurrently.
type Fetcher struct{ config Config }

// NewFetcher returns a Fetcher.
func NewFetcher(c Config) *Fetcher { return &Fetcher{c} }

// Previous returns the allocation that alloc replaces, if it has run on another node and alloc's group wants its data from there.
// Otherwise it returns nil.
func (f *Fetcher) Previous(alloc *api.Allocation) builtinhooks.PreviousAlloc {
	group := alloc.GetTaskGroup()
	if group == nil || group.EphemeralDisk == nil || !pointer.Value(group.EphemeralDisk.Migrate) {
		return nil
	}
	if alloc.PreviousAllocation == "" || f.config.HasAlloc(alloc.PreviousAllocation) {
		return nil
	}
	return &remoteAlloc{fetcher: f, alloc: alloc}
}

var _ builtinhooks.PreviousAlloc = (*remoteAlloc)(nil)

// remoteAlloc is alloc's previous allocation. Its methods are called one after the other.
type remoteAlloc struct {
	fetcher *Fetcher
	alloc   *api.Allocation
	// nodeID is the previous allocation's node, and noDataReason the reason why it has no data. One of them is set when WaitEnded
	// has returned nil.
	nodeID, noDataReason string
}

// WaitEnded implements builtinhooks.PreviousAlloc. It blocks while no server can be reached, and it does not block for an
// allocation the servers do not have, or have given up.
func (r *remoteAlloc) WaitEnded(ctx context.Context) error {
	f := r.fetcher
	var query servers.Query
	for {
		previous, index, err := f.readAlloc(ctx, r.alloc.PreviousAllocation, &query)
		if err == nil && !query.IsNew(ctx, index) && ctx.Err() == nil {
			continue
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case servers.IsPermissionDenied(err) || servers.IsUnknownAlloc(err):
			r.noDataReason = "the servers do not show this node the previous allocation: " + err.Error()
			return nil
		case err != nil:
			f.config.Logger.Warn("previous allocation not read from the servers", "alloc_id", r.alloc.ID, "previous_alloc_id", r.alloc.PreviousAllocation, "error", err)
			query.Restart()
			if err := f.config.Pool.WaitRetry(ctx, maxRetryDelay); err != nil {
				return err
			}
		case previous == nil:
			r.noDataReason = "the servers no longer have the previous allocation"
			return nil
		case previous.ClientTerminalStatus() || previous.ClientStatus == api.AllocClientStatusUnknown:
			r.nodeID = previous.NodeID
			return nil
		}
	}
}

// readAlloc returns an allocation, or nil if the servers do not have it, and the answer's index. It blocks as the query does.
func (f *Fetcher) readAlloc(ctx context.Context, id string, query *servers.Query) (*protocol.Allocation, uint64, error) {
	request := protocol.GetAllocRequest{AllocID: id, ReadOptions: protocol.ReadOptions{Region: f.config.Region, AuthToken: f.config.NodeToken()}}
	block := query.Next(&request.ReadOptions)
	var response protocol.GetAllocResponse
	err := f.config.Pool.CallBlocking(ctx, block, protocol.MethodGetAlloc, &request, &response)
	return response.Alloc, response.Index, err
}

// MoveData implements builtinhooks.PreviousAlloc.
func (r *remoteAlloc) MoveData(ctx context.Context, to *allocdir.Dir, tasks []string) error {
	if err := r.moveData(ctx, to, tasks); err != nil {
		return fmt.Errorf("fetch the data of allocation %s: %w", r.alloc.PreviousAllocation, err)
	}
	return nil
}

func (r *remoteAlloc) moveData(ctx context.Context, to *allocdir.Dir, tasks []string) error {
	f := r.fetcher
	switch {
	case r.noDataReason != "":
		return errors.New(r.noDataReason)
	case r.nodeID == f.config.NodeID:
		return errors.New("this node has already removed it")
	}
	token := f.config.MigrateToken(r.alloc.ID)
	if token == "" {
		return errors.New("the servers have sent no token for it")
	}
	node, err := f.readNode(ctx, r.nodeID)
	if err != nil {
		return fmt.Errorf("find its node: %w", err)
	}
	if node.HTTPAddr == "" {
		return fmt.Errorf("its node %s has no HTTP API that other nodes can reach: set advertise.http in the configuration of that node", nodeName(node))
	}
	body, err := f.openArchive(ctx, node, r.alloc.PreviousAllocation, token)
	if err != nil {
		return fmt.Errorf("from node %s: %w", nodeName(node), err)
	}
	defer body.Close()
	if err := to.ReadArchive(body, tasks, maxArchiveBytes(r.alloc)); err != nil {
		return fmt.Errorf("from node %s: %w", nodeName(node), err)
	}
	return nil
}

func nodeName(n *api.Node) string { return fmt.Sprintf("%q (%s)", n.Name, n.HTTPAddr) }

func (f *Fetcher) readNode(ctx context.Context, id string) (*api.Node, error) {
	request := protocol.GetNodeRequest{NodeID: id, ReadOptions: protocol.ReadOptions{
		Region: f.config.Region, AuthToken: f.config.NodeToken(), AllowStale: true,
	}}
	var response protocol.GetNodeResponse
	if err := f.config.Pool.CallBlocking(ctx, 0, protocol.MethodGetNode, &request, &response); err != nil {
		return nil, err
	}
	if response.Node == nil {
		return nil, fmt.Errorf("the servers do not have node %s", id)
	}
	return response.Node, nil
}

// maxArchiveBytes returns the size of an allocation's ephemeral disk.
func maxArchiveBytes(alloc *api.Allocation) int64 {
	if alloc.AllocatedResources == nil {
		return 0
	}
	return alloc.AllocatedResources.Shared.DiskMB << 20
}

// openArchive requests an allocation's archive from its node. The caller closes the result.
func (f *Fetcher) openArchive(ctx context.Context, node *api.Node, allocID, token string) (io.ReadCloser, error) {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		DisableKeepAlives:   true,
		DisableCompression:  true,
	}
	target := url.URL{Scheme: "http", Host: node.HTTPAddr, Path: "/v1/client/allocation/" + allocID + "/snapshot"}
	if node.TLSEnabled {
		if f.config.TLS == nil {
			return nil, errors.New("it uses TLS: set ca_file, cert_file and key_file in the tls block of this agent's configuration")
		}
		target.Scheme = "https"
		transport.TLSClientConfig = f.config.TLS()
		transport.TLSClientConfig.ServerName = "client." + f.config.Region + ".nomad"
	}
	ctx, cancel := context.WithCancelCause(ctx)
	idle := time.AfterFunc(idleTimeout, func() { cancel(fmt.Errorf("the node has sent nothing for %v", idleTimeout)) })
	stop := func() {
		idle.Stop()
		cancel(nil)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		stop()
		return nil, err
	}
	request.Header.Set("X-Nomad-Token", token)
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the node redirects to another address") // the token is for this node
	}}
	response, err := client.Do(request)
	if err != nil {
		err = causeOr(ctx, err)
		stop()
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrText)) // the status is the error, with or without its text
		response.Body.Close()
		stop()
		return nil, fmt.Errorf("status %d: %s", response.StatusCode, strings.ToValidUTF8(strings.TrimSpace(string(text)), "?"))
	}
	return &archiveBody{ctx: ctx, body: response.Body, idle: idle, stop: stop}, nil
}

// causeOr returns ctx's cause if it has ended, and err otherwise.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// archiveBody is a response body. Reading fails if the node sends nothing for idleTimeout.
type archiveBody struct {
	ctx  context.Context // the request's context; its cause says why reading fails
	body io.ReadCloser
	idle *time.Timer
	stop func()
}

func (b *archiveBody) Read(p []byte) (int, error) {
	b.idle.Reset(idleTimeout)
	n, err := b.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = causeOr(b.ctx, err)
	}
	return n, err
}

func (b *archiveBody) Close() error {
	b.stop()
	return b.body.Close()
}
