package httpapi

import (
	"cmp"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// serviceHandler serves the routes of services.
type serviceHandler struct{ store *store.Store }

// list returns the names of all services, by namespace. A difference to Nomad: list honors the parameter
// prefix. Nomad ignores it, so that `service info` shows other services if the requested service does not
// exist.
func (h *serviceHandler) list(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		known := slices.DeleteFunc(s.Services(ws, r.namespace), func(reg *api.ServiceRegistration) bool {
			return !strings.HasPrefix(reg.ServiceName, r.query.Get("prefix"))
		})
		slices.SortStableFunc(known, func(a, b *api.ServiceRegistration) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.ServiceName, b.ServiceName))
		})
		lists := []*api.ServiceRegistrationListStub{}
		for _, reg := range known {
			if n := len(lists); n == 0 || lists[n-1].Namespace != reg.Namespace {
				lists = append(lists, &api.ServiceRegistrationListStub{Namespace: reg.Namespace})
			}
			list := lists[len(lists)-1]
			if n := len(list.Services); n == 0 || list.Services[n-1].ServiceName != reg.ServiceName {
				list.Services = append(list.Services, &api.ServiceRegistrationStub{ServiceName: reg.ServiceName, Tags: []string{}})
			}
			service := list.Services[len(list.Services)-1]
			service.Tags = append(service.Tags, reg.Tags...)
			slices.Sort(service.Tags)
			service.Tags = slices.Compact(service.Tags)
		}
		return lists, s.LatestTableIndex(ws, store.Services), nil
	})
}

func (h *serviceHandler) rejectMissingName(*request) (any, error) {
	return nil, badRequestError("missing service name")
}

// read returns the instances of a service, as in Nomad without regard to their checks. With the parameter passing, an addition
// to Nomad's API, it returns only those that pass their checks.
func (h *serviceHandler) read(r *request) (any, error) {
	if strings.Contains(r.pathID, "/") {
		return nil, badRequestError("invalid URI")
	}
	choose, err := parseInstanceChoice(r.query.Get("choose"))
	if err != nil {
		return nil, err
	}
	onlyPassing, err := r.boolParam("passing")
	if err != nil {
		return nil, err
	}
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		instances := s.ServicesByName(ws, r.namespace, r.pathID)
		if onlyPassing {
			instances = slices.DeleteFunc(instances, func(i *api.ServiceRegistration) bool { return !s.ServicePasses(i) })
		}
		found, err := listPage(r, instances, serviceSortKey, objectAsStub)
		return choose.chooseInstances(found), s.LatestTableIndex(ws, store.Services), err
	})
}

func serviceSortKey(reg *api.ServiceRegistration) sortKey {
	return newNameSortKey(reg.Namespace, reg.ID)
}

// serviceInstanceChoice selects some instances of a service. For the same key it selects the same instances as
// long as these exist.
type serviceInstanceChoice struct {
	maxInstances    int // maximum number of chosen instances; 0 means all
	instanceRankKey string
}

func parseInstanceChoice(text string) (serviceInstanceChoice, error) {
	if text == "" {
		return serviceInstanceChoice{}, nil
	}
	number, key, both := strings.Cut(text, "|")
	count, err := strconv.Atoi(number)
	if !both || strings.Contains(key, "|") || err != nil || count < 1 {
		return serviceInstanceChoice{}, badRequestError("Parameter for choose must be in form '<number>|<key>'")
	}
	return serviceInstanceChoice{count, key}, nil
}

// chooseInstances gives each instance a rank that depends only on the instance and the key, so that a new or
// removed instance does not change the order of the others.
func (c serviceInstanceChoice) chooseInstances(found []*api.ServiceRegistration) []*api.ServiceRegistration {
	if c.maxInstances == 0 {
		return found
	}
	rank := func(reg *api.ServiceRegistration) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(c.instanceRankKey + "\x00" + reg.AllocID + "\x00" + reg.ID)) // the Write of a hash never fails
		return mixHashBits(h.Sum64())
	}
	slices.SortStableFunc(found, func(a, b *api.ServiceRegistration) int { return cmp.Compare(rank(b), rank(a)) })
	return found[:min(c.maxInstances, len(found))]
}

// mixHashBits makes each bit of a hash depend on all bits: otherwise ids with the same prefix would have
// similar ranks.
func mixHashBits(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

var errNoService = errors.New("service registration not found")

func (h *serviceHandler) delete(r *request) (any, error) {
	name, id, _ := strings.Cut(r.pathID, "/")
	switch {
	case strings.Contains(id, "/"):
		return nil, badRequestError("invalid URI")
	case name == "":
		return nil, badRequestError("missing service name")
	case id == "":
		return nil, badRequestError("missing service id")
	}
	index, err := h.store.Update(r.Context(), func(tx *store.Txn) error {
		if reg := tx.Service(nil, r.namespace, id); reg == nil || reg.ServiceName != name {
			return errNoService
		}
		tx.DeleteService(r.namespace, id)
		return nil
	})
	r.replyIndex = index
	return noContent{}, err
}
