package events

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// matchAll matches each topic, each key and each namespace.
const matchAll = "*"

// Filter selects events by topic, key and namespace.
type Filter struct {
	keysByTopic map[api.Topic][]string // topic -> keys; matchAll matches every topic or key
	namespace   string
}

// ParseFilter returns the filter for an API request's topics, such as "Job", "Job:*" or "Job:web". If topics is empty, the
// filter matches all topics. The namespace can be "*".
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
			f.keysByTopic[topic] = append(f.keysByTopic[topic], key)
		}
	}
	if len(f.keysByTopic) == 0 {
		f.keysByTopic[matchAll] = []string{matchAll}
	}
	return f, nil
}

// Topics returns the topics that the filter matches; "*" stands for all.
func (f Filter) Topics() []api.Topic { return slices.Collect(maps.Keys(f.keysByTopic)) }

// matchesEvent reports whether an event matches the filter. Nodes have no namespace and match all
// namespaces.
func (f Filter) matchesEvent(e store.Event) bool {
	if e.Namespace != "" && f.namespace != matchAll && f.namespace != e.Namespace {
		return false
	}
	wanted := func(key string) bool {
		return key == matchAll || key == e.Key || slices.Contains(e.FilterKeys, key)
	}
	return slices.ContainsFunc(f.keysByTopic[e.Topic], wanted) || slices.ContainsFunc(f.keysByTopic[matchAll], wanted)
}
