package events

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// matchAll matches each topic, each key and each namespace.
const matchAll = "*"

// Filter selects the events of a follower.
type Filter struct {
	topics    map[api.Topic][]string // keys
	namespace string
}

// ParseFilter parses the topics of a query: "Job", "Job:*" or "Job:web". Without topics the filter
// matches all topics.
func ParseFilter(topics []string, namespace string) (Filter, error) {
	f := Filter{make(map[api.Topic][]string), namespace}
	for _, text := range topics {
		parts := strings.Split(text, ":")
		switch {
		case text == "":
		case len(parts) > 2:
			return f, fmt.Errorf("error parsing topics: Invalid key value pair for topic, topic: %s", text)
		default:
			topic, key := api.Topic(parts[0]), append(parts, matchAll)[1]
			f.topics[topic] = append(f.topics[topic], key)
		}
	}
	if len(f.topics) == 0 {
		f.topics[matchAll] = []string{matchAll}
	}
	return f, nil
}

// matches reports whether an event matches the filter. Nodes have no namespace and match all
// namespaces.
func (f Filter) matches(e store.Event) bool {
	if e.Namespace != "" && f.namespace != matchAll && f.namespace != e.Namespace {
		return false
	}
	wanted := func(key string) bool {
		return key == matchAll || key == e.Key || slices.Contains(e.FilterKeys, key)
	}
	return slices.ContainsFunc(f.topics[e.Topic], wanted) || slices.ContainsFunc(f.topics[matchAll], wanted)
}
