package state

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// PendingCleanup is a failed call of a cleanup hook point. It is retried once the plugin
// is up, as long as the state has a record of the allocation, and then until Until.
type PendingCleanup struct {
	Hook    string
	AllocID string
	Task    string // "" for the allocation
	Point   hook.Point

	// The request of the hook point. Exactly one of the three is set.
	Postrun *hook.AllocPostrunRequest
	Stop    *hook.TaskStopRequest
	Destroy *hook.AllocDestroyRequest

	Until time.Time // end of the retries of a call that outlives the record of the allocation; zero until the record is deleted, except for Destroy

	// The attachment of the hook.
	Job string
	Raw json.RawMessage
}

// ID identifies a pending cleanup: enqueuing the same call again replaces it.
func (d *PendingCleanup) ID() string {
	return d.AllocID + "/" + d.Task + "/" + d.Hook + "/" + d.Point.String()
}

// CheckRecord returns an error if the record lacks its hook, its allocation or a request
// that this build supports.
func (d *PendingCleanup) CheckRecord() error {
	switch {
	case d.Hook == "" || d.AllocID == "":
		return errors.New("the record of a pending cleanup lacks its hook or its allocation")
	case d.Postrun == nil && d.Stop == nil && d.Destroy == nil:
		return errors.New("the record of a pending cleanup has no request that this build knows")
	}
	return nil
}
