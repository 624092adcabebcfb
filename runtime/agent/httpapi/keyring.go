package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
)

// keyRotationReply is the reply to a key rotation.
type keyRotationReply struct {
	Key *api.RootKeyMeta
	replyMeta
}

// keyringHandler serves the routes of the keys of variables.
type keyringHandler struct {
	store      *store.Store
	identities *identity.Issuer // nil if the agent issues no tokens
	logger     hclog.Logger
}

func (h *keyringHandler) list(*request) (any, error) {
	keys, err := h.store.Keys()
	if errors.Is(err, store.ErrNoKeyFile) {
		return []*api.RootKeyMeta{}, nil
	}
	return keys, err
}

func (h *keyringHandler) rotate(r *request) (any, error) {
	full, err := r.boolParam("full")
	if err != nil {
		return nil, err
	}
	if algorithm := r.query.Get("algo"); algorithm != "" && algorithm != string(api.EncryptionAlgorithmAES256GCM) {
		return nil, badRequestError("the algorithm of a key must be " + string(api.EncryptionAlgorithmAES256GCM))
	}
	if time := r.query.Get("publish_time"); time != "" && time != "0" {
		return nil, badRequestError("a key cannot be published before it is used")
	}
	key, err := h.store.RotateKeys(r.Context(), full)
	if errors.Is(err, store.ErrNoKeyFile) {
		return nil, &statusError{http.StatusNotImplemented, err.Error()}
	}
	if err != nil {
		return nil, err
	}
	h.logger.Info("key of variables rotated", "key_id", key.KeyID, "full", full)
	return keyRotationReply{Key: key, replyMeta: replyMeta{Index: h.store.Index(), KnownLeader: true}}, nil
}

func (h *keyringHandler) remove(r *request) (any, error) {
	force, err := r.boolParam("force")
	if err != nil {
		return nil, err
	}
	if h.identities != nil && !force {
		tasks, err := h.identities.CountTasksWithTokenSignedBy(r.pathID)
		if err != nil {
			return nil, err
		}
		if tasks > 0 {
			return nil, &statusError{http.StatusConflict, fmt.Sprintf("remove key %s: %d tasks have tokens that are signed with it: restart them, or use -force", r.pathID, tasks)}
		}
	}
	err = h.store.RemoveKey(r.Context(), r.pathID, force)
	var keyInUseErr *store.KeyInUseError
	switch {
	case errors.Is(err, keyring.ErrKeyUnknown):
		return nil, notFoundError(err.Error())
	case errors.Is(err, keyring.ErrKeyActive), errors.As(err, &keyInUseErr):
		return nil, &statusError{http.StatusConflict, err.Error()}
	case err != nil:
		return nil, err
	}
	h.logger.Info("key of variables removed", "key_id", r.pathID)
	return noContent{}, nil
}
