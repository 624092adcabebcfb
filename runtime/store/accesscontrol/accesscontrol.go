package accesscontrol

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// RequestError: a request for a change is invalid. Status is the HTTP status of Nomad's API.
type RequestError struct {
	Status int
	Text   string
}

func (e *RequestError) Error() string { return e.Text }

func requestErrorf(status int, format string, args ...any) error {
	return &RequestError{status, fmt.Sprintf(format, args...)}
}

// Defaults of Config's limits.
const (
	DefaultMinExpirationTTL = time.Minute
	DefaultMaxExpirationTTL = 24 * time.Hour
	DefaultTokenGCThreshold = time.Hour
)

// Config configures a Control.
type Config struct {
	Store  *store.Store
	Logger hclog.Logger
	// ResetFile is the path of the file that permits another bootstrap, if it has the index of the last one.
	ResetFile string
	// MinExpirationTTL and MaxExpirationTTL limit the lifetime of a token that expires.
	MinExpirationTTL, MaxExpirationTTL time.Duration
	// TokenGCThreshold is how long an expired token is kept.
	TokenGCThreshold time.Duration
}

// Control manages a store's access control. Its methods may be called concurrently.
type Control struct {
	config  Config
	logger  hclog.Logger
	rights  rightsCache
	oneTime oneTimeTokens
}

// New returns a store's Control. Expired tokens are removed only while RunTokenCollection runs.
func New(c Config) *Control {
	return &Control{config: c, logger: c.Logger.Named("acl")}
}

// update changes the store, if there is room for new objects.
func (c *Control) update(ctx context.Context, change func(tx *store.Txn) error) (index uint64, err error) {
	if err := c.config.Store.CheckDiskSpaceForNewObjects(); err != nil {
		return 0, err
	}
	index, err = c.config.Store.Update(ctx, change)
	var duplicate *store.DuplicateSecretError
	if errors.As(err, &duplicate) {
		err = requestErrorf(http.StatusBadRequest, "%v", duplicate)
	}
	return index, err
}

// faults collects the faults of an object, and makes one error of them in the format of Nomad.
type faults []string

func (f *faults) addf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// errorOf returns an error for an object with a kind such as "policy", or nil without faults.
func (f faults) errorOf(kind string) error {
	if len(f) == 0 {
		return nil
	}
	return requestErrorf(http.StatusBadRequest, "%s 0 invalid: %s", kind, model.FormatErrorList(f))
}

// Limits of names and descriptions.
const (
	maxNameLength        = 128
	maxDescriptionLength = 256
	maxTokenNameLength   = 256
)

// checkNameAndDescription adds the faults in the name and the description of a policy or role.
func (f *faults) checkNameAndDescription(name, description string) {
	isOther := func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-')
	}
	if name == "" || len(name) > maxNameLength || strings.ContainsFunc(name, isOther) {
		f.addf("invalid name '%s'", name)
	}
	if len(description) > maxDescriptionLength {
		f.addf("description longer than %d", maxDescriptionLength)
	}
}

// isUUID reports whether a text has the form of a UUID.
func isUUID(text string) bool {
	return len(text) == 36 && uuid.Validate(text) == nil
}

// oneTimeTokens are the secrets that can be exchanged once for a token. They are not stored.
type oneTimeTokens struct {
	mu         sync.Mutex
	byAccessor map[string]oneTimeToken
}

type oneTimeToken struct {
	secret  string
	expires time.Time
}

// OneTimeTokenTTL is how long a one-time token can be exchanged.
const OneTimeTokenTTL = 10 * time.Minute

// create makes a one-time token, which replaces an earlier one of the same token.
func (o *oneTimeTokens) create(accessorID string, now time.Time) oneTimeToken {
	o.mu.Lock()
	defer o.mu.Unlock()
	for accessor, t := range o.byAccessor {
		if !now.Before(t.expires) {
			delete(o.byAccessor, accessor)
		}
	}
	if o.byAccessor == nil {
		o.byAccessor = make(map[string]oneTimeToken)
	}
	t := oneTimeToken{uuid.NewString(), now.Add(OneTimeTokenTTL)}
	o.byAccessor[accessorID] = t
	return t
}

// take returns the accessor id of the token for which a one-time token stands, and removes the one-time token.
func (o *oneTimeTokens) take(secret string, now time.Time) (accessorID string, found bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for accessor, t := range o.byAccessor {
		if subtle.ConstantTimeCompare([]byte(t.secret), []byte(secret)) == 1 {
			delete(o.byAccessor, accessor)
			return accessor, now.Before(t.expires)
		}
	}
	return "", false
}

// RunTokenCollection removes expired tokens after their threshold, until ctx ends.
func (c *Control) RunTokenCollection(ctx context.Context) {
	for {
		ws := store.NewWatchSet()
		snapshot := c.config.Store.Snapshot()
		snapshot.LatestTableIndex(ws, store.ACLTokens)
		now, next := time.Now(), time.Now().Add(time.Hour)
		var expired []string
		for _, t := range snapshot.ACLTokens(nil, "") {
			if t.ExpirationTime == nil {
				continue
			}
			end := t.ExpirationTime.Add(c.config.TokenGCThreshold)
			if now.Before(end) {
				next = earlier(next, end)
			} else {
				expired = append(expired, t.AccessorID)
			}
		}
		if len(expired) > 0 {
			_, err := c.config.Store.Update(ctx, func(tx *store.Txn) error {
				for _, id := range expired {
					tx.DeleteACLToken(id)
				}
				return nil
			})
			if err != nil && ctx.Err() == nil {
				c.logger.Warn("expired tokens not removed", "tokens", len(expired), "error", err)
			}
			if err != nil {
				ws, next = store.NewWatchSet(), now.Add(time.Minute) // the tokens are still expired: only time leads to the next attempt
			}
		}
		waitCtx, cancel := context.WithDeadline(ctx, next)
		_ = ws.WatchCtx(waitCtx) // ends at the next change, or at the next expiry
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// compactInOrder removes repeated texts, and keeps the first of each.
func compactInOrder(texts []string) []string {
	var kept []string
	for _, text := range texts {
		if !slices.Contains(kept, text) {
			kept = append(kept, text)
		}
	}
	return kept
}
