package httpapi

import (
	"errors"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/events"
)

// eventsPath is the path of the event stream. For this path Nomad has a different message for an invalid
// index.
const eventsPath = "/v1/event/stream"

// eventHandler serves the event stream.
type eventHandler struct {
	store   *store.Store
	host    *fingerprint.Host
	logger  hclog.Logger
	encoded encodedEvents
	// isDisabled rejects all requests: the operator has disabled the event stream.
	isDisabled bool
}

// streamEvents streams events until the client disconnects, the agent shuts down, or the client
// has missed events because it reads too slowly.
func (h *eventHandler) streamEvents(r *request) (any, error) {
	if h.isDisabled {
		return nil, &statusError{http.StatusNotImplemented, "the event stream is disabled: remove enable_event_broker = false from the server block of the agent's configuration"}
	}
	filter, err := events.ParseFilter(r.query["topic"], r.namespace)
	if err != nil {
		return nil, badRequestError("Invalid topic query: " + err.Error())
	}
	isCompact, err := r.boolParam("compact")
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	if missing := missingRightForTopics(r.rights.acl, filter.Topics(), r.namespace); missing != "" {
		return nil, r.refuse(missing)
	}
	subscription := h.store.Subscribe(r.minIndex)
	if text := r.query.Get("latest"); text != "" {
		count, err := strconv.Atoi(text)
		if err != nil || count <= 0 || r.minIndex > 0 {
			return nil, badRequestError("latest must be a positive number, without an index")
		}
		subscription = h.store.SubscribeLatest(count)
	}
	r.w.Header().Set("Cache-Control", "no-cache")
	s := r.startStream("application/json")
	h.encoded.addStream()
	defer h.encoded.removeStream()
	var line []byte
	err = events.StreamWithHeartbeats(r.Context(), subscription, filter, func(c events.Batch) error {
		if _, err := r.snapshot(h.store, nil); err != nil { // the rights may have changed
			r.setEndOfStream(errRightsEnded.Error())
			return err
		}
		of := len(c.Events)
		c.Events = slices.DeleteFunc(c.Events, func(e events.Event) bool {
			return r.rights.isReadOnly && !readOnlyTopics[e.Topic] || !seesEvent(r.rights.acl, e)
		})
		if of > 0 && len(c.Events) == 0 {
			return nil
		}
		if len(c.Events) == 0 {
			_, err := s.Write([]byte("{}\n"))
			return err
		}
		line = append(line[:0], `{"Events":[`...)
		for i, e := range c.Events {
			if i > 0 {
				line = append(line, ',')
			}
			var err error
			if line, err = h.appendEvent(line, e, r.rights.isReadOnly, isCompact); err != nil {
				return err
			}
		}
		line = append(line, `],"Index":`...)
		line = append(strconv.AppendUint(line, c.Index, 10), "}\n"...)
		_, err := s.Write(line)
		return err
	})
	if errors.Is(err, store.ErrLagged) || errors.Is(err, os.ErrDeadlineExceeded) {
		h.logger.Info("event stream cut off: the client does not read", "client", r.RemoteAddr, "error", err)
	}
	return nil, nil
}

// missingRightForTopics returns the name of a right that a client lacks for the topics in a namespace, "" if it lacks none.
func missingRightForTopics(rights *acl.Rights, topics []api.Topic, namespace string) string {
	has := func(capabilities ...acl.Capability) bool {
		return hasInNamespace(rights, namespace, capabilities...)
	}
	for _, topic := range topics {
		ok, missing := rights.IsManagement(), "management token"
		switch topic {
		case api.TopicJob, api.TopicAllocation, api.TopicEvaluation, api.TopicDeployment, api.TopicService, "CSIPlugin":
			ok, missing = has(acl.ReadJob), missingCapability(namespace, readJobs)
		case api.TopicNode:
			ok, missing = rights.ReadsNodes(), "node:read"
		case store.TopicHostVolume:
			ok, missing = has(acl.HostVolumeRead), missingCapability(namespace, []acl.Capability{acl.HostVolumeRead})
		case "CSIVolume":
			ok, missing = has(acl.CSIReadVolume), missingCapability(namespace, []acl.Capability{acl.CSIReadVolume})
		case variableTopic:
			ok, missing = rights.AnyVariable(acl.List), "list of a variable"
		case operatorTopic:
			ok, missing = rights.ReadsOperator(), "operator:read"
		}
		if !ok {
			return missing
		}
	}
	return ""
}

// Topics for which Nomad's client has no constant.
const (
	variableTopic api.Topic = "Variable"
	operatorTopic api.Topic = "Operator"
)

// seesEvent reports whether a client may see the object of an event.
func seesEvent(rights *acl.Rights, e events.Event) bool {
	switch e.Topic {
	case api.TopicNode:
		return rights.ReadsNodes()
	case variableTopic:
		return rights.Variable(e.Namespace, e.Key, acl.List)
	case store.TopicHostVolume:
		return rights.Namespace(e.Namespace, acl.HostVolumeRead)
	case api.TopicJob, api.TopicAllocation, api.TopicEvaluation, api.TopicDeployment, api.TopicService:
		return rights.Namespace(e.Namespace, acl.ReadJob)
	}
	return rights.IsManagement()
}

// appendEvent appends the JSON of an event to line.
func (h *eventHandler) appendEvent(line []byte, e events.Event, isReadOnly, isCompact bool) ([]byte, error) {
	return h.encoded.appendEvent(line, eventVariant{e.Index, e.Position, isReadOnly, isCompact}, func() ([]byte, error) {
		if isCompact {
			e.Payload = compactPayload(e.Payload)
			return appendNomadJSON(nil, reflect.ValueOf(e), isReadOnly)
		}
		if alloc, ok := e.Payload["Allocation"].(*api.Allocation); ok && alloc.RescheduleTracker != nil {
			shown := eventAllocation{Allocation: alloc}
			if stored := h.store.Snapshot().Allocation(nil, alloc.ID); stored != nil {
				known := *stored
				known.RescheduleTracker = alloc.RescheduleTracker
				shown.delayByRescheduleEvent = rescheduleDelays(&known)
			}
			e.Payload["Allocation"] = shown
		}
		if n, ok := e.Payload["Node"].(*api.Node); ok {
			e.Payload["Node"] = newNodeView(n, *h.host)
		}
		if d, ok := e.Payload["Deployment"].(*api.Deployment); ok {
			e.Payload["Deployment"] = newDeploymentView(h.store.Snapshot(), nil, d)
		}
		return appendNomadJSON(nil, reflect.ValueOf(e), isReadOnly)
	})
}

// maxEncodedEventBytes limits the JSON of events that is kept for other streams.
const maxEncodedEventBytes = 1 << 20

// eventVariant identifies the JSON of an event for some readers.
type eventVariant struct {
	index      uint64
	position   int
	isReadOnly bool
	isCompact  bool
}

// encodedEvents has the JSON of the newest events, so that several streams encode each event once. It keeps nothing while there is
// one stream.
type encodedEvents struct {
	mu      sync.Mutex
	streams int
	json    map[eventVariant][]byte
	oldest  []eventVariant // the keys of json, in the order in which they were added
	bytes   int
}

func (c *encodedEvents) addStream() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams++
}

func (c *encodedEvents) removeStream() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams--; c.streams < 2 {
		c.json, c.oldest, c.bytes = nil, nil, 0
	}
}

// appendEvent appends the JSON of an event to line. It calls encode if the JSON is not known; other streams wait meanwhile.
func (c *encodedEvents) appendEvent(line []byte, v eventVariant, encode func() ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	if c.streams < 2 {
		c.mu.Unlock()
		text, err := encode()
		return append(line, text...), err
	}
	defer c.mu.Unlock()
	text, known := c.json[v]
	if !known {
		var err error
		if text, err = encode(); err != nil {
			return line, err
		}
		if c.json == nil {
			c.json = make(map[eventVariant][]byte)
		}
		c.json[v] = text
		c.oldest = append(c.oldest, v)
		for c.bytes += len(text); c.bytes > maxEncodedEventBytes && len(c.oldest) > 1; c.oldest = c.oldest[1:] {
			c.bytes -= len(c.json[c.oldest[0]])
			delete(c.json, c.oldest[0])
		}
	}
	return append(line, text...), nil
}
