package docker

import (
	"cmp"
	"net/url"
	"os"

	"github.com/moby/moby/client"
)

// EngineMayExist reports whether the default engine, or the engine at DOCKER_HOST, can be
// there: its address is not a unix socket, or the socket exists. An agent without an engine then
// needs no plugin process to find that out.
func EngineMayExist() bool {
	address, err := url.Parse(cmp.Or(os.Getenv(client.EnvOverrideHost), client.DefaultDockerHost))
	if err != nil || address.Scheme != "unix" {
		return true // the driver reports what is wrong with the address
	}
	_, err = os.Stat(address.Path)
	return err == nil
}
