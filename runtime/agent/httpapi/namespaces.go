package httpapi

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// namespaceHandler serves the routes of namespaces.
type namespaceHandler struct{ store *store.Store }

// defaultNamespace is the namespace "default", which always exists.
var defaultNamespace = &api.Namespace{Name: api.DefaultNamespace, Description: "Default shared namespace", CreateIndex: 1, ModifyIndex: 1}

// findStoredOrDefaultNamespace returns the stored namespace, or the default namespace.
func findStoredOrDefaultNamespace(s store.Reader, ws store.WatchSet, name string) *api.Namespace {
	if n := s.Namespace(ws, name); n != nil || name != api.DefaultNamespace {
		return n
	}
	return defaultNamespace
}

// listNamespaces returns the namespaces with the prefix, including the default namespace.
func listNamespaces(s store.Reader, ws store.WatchSet, prefix string, rights *acl.Rights) []*api.Namespace {
	found := s.Namespaces(ws, prefix)
	if strings.HasPrefix(api.DefaultNamespace, prefix) && s.Namespace(ws, api.DefaultNamespace) == nil && rights.SeesNamespace(api.DefaultNamespace) {
		found = append(found, defaultNamespace)
	}
	return found
}

// namespaceWithHash is a namespace in the server's JSON format.
type namespaceWithHash struct {
	*api.Namespace
	Hash []byte
}

func newNamespaceView(n *api.Namespace) namespaceWithHash {
	content := *n
	content.CreateIndex, content.ModifyIndex = 0, 0
	return namespaceWithHash{n, hashJSON(content)}
}

// hashJSON returns a hash of the JSON of an object.
func hashJSON(object any) []byte {
	text, err := encodeNomadJSON(object)
	if err != nil {
		panic(err) // the object was decoded from JSON, so it can be encoded
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

func (h *namespaceHandler) list(r *request) (any, error) {
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		byName := func(n *api.Namespace) sortKey { return newNameSortKey("", n.Name) }
		list, err := listPage(r, listNamespaces(s.Reader, ws, r.query.Get("prefix"), r.rights.acl), byName, newNamespaceView)
		return list, s.LatestTableIndex(ws, store.Namespaces), err
	})
}

func (h *namespaceHandler) read(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		n := findStoredOrDefaultNamespace(s.Reader, ws, r.pathID)
		if n == nil {
			return nil, s.LatestTableIndex(ws, store.Namespaces), notFoundError("Namespace not found")
		}
		return newNamespaceView(n), n.ModifyIndex, nil
	})
}

func (h *namespaceHandler) put(r *request) (any, error) {
	var n api.Namespace
	if err := r.decodeBody(&n, maxBodyBytes, false); err != nil {
		return nil, err
	}
	if r.pathID != "" && n.Name != r.pathID {
		return nil, badRequestError("Namespace name does not match request path")
	}
	if err := model.ValidateNamespace(&n); err != nil {
		return nil, badRequestError(err.Error())
	}
	index, err := h.store.Update(r.Context(), func(tx *store.Txn) error {
		tx.PutNamespace(&n)
		return nil
	})
	r.replyIndex = index
	return noContent{}, err
}

func (h *namespaceHandler) delete(r *request) (any, error) {
	if r.pathID == api.DefaultNamespace {
		return nil, badRequestError("can not delete default namespace")
	}
	index, err := h.store.Update(r.Context(), func(tx *store.Txn) error {
		if tx.Namespace(nil, r.pathID) == nil {
			return notFoundError("Namespace not found")
		}
		if use := describeNamespaceDeletionBlocker(tx.Reader, r.pathID); use != "" {
			return &statusError{http.StatusInternalServerError, fmt.Sprintf("namespace %q has %s", r.pathID, use)}
		}
		tx.DeleteNamespace(r.pathID)
		return nil
	})
	r.replyIndex = index
	return noContent{}, err
}

// describeNamespaceDeletionBlocker returns which active jobs and other objects a namespace contains, and how to remove
// them.
func describeNamespaceDeletionBlocker(s store.Reader, name string) string {
	for _, job := range s.Jobs(nil, name, "") {
		if pointer.Value(job.Status) != model.JobDead {
			return fmt.Sprintf("a job that is %s, %q: stop it first", pointer.Value(job.Status), pointer.Value(job.ID))
		}
	}
	for _, alloc := range s.WithoutEndedEvents().AllocationsByNamespace(nil, name) {
		if !alloc.ClientTerminalStatus() {
			return fmt.Sprintf("an allocation that is %s, %s: stop it first", alloc.ClientStatus, alloc.ID)
		}
	}
	if found := s.Variables(nil, name, ""); len(found) > 0 {
		return fmt.Sprintf("a variable, %q: purge it first", slices.MinFunc(found, func(a, b *api.Variable) int { return strings.Compare(a.Path, b.Path) }).Path)
	}
	return ""
}
