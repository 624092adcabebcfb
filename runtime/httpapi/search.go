package httpapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// maxMatches is how many there are of each context; of more, some are left out.
const maxMatches = 20

// minFuzzy is how long a text must be to be looked for anywhere in names.
const minFuzzy = 2

// candidate is something that a search may find.
type candidate struct {
	name  string
	scope []string // the ids of what it is part of
}

// finder returns what there is of one context for a text.
type finder func(s *searched, text string) []candidate

// prefixContexts are what a search by prefix goes through.
var prefixContexts = map[contexts.Context]finder{
	contexts.Allocs: func(s *searched, prefix string) []candidate {
		return ids(s, prefix, s.Allocations, func(a *api.Allocation) (string, string) { return a.Namespace, a.ID })
	},
	contexts.Deployments: func(s *searched, prefix string) []candidate {
		return ids(s, prefix, s.Deployments, func(d *api.Deployment) (string, string) { return d.Namespace, d.ID })
	},
	contexts.Evals: func(s *searched, prefix string) []candidate {
		return ids(s, prefix, s.Evaluations, func(e *api.Evaluation) (string, string) { return e.Namespace, e.ID })
	},
	contexts.Nodes: func(s *searched, prefix string) []candidate {
		return ids(s, prefix, s.Nodes, func(n *api.Node) (string, string) { return "", n.ID })
	},
	contexts.Jobs: func(s *searched, prefix string) (found []candidate) {
		for _, j := range s.Jobs(nil, s.namespace, prefix) {
			found = append(found, candidate{name: val(j.ID)})
		}
		return found
	},
	contexts.Namespaces: func(s *searched, prefix string) (found []candidate) {
		for _, n := range namespaces(s.Reader, nil, prefix) {
			found = append(found, candidate{name: n.Name})
		}
		return found
	},
	contexts.NodePools: func(_ *searched, prefix string) (found []candidate) {
		for _, pool := range []string{api.NodePoolAll, api.NodePoolDefault} {
			if strings.HasPrefix(pool, prefix) {
				found = append(found, candidate{name: pool})
			}
		}
		return found
	},
	contexts.Variables: func(s *searched, prefix string) (found []candidate) {
		for _, v := range s.Variables(nil, s.namespace, prefix) {
			found = append(found, candidate{name: v.Path})
		}
		return found
	},
	contexts.Plugins:         none,
	contexts.Quotas:          none,
	contexts.Recommendations: none,
	contexts.ScalingPolicies: none,
	contexts.Volumes:         none,
	contexts.HostVolumes:     none,
}

// fuzzyContexts are what a search for a text anywhere in a name goes through. What
// has no name but an id must begin with the text.
var fuzzyContexts = map[contexts.Context]finder{
	contexts.Deployments: prefixContexts[contexts.Deployments],
	contexts.Evals:       prefixContexts[contexts.Evals],
	contexts.Allocs: among(func(s *searched) (found []candidate) {
		for _, a := range s.Allocations(nil, "") {
			if s.sees(a.Namespace) {
				found = append(found, candidate{a.Name, []string{a.Namespace, a.ID}})
			}
		}
		return found
	}),
	contexts.Nodes: among(func(s *searched) (found []candidate) {
		for _, n := range s.Nodes(nil, "") {
			found = append(found, candidate{n.Name, []string{n.ID}})
		}
		return found
	}),
	contexts.Classes: among(func(s *searched) (found []candidate) {
		for _, n := range s.Nodes(nil, "") {
			found = append(found, candidate{n.NodeClass, []string{n.ID}})
		}
		return found
	}),
	contexts.NodePools: among(func(s *searched) []candidate { return prefixContexts[contexts.NodePools](s, "") }),
	contexts.Namespaces: among(func(s *searched) []candidate {
		return prefixContexts[contexts.Namespaces](s, "")
	}),
	contexts.Variables: among(func(s *searched) (found []candidate) {
		for _, v := range s.Variables(nil, s.namespace, "") {
			found = append(found, candidate{v.Path, []string{v.Namespace, v.Path}})
		}
		return found
	}),
	contexts.Jobs: among(func(s *searched) (found []candidate) {
		for _, j := range s.Jobs(nil, s.namespace, "") {
			found = append(found, candidate{val(j.Name), jobScope(j)})
		}
		return found
	}),
	contexts.Groups: among(func(s *searched) (found []candidate) {
		for _, j := range s.Jobs(nil, s.namespace, "") {
			for _, g := range j.TaskGroups {
				found = append(found, candidate{val(g.Name), jobScope(j)})
			}
		}
		return found
	}),
	contexts.Services: among(func(s *searched) (found []candidate) {
		for _, j := range s.Jobs(nil, s.namespace, "") {
			for _, g := range j.TaskGroups {
				for _, service := range g.Services {
					found = append(found, candidate{service.Name, append(jobScope(j), val(g.Name))})
				}
				for _, t := range g.Tasks {
					for _, service := range t.Services {
						found = append(found, candidate{service.Name, append(jobScope(j), val(g.Name), t.Name)})
					}
				}
			}
		}
		return found
	}),
	contexts.Tasks: among(func(s *searched) []candidate {
		return tasks(s, func(t *api.Task) string { return t.Name }, false)
	}),
	contexts.Images: among(func(s *searched) []candidate {
		return tasks(s, func(t *api.Task) string { return textOf(t.Config["image"]) }, true)
	}),
	contexts.Commands: among(func(s *searched) []candidate {
		return tasks(s, func(t *api.Task) string { return textOf(t.Config["command"]) }, true)
	}),
	contexts.Plugins:         none,
	contexts.Volumes:         none,
	contexts.ScalingPolicies: none,
}

// searched is the state that a search goes through.
type searched struct {
	*store.Snapshot
	namespace string
}

func (s *searched) sees(namespace string) bool {
	return namespace == "" || s.namespace == store.AnyNamespace || s.namespace == namespace
}

func none(*searched, string) []candidate { return nil }

// among finds the closest of all candidates.
func among(all func(*searched) []candidate) finder {
	return func(s *searched, text string) []candidate { return closest(all(s), text) }
}

// ids are the candidates that have nothing but an id.
func ids[T any](s *searched, prefix string, list func(store.WatchSet, string) []T, key func(T) (namespace, id string)) (found []candidate) {
	for _, o := range list(nil, prefix) {
		if namespace, id := key(o); s.sees(namespace) {
			found = append(found, candidate{name: id})
		}
	}
	return found
}

func jobScope(j *api.Job) []string { return []string{val(j.Namespace), val(j.ID)} }

// tasks are the tasks of all jobs, under their own names or under another one.
func tasks(s *searched, name func(*api.Task) string, below bool) (found []candidate) {
	for _, j := range s.Jobs(nil, s.namespace, "") {
		for _, g := range j.TaskGroups {
			for _, t := range g.Tasks {
				scope := append(jobScope(j), val(g.Name))
				if below {
					scope = append(scope, t.Name)
				}
				found = append(found, candidate{name(t), scope})
			}
		}
	}
	return found
}

func textOf(v any) string {
	text, _ := v.(string)
	return text
}

// searchBody is the body of both kinds of search.
type searchBody struct {
	Prefix  string
	Text    string
	Context contexts.Context
}

// searchAnswer is the answer to both.
type searchAnswer struct {
	Matches     map[contexts.Context]any
	Truncations map[contexts.Context]bool
	meta
}

func (a *API) searchPrefix(r *request) (any, error) {
	var body searchBody
	if err := r.body(&body, maxBody, false); err != nil {
		return nil, err
	}
	return a.search(r, prefixContexts, body.Context, body.Prefix, func(found []candidate) any {
		names := make([]string, len(found))
		for i, c := range found {
			names[i] = c.name
		}
		return names
	})
}

func (a *API) searchFuzzy(r *request) (any, error) {
	var body searchBody
	if err := r.body(&body, maxBody, false); err != nil {
		return nil, err
	}
	if n := utf8.RuneCountInString(body.Text); n < minFuzzy {
		return nil, fmt.Errorf("fuzzy search query must be at least %d characters, got %d", minFuzzy, n)
	}
	return a.search(r, fuzzyContexts, body.Context, body.Text, func(found []candidate) any {
		matches := make([]api.FuzzyMatch, len(found))
		for i, c := range found {
			matches[i] = api.FuzzyMatch{ID: c.name, Scope: c.scope}
		}
		return matches
	})
}

// search looks for a text in one context, or in all.
func (a *API) search(r *request, in map[contexts.Context]finder, context contexts.Context, text string, encode func([]candidate) any) (any, error) {
	asked := []contexts.Context{context}
	if context == contexts.All || context == "" {
		asked = slices.Collect(maps.Keys(in))
	} else if in[context] == nil {
		return nil, fmt.Errorf("context must be one of %v or 'all' for all contexts; got %q", slices.Sorted(maps.Keys(in)), context)
	}
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		state := &searched{s, r.namespace}
		answer := searchAnswer{make(map[contexts.Context]any), make(map[contexts.Context]bool), r.meta(s.Index())}
		for _, c := range asked {
			found := in[c](state, text)
			answer.Truncations[c] = len(found) > maxMatches
			answer.Matches[c] = nil
			if n := min(len(found), maxMatches); n > 0 {
				answer.Matches[c] = encode(found[:n])
			}
		}
		return answer, s.Index(), nil
	})
}

// closest returns the candidates that have the text in their names, the earlier
// the better, and then the less there is around it.
func closest(found []candidate, text string) []candidate {
	text = strings.ToLower(text)
	at := func(c candidate) int { return strings.Index(strings.ToLower(c.name), text) }
	found = slices.DeleteFunc(found, func(c candidate) bool { return at(c) < 0 })
	slices.SortStableFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(len(a.name), len(b.name)), strings.Compare(a.name, b.name))
	})
	return found
}
