package systemtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"golang.org/x/sys/unix"
)

// PIDsOfOtherUsers returns the PIDs of the agent and its tasks whose user is none of the given ones.
func (t *TestAgent) PIDsOfOtherUsers(excludedUIDs ...int) (found []int) {
	for pid := range ScriptCommandLineByPID(t.ProcessMarkerDir) {
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil && !slices.Contains(excludedUIDs, int(st.Uid)) {
			found = append(found, pid)
		}
	}
	return found
}

// PersistentAgent is an agent with a data directory, whose tasks continue after the agent has exited.
type PersistentAgent struct {
	*TestAgent
	configFile, DataDir, LogFile string
	agentCmd                     *exec.Cmd
	startCount                   int
}

const persistentAgentConfig = `
data_dir   = %q
plugin_dir = %q
`

// StartPersistentAgent starts an agent with plugins. commandByPluginFile maps the name of a plugin's file to the
// command line of its program. Other users can enter the parent of the data directory. The strings in extraConfig are
// appended to the configuration.
func StartPersistentAgent(t *testing.T, commandByPluginFile map[string]string, extraConfig ...string) *PersistentAgent {
	t.Helper()
	s := startPersistentAgent(t, commandByPluginFile, extraConfig...)
	t.Cleanup(s.purgeJobsAndWaitEnded)
	return s
}

// StartClusterNode starts an agent with a data directory that is a node of a cluster. The test must stop the allocations
// before the agent shuts down at the end of the test.
func StartClusterNode(t *testing.T, server string, extraConfig ...string) *PersistentAgent {
	t.Helper()
	s := startPersistentAgent(t, nil, append(extraConfig, fmt.Sprintf("client {\n  servers = [%q]\n}\n", server))...)
	self, err := s.Agent().Self()
	if err != nil {
		t.Fatal(err)
	}
	s.NodeID = self.Stats["client"]["node_id"]
	return s
}

// PID returns the PID of the agent.
func (p *PersistentAgent) PID() int { return p.agentCmd.Process.Pid }

func startPersistentAgent(t *testing.T, commandByPluginFile map[string]string, extraConfig ...string) *PersistentAgent {
	t.Helper()
	dir := NewLeakCheckedAgentDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &PersistentAgent{
		TestAgent:  &TestAgent{T: t, ProcessMarkerDir: dir},
		configFile: filepath.Join(dir, "agent.hcl"), DataDir: filepath.Join(dir, "data"), LogFile: filepath.Join(dir, "log"),
	}
	plugins := filepath.Join(dir, "plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	config := testAgentConfig + fmt.Sprintf(persistentAgentConfig, s.DataDir, plugins) + strings.Join(extraConfig, "")
	for name, command := range commandByPluginFile {
		program, args, _ := strings.Cut(command, " ")
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(plugins, name), fmt.Appendf(nil, "#!/bin/sh\nexec %s %s\n", path, args), 0o755); err != nil {
			t.Fatal(err)
		}
		config += fmt.Sprintf("plugin %q {\n}\n", name)
	}
	err := os.WriteFile(s.configFile, []byte(config), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if s.Client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(s.DataDir, agentsocket.FileName)}); err != nil {
		t.Fatal(err)
	}
	s.StartAndWaitReady()
	t.Cleanup(func() {
		s.SignalAndWait(unix.SIGTERM)
		for _, p := range FindDataDirProcesses(s.DataDir) {
			_ = p.Signal(unix.SIGKILL) // the keeper and the log collector outlive the agent, so the test kills them
		}
		text, err := os.ReadFile(s.LogFile)
		if err != nil {
			t.Error(err)
		}
		failOnAgentPanic(t, strings.Lines(string(text)))
	})
	return s
}

// StartAndWaitReady starts the agent and waits until it is ready. The agent gets a session of its own, because the
// attackers of tests run in the session of the test.
func (p *PersistentAgent) StartAndWaitReady() {
	p.T.Helper()
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		p.T.Fatal(err)
	}
	defer log.Close()
	p.agentCmd = exec.Command("nomad-lite", "agent", "-config", p.configFile)
	p.agentCmd.Env = append(os.Environ(), TestConfigEnvVar+"="+testConfigPath(), WorkDirEnvVar+"="+p.ProcessMarkerDir)
	p.agentCmd.Stderr = log
	p.agentCmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.agentCmd.Start(); err != nil {
		p.T.Fatal(err)
	}
	p.startCount++
	p.WaitUntil("the agent is ready", func() (string, bool) {
		text, err := os.ReadFile(p.LogFile)
		return fmt.Sprint(err), strings.Count(string(text), "agent is ready") == p.startCount
	})
}

// SignalAndWait sends a signal to the agent and waits until the agent exits.
func (p *PersistentAgent) SignalAndWait(sig unix.Signal) {
	p.T.Helper()
	if err := p.agentCmd.Process.Signal(sig); err != nil {
		p.T.Errorf("the agent has ended before it was told to: %v", err)
	}
	if err := p.agentCmd.Wait(); err != nil && sig != unix.SIGKILL {
		p.T.Error("the agent: ", err)
	}
}

// purgeJobsAndWaitEnded deregisters the jobs that the test has left registered, in all namespaces, and waits until their
// allocations have ended.
func (p *PersistentAgent) purgeJobsAndWaitEnded() {
	jobs, _, err := p.Jobs().List(&api.QueryOptions{Namespace: api.AllNamespacesNamespace})
	if err != nil {
		p.T.Error(err)
	}
	for _, job := range jobs {
		if _, _, err := p.Jobs().Deregister(job.ID, true, &api.WriteOptions{Namespace: job.Namespace}); err != nil {
			p.T.Error(err)
		}
	}
	p.WaitUntil("all allocations have ended", func() (string, bool) {
		allocs, _, err := p.Allocations().List(&api.QueryOptions{Namespace: api.AllNamespacesNamespace})
		running := slices.ContainsFunc(allocs, func(a *api.AllocationListStub) bool { return a.ClientStatus == api.AllocClientStatusRunning })
		return fmt.Sprint(err), err == nil && !running
	})
}

var readyPattern = regexp.MustCompile(`agent is ready: (https?://([^,]+))`)

// PinHTTPPort changes the configuration such that later agents listen on the port of the running one, and returns the
// address.
func (p *PersistentAgent) PinHTTPPort() (address string) {
	p.T.Helper()
	log, err := os.ReadFile(p.LogFile)
	if err != nil {
		p.T.Fatal(err)
	}
	found := readyPattern.FindSubmatch(log)
	if found == nil {
		p.T.Fatalf("no address in the log:\n%s", log)
	}
	config, err := os.ReadFile(p.configFile)
	if err != nil {
		p.T.Fatal(err)
	}
	port := bytes.TrimPrefix(found[2], []byte("127.0.0.1:"))
	config = bytes.Replace(config, []byte("http = 0"), append([]byte("http = "), port...), 1)
	if err := os.WriteFile(p.configFile, config, 0o600); err != nil {
		p.T.Fatal(err)
	}
	return string(found[1])
}

// LogIn enters a token into the login form of the page.
func (p *WebPage) LogIn(token string) {
	p.T.Helper()
	p.WaitText("h1", "Log in")
	p.EnterText("#token", token)
	p.Click("Log in")
}
