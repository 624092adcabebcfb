package clustertest

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// testClient is a node with untyped messages.
type testClient struct {
	t        testing.TB
	session  *wire.Session
	id       string
	secret   string
	identity string // token of the calls, the last identity that a server has signed
}

// connect returns a node with new ids that is connected to a server. It is closed at the end of the test.
func connect(t testing.TB, addr string) *testClient {
	t.Helper()
	c := &testClient{t: t, id: uuid.NewString(), secret: uuid.NewString()}
	c.dial(addr, nil)
	return c
}

// dial connects to a server.
func (c *testClient) dial(addr string, config *tls.Config) {
	c.t.Helper()
	dialer := wire.Dialer{TLS: config, Logger: hclog.NewNullLogger()}
	session, err := dialer.Dial(context.Background(), addr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.session = session
	c.t.Cleanup(func() { session.Close() })
}

// call calls a method with the token of the node, unless request has another one. A request without Region gets "global".
func (c *testClient) call(method string, request object) (object, error) {
	return c.callWithin(time.Minute, method, request)
}

func (c *testClient) callWithin(timeout time.Duration, method string, request object) (object, error) {
	full := object{"Region": "global", "AuthToken": c.token()}
	for key, value := range request {
		full[key] = value
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var response object
	err := c.session.Call(ctx, method, full, &response)
	return response, err
}

// mustCall is call for a method that must succeed.
func (c *testClient) mustCall(method string, request object) object {
	c.t.Helper()
	response, err := c.call(method, request)
	if err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	return response
}

func (c *testClient) token() string {
	if c.identity != "" {
		return c.identity
	}
	return c.secret
}

// record returns the record of the node.
func (c *testClient) record() object {
	return object{
		"ID": c.id, "SecretID": c.secret, "Name": "node-one", "Datacenter": "dc1", "NodePool": "default", "NodeClass": "small",
		"Status": "initializing", "SchedulingEligibility": "eligible",
		"Attributes": object{
			"nomad.version": "2.0.0", "kernel.name": "linux", "nomad.service_discovery": "true", "driver.raw_exec": "1",
			"os.signals": "SIGHUP,SIGINT,SIGTERM", "cpu.arch": "amd64",
		},
		"Meta":    object{"rack": "r1"},
		"Links":   object{},
		"Drivers": object{"raw_exec": object{"Attributes": object{"driver.raw_exec": "true"}, "Detected": true, "Healthy": true, "HealthDescription": "Healthy", "UpdateTime": mustMarshalTime(time.Unix(1700000000, 0).UTC())}},
		"NodeResources": object{
			"Cpu":    object{"CpuShares": 4000, "TotalCpuCores": 2, "ReservableCpuCores": []int{0, 1}},
			"Memory": object{"MemoryMB": 4096}, "Disk": object{"DiskMB": 20000},
			"Networks":       []object{{"Mode": "host", "Device": "eth0", "CIDR": "192.0.2.2/32", "IP": "192.0.2.2", "MBits": 1000}},
			"MinDynamicPort": 20000, "MaxDynamicPort": 32000,
		},
		"ReservedResources": object{},
		"HostVolumes":       object{"scratch": object{"ID": "", "Name": "scratch", "Path": "/srv/scratch", "ReadOnly": false}},
	}
}

// register registers the node with the token, and keeps the identity of the response.
func (c *testClient) register(token string) (object, error) {
	response, err := c.call("Node.Register", object{"Node": c.record(), "AuthToken": token})
	c.keepIdentity(response)
	return response, err
}

// heartbeat sends the status ready, and keeps the identity of the response.
func (c *testClient) heartbeat() (object, error) {
	response, err := c.call("Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready"})
	c.keepIdentity(response)
	return response, err
}

func (c *testClient) keepIdentity(response object) {
	if identity, ok := response["SignedIdentity"].(string); ok {
		c.identity = identity
	}
}

// mustJoin registers the node and makes it ready.
func (c *testClient) mustJoin() {
	c.t.Helper()
	if _, err := c.register(""); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.heartbeat(); err != nil {
		c.t.Fatal(err)
	}
}

// mustJoinPool is mustJoin for another pool than "default".
func (c *testClient) mustJoinPool(pool string) {
	c.t.Helper()
	record := c.record()
	record["NodePool"] = pool
	c.keepIdentity(c.mustCall("Node.Register", object{"Node": record, "AuthToken": ""}))
	if _, err := c.heartbeat(); err != nil {
		c.t.Fatal(err)
	}
}

func mustMarshalTime(moment time.Time) string {
	b, err := moment.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return string(b)
}
