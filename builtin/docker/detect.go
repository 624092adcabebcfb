package docker

import (
	"cmp"
	"fmt"
	"net/url"
	"os"

	"github.com/moby/moby/client"
)

// FindEngine returns an error if the default engine, or the engine at DOCKER_HOST, cannot be
// there: its address is a unix socket that does not exist. An agent without an engine then
// needs no plugin process to find that out.
func FindEngine() error {
	address, err := url.Parse(cmp.Or(os.Getenv(client.EnvOverrideHost), client.DefaultDockerHost))
	if err != nil || address.Scheme != "unix" {
		return nil // the driver reports what is wrong with the address
	}
	if _, err := os.Stat(address.Path); err != nil {
		return fmt.Errorf("no Docker engine: %w", err)
	}
	return nil
}
