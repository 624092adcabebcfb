package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// stockProgram returns the path of the stock agent. It skips the test if the machine does not have it, or if slow tests are not
// enabled.
func stockProgram(t testing.TB) string {
	t.Helper()
	return peers.ProgramOrSkip(t, "nomad")
}

// stockAgent is a stock agent, a server or a client, that a test stops and starts.
type stockAgent struct {
	t         testing.TB
	dir, name string
	ports     []int  // HTTP, RPC and Serf
	rpcAddr   string // address of the RPC port for other agents
	process   *exec.Cmd
	*api.Client
}

// newStockAgent returns a stock agent that is not started. Other agents reach its RPC port at the address rpcAddr.
func newStockAgent(t testing.TB, name string, ports []int, rpcAddr, config string) *stockAgent {
	t.Helper()
	s := &stockAgent{t: t, dir: t.TempDir(), name: name, ports: ports, rpcAddr: rpcAddr}
	text := systemtest.FormatStockAgentConfig(name, filepath.Join(s.dir, "data"), ports, rpcAddr, config)
	if err := os.WriteFile(filepath.Join(s.dir, "agent.hcl"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.Client, err = api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Client.Close()
		s.kill()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(s.dir, "log")) // helps to find the fault
			lines := strings.Split(string(log), "\n")
			t.Logf("log of %s:\n%s", name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
	return s
}

// start starts the agent and does not wait for it.
func (s *stockAgent) start() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.process = systemtest.NewStockAgentCommand(stockProgram(s.t), filepath.Join(s.dir, "agent.hcl"))
	s.process.Stdout, s.process.Stderr = log, log
	s.process.Env = append(s.process.Env, systemtest.WorkDirEnvVar+"="+s.dir) // the processes that the agent starts have it, too
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// kill kills the agent. It does nothing if the agent does not run.
func (s *stockAgent) kill() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	s.process = nil
}

// killHelpers kills the processes of a stock client that outlive it: executors and log collectors.
func (s *stockAgent) killHelpers() {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		arguments, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if bytes.Contains(arguments, []byte(s.dir)) || bytes.Contains(environ, []byte(s.dir)) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// cluster is a number of stock servers.
type cluster struct {
	t       testing.TB
	servers []*stockAgent
	token   string // management token; empty without access control
}

// serverOptions changes the servers of a cluster.
type serverOptions struct {
	count  int    // of servers; 0 means 1
	server string // lines of the block server
	config string // further blocks
	access bool   // the servers control access

	// slowHeartbeats means that servers expect heartbeats as seldom as they do by default.
	slowHeartbeats bool
	// proxy returns the address at which other agents reach the RPC port of a server; nil means that they reach it directly.
	proxy func(rpcAddr string) string
}

// fastHeartbeats makes servers expect a heartbeat every one or two seconds, and miss it after eight more, which a node on a busy
// machine does not need. They miss a heartbeat within missedHeartbeatTime after the last one.
const fastHeartbeats = `
  min_heartbeat_ttl      = "1s"
  heartbeat_grace        = "8s"
  failover_heartbeat_ttl = "20s"
`

const missedHeartbeatTime = 10 * time.Second

// keepDeadServers makes a killed server stay a voter. Otherwise the leader removes it after some seconds, and for some seconds after
// its return the servers have no majority without the leader.
const keepDeadServers = `
autopilot {
  cleanup_dead_servers = false
}
`

// startCluster starts servers, and waits until they can sign and encrypt.
func startCluster(t testing.TB, o serverOptions) *cluster {
	t.Helper()
	stockProgram(t)
	count := max(1, o.count)
	c := &cluster{t: t}
	ports := peers.FindFreePorts(t, 3*count)
	var join []string
	for i := range count {
		join = append(join, fmt.Sprintf("%q", fmt.Sprintf("127.0.0.1:%d", ports[3*i+2])))
	}
	heartbeats := fastHeartbeats
	if o.slowHeartbeats {
		heartbeats = ""
	}
	for i := range count {
		config := fmt.Sprintf("server {\n  enabled = true\n  bootstrap_expect = %d\n%s%s\n  server_join {\n    retry_join = [%s]\n    retry_interval = \"1s\"\n  }\n}\nacl {\n  enabled = %t\n}\n%s%s",
			count, heartbeats, o.server, strings.Join(join, ", "), o.access, keepDeadServers, o.config)
		rpcAddr := fmt.Sprintf("127.0.0.1:%d", ports[3*i+1])
		if o.proxy != nil {
			rpcAddr = o.proxy(rpcAddr)
		}
		c.servers = append(c.servers, newStockAgent(t, fmt.Sprintf("server-%d", i), ports[3*i:3*i+3], rpcAddr, config))
		c.servers[i].start()
	}
	c.awaitLeader()
	if o.access {
		c.eventually("the servers have a management token", func() error {
			token, _, err := c.api().ACLTokens().Bootstrap(nil)
			if err == nil {
				c.token = token.SecretID
				for _, s := range c.servers {
					s.SetSecretID(c.token)
				}
			}
			return err
		})
	}
	// The servers encrypt variables and sign identities only after they have made their keys, and say so nowhere else.
	c.eventually("the servers have keys", func() error {
		_, _, err := c.api().Variables().Create(&api.Variable{Path: "ready", Items: api.VariableItems{"ready": "true"}}, nil)
		return err
	})
	return c
}

// api returns the API of a running server.
func (c *cluster) api() *api.Client {
	for _, s := range c.servers {
		if s.process != nil {
			return s.Client
		}
	}
	c.t.Fatal("no server runs")
	return nil
}

// leader returns the server that is the leader, nil if there is none.
func (c *cluster) leader() *stockAgent {
	address, err := c.api().Status().Leader()
	if err != nil {
		return nil
	}
	for _, s := range c.servers {
		if s.process != nil && s.rpcAddr == address {
			return s
		}
	}
	return nil
}

func (c *cluster) awaitLeader() {
	c.t.Helper()
	c.eventually("the servers have a leader", func() error {
		if c.leader() == nil {
			return errors.New("no leader")
		}
		_, _, err := c.api().Nodes().List(&api.QueryOptions{AllowStale: false})
		if c.token == "" && err != nil && strings.Contains(err.Error(), "Permission denied") {
			err = nil // the servers have a leader, and no token yet
		}
		return err
	})
}

// rpcAddrs returns the addresses of the servers as a list of HCL.
func (c *cluster) rpcAddrs() string {
	var list []string
	for _, s := range c.servers {
		list = append(list, fmt.Sprintf("%q", s.rpcAddr))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// waitTimeout is the timeout of a wait. The servers give an evaluation to another server only a minute after the server that had it
// was killed.
const waitTimeout = 2 * systemtest.WaitTimeout

// eventually calls f until it returns nil, and fails the test after waitTimeout.
func (c *cluster) eventually(description string, f func() error) {
	c.t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Since(began) > waitTimeout {
			c.t.Fatalf("%s: not within %v: %v", description, waitTimeout, err)
		}
	}
}

// check fails the test if a call of the API of servers fails.
func (c *cluster) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("API of the servers: %v", err)
	}
}

// startStockClient starts a stock client whose tasks the test can start with raw_exec. config has further blocks.
func (c *cluster) startStockClient(name string, config ...string) *stockAgent {
	c.t.Helper()
	ports := peers.FindFreePorts(c.t, 3)
	s := newStockAgent(c.t, name, ports, fmt.Sprintf("127.0.0.1:%d", ports[1]), fmt.Sprintf(`
client {
  enabled = true
  servers = %s
  cpu_total_compute = 1000000
  memory_total_mb   = 1000000
  disk_total_mb     = 10000000
  gc_max_allocs     = 1000
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
    "driver.denylist"      = "docker,java,qemu,exec"
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
%s
`, c.rpcAddrs(), strings.Join(config, "\n")))
	c.t.Cleanup(func() {
		s.kill()
		s.killHelpers()
		if err := allocdir.UnmountAndRemoveOwnDir(filepath.Join(s.dir, "data")); err != nil { // the client has mounts in the directories of tasks
			c.t.Error(err)
		}
	})
	s.start()
	return s
}
