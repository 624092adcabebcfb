package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/hostile/attack"
	"github.com/nomad-lite/nomad-lite/internal/agentproof"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
)

const (
	plantedToken = "planted-token"
	plantedText  = "planted" // in each token, item, name and header of the commands
)

// enterNetworkNamespace moves this test, and the programs that it starts, to a network namespace of its own, in which all ports
// are free. The thread ends with the test. Subtests would run on other threads.
func enterNetworkNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to listen as another account")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// hostileListener is a probe that listens in the place of an agent, as another account.
type hostileListener struct {
	t       *testing.T
	cmd     *exec.Cmd
	reports *os.File
}

func startHostileListener(t *testing.T, probe, behaviour string, addresses ...string) *hostileListener {
	t.Helper()
	path := filepath.Join(t.TempDir(), "reports")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	l := &hostileListener{t: t, cmd: exec.Command(probe, append([]string{"listen", behaviour}, addresses...)...)}
	if l.reports, err = os.Open(path); err != nil {
		t.Fatal(err)
	}
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: intruderUser, Gid: intruderUser}}
	l.cmd.Dir, l.cmd.Stdout, l.cmd.Stderr = "/", out, os.Stderr
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill() // fails only if the listener has ended
		_ = l.cmd.Wait()         // the listener was killed
		l.reports.Close()
	})
	first := l.received()
	for deadline := time.Now().Add(systemtest.WaitTimeout); first == "" && time.Now().Before(deadline); first = l.received() {
		time.Sleep(5 * time.Millisecond)
	}
	if strings.TrimSpace(first) != attack.Listening {
		t.Fatalf("the listener reports %q", first)
	}
	return l
}

// received returns what clients have sent since the last call. It has all of the commands that have ended, because the listener writes
// its report to a file before it replies.
func (l *hostileListener) received() string {
	l.t.Helper()
	text, err := io.ReadAll(l.reports)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

// commandsWithSecrets are commands that send planted texts to an agent.
func commandsWithSecrets(dir string) [][]string {
	job := filepath.Join(dir, "planted.nomad.hcl")
	volume := filepath.Join(dir, "planted.volume.hcl")
	return [][]string{
		{"var", "put", "planted/path", "planted=planted"},
		{"var", "put", "-force", "planted/path", "planted=planted"},
		{"var", "get", "planted/path"},
		{"var", "list", "planted"},
		{"var", "purge", "planted/path"},
		{"var", "lock", "planted/path", "true"},
		{"job", "run", job},
		{"job", "run", "-detach", job},
		{"job", "plan", job},
		{"job", "status", "planted"},
		{"job", "stop", "planted"},
		{"job", "inspect", "planted"},
		{"job", "dispatch", "planted"},
		{"job", "history", "planted"},
		{"alloc", "exec", "-job", "planted", "/bin/planted"},
		{"alloc", "exec", "12345678-1234-1234-1234-123456789abc", "/bin/planted"},
		{"alloc", "logs", "-job", "planted"},
		{"alloc", "fs", "-job", "planted", "/"},
		{"alloc", "status"},
		{"operator", "api", "/v1/planted"},
		{"operator", "api", "-X", "PUT", "-d", "planted", "/v1/jobs"},
		{"operator", "api", "-H", "X-Nomad-Token: planted", "/v1/jobs"},
		{"operator", "snapshot", "save", filepath.Join(dir, "snapshot")},
		{"operator", "metrics"},
		{"event", "stream"},
		{"agent-info"},
		{"monitor"},
		{"logs", "planted"},
		{"status", "planted"},
		{"namespace", "apply", "planted"},
		{"namespace", "list"},
		{"volume", "create", volume},
		{"service", "info", "planted"},
		{"node", "status"},
		{"node", "meta", "apply", "planted=planted"},
		{"system", "gc"},
		{"plugin", "status"},
		{"ui", "-authenticate", "-show-url"},
		{"eval", "list"},
		{"deployment", "list"},
		{"scaling", "policy", "list"},
		{"server", "members"},
	}
}

// runCommand runs nomad-lite, and returns its exit code and what it has printed.
func runCommand(t *testing.T, home, address, token string, args ...string) (code int, printed string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nomad-lite", args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "XDG_DATA_HOME=", "NOMAD_ADDR="+address, "NOMAD_TOKEN="+token, "NOMAD_NAMESPACE=", "BROWSER=false")
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Errorf("nomad-lite %s did not end: %s", strings.Join(args, " "), out)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// writeProbe writes a program that each account can execute.
func writeProbe(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile-listener-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	probe := filepath.Join(dir, "probe")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(probe, buildProbe(t), 0o755)); err != nil {
		t.Fatal(err)
	}
	return probe
}

// checkOnlyChallenges returns an error if a listener has received more than requests for proofs.
func checkOnlyChallenges(received string) error {
	for line := range strings.Lines(received) {
		if strings.Contains(line, plantedText) || !strings.Contains(line, `"GET `+agentproof.Path+"?") {
			return fmt.Errorf("the listener %s", line)
		}
	}
	return nil
}

// listenerBehaviours are the behaviours of the listeners, each of which has a port from firstListenerPort on. The first one
// listens on the port of agents.
var listenerBehaviours = []string{"not-found", "empty", "proof", "old", "redirect", "close"}

const firstListenerPort = 4646

// loopbackHosts are names of the address of a listener in a URL.
var loopbackHosts = []string{"127.0.0.1", "localhost", "LOCALHOST", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "127.0.0.2", "127.255.255.254", "0.0.0.0", "[::]", "user:planted@127.0.0.1"}

// Another account that listens on the port of an agent that does not run gets nothing from any command, by whatever name the
// user gives for the loopback address, and each command names the account and its process.
func TestListenersOfOtherAccountsGetOnlyChallenges(t *testing.T) {
	enterNetworkNamespace(t)
	run := endurance.Start(t, endurance.Config{Sample: 60, Unit: "attacks", Load: "1 command at a time, 6 listeners"})
	probe, home := writeProbe(t), t.TempDir()
	job := "job \"planted\" {\n  type = \"batch\"\n  group \"planted\" {\n    task \"planted\" {\n      driver = \"raw_exec\"\n      config {\n        command = \"/bin/true\"\n      }\n    }\n  }\n}\n"
	volume := "name = \"planted\"\ntype = \"host\"\nplugin_id = \"mkdir\"\n"
	if err := errors.Join(os.WriteFile(filepath.Join(home, "planted.nomad.hcl"), []byte(job), 0o600), os.WriteFile(filepath.Join(home, "planted.volume.hcl"), []byte(volume), 0o600)); err != nil {
		t.Fatal(err)
	}
	listeners := make([]*hostileListener, len(listenerBehaviours))
	for i, behaviour := range listenerBehaviours {
		listeners[i] = startHostileListener(t, probe, behaviour, fmt.Sprintf(":%d", firstListenerPort+i))
	}
	run.Each(func(seed uint64) error {
		r := rand.New(rand.NewPCG(seed, 0))
		commands := commandsWithSecrets(home)
		args := commands[r.IntN(len(commands))]
		i, address, token := r.IntN(len(listeners)), "", []string{plantedToken, plantedToken, ""}[r.IntN(3)]
		if r.IntN(4) == 0 {
			i = 0 // the address of an agent that the user has not named
		} else {
			address = fmt.Sprintf("http://%s:%d%s", loopbackHosts[r.IntN(len(loopbackHosts))], firstListenerPort+i, []string{"", "/"}[r.IntN(2)])
		}
		l := listeners[i]
		code, printed := runCommand(t, home, address, token, args...)
		failed := checkOnlyChallenges(l.received())
		if code == 0 {
			failed = errors.Join(failed, errors.New("exit code 0"))
		}
		for _, want := range []string{fmt.Sprintf("(pid %d) of uid %d", l.cmd.Process.Pid, intruderUser), "-allow-unverified-agent"} {
			if !strings.Contains(printed, want) {
				failed = errors.Join(failed, fmt.Errorf("the command does not print %q", want))
			}
		}
		if failed != nil {
			return fmt.Errorf("nomad-lite %s at %q, token %q, listener %s: %w\n%s", strings.Join(args, " "), address, token, listenerBehaviours[i], failed, printed)
		}
		run.Add(1)
		return nil
	})
	for i, l := range listeners {
		if err := checkOnlyChallenges(l.received()); err != nil {
			t.Errorf("listener %s: %v", listenerBehaviours[i], err)
		}
	}
	// The planted opposite: with the flag, a listener gets the token.
	code, printed := runCommand(t, home, "", plantedToken, "var", "put", "-force", "-allow-unverified-agent", "planted/path", "planted=planted")
	if got := listeners[0].received(); !strings.Contains(got, plantedToken) {
		t.Errorf("with -allow-unverified-agent: the listener received %q; exit code %d: %s", got, code, printed)
	}
}

// A relay to the agent gets no token, and the agent itself is verified for requests, streams and sessions.
func TestRelayToAgentGetsOnlyChallenges(t *testing.T) {
	enterNetworkNamespace(t)
	probe, home := writeProbe(t), t.TempDir()
	agent := systemtest.StartPersistentAgent(t, nil, "bind_addr = \"::1\"\n")
	text, err := os.ReadFile(filepath.Join(agent.DataDir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	log, err := os.ReadFile(agent.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`agent is ready: http://(\S+),`).FindSubmatch(log)
	if address == nil {
		t.Fatalf("the agent has no address: %s", log)
	}
	agent.RunJobUntilStatus("planted", "service", "running", systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript))
	commands := [][]string{{"var", "put", "-force", "planted/path", "planted=planted"}, {"job", "status"}, {"alloc", "exec", "-job", "planted", "true"}, {"operator", "snapshot", "save", filepath.Join(home, "snapshot")}}
	relay := startHostileListener(t, probe, string(address[1]), "127.0.0.1:4646")
	for _, relayAddress := range []string{"", "http://127.0.0.1:4646", "http://[::ffff:127.0.0.1]:4646"} {
		for _, args := range commands {
			command := fmt.Sprintf("%s at %q", strings.Join(args, " "), relayAddress)
			code, printed := runCommand(t, home, relayAddress, token, args...)
			got := relay.received()
			if err := checkOnlyChallenges(got); err != nil {
				t.Errorf("%s: %v", command, err)
			}
			if code == 0 || got == "" || strings.Contains(got, token) || !strings.Contains(printed, fmt.Sprintf("of uid %d", intruderUser)) {
				t.Errorf("%s: exit code %d, the relay received %q: %s", command, code, got, printed)
			}
		}
	}
	for _, args := range commands {
		if code, printed := runCommand(t, home, "http://"+string(address[1]), token, args...); code != 0 {
			t.Errorf("%s to the agent: exit code %d: %s", strings.Join(args, " "), code, printed)
		}
	}
	// The planted opposite: with the flag, the relay gets the token.
	if code, printed := runCommand(t, home, "", token, "job", "status", "-allow-unverified-agent"); code != 0 || !strings.Contains(relay.received(), token) {
		t.Errorf("with -allow-unverified-agent: exit code %d: %s", code, printed)
	}
}
