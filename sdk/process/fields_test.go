package process

import (
	"reflect"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/goldenfields"
)

// The driver of another build reads the mark of a start.
func TestReferenceMarkFields(t *testing.T) {
	goldenfields.CheckCodec(t, reflect.TypeFor[startMarkData]())
}
