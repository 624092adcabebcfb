package sdk

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// StartRequest is one start of a task, as the host requests it, or as the host has
// stored it for a recovery. A restarted task is a new start with a new ID. A task can keep
// its StartRequest to emit events and to log. Resources is never nil: without resources from the host, all of them are zero.
type StartRequest struct {
	driver.TaskConfig

	// StateVersion is the DriverInfo.StateVersion of the process that started the task; 0 if
	// this is not a recovery.
	StateVersion int32

	encodedState []byte
	isAdoption   bool // this is the request of Adopt
	onEvent      func(*driver.TaskEvent)
	logger       hclog.Logger
}

// StartRequestOptions are the parts of a StartRequest that are not in its TaskConfig. All of them can be zero.
// For hosts only.
type StartRequestOptions struct {
	Logger  hclog.Logger           // logger of the request
	OnEvent func(driver.TaskEvent) // is called for each event of the task, possibly concurrently

	// State is the value that [StateProvider] returned, for Recover. StateVersion is its version; 0 means 1 if there
	// is a State.
	State        any
	StateVersion int32
}

// NewStartRequest returns a request for a unit test that calls Start, Recover or Adopt of a driver without a host.
// [ServeDriver] makes the requests of hosts. DriverConfig of config is the encoded config block: package sdktest has a
// function that encodes it, and that also makes the directories of the task: authors call that function. NewStartRequest
// returns an error for a State that cannot be encoded. For hosts only.
func NewStartRequest(config driver.TaskConfig, options StartRequestOptions) (*StartRequest, error) {
	s := &StartRequest{TaskConfig: config, StateVersion: options.StateVersion, logger: options.Logger}
	if s.Resources == nil {
		s.Resources = new(driver.Resources)
	}
	if options.OnEvent != nil {
		s.onEvent = func(event *driver.TaskEvent) { options.OnEvent(*event) }
	}
	if options.State != nil {
		s.StateVersion = cmp.Or(s.StateVersion, 1)
		var err error
		if s.encodedState, err = hclspec.MarshalState(options.State); err != nil {
			return nil, fmt.Errorf("encode the state of task %q: %w", config.Name, err)
		}
	}
	return s, nil
}

// DecodeConfig decodes the task's config block into dst, a pointer to a struct whose fields
// are matched by the tag `codec`. An argument that is absent and has no hclspec.Default resets
// its field to the zero value, or a pointer to nil. If the host has sent no block, as for a
// recovery, dst is unchanged.
//
// The struct must have a field for each key of the task schema, of a type that can hold
// each value: otherwise DecodeConfig returns an error that names the key, so that no value is
// lost silently. In Recover and Adopt, where the block may match an earlier version of the
// schema, DecodeConfig does not check that.
func (s *StartRequest) DecodeConfig(dst any) error {
	if len(s.DriverConfig) == 0 {
		return nil
	}
	unmarshal := hclspec.UnmarshalExact
	if s.StateVersion != 0 || s.isAdoption {
		unmarshal = hclspec.Unmarshal
	}
	if err := unmarshal(s.DriverConfig, dst); err != nil {
		return fmt.Errorf("decode the config of task %q: %w", s.Name, err)
	}
	return nil
}

// DecodeState decodes into dst the value that [StateProvider] returned when the task started. It is for Recover:
// without a state it returns an error.
func (s *StartRequest) DecodeState(dst any) error {
	if len(s.encodedState) == 0 {
		return errors.New("the handle of the task carries no state")
	}
	if err := hclspec.UnmarshalState(s.encodedState, dst); err != nil {
		return fmt.Errorf("decode the state of task %q: %w", s.Name, err)
	}
	return nil
}

// TaskDir is the task's own directory on the host.
func (s *StartRequest) TaskDir() string { return filepath.Join(s.AllocDir, s.Name) }

// Event adds a message for the user to the task's events, such as "pulling image". Event may be called as long as the
// process lives, and never blocks.
func (s *StartRequest) Event(message string) { s.emitEvent(message, nil) }

// EventWithDetails is Event with details, which the host shows with the event.
func (s *StartRequest) EventWithDetails(message string, details map[string]string) {
	s.emitEvent(message, details)
}

// EventOnce is Event for a message that applies to each start of the task, such as "the
// image has no entrypoint". The nomad-lite agent adds the message to the task once; a Nomad
// agent adds it each time.
func (s *StartRequest) EventOnce(message string) {
	s.emitEvent(message, map[string]string{driver.OnceAnnotation: "true"})
}

func (s *StartRequest) emitEvent(message string, annotations map[string]string) {
	if s.onEvent == nil {
		return // a test has made the StartRequest
	}
	s.onEvent(&driver.TaskEvent{
		TaskID:      s.ID,
		AllocID:     s.AllocID,
		TaskName:    s.Name,
		Timestamp:   time.Now(),
		Message:     message,
		Annotations: annotations,
	})
}

// Logger returns a logger to the host's log, with the names of allocation and task.
func (s *StartRequest) Logger() hclog.Logger {
	if s.logger == nil {
		return hclog.NewNullLogger()
	}
	return s.logger
}
