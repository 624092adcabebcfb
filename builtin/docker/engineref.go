package docker

import (
	"unsafe"

	"github.com/moby/moby/client"
)

// untypedEngineClient is a pointer to the client of an engine that hides the type of the client. The linker
// keeps all methods of a type that can be reached by reflection from a value in an interface, such
// as a task: with a typed field, the binary would have every call of the engine's API.
type untypedEngineClient struct{ clientPointer unsafe.Pointer }

func newUntypedEngineClient(c *client.Client) untypedEngineClient {
	return untypedEngineClient{unsafe.Pointer(c)}
}

func (e untypedEngineClient) isSet() bool { return e.clientPointer != nil }

func (e untypedEngineClient) client() *client.Client { return (*client.Client)(e.clientPointer) }
