package accesscontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Types of tokens.
const (
	TypeClient     = "client"
	TypeManagement = "management"
)

// errUUIDLength has the text of Nomad for an id that is no UUID.
var errUUIDLength = errors.New("acl token lookup failed: index error: UUID must be 36 characters")

// Bootstrap makes the first management token. secret is the secret of the token; "" makes a new one. A second bootstrap needs
// the reset file.
func (c *Control) Bootstrap(ctx context.Context, secret string) (*api.ACLToken, error) {
	if secret != "" && !isUUID(secret) {
		return nil, requestErrorf(http.StatusBadRequest, "invalid acl token")
	}
	t := &api.ACLToken{
		AccessorID: uuid.NewString(), SecretID: cmp.Or(secret, uuid.NewString()), Name: "Bootstrap Token", Type: TypeManagement, Global: true, CreateTime: time.Now().UTC(),
	}
	resetIndex, hasResetIndex := c.readResetFile()
	_, err := c.update(ctx, func(tx *store.Txn) error {
		last := lastBootstrapIndex(tx.Reader)
		switch {
		case last == 0:
		case !hasResetIndex:
			return requestErrorf(http.StatusBadRequest, "ACL bootstrap already done (reset index: %d)", last)
		case resetIndex != last:
			return requestErrorf(http.StatusBadRequest, "Invalid bootstrap reset index (specified %d, reset index: %d)", resetIndex, last)
		}
		tx.PutACLToken(t)
		tx.PutACLBootstrapIndex()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// lastBootstrapIndex returns the index of the last bootstrap, or 0 if there was none. Where the record of the bootstrap is lost,
// the tokens show that there was one.
func lastBootstrapIndex(r store.Reader) uint64 {
	last := r.ACLBootstrapIndex()
	if last > 0 {
		return last
	}
	for _, t := range r.ACLTokens(nil, "") {
		last = max(last, t.CreateIndex)
	}
	return last
}

// readResetFile returns the index in the reset file. It returns false if there is no such file, or no number in it.
func (c *Control) readResetFile() (index uint64, ok bool) {
	text, err := os.ReadFile(c.config.ResetFile)
	if err != nil {
		return 0, false
	}
	index, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return index, err == nil
}

// PutPolicy stores a policy.
func (c *Control) PutPolicy(ctx context.Context, p *api.ACLPolicy) (index uint64, err error) {
	var f faults
	f.checkNameAndDescription(p.Name, p.Description)
	if _, err := acl.Parse(p.Rules); err != nil {
		f.addf("failed to parse rules: %v", err)
	}
	if j := p.JobACL; j != nil {
		switch {
		case j.JobID != "" && j.Namespace == "":
			f.addf("namespace must be set to set job ID")
		case j.Group != "" && j.JobID == "":
			f.addf("job ID must be set to set group")
		case j.Task != "" && j.Group == "":
			f.addf("group must be set to set task")
		}
	}
	if err := f.errorOf("policy"); err != nil {
		return 0, err
	}
	return c.update(ctx, func(tx *store.Txn) error {
		tx.PutACLPolicy(&api.ACLPolicy{Name: p.Name, Description: p.Description, Rules: p.Rules, JobACL: p.JobACL})
		return nil
	})
}

// DeletePolicy removes a policy, if there is one.
func (c *Control) DeletePolicy(ctx context.Context, name string) (index uint64, err error) {
	return c.config.Store.Update(ctx, func(tx *store.Txn) error { tx.DeleteACLPolicy(name); return nil })
}

// PutToken creates a token or, if a token with the accessor id exists, changes it. A new token gets a new accessor id and secret,
// unless the request has both.
func (c *Control) PutToken(ctx context.Context, requested *api.ACLToken) (stored *api.ACLToken, index uint64, err error) {
	t := *requested
	index, err = c.update(ctx, func(tx *store.Txn) error {
		var old *api.ACLToken
		if t.AccessorID != "" {
			if !isUUID(t.AccessorID) {
				return fmt.Errorf("token lookup failed: %w", errUUIDLength)
			}
			if old = tx.ACLToken(nil, t.AccessorID); old == nil && (t.SecretID == "" || t.Type == TypeManagement) {
				return requestErrorf(http.StatusBadRequest, "cannot find token %s", t.AccessorID)
			}
		}
		if err := c.completeToken(tx, &t, old); err != nil {
			return err
		}
		tx.PutACLToken(&t)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return &t, index, nil
}

// completeToken checks a token, and sets the fields that a request does not decide. old is the stored token, or nil.
func (c *Control) completeToken(tx *store.Txn, t, old *api.ACLToken) error {
	now := time.Now().UTC()
	if old == nil {
		t.CreateTime = now
		if t.AccessorID == "" {
			t.AccessorID, t.SecretID = uuid.NewString(), uuid.NewString()
		}
		if t.ExpirationTTL != 0 {
			t.ExpirationTime = new(now.Add(t.ExpirationTTL))
		}
	}
	var f faults
	if len(t.Name) > maxTokenNameLength {
		f.addf("token name too long")
	}
	switch {
	case t.Type == TypeClient && len(t.Policies)+len(t.Roles) == 0:
		f.addf("client token missing policies or roles")
	case t.Type == TypeManagement && len(t.Policies)+len(t.Roles) > 0:
		f.addf("management token cannot be associated with policies or roles")
	case t.Type != TypeClient && t.Type != TypeManagement:
		f.addf("token type must be client or management")
	}
	if old == nil {
		c.checkExpiration(&f, t)
	} else {
		checkUnchangedFields(&f, t, old)
	}
	if err := f.errorOf("token"); err != nil {
		return err
	}
	if old != nil {
		t.SecretID, t.CreateTime, t.ExpirationTime, t.ExpirationTTL = old.SecretID, old.CreateTime, old.ExpirationTime, old.ExpirationTTL
	}
	return resolveRoles(tx, t)
}

// checkExpiration adds the faults in the expiration of a new token.
func (c *Control) checkExpiration(f *faults, t *api.ACLToken) {
	if t.ExpirationTTL < 0 {
		f.addf("token expiration TTL '%s' should not be negative", t.ExpirationTTL)
	}
	if t.ExpirationTime == nil {
		return
	}
	life := t.ExpirationTime.Sub(t.CreateTime)
	if life < 0 {
		f.addf("expiration time cannot be before create time")
	}
	switch {
	case life < c.config.MinExpirationTTL:
		f.addf("expiration time cannot be less than %s in the future (was %s)", c.config.MinExpirationTTL, life)
	case life > c.config.MaxExpirationTTL:
		f.addf("expiration time cannot be more than %s in the future (was %s)", c.config.MaxExpirationTTL, life)
	}
}

// checkUnchangedFields adds a fault for each field that cannot be changed.
func checkUnchangedFields(f *faults, t, old *api.ACLToken) {
	if t.Global != old.Global {
		f.addf("cannot toggle global mode")
	}
	if t.ExpirationTTL != old.ExpirationTTL {
		f.addf("cannot update expiration TTL")
	} else if !equalTimes(t.ExpirationTime, old.ExpirationTime) {
		f.addf("cannot update expiration time")
	}
}

func equalTimes(a, b *time.Time) bool {
	return a == b || a != nil && b != nil && a.Equal(*b)
}

// resolveRoles replaces the links to roles, which have an id or a name, by links with both.
func resolveRoles(tx *store.Txn, t *api.ACLToken) error {
	var links []*api.ACLTokenRoleLink
	for _, link := range t.Roles {
		if link == nil {
			continue
		}
		role := tx.ACLRole(nil, link.ID)
		if link.ID == "" {
			role = tx.ACLRoleByName(nil, link.Name)
		}
		if role == nil {
			return requestErrorf(http.StatusBadRequest, "cannot find role %s", cmp.Or(link.ID, link.Name))
		}
		if !slices.ContainsFunc(links, func(l *api.ACLTokenRoleLink) bool { return l.ID == role.ID }) {
			links = append(links, &api.ACLTokenRoleLink{ID: role.ID, Name: role.Name})
		}
	}
	if t.Roles = links; len(links) > 0 && t.Policies == nil {
		t.Policies = []string{}
	}
	return nil
}

// DeleteToken removes a token.
func (c *Control) DeleteToken(ctx context.Context, accessorID string) (index uint64, err error) {
	if !isUUID(accessorID) {
		return 0, requestErrorf(http.StatusBadRequest, "token lookup failed: %v", errUUIDLength)
	}
	return c.config.Store.Update(ctx, func(tx *store.Txn) error {
		if tx.ACLToken(nil, accessorID) == nil {
			return requestErrorf(http.StatusBadRequest, "Cannot delete nonexistent tokens: %s", accessorID)
		}
		tx.DeleteACLToken(accessorID)
		return nil
	})
}

// PutRole creates a role without an id, or changes the role with its id.
func (c *Control) PutRole(ctx context.Context, requested *api.ACLRole) (stored *api.ACLRole, index uint64, err error) {
	role := &api.ACLRole{ID: requested.ID, Name: requested.Name, Description: requested.Description}
	var names []string
	for _, link := range requested.Policies {
		if link != nil {
			names = append(names, link.Name)
		}
	}
	for _, name := range compactInOrder(names) {
		role.Policies = append(role.Policies, &api.ACLRolePolicyLink{Name: name})
	}
	var f faults
	f.checkNameAndDescription(role.Name, role.Description)
	if len(role.Policies) == 0 {
		f.addf("at least one policy should be specified")
	}
	if err := f.errorOf("role"); err != nil {
		return nil, 0, err
	}
	index, err = c.update(ctx, func(tx *store.Txn) error {
		for _, link := range role.Policies {
			if tx.ACLPolicy(nil, link.Name) == nil {
				return requestErrorf(http.StatusBadRequest, "cannot find policy %s", link.Name)
			}
		}
		other := tx.ACLRoleByName(nil, role.Name)
		switch {
		case role.ID == "" && other != nil:
			return requestErrorf(http.StatusBadRequest, "role with name %s already exists", role.Name)
		case role.ID == "":
			role.ID = uuid.NewString()
		case tx.ACLRole(nil, role.ID) == nil:
			return requestErrorf(http.StatusBadRequest, "cannot find role %s", role.ID)
		case other != nil && other.ID != role.ID:
			return requestErrorf(http.StatusInternalServerError, "ACL role with name %s already exists", role.Name)
		}
		tx.PutACLRole(role)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return role, index, nil
}

// DeleteRole removes a role. Tokens with the role lose it.
func (c *Control) DeleteRole(ctx context.Context, id string) (index uint64, err error) {
	return c.config.Store.Update(ctx, func(tx *store.Txn) error {
		if tx.ACLRole(nil, id) == nil {
			return requestErrorf(http.StatusInternalServerError, "ACL role not found")
		}
		tx.DeleteACLRole(id)
		return nil
	})
}

// CreateOneTimeToken makes a one-time token for a token. It replaces an earlier one-time token.
func (c *Control) CreateOneTimeToken(t *api.ACLToken) *api.OneTimeToken {
	made := c.oneTime.create(t.AccessorID, time.Now())
	index := c.config.Store.Index()
	return &api.OneTimeToken{OneTimeSecretID: made.secret, AccessorID: t.AccessorID, ExpiresAt: made.expires.UTC(), CreateIndex: index, ModifyIndex: index}
}

// ExchangeOneTimeToken returns the token for which a one-time token stands, which ends with this call.
func (c *Control) ExchangeOneTimeToken(secret string) (*api.ACLToken, error) {
	switch {
	case secret == "":
		return nil, errors.New("one-time token lookup failed: missing secret")
	case !isUUID(secret):
		return nil, errors.New("one-time token lookup failed: index error: UUID must be 36 characters")
	}
	accessorID, found := c.oneTime.take(secret, time.Now())
	if !found {
		return nil, acl.ErrPermissionDenied
	}
	t := c.config.Store.Snapshot().ACLToken(nil, accessorID)
	if t == nil || isExpired(t, time.Now()) {
		return nil, acl.ErrPermissionDenied
	}
	return t, nil
}
