package systemtest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
)

// These are the number of incomplete requests that a client without a token sends, and their size.
const (
	halfSentRequestCount = 1000
	HalfSentBodySize     = 128 << 10 // bytes that are sent of a body or a websocket message of 1 MiB
)

// PartialTLSHandshake is the kind of incomplete request that only an agent with UsesTLS can receive.
const PartialTLSHandshake = "half of a TLS handshake"

// StartSlowlorisAttack starts a process of an unprivileged user that keeps incomplete requests of a kind open, from a
// number of source addresses. kill also waits for the exit of the process.
func StartSlowlorisAttack(t testing.TB, requestKind, address string, sourceAddressCount int) (kill func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", requestKind, address, strconv.Itoa(sourceAddressCount), strconv.Itoa(halfSentRequestCount))
	cmd.Args[0] = "half-sender"
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "sent\n" {
		t.Fatalf("the attack has not begun: %q, %v", line, err)
	}
	return kill
}

// TokenProtectedAgent is an agent that requires its token.
type TokenProtectedAgent struct {
	PID        int
	DataDir    string
	SocketPath string
	Address    string
	UsesTLS    bool
}

// StartTokenProtectedAgent starts an agent that requires a token. If launcherCommand is not empty, it is a command that
// executes its further arguments as a command, and starts the agent.
func StartTokenProtectedAgent(t *testing.T, useTLS bool, launcherCommand ...string) *TokenProtectedAgent {
	t.Helper()
	dir := t.TempDir()
	config, text := filepath.Join(dir, "agent.hcl"), "ports {\n http = 0\n}\n"
	if useTLS {
		certificates := exec.Command("mint", "ca", "server")
		certificates.Dir = dir
		if out, err := certificates.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		text += fmt.Sprintf("tls {\n http = true\n cert_file = %q\n key_file = %q\n}\n", dir+"/server.pem", dir+"/server.key")
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	command := append(launcherCommand, "nomad-lite", "agent", "-config", config, "-data-dir", data)
	cmd := exec.Command(command[0], command[1:]...)
	t.Cleanup(func() { // cleanups run in reverse order, so this one runs after the agent has exited
		for _, p := range FindDataDirProcesses(data) {
			_ = p.Signal(syscall.SIGKILL) // the keeper and the log collector outlive the agent, so the test kills them
		}
		AssertDataDirProcessesExit(t, data)
	})
	address := StartAgentAndMatchLog(t, cmd, regexp.MustCompile(`agent is ready: https?://([^,]+)`))
	return &TokenProtectedAgent{cmd.Process.Pid, data, filepath.Join(data, agentsocket.FileName), address, useTLS}
}

// StartAgentAndMatchLog starts an agent, waits until a line of its log matches ready, and returns the first submatch.
func StartAgentAndMatchLog(t *testing.T, cmd *exec.Cmd, ready *regexp.Regexp) (firstSubmatch string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // the agent can have exited
		if err := cmd.Wait(); err != nil {
			t.Error("the agent: ", err)
		}
	})
	for deadline := time.Now().Add(WaitTimeout); ; time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(log.Name()) // an error means that nothing was logged
		if found := ready.FindSubmatch(text); found != nil {
			return string(found[1])
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent is not ready:\n%s", text)
		}
	}
}

// MeasureHealthRequest requests the health of the agent over a new connection, and returns the duration. sourceIPOrUnix
// is a local IP address; if sourceIPOrUnix is nil, the request goes over the unix socket.
func MeasureHealthRequest(ctx context.Context, socketPath, address string, sourceIPOrUnix net.IP, useTLS bool) (time.Duration, error) {
	began := time.Now()
	transport := newTransportWithoutVerify()
	defer transport.CloseIdleConnections()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if sourceIPOrUnix == nil {
			return (&net.Dialer{}).DialContext(ctx, "unix", socketPath)
		}
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: sourceIPOrUnix}}).DialContext(ctx, "tcp", address)
	}
	scheme := "http"
	if useTLS && sourceIPOrUnix != nil {
		scheme = "https"
	}
	r, err := http.NewRequestWithContext(ctx, "GET", scheme+"://"+address+"/v1/agent/health", nil)
	if err != nil {
		return 0, err
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", answer.StatusCode)
	}
	return time.Since(began), nil
}

func newTransportWithoutVerify() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if err := api.ConfigureTLS(&http.Client{Transport: t}, &api.TLSConfig{Insecure: true}); err != nil {
		panic(err)
	}
	return t
}

// SecondLoopbackIP is an address of this machine whose connections are limited separately from those of 127.0.0.1.
var SecondLoopbackIP = net.IPv4(127, 0, 0, 2)
