package isolated

import (
	"reflect"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/goldenfields"
)

// The driver of another build reads the state of a running task.
func TestReferenceStateFields(t *testing.T) {
	goldenfields.CheckCodec(t, reflect.TypeFor[taskState]())
}
