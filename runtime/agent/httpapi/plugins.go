package httpapi

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// pluginHandler serves the route of the plugins of the agent, an extension of Nomad's API: Nomad's routes of plugins are
// about storage plugins.
type pluginHandler struct {
	store      *store.Store
	agentFuncs AgentFuncs

	mu             sync.Mutex
	pluginsIndex   uint64          // increases when the plugins change; 0 before the first request
	pluginsChanged <-chan struct{} // closed when the plugins change after pluginsIndex was read
}

// list replies with the plugins. It blocks like the routes that read the state; its index is not the index of
// the state. Calls of plugins do not change the index.
func (h *pluginHandler) list(r *request) (any, error) {
	r.isReplyReadFromState, r.replyIndex = true, 1
	if h.agentFuncs.DescribePlugins == nil {
		return nil, notFoundError("this agent does not report its plugins")
	}
	_, err := r.blockingQuery(h.store, func(_ *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		index, changed := h.currentPluginsIndex()
		ws.Add(changed)
		return nil, index, nil // the plugins are read once, after the wait
	})
	if err != nil {
		return nil, err
	}
	return h.agentFuncs.DescribePlugins(), nil
}

// restart shuts down the process of a plugin and starts the plugin again. It blocks until the process has exited.
func (h *pluginHandler) restart(r *request) (any, error) {
	if h.agentFuncs.RestartPlugin == nil {
		return nil, &statusError{http.StatusNotImplemented, "this agent does not restart plugins"}
	}
	err := h.agentFuncs.RestartPlugin(r.Context(), r.pathID)
	if errors.Is(err, supervisor.ErrNoPlugin) {
		return nil, notFoundError(err.Error())
	}
	return noContent{}, err
}

// currentPluginsIndex returns the index of the plugins, and a channel that is closed when they change. The first index is
// the time, so that it is higher than the indexes of earlier agents.
func (h *pluginHandler) currentPluginsIndex() (index uint64, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pluginsIndex == 0 {
		h.pluginsIndex, h.pluginsChanged = uint64(time.Now().UnixMilli()), h.agentFuncs.PluginsChanged()
	}
	select {
	case <-h.pluginsChanged:
		h.pluginsIndex++
		h.pluginsChanged = h.agentFuncs.PluginsChanged()
	default:
	}
	return h.pluginsIndex, h.pluginsChanged
}
