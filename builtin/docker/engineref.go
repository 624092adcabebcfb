package docker

import (
	"unsafe"

	"github.com/moby/moby/client"
)

// engineRef is a pointer to the client of an engine that hides the type of the client. The linker
// keeps all methods of a type that can be reached by reflection from a value in an interface, such
// as a task: with a typed field, the binary would have every call of the engine's API.
type engineRef struct{ pointer unsafe.Pointer }

func newEngineRef(c *client.Client) engineRef { return engineRef{unsafe.Pointer(c)} }

func (e engineRef) isSet() bool { return e.pointer != nil }

func (e engineRef) client() *client.Client { return (*client.Client)(e.pointer) }
