package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	// signBlock limits how long a server that has not seen the allocation yet waits for it.
	signBlock = time.Minute
	// minRenewalDelay is the minimum time from a token's signature to its renewal.
	minRenewalDelay = 10 * time.Second
	maxSignDenials  = 3
	// maxSignRetryDelay limits the pause between tries while no server can be reached.
	maxSignRetryDelay = 10 * time.Second
)

// serverPool is the part of servers.Pool the package needs.
type serverPool interface {
	CallBlocking(ctx context.Context, maxBlock time.Duration, method string, request, response any) error
	WaitRetry(ctx context.Context, max time.Duration) error
}

// tokenRecords is the part of identity.Issuer that does not depend on who signs the tokens.
type tokenRecords interface {
	RenewalDelay(*state.IdentityToken) (delay time.Duration, isRenewable bool)
	ClockStepped() <-chan struct{}
	StoredTokensByIdentity(allocID, task string) map[string]*state.IdentityToken
	PutTokens(ctx context.Context, allocID, task string, tokenByIdentity map[string]*state.IdentityToken) error
	DeleteTokens(ctx context.Context, allocID, task string) error
}

// IdentitiesConfig configures Identities.
type IdentitiesConfig struct {
	Region string
	Pool   serverPool
	// NodeToken returns the node's token, which is secret.
	NodeToken func() string
	Store     *store.Store
	Records   tokenRecords
	Logger    hclog.Logger
}

// Identities issues tokens signed by the servers. Its methods may be called concurrently.
type Identities struct {
	tokenRecords
	config IdentitiesConfig
}

var _ builtinhooks.AllocTokenIssuer = (*Identities)(nil)

// NewIdentities returns a node's issuer.
func NewIdentities(c IdentitiesConfig) *Identities {
	return &Identities{tokenRecords: c.Records, config: c}
}

// IsSignedByExistingKey implements builtinhooks.TokenIssuer. The servers keep the keys of valid tokens.
func (*Identities) IsSignedByExistingKey(*state.IdentityToken) bool { return true }

// IsSignedByActiveKey implements builtinhooks.TokenIssuer. The servers do not require new tokens after a key rotation.
func (*Identities) IsSignedByActiveKey(context.Context, *state.IdentityToken) bool { return true }

// IssueToken implements builtinhooks.TokenIssuer. The default identity comes from the store; a server signs a named one, and the
// call for it blocks for about a minute at most.
func (i *Identities) IssueToken(ctx context.Context, w identity.Workload, id *api.WorkloadIdentity) (*state.IdentityToken, error) {
	if id.Name == model.DefaultIdentity {
		token, err := readTaskToken(i.config.Store.Snapshot().Reader, w.AllocID, w.Task)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", builtinhooks.ErrIdentityRejected, err)
		}
		return &state.IdentityToken{JWT: token.jwt, IssuedAt: time.Now().Truncate(time.Second)}, nil
	}
	wanted := namedIdentity{w.Task, id.Name}
	signed, err := i.sign(ctx, w.AllocID, []namedIdentity{wanted})
	if err != nil {
		return nil, err
	}
	return signed[wanted], nil
}

// IssueAllocTokens implements builtinhooks.AllocTokenIssuer: one call signs all tasks' named identities.
func (i *Identities) IssueAllocTokens(ctx context.Context, alloc *api.Allocation) error {
	var wanted []namedIdentity
	for _, t := range alloc.GetTaskGroup().Tasks {
		for _, id := range builtinhooks.IdentitiesWithEnvOrFile(t) {
			if id.Name != model.DefaultIdentity {
				wanted = append(wanted, namedIdentity{t.Name, id.Name})
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	signed, err := i.signWithRetry(ctx, alloc.ID, wanted)
	if err != nil {
		return err
	}
	byTask := make(map[string]map[string]*state.IdentityToken)
	for id, token := range signed {
		if byTask[id.task] == nil {
			byTask[id.task] = make(map[string]*state.IdentityToken)
		}
		byTask[id.task][id.name] = token
	}
	for task, tokens := range byTask {
		if err := i.PutTokens(ctx, alloc.ID, task, tokens); err != nil {
			return fmt.Errorf("store the identities of task %q: %w", task, err)
		}
	}
	return nil
}

// signWithRetry is sign that waits until a server can be reached.
func (i *Identities) signWithRetry(ctx context.Context, allocID string, wanted []namedIdentity) (map[namedIdentity]*state.IdentityToken, error) {
	warned, denials := false, 0
	for {
		signed, err := i.sign(ctx, allocID, wanted)
		if servers.IsPermissionDenied(err) {
			denials++ // the node's identity may have expired; the next heartbeat renews it
		}
		if !errors.Is(err, builtinhooks.ErrIssuerUnreachable) && (!servers.IsPermissionDenied(err) || denials >= maxSignDenials) {
			return signed, err
		}
		if !warned {
			i.config.Logger.Warn("an allocation waits for its identities", "alloc_id", allocID, "error", err)
			warned = true
		}
		if err := i.config.Pool.WaitRetry(ctx, maxSignRetryDelay); err != nil {
			return nil, err
		}
	}
}

// namedIdentity is one of an allocation's identities.
type namedIdentity struct{ task, name string }

// sign returns a token for each of an allocation's wanted identities. It fails if one was not signed.
func (i *Identities) sign(ctx context.Context, allocID string, wanted []namedIdentity) (map[namedIdentity]*state.IdentityToken, error) {
	record, err := i.config.Store.Snapshot().ClusterAlloc(allocID)
	if err != nil {
		return nil, fmt.Errorf("sign identities: %w", err)
	}
	request := protocol.SignIdentitiesRequest{ReadOptions: protocol.ReadOptions{
		Region: i.config.Region, AuthToken: i.config.NodeToken(), AllowStale: true, MaxQueryTime: signBlock,
		MinQueryIndex: max(record.CreateIndex, 1) - 1, // a server that has not seen the allocation waits for it
	}}
	for _, id := range wanted {
		request.Identities = append(request.Identities, &protocol.IdentityRequest{AllocID: allocID, WorkloadIdentifier: id.task, IdentityName: id.name})
	}
	var response protocol.SignIdentitiesResponse
	err = i.config.Pool.CallBlocking(ctx, signBlock, protocol.MethodSignIdentities, &request, &response)
	switch {
	case servers.IsUnknownMethod(err):
		return nil, fmt.Errorf("%w: identity %q of task %q needs servers of Nomad 1.7 or later, and the servers are older: %w", builtinhooks.ErrIdentityRejected, wanted[0].name, wanted[0].task, err)
	case servers.IsUnreachable(err):
		return nil, fmt.Errorf("%w: %w", builtinhooks.ErrIssuerUnreachable, err)
	case err != nil:
		return nil, fmt.Errorf("sign identities: %w", err)
	}
	var rejections []error
	for _, r := range response.Rejections {
		rejections = append(rejections, fmt.Errorf("%w: identity %q of task %q: %s", builtinhooks.ErrIdentityRejected, r.IdentityName, r.WorkloadIdentifier, r.Reason))
	}
	if len(rejections) > 0 {
		return nil, errors.Join(rejections...)
	}
	return tokensOf(response.SignedIdentities, wanted)
}

// tokensOf returns the signed tokens for the wanted identities. It is an error if one is missing.
func tokensOf(signed []*protocol.SignedIdentity, wanted []namedIdentity) (map[namedIdentity]*state.IdentityToken, error) {
	now := time.Now().Truncate(time.Second)
	tokens := make(map[namedIdentity]*state.IdentityToken, len(wanted))
	for _, s := range signed {
		token := &state.IdentityToken{JWT: s.JWT, IssuedAt: now}
		if !s.Expiration.IsZero() {
			token.ExpiresAt = s.Expiration
			token.RenewAt = identity.RenewalTime(now, s.Expiration)
			// The machines' clocks can differ by more than the TTL: then each new token seems to have expired.
			if earliest := now.Add(minRenewalDelay); token.RenewAt.Before(earliest) {
				token.RenewAt = earliest
			}
		}
		tokens[namedIdentity{s.WorkloadIdentifier, s.IdentityName}] = token
	}
	for _, id := range wanted {
		if t := tokens[id]; t == nil || t.JWT == "" {
			return nil, fmt.Errorf("sign identities: the servers have neither signed nor rejected identity %q of task %q", id.name, id.task)
		}
	}
	return tokens, nil
}
