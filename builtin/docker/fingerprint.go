package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// engineTimeout limits how long the driver waits for a short answer of the engine.
const engineTimeout = 10 * time.Second

// Fingerprint reports whether the engine answers, and its attributes. The health is undetected until the engine
// has answered once. Later, the health is unhealthy while the engine does not answer.
func (d *Driver) Fingerprint(ctx context.Context) driver.Fingerprint {
	config, engine, err := d.currentConfigAndClient()
	if err != nil {
		return driver.Fingerprint{Health: driver.HealthUndetected, HealthDescription: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	attributes, err := d.attributeCache.pingAndGetOrRefresh(ctx, config, engine)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.hasReachedEngine = true
		return driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy", Attributes: attributes}
	case d.hasReachedEngine:
		return driver.Fingerprint{Health: driver.HealthUnhealthy, HealthDescription: fmt.Sprintf("the Docker engine at %s does not answer: %v", engine.DaemonHost(), err)}
	}
	return driver.Fingerprint{Health: driver.HealthUndetected, HealthDescription: fmt.Sprintf("no Docker engine answers at %s: install one (on Debian: apt install docker.io), start it, or set endpoint in the configuration of the driver or DOCKER_HOST in the environment of the agent: %v", engine.DaemonHost(), err)}
}

// fingerprintInterval is the time between two checks whether the engine answers.
const fingerprintInterval = 5 * time.Second

// attributesAge is the age at which the cached attributes of a reachable engine are read again.
const attributesAge = time.Minute

// attributeCache caches the attributes of the engine while the engine answers, because reading them
// is expensive for the engine.
type attributeCache struct {
	mu               sync.Mutex
	engine           untypedEngineClient
	attributes       map[string]driver.Attribute // nil if the last check failed
	attributesReadAt time.Time
}

func (c *attributeCache) pingAndGetOrRefresh(ctx context.Context, config *pluginConfig, engine *client.Client) (map[string]driver.Attribute, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err == nil && c.attributes != nil && c.engine.client() == engine && time.Since(c.attributesReadAt) < attributesAge {
		return maps.Clone(c.attributes), nil
	}
	c.attributes = nil
	if err != nil {
		return nil, err
	}
	attributes, err := readEngineAttributes(ctx, config, engine)
	if err != nil {
		return nil, err
	}
	c.engine, c.attributes, c.attributesReadAt = newUntypedEngineClient(engine), attributes, time.Now()
	return maps.Clone(attributes), nil
}

func readEngineAttributes(ctx context.Context, config *pluginConfig, engine *client.Client) (map[string]driver.Attribute, error) {
	info, err := engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, err
	}
	attributes := map[string]driver.Attribute{
		"driver.docker":                    {Value: true},
		"driver.docker.version":            {Value: info.Info.ServerVersion},
		"driver.docker.os_type":            {Value: info.Info.OSType},
		"driver.docker.runtimes":           {Value: strings.Join(slices.Sorted(maps.Keys(info.Info.Runtimes)), ",")},
		"driver.docker.privileged.enabled": {Value: config.AllowPrivileged},
		"driver.docker.volumes.enabled":    {Value: config.Volumes.Enabled},
	}
	bridge, err := engine.NetworkInspect(ctx, network.NetworkBridge, client.NetworkInspectOptions{})
	if err != nil {
		return attributes, nil // an engine can run without the default bridge
	}
	for _, c := range bridge.Network.IPAM.Config {
		if c.Gateway.IsValid() && c.Gateway.Is4() {
			attributes["driver.docker.bridge_ip"] = driver.Attribute{Value: c.Gateway.String()}
		}
	}
	return attributes, nil
}
