package heldport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

const testBinary = "/proc/self/exe"

// startSquatter starts a process of another user that tries to bind a port.
func startSquatter(t *testing.T, port int) *testProcess {
	t.Helper()
	p, words := startProcess(t, testBinary, "squatter", strconv.Itoa(port))
	if !slices.Equal(words, []string{"started"}) {
		t.Fatalf("the squatter has not started: %q", words)
	}
	return p
}

// expectNothingBound ends a squatter, and checks that it has tried and has bound nothing.
func expectNothingBound(t *testing.T, p *testProcess) {
	t.Helper()
	p.stdin.Close()
	line := p.line()
	if !strings.HasPrefix(line, "tries ") || line == "tries 0" {
		t.Errorf("another process has taken the port: %q", line)
	}
	t.Log(line)
	p.kill()
}

// expectAnswer checks that the agent answers at an address.
func expectAnswer(t *testing.T, address string) {
	t.Helper()
	answer, err := request(address)
	if answer != "agent" || err != nil {
		t.Errorf("%s answers %q, %v", address, answer, err)
	}
}

// request connects to an address and returns what is answered.
func request(address string) (string, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	return string(b), err
}

// copyBinary returns the path of a copy of the test binary with other content, which is another build for the keeper.
func copyBinary(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(testBinary)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "another")
	syscall.ForkLock.RLock() // a process that is forked meanwhile would inherit the file that is open for writing
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, append(b, "another build"...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// awaitStored blocks until a keeper other than former has the listener at address.
func awaitStored(t *testing.T, address *net.TCPAddr, former osprocess.ID) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		// A keeper that the agent has forked has the agent's command line until it has executed its program.
		keepers := keeper.FindRunning()
		for _, l := range hostport.FindListeners(address.IP.String(), address.Port) {
			if slices.ContainsFunc(keepers, func(k keeper.RunningKeeper) bool { return k.Process.PID == l.PID && k.Process != former }) {
				return
			}
		}
	}
	t.Fatalf("no keeper has %s", address)
}

// As long as an agent or its keeper runs, another process binds the port at no address that the listener includes, and at no other
// loopback address that clients try.
func TestPortIsNeverFree(t *testing.T) {
	other := copyBinary(t)
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
		t.Run(host, func(t *testing.T) {
			if l, err := net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
				t.Skip(err)
			} else {
				l.Close()
			}
			dir := filepath.Join(t.TempDir(), "data")
			agent, address, k := startTestAgent(t, testBinary, dir, net.JoinHostPort(host, "0"))
			squatter := startSquatter(t, address.Port)
			restart := func(program string) (current osprocess.ID) {
				t.Helper()
				agent.kill()
				agent, _, current = startTestAgent(t, program, dir, net.JoinHostPort(host, strconv.Itoa(address.Port)))
				expectAnswer(t, address.String())
				return current
			}
			for range 5 {
				restart(testBinary)
			}
			if now := restart(other); now != k {
				t.Errorf("the keeper is process %v after it has executed another build, and was %v", now, k)
			}
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", k.PID)); err != nil || exe != other {
				t.Errorf("the keeper executes %q, %v", exe, err)
			}
			_ = k.Signal(unix.SIGKILL) // the agent starts another
			awaitStored(t, address, k)
			_, _ = unix.Wait4(k.PID, nil, 0, nil)
			last := restart(testBinary)
			if last == k {
				t.Error("the keeper was not replaced")
			}
			expectNothingBound(t, squatter)

			squatter = startSquatter(t, address.Port)
			agent.kill()
			endKeeper(t, last)
			if line := squatter.line(); !strings.HasPrefix(line, "bound ") {
				t.Errorf("without agent and keeper, the port is not free: %q", line)
			}
		})
	}
}

// While the configured address changes, and the port does not, no other user gets the port.
func TestPortIsNotFreeWhileAddressChanges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run a process of another user")
	}
	dir := filepath.Join(t.TempDir(), "data")
	agent, address, k := startTestAgent(t, testBinary, dir, "127.0.0.1:0")
	squatter := startSquatter(t, address.Port)
	hosts := []string{"0.0.0.0", "127.0.0.1"}
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		l.Close()
		hosts = append(hosts, "::1", "::", "::1", "0.0.0.0")
	}
	for range 5 {
		for _, host := range hosts {
			agent.kill()
			agent, address, _ = startTestAgent(t, testBinary, dir, net.JoinHostPort(host, strconv.Itoa(address.Port)))
			expectAnswer(t, address.String())
		}
	}
	expectNothingBound(t, squatter)

	// A process of the same user, too, must not get the port after the change.
	for host := range slices.Values(squatAddresses) {
		a := &net.TCPAddr{IP: net.ParseIP(host), Port: address.Port}
		fd, err := newSocket(a)
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.Bind(fd, sockaddr(a)))
		unix.Close(fd)
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("bind of %s by the same user with SO_REUSEPORT: %v", a, err)
		}
	}
	agent.kill()
	endKeeper(t, k)
}

// listenBelowEphemeralPorts calls Listen for ports from first on that the kernel gives to no outgoing connection of another program.
func listenBelowEphemeralPorts(t *testing.T, k Keeper, first int) (l net.Listener, port int) {
	t.Helper()
	for port := first; port < first+1000; port++ {
		l, guardErr, err := Listen(t.Context(), k, fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil && guardErr == nil {
			return l, port
		}
		if err == nil {
			l.Close()
		}
	}
	t.Fatalf("none of 1000 ports from %d on is free", first)
	return nil, 0
}

// hasSocket reports whether a process has a socket open, which target names in /proc.
func hasSocket(t *testing.T, pid int, target string) bool {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		return err == nil && link == target
	})
}

// socketTarget returns the name in /proc of a stored socket.
func socketTarget(t *testing.T, k Keeper, key string) string {
	t.Helper()
	f, err := k.DuplicateStoredFD(key)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	raw, err := f.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("socket:[%d]", st.Ino)
}

// startKeeper starts a keeper, which exits at the end of the test, and returns a client of it.
func startKeeper(t *testing.T) *keeper.Client {
	t.Helper()
	c, err := connectKeeper(t.Context(), filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	k := c.Status().KeeperProcess
	t.Cleanup(func() {
		c.Close()
		endKeeper(t, k)
	})
	return c
}

// An agent with another port in its configuration releases the former port.
func TestChangedPortIsReleased(t *testing.T) {
	c := startKeeper(t)
	k := c.Status().KeeperProcess
	first, port := listenBelowEphemeralPorts(t, c, 10000+os.Getpid()%5000)
	listener, guard := socketTarget(t, c, listenerKey), socketTarget(t, c, guardKey)
	first.Close()
	for _, target := range []string{listener, guard} {
		if !hasSocket(t, k.PID, target) {
			t.Fatalf("the keeper does not have %s", target)
		}
	}
	second, _ := listenBelowEphemeralPorts(t, c, port+1)
	defer second.Close()
	for _, target := range []string{listener, guard} {
		if hasSocket(t, k.PID, target) || hasSocket(t, os.Getpid(), target) {
			t.Errorf("%s of the former port is open", target)
		}
	}
	if now := socketTarget(t, c, listenerKey); !hasSocket(t, k.PID, now) {
		t.Error("the keeper does not have the new port")
	}
}

// An address that is in use leaves the stored socket.
func TestAddressInUseChangesNothing(t *testing.T) {
	c := startKeeper(t)
	first, _, err := Listen(t.Context(), c, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	before := socketTarget(t, c, listenerKey)
	if _, _, err := Listen(t.Context(), c, other.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen at the address of another listener: %v", err)
	}
	if now := socketTarget(t, c, listenerKey); now != before {
		t.Errorf("the stored listener is %s, was %s", now, before)
	}
}

// The guard's address refuses connections, and a guard that another process prevents is an error beside the listener.
func TestGuard(t *testing.T) {
	c := startKeeper(t)
	other, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip(err)
	}
	port := other.Addr().(*net.TCPAddr).Port
	l, guardErr, err := Listen(t.Context(), c, fmt.Sprintf("127.0.0.1:%d", port))
	if errors.Is(err, syscall.EADDRINUSE) {
		t.Skip("another program has the port at 127.0.0.1") // only the address of other was chosen by the kernel
	}
	if err != nil || !errors.Is(guardErr, syscall.EADDRINUSE) || !strings.Contains(guardErr.Error(), "[::1]:") {
		t.Errorf("beside a listener of another process: %v, %v", guardErr, err)
	}
	l.Close()
	other.Close()
	if l, guardErr, err = Listen(t.Context(), c, fmt.Sprintf("127.0.0.1:%d", port)); guardErr != nil || err != nil {
		t.Fatalf("once the other process has ended: %v, %v", guardErr, err)
	}
	defer l.Close()
	if _, err := request(fmt.Sprintf("[::1]:%d", port)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("request to the guard: %v", err)
	}
}

// A request that is sent between two agents waits for the second one. In a longer outage, the keeper resets it.
func TestRequestsBetweenAgents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	agent, address, _ := startTestAgent(t, testBinary, dir, "127.0.0.1:0")
	answered := false
	for range 10 {
		killed := time.Now()
		agent.kill()
		c, err := net.Dial("tcp", address.String())
		if err != nil {
			t.Fatal(err)
		}
		var now *net.TCPAddr
		agent, now, _ = startTestAgent(t, testBinary, dir, "127.0.0.1:0") // the port of the agent before
		outage := time.Since(killed)
		if now.String() != address.String() {
			t.Fatalf("the next agent listens at %s, the former at %s", now, address)
		}
		answer, err := io.ReadAll(c)
		c.Close()
		if outage < 2*time.Second && (err != nil || !bytes.Equal(answer, []byte("agent"))) {
			t.Errorf("a request in an outage of %s: %q, %v", outage, answer, err)
		}
		if answered = answered || err == nil; answered {
			break
		}
	}
	if !answered {
		t.Skip("no restart took less than two seconds")
	}
	agent.kill()
	for range 3 {
		if answer, err := request(address.String()); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a request in a long outage: %q, %v", answer, err)
		}
	}
}
