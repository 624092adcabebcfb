package store

import "github.com/nomad-lite/nomad-lite/runtime/store/state"

// ClusterAlloc returns what the node keeps about an allocation from the servers, besides the allocation; the zero value if
// there is nothing, or if the record is unreadable.
func (r Reader) ClusterAlloc(id string) (state.ClusterAlloc, error) {
	var record state.ClusterAlloc
	if _, err := r.ReadAgentRecord(state.ClusterAllocPrefix+id, &record); err != nil {
		return state.ClusterAlloc{}, err
	}
	return record, nil
}
