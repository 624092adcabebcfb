package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/variables"
)

// variableHandler serves the routes of variables.
type variableHandler struct {
	store     *store.Store
	variables *variables.Variables
}

// list applies filters to metadata only: a filter on items would disclose their values
// bit by bit.
func (h *variableHandler) list(r *request) (any, error) {
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := []*api.VariableMetadata{}
		for _, v := range s.Variables(ws, r.namespace, r.query.Get("prefix")) {
			found = append(found, model.PublicVariableMetadata(v))
		}
		list, err := listPage(r, found, func(m *api.VariableMetadata) sortKey { return newNameSortKey(m.Namespace, m.Path) }, objectAsStub)
		return list, s.LatestTableIndex(ws, store.Variables), err
	})
}

func (h *variableHandler) rejectMissingPath(*request) (any, error) {
	return nil, badRequestError("missing variable path")
}

// rejectMethod replies to an unsupported method with Nomad's text and status.
func (h *variableHandler) rejectMethod(*request) (any, error) {
	return nil, badRequestError(errInvalidMethod.replyBody)
}

func (h *variableHandler) read(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		v := s.Variable(ws, r.namespace, r.pathID)
		if v == nil {
			return nil, s.LatestTableIndex(ws, store.Variables), notFoundError("variable not found")
		}
		if err := s.VariableDecryptErr(v); err != nil {
			return nil, v.ModifyIndex, err
		}
		return v, v.ModifyIndex, nil
	})
}

// maxVariableBody is the size of the largest variable when each of its characters is escaped in JSON.
const maxVariableBody = 8 * model.MaxVariableSize

func (h *variableHandler) put(r *request) (any, error) {
	check, err := casIndex(r)
	if err != nil {
		return nil, err
	}
	lock, err := lockOperation(r)
	if err != nil {
		return nil, err
	}
	var v *api.Variable
	if err := r.decodeBody(&v, maxVariableBody, false); err != nil {
		return nil, err
	}
	if v == nil {
		v = &api.Variable{} // the body was null
	}
	v.Path = r.pathID
	if v.Namespace == "" {
		v.Namespace = r.namespace
	}
	if missing := missingVariableCapability(r.rights.acl, v.Namespace, v.Path, acl.Write); missing != "" {
		return nil, r.refuse(missing)
	}
	if lock != nil {
		v, err = lock(h.variables, r.Context(), v)
	} else {
		v, err = h.variables.Put(r.Context(), v, check)
	}
	if err != nil {
		return replyVariableConflict(r, err, check)
	}
	r.replyIndex = v.ModifyIndex
	return v, nil
}

func (h *variableHandler) delete(r *request) (any, error) {
	check, err := casIndex(r)
	if err != nil {
		return nil, err
	}
	r.replyIndex, err = h.variables.Delete(r.Context(), r.namespace, r.pathID, check)
	if err != nil {
		return replyVariableConflict(r, err, check)
	}
	r.statusCode = http.StatusNoContent
	return noContent{}, nil
}

// casIndex returns the check-and-set index of a request, nil if the request has none.
func casIndex(r *request) (variables.ExpectedModifyIndex, error) {
	text, asked := r.query["cas"]
	if !asked {
		return nil, nil
	}
	index, err := strconv.ParseUint(text[0], 10, 64)
	if err != nil {
		return nil, badRequestError(fmt.Sprintf("can not parse cas: %v", err))
	}
	return &index, nil
}

var lockOperations = map[string]func(*variables.Variables, context.Context, *api.Variable) (*api.Variable, error){
	"lock-acquire": (*variables.Variables).AcquireLock,
	"lock-renew":   (*variables.Variables).RenewLock,
	"lock-release": (*variables.Variables).ReleaseLock,
}

// lockOperation returns the lock operation of a request, nil if the request has none.
func lockOperation(r *request) (do func(*variables.Variables, context.Context, *api.Variable) (*api.Variable, error), err error) {
	for name, operation := range lockOperations {
		if _, asked := r.query[name]; !asked {
			continue
		}
		if do != nil {
			return nil, badRequestError("multiple lock operations")
		}
		do = operation
	}
	return do, nil
}

// replyVariableConflict returns why a variable was not changed. If the request has a check-and-set index, the
// reply is the current variable, which clients decode.
func replyVariableConflict(r *request, err error, check variables.ExpectedModifyIndex) (any, error) {
	var invalidErr variables.InvalidRequestError
	var conflictErr *variables.ConflictError
	switch {
	case errors.As(err, &invalidErr):
		return nil, badRequestError(invalidErr.Error())
	case errors.As(err, &conflictErr) && check != nil:
		r.replyIndex, r.statusCode = conflictErr.CurrentVariable.ModifyIndex, http.StatusConflict
		return model.VariableWithoutLockID(conflictErr.CurrentVariable), nil
	case errors.As(err, &conflictErr):
		return nil, &statusError{http.StatusConflict, conflictErr.Text}
	}
	return nil, err
}
