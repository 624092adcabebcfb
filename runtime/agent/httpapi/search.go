package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// maxPrefixMatches is the maximum number of matches of a prefix search for each context.
const maxPrefixMatches = 20

// SearchLimits are the operator's limits of fuzzy searches. A zero number is the default.
type SearchLimits struct {
	DisableFuzzy bool
	MaxObjects   int // maximum number of objects of a context that are searched; default: no limit
	MaxMatches   int // maximum number of matches of a context; default: 20
	MinTextLen   int // minimum number of characters of the text; default: 2
}

func (l SearchLimits) withDefaults() SearchLimits {
	l.MaxObjects, l.MaxMatches, l.MinTextLen = cmp.Or(l.MaxObjects, math.MaxInt), cmp.Or(l.MaxMatches, maxPrefixMatches), cmp.Or(l.MinTextLen, 2)
	return l
}

// searchCandidate is an object that a search may return.
type searchCandidate struct {
	name  string
	scope []string // the scope of the object in the format of Nomad's search results
}

// findCandidatesFunc returns the objects of one search context that match a text.
type findCandidatesFunc func(s *searchSnapshot, text string) []*searchCandidate

// prefixContexts has the function of each context for a prefix search.
var prefixContexts = map[contexts.Context]findCandidatesFunc{
	contexts.Allocs: func(s *searchSnapshot, prefix string) []*searchCandidate {
		return candidatesByID(s, prefix, s.WithoutEndedEvents().Allocations, func(a *api.Allocation) (string, string) { return a.Namespace, a.ID })
	},
	contexts.Deployments: func(s *searchSnapshot, prefix string) []*searchCandidate {
		return candidatesByID(s, prefix, s.Deployments, func(d *api.Deployment) (string, string) { return d.Namespace, d.ID })
	},
	contexts.Evals: func(s *searchSnapshot, prefix string) []*searchCandidate {
		return candidatesByID(s, prefix, s.Evaluations, func(e *api.Evaluation) (string, string) { return e.Namespace, e.ID })
	},
	contexts.Nodes: func(s *searchSnapshot, prefix string) []*searchCandidate {
		return candidatesByID(s, prefix, s.Nodes, func(n *api.Node) (string, string) { return "", n.ID })
	},
	contexts.Jobs: func(s *searchSnapshot, prefix string) []*searchCandidate {
		return newCandidates(s.Jobs(nil, s.namespace, prefix), func(j *api.Job) *searchCandidate { return &searchCandidate{name: pointer.Value(j.ID)} })
	},
	contexts.Namespaces: func(s *searchSnapshot, prefix string) []*searchCandidate {
		return newCandidates(listNamespaces(s.Reader, nil, prefix, s.rights), func(n *api.Namespace) *searchCandidate { return &searchCandidate{name: n.Name} })
	},
	contexts.NodePools: func(s *searchSnapshot, prefix string) []*searchCandidate {
		pools := slices.DeleteFunc([]string{api.NodePoolAll, api.NodePoolDefault}, func(pool string) bool {
			return !strings.HasPrefix(pool, prefix) || !s.rights.NodePool(pool, acl.Read)
		})
		return newCandidates(pools, func(pool string) *searchCandidate { return &searchCandidate{name: pool} })
	},
	contexts.Variables: func(s *searchSnapshot, prefix string) []*searchCandidate {
		return newCandidates(s.Variables(nil, s.namespace, prefix), func(v *api.Variable) *searchCandidate { return &searchCandidate{name: v.Path} })
	},
	contexts.Plugins: findNoCandidates,
	contexts.Volumes: findNoCandidates,
	contexts.ScalingPolicies: func(s *searchSnapshot, prefix string) (found []*searchCandidate) {
		if s.namespace == store.AnyNamespace {
			return nil // as recorded
		}
		for _, p := range scalingPolicies(s.Snapshot, nil, s.namespace) {
			if strings.HasPrefix(p.ID, prefix) {
				found = append(found, &searchCandidate{name: p.ID})
			}
		}
		return found
	},
	contexts.HostVolumes: func(s *searchSnapshot, prefix string) []*searchCandidate {
		return candidatesByID(s, prefix, s.HostVolumes, func(v *state.HostVolume) (string, string) { return v.Volume.Namespace, v.Volume.ID })
	},
}

// fuzzyContexts has the function of each context for a fuzzy search. An object without a name matches if
// its id starts with the text.
var fuzzyContexts = map[contexts.Context]findCandidatesFunc{
	contexts.Deployments:     prefixContexts[contexts.Deployments],
	contexts.Evals:           prefixContexts[contexts.Evals],
	contexts.HostVolumes:     prefixContexts[contexts.HostVolumes],
	contexts.ScalingPolicies: prefixContexts[contexts.ScalingPolicies],
	contexts.Namespaces:      newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate { return prefixContexts[contexts.Namespaces](s, "") }),
	contexts.NodePools:       newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate { return prefixContexts[contexts.NodePools](s, "") }),
	contexts.Allocs: newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate {
		seen := slices.DeleteFunc(s.WithoutEndedEvents().Allocations(nil, ""), func(a *api.Allocation) bool { return !s.includesNamespace(a.Namespace) })
		return newCandidates(seen, func(a *api.Allocation) *searchCandidate { return &searchCandidate{a.Name, []string{a.Namespace, a.ID}} })
	}),
	contexts.Nodes: newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate {
		return newCandidates(s.Nodes(nil, ""), func(n *api.Node) *searchCandidate { return &searchCandidate{n.Name, []string{n.ID}} })
	}),
	contexts.Classes: newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate {
		return newCandidates(s.Nodes(nil, ""), func(n *api.Node) *searchCandidate { return &searchCandidate{n.NodeClass, []string{n.ID}} })
	}),
	contexts.Variables: newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate {
		return newCandidates(s.Variables(nil, s.namespace, ""), func(v *api.Variable) *searchCandidate { return &searchCandidate{v.Path, []string{v.Namespace, v.Path}} })
	}),
	contexts.Jobs: newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate {
		return newCandidates(s.Jobs(nil, s.namespace, ""), func(j *api.Job) *searchCandidate { return &searchCandidate{pointer.Value(j.Name), jobScope(j)} })
	}),
	contexts.Groups: newFuzzyFinder(func(s *searchSnapshot) (found []*searchCandidate) {
		s.forEachGroup(func(j *api.Job, g *api.TaskGroup) {
			found = append(found, &searchCandidate{pointer.Value(g.Name), jobScope(j)})
		})
		return found
	}),
	contexts.Services: newFuzzyFinder(func(s *searchSnapshot) (found []*searchCandidate) {
		add := func(services []*api.Service, scope ...string) {
			for _, service := range services {
				found = append(found, &searchCandidate{service.Name, scope})
			}
		}
		s.forEachGroup(func(j *api.Job, g *api.TaskGroup) {
			add(g.Services, append(jobScope(j), pointer.Value(g.Name))...)
			for _, t := range g.Tasks {
				add(t.Services, append(jobScope(j), pointer.Value(g.Name), t.Name)...)
			}
		})
		return found
	}),
	contexts.Tasks: newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate {
		return s.taskCandidates(func(t *api.Task, group []string) *searchCandidate { return &searchCandidate{t.Name, group} })
	}),
	contexts.Images:   newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate { return s.taskConfigValueCandidates("image") }),
	contexts.Commands: newFuzzyFinder(func(s *searchSnapshot) []*searchCandidate { return s.taskConfigValueCandidates("command") }),
	contexts.Plugins:  findNoCandidates,
	contexts.Volumes:  findNoCandidates,
}

// searchSnapshot is the snapshot in which a search looks for objects, and the namespace of the search.
type searchSnapshot struct {
	*store.Snapshot
	namespace       string
	maxFuzzyObjects int
	rights          *acl.Rights
}

// maySearch reports whether a client may search in a context. Its result then has only what the client may see.
func (s *searchSnapshot) maySearch(c contexts.Context) bool {
	has := func(capabilities ...acl.Capability) bool {
		return hasInNamespace(s.rights, s.namespace, capabilities...)
	}
	switch c {
	case contexts.Nodes, contexts.Classes:
		return s.rights.ReadsNodes()
	case contexts.NodePools:
		return s.rights.AnyNodePool()
	case contexts.Namespaces:
		return s.rights.SeesNamespace(s.namespace) || s.namespace == store.AnyNamespace && s.rights.SeesAnyNamespace()
	case contexts.Plugins:
		return s.rights.ListsPlugins()
	case contexts.Volumes:
		return has(acl.ReadJob, acl.ListJobs, acl.CSIListVolume, acl.CSIReadVolume)
	case contexts.HostVolumes:
		return has(acl.HostVolumeRead)
	case contexts.Variables:
		return s.rights.AnyVariableIn(s.namespace, acl.List)
	}
	return has(acl.ReadJob)
}

func (s *searchSnapshot) includesNamespace(namespace string) bool {
	return namespace == "" || s.namespace == store.AnyNamespace || s.namespace == namespace
}

func findNoCandidates(*searchSnapshot, string) []*searchCandidate { return nil }

// newFuzzyFinder returns a function that calls all, and returns the candidates whose names contain the text, the
// closest first.
func newFuzzyFinder(all func(*searchSnapshot) []*searchCandidate) findCandidatesFunc {
	return func(s *searchSnapshot, text string) []*searchCandidate {
		candidates := all(s)
		return filterAndSortCandidates(candidates[:min(len(candidates), s.maxFuzzyObjects)], text)
	}
}

func newCandidates[T any](all []T, toCandidate func(T) *searchCandidate) []*searchCandidate {
	found := make([]*searchCandidate, len(all))
	for i, o := range all {
		found[i] = toCandidate(o)
	}
	return found
}

// candidatesByID returns the candidates of objects that have an id and no name.
func candidatesByID[T any](s *searchSnapshot, prefix string, list func(store.WatchSet, string) []T, key func(T) (namespace, id string)) (found []*searchCandidate) {
	for _, o := range list(nil, prefix) {
		if namespace, id := key(o); s.includesNamespace(namespace) {
			found = append(found, &searchCandidate{name: id})
		}
	}
	return found
}

func jobScope(j *api.Job) []string {
	return []string{pointer.Value(j.Namespace), pointer.Value(j.ID)}
}

func (s *searchSnapshot) forEachGroup(visit func(*api.Job, *api.TaskGroup)) {
	for _, j := range s.Jobs(nil, s.namespace, "") {
		for _, g := range j.TaskGroups {
			visit(j, g)
		}
	}
}

// taskCandidates returns candidates for the tasks of all jobs.
func (s *searchSnapshot) taskCandidates(toCandidate func(t *api.Task, group []string) *searchCandidate) (found []*searchCandidate) {
	s.forEachGroup(func(j *api.Job, g *api.TaskGroup) {
		for _, t := range g.Tasks {
			found = append(found, toCandidate(t, append(jobScope(j), pointer.Value(g.Name))))
		}
	})
	return found
}

// taskConfigValueCandidates returns the values that the config blocks of all tasks have for a key, such as "image".
func (s *searchSnapshot) taskConfigValueCandidates(key string) []*searchCandidate {
	return s.taskCandidates(func(t *api.Task, group []string) *searchCandidate {
		text, _ := t.Config[key].(string)
		return &searchCandidate{text, append(group, t.Name)}
	})
}

// searchRequestBody is the body of both kinds of search.
type searchRequestBody struct {
	Prefix  string
	Text    string
	Context contexts.Context
}

// searchReply is the reply to both kinds of search.
type searchReply struct {
	Matches     map[contexts.Context]any
	Truncations map[contexts.Context]bool
	replyMeta
}

// searchHandler serves the search.
type searchHandler struct {
	store  *store.Store
	limits SearchLimits
}

func (h *searchHandler) searchPrefix(r *request) (any, error) {
	var body searchRequestBody
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	return h.searchInContexts(r, false, prefixContexts, maxPrefixMatches, body.Context, body.Prefix, func(found []*searchCandidate) any {
		names := make([]string, len(found))
		for i, c := range found {
			names[i] = c.name
		}
		return names
	})
}

func (h *searchHandler) searchFuzzy(r *request) (any, error) {
	var body searchRequestBody
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	if h.limits.DisableFuzzy {
		return nil, errors.New("fuzzy search is not enabled")
	}
	if n := utf8.RuneCountInString(body.Text); n < h.limits.MinTextLen {
		return nil, fmt.Errorf("fuzzy search query must be at least %d characters, got %d", h.limits.MinTextLen, n)
	}
	return h.searchInContexts(r, true, fuzzyContexts, h.limits.MaxMatches, body.Context, body.Text, func(found []*searchCandidate) any {
		matches := make([]api.FuzzyMatch, len(found))
		for i, c := range found {
			matches[i] = api.FuzzyMatch{ID: c.name, Scope: c.scope}
		}
		return matches
	})
}

// searchInContexts searches for a text in one context, or in all contexts.
func (h *searchHandler) searchInContexts(r *request, isFuzzy bool, finders map[contexts.Context]findCandidatesFunc, maxMatches int, context contexts.Context, text string, encodeMatches func([]*searchCandidate) any) (any, error) {
	asked := []contexts.Context{context}
	if context == contexts.All {
		asked = slices.Collect(maps.Keys(finders))
	} else if finders[context] == nil {
		return nil, fmt.Errorf("context must be one of %v or 'all' for all contexts; got %q", slices.Sorted(maps.Keys(finders)), context)
	}
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		state := &searchSnapshot{s, r.namespace, h.limits.MaxObjects, r.rights.acl}
		if len(asked) == 1 && !state.maySearch(asked[0]) && !(isFuzzy && r.namespace == store.AnyNamespace) { // as recorded
			return nil, 0, r.refuse("a right to search for " + string(asked[0]))
		}
		answer := searchReply{make(map[contexts.Context]any), make(map[contexts.Context]bool), r.replyMetaOfWrite(s.Index())}
		for _, c := range asked {
			if !state.maySearch(c) {
				continue
			}
			found := finders[c](state, text)
			answer.Truncations[c] = len(found) > maxMatches
			answer.Matches[c] = nil
			if n := min(len(found), maxMatches); n > 0 {
				answer.Matches[c] = encodeMatches(found[:n])
			}
		}
		return answer, s.Index(), nil
	})
}

// filterAndSortCandidates returns the candidates whose names have the text, sorted by the position of the text and
// then by the length of the name.
func filterAndSortCandidates(found []*searchCandidate, text string) []*searchCandidate {
	text = strings.ToLower(text)
	at := func(c *searchCandidate) int { return strings.Index(strings.ToLower(c.name), text) }
	found = slices.DeleteFunc(found, func(c *searchCandidate) bool { return at(c) < 0 })
	slices.SortStableFunc(found, func(a, b *searchCandidate) int {
		return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(len(a.name), len(b.name)), strings.Compare(a.name, b.name))
	})
	return found
}
