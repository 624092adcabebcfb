package clustertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := peers.RemovePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// stockServer is a running server of the stock agent.
type stockServer struct {
	rpcAddr    string
	http       *api.Client // with the management token
	management string      // secret of the management token, empty without access control
}

// startStock starts a stock server, whose configuration has the lines of options in its block "server". The server is
// stopped at the end of the test.
func startStock(t *testing.T, accessControl bool, options string) *stockServer {
	t.Helper()
	program := peers.ProgramOrSkip(t, "nomad")
	dir := t.TempDir()
	ports := peers.FindFreePorts(t, 3)
	config := fmt.Sprintf(`
data_dir = %q
bind_addr = "127.0.0.1"
log_level = "DEBUG"
disable_update_check = true
ports {
  http = %d
  rpc  = %d
  serf = %d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled          = true
  bootstrap_expect = 1
%s
}
acl {
  enabled = %t
}
`, filepath.Join(dir, "data"), ports[0], ports[1], ports[2], options, accessControl)
	configPath := filepath.Join(dir, "server.hcl")
	if err := os.WriteFile(configPath, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(program, "agent", "-config", configPath)
	agent.Stdout, agent.Stderr = log, log
	agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "AWS_CA_BUNDLE=") && !strings.HasPrefix(variable, "NOMAD_") {
			agent.Env = append(agent.Env, variable)
		}
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// SIGKILL, because nothing of the server is needed any longer and an orderly stop takes seconds.
		agent.Process.Kill()
		agent.Wait()
		if t.Failed() {
			t.Logf("log of the stock server:\n%s", tail(log.Name(), 30))
		}
		log.Close()
	})

	s := &stockServer{rpcAddr: fmt.Sprintf("127.0.0.1:%d", ports[1])}
	if s.http, err = api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	retry(ctx, t, func() error {
		leader, err := s.http.Status().Leader()
		if err == nil && leader == "" {
			err = fmt.Errorf("no leader")
		}
		return err
	})
	if accessControl {
		retry(ctx, t, func() error {
			token, _, err := s.http.ACLTokens().Bootstrap(nil)
			if err == nil {
				s.management = token.SecretID
				s.http.SetSecretID(s.management)
			}
			return err
		})
	}
	// The server encrypts variables and signs identities only after it has made its keys, and says so nowhere else.
	retry(ctx, t, func() error {
		_, _, err := s.http.Variables().Create(&api.Variable{Path: "ready", Items: api.VariableItems{"ready": "true"}}, nil)
		return err
	})
	if _, err := s.http.Variables().Delete("ready", nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// retry calls f until it succeeds or ctx ends.
func retry(ctx context.Context, t *testing.T, f func() error) {
	t.Helper()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the stock server is not ready: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	b, _ := os.ReadFile(path) // the log only helps to find the fault
	all := strings.Split(string(b), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
