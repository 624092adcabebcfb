package docker

import (
	"cmp"
	"fmt"
	"net/url"
	"os"

	"github.com/moby/moby/client"
)

// CheckEngineSocket returns an error if the address of the engine, which is DOCKER_HOST or the default, is
// a unix socket that does not exist. It lets an agent without an engine do without the plugin
// process of the driver.
func CheckEngineSocket() error {
	address, err := url.Parse(cmp.Or(os.Getenv(client.EnvOverrideHost), client.DefaultDockerHost))
	if err != nil || address.Scheme != "unix" {
		return nil // the driver itself reports an invalid address
	}
	if _, err := os.Stat(address.Path); err != nil {
		return fmt.Errorf("no Docker engine: %w", err)
	}
	return nil
}
