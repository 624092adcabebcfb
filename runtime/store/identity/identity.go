package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Workload identifies a task by the names in its token claims.
type Workload struct {
	Namespace string
	JobID     string // the parent's, if the job is a child of a periodic or parameterized job
	Group     string
	AllocID   string
	Task      string
}

// NewWorkload returns the workload for a task in an allocation.
func NewWorkload(a *api.Allocation, task string) Workload {
	w := Workload{Namespace: a.Namespace, JobID: a.JobID, Group: a.TaskGroup, AllocID: a.ID, Task: task}
	if a.Job != nil && a.Job.ParentID != nil {
		w.JobID = cmp.Or(*a.Job.ParentID, w.JobID)
	}
	return w
}

// Config configures an Issuer.
type Config struct {
	Store  *store.Store
	Region string
	// IssuerURL is the claim iss in each token, and the address at which other services find the public keys. It may be empty.
	IssuerURL string
	// Now returns the current time; nil means time.Now.
	Now func() time.Time
}

// Issuer issues and verifies tokens. Its methods may be called concurrently.
type Issuer struct {
	Config

	clockSteppedMu sync.Mutex
	clockStepped   chan struct{} // closed and replaced by NotifyClockStep
}

// NewIssuer returns an issuer.
func NewIssuer(c Config) *Issuer {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Issuer{Config: c, clockStepped: make(chan struct{})}
}

// maxClockSetback is how far the clock can be set back without a renewal of the tokens with a TTL. After a larger step,
// the old tokens would be valid for longer than their TTL, and services would reject them because they were issued in the
// future.
const maxClockSetback = time.Minute

// minRenewalDelay is the minimum time between a token's issue and its renewal, unless the token's TTL is shorter.
const minRenewalDelay = 10 * time.Second

// IssueToken returns a new token for a workload identity. The error is that of [store.SigningKeys].
func (i *Issuer) IssueToken(ctx context.Context, workload Workload, id *api.WorkloadIdentity) (*state.IdentityToken, error) {
	keyID, key, err := i.Store.SigningKeys().EnsureActiveKey(ctx)
	if err != nil {
		return nil, fmt.Errorf("sign the token of identity %q: %w", id.Name, err)
	}
	now := i.Now().Truncate(time.Second) // the resolution of the claims
	t := &state.IdentityToken{KeyID: keyID, IssuedAt: now}
	claims := Claims{
		Subject:  strings.Join([]string{i.Region, workload.Namespace, workload.JobID, workload.Group, workload.Task, id.Name}, ":"),
		Audience: id.Audience, Issuer: i.IssuerURL, ID: uuid.NewString(),
		IssuedAt: now.Unix(), NotBefore: now.Unix(),
		Namespace: workload.Namespace, JobID: workload.JobID, AllocID: workload.AllocID, Task: workload.Task,
	}
	if id.TTL > 0 {
		ttl := max(id.TTL, time.Second)
		t.ExpiresAt = now.Add(ttl)
		claims.Expiry = t.ExpiresAt.Unix()
		t.RenewAt = RenewalTime(now, t.ExpiresAt)
	}
	if t.JWT, err = signToken(claims, keyID, key); err != nil {
		return nil, fmt.Errorf("sign the token of identity %q: %w", id.Name, err)
	}
	return t, nil
}

// RenewalTime returns when a token valid from issuedAt to expiresAt must be renewed: between 50 and 55 percent into this time.
func RenewalTime(issuedAt, expiresAt time.Time) time.Time {
	ttl := max(expiresAt.Sub(issuedAt), 0)
	// The random part spreads renewals for tasks that have started together.
	delay := ttl/2 + rand.N(ttl/20+1)
	return issuedAt.Add(min(max(delay, minRenewalDelay), ttl))
}

// RenewalDelay returns the time until a token must be renewed. If it is 0 or less, the token must be renewed
// now. isRenewable is false if the token is never renewed.
func (i *Issuer) RenewalDelay(t *state.IdentityToken) (delay time.Duration, isRenewable bool) {
	now := i.Now()
	switch {
	case t.RenewAt.IsZero():
		return 0, false
	case now.Before(t.IssuedAt.Add(-maxClockSetback)):
		return 0, true
	}
	return t.RenewAt.Sub(now), true
}

// IsSignedByExistingKey reports whether the key that signed a token still exists.
func (i *Issuer) IsSignedByExistingKey(t *state.IdentityToken) bool {
	keys, err := i.Store.SigningKeys().PublicKeys()
	if err != nil {
		return true // without readable keys, no other token can be issued
	}
	return slices.ContainsFunc(keys, func(k keyring.PublicKey) bool { return k.KeyID == t.KeyID })
}

// IsSignedByActiveKey reports whether the active key has signed a token. It also returns true if the active
// key cannot be read: then no other token can be issued.
func (i *Issuer) IsSignedByActiveKey(ctx context.Context, t *state.IdentityToken) bool {
	keyID, _, err := i.Store.SigningKeys().EnsureActiveKey(ctx)
	return err != nil || keyID == t.KeyID
}

// NotifyClockStep closes ClockStepped's channel. The agent calls it when the wall clock was set.
func (i *Issuer) NotifyClockStep() {
	i.clockSteppedMu.Lock()
	defer i.clockSteppedMu.Unlock()
	close(i.clockStepped)
	i.clockStepped = make(chan struct{})
}

// ClockStepped returns a channel that is closed when the wall clock is set. A caller that sleeps for a RenewalDelay must then
// call RenewalDelay again.
func (i *Issuer) ClockStepped() <-chan struct{} {
	i.clockSteppedMu.Lock()
	defer i.clockSteppedMu.Unlock()
	return i.clockStepped
}

// Authenticate returns a token's workload. It is an error if the token is not valid now, if its audience is not Nomad, or if
// its allocation does not exist or has ended.
func (i *Issuer) Authenticate(token string) (*Workload, error) {
	keys, err := i.Store.SigningKeys().PublicKeys()
	if err != nil {
		return nil, err
	}
	claims, err := verifySignatureAndDecodeClaims(token, keys)
	if err != nil {
		return nil, err
	}
	// The claim nbf is not checked: it is the time at which this agent has signed the token, and can only be
	// in the future if the clock was set back.
	if claims.Expiry != 0 && i.Now().Unix() >= claims.Expiry {
		return nil, errors.New("it has expired")
	}
	if !slices.Contains(claims.Audience, model.NomadAudience) {
		return nil, fmt.Errorf("its audience is not %s", model.NomadAudience)
	}
	alloc := i.Store.Snapshot().Allocation(nil, claims.AllocID)
	if alloc == nil || alloc.ClientTerminalStatus() {
		return nil, errors.New("its allocation has ended")
	}
	w := NewWorkload(alloc, claims.Task)
	if w.Namespace != claims.Namespace || w.JobID != claims.JobID || alloc.GetTaskGroup() == nil ||
		!slices.ContainsFunc(alloc.GetTaskGroup().Tasks, func(t *api.Task) bool { return t.Name == w.Task }) {
		return nil, errors.New("its task does not exist")
	}
	return &w, nil
}

// KeySet returns the public keys for verifying all valid tokens and the tokens issued next. The error is that of
// [store.SigningKeys].
func (i *Issuer) KeySet(ctx context.Context) (*KeySet, error) {
	if _, _, err := i.Store.SigningKeys().EnsureActiveKey(ctx); err != nil {
		return nil, err
	}
	keys, err := i.Store.SigningKeys().PublicKeys()
	if err != nil {
		return nil, err
	}
	set := &KeySet{Keys: make([]PublicKey, len(keys))}
	for n, k := range keys {
		set.Keys[n] = newPublicKey(k)
	}
	return set, nil
}
