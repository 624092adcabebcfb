package heldport

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperserver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// TestMain also runs the test binary as a keeper, an agent and a process that tries to bind a port.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var run func([]string) error
		switch os.Args[1] {
		case "keeper":
			run = func([]string) error { return keeperserver.Serve(context.Background(), keeperwire.ProtocolVersion) }
		case "agent":
			run = agentMain
		case "squatter":
			run = squatterMain
		}
		if run != nil {
			if err := run(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	for { // keepers that have outlived their agents
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil && err != unix.EINTR || pid == 0 {
			break
		}
	}
	if left, err := osprocess.Children(os.Getpid()); err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "processes left behind:", left, err)
		code = 1
	}
	os.Exit(code)
}

func connectKeeper(ctx context.Context, dir string) (*keeper.Client, error) {
	return keeper.ConnectOrStart(ctx, keeper.Config{DataDir: dir, KeeperArgv: []string{"nomad-lite", "keeper"}})
}

// agentMain listens with the data directory and address in args, prints the address, the keeper's pid and whether
// there is no guardErr, and answers each connection until it is killed.
func agentMain(args []string) error {
	c, err := connectKeeper(context.Background(), args[0])
	if err != nil {
		return err
	}
	l, guardErr, err := Listen(context.Background(), c, args[1])
	if err != nil {
		return err
	}
	fmt.Println(l.Addr(), c.Status().KeeperProcess.PID, guardErr == nil)
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "agent"); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		conn.Close()
	}
}

// squatterUID is the user of squatters, if the test runs as root.
const squatterUID = 4242

// squatAddresses are the addresses that a squatter tries, each with and without SO_REUSEADDR and SO_REUSEPORT.
var squatAddresses = []string{"0.0.0.0", "127.0.0.1", "::", "::1"}

// squatterMain tries as another user to bind the port in args until its stdin ends. Then it prints how often it has tried. Once it
// has bound the port, it prints how, and exits.
func squatterMain(args []string) error {
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := syscall.Setuid(squatterUID); err != nil {
			return err
		}
	}
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	fmt.Println("started")
	tries := 0
	for ; !ended.Load(); tries++ {
		address := &net.TCPAddr{IP: net.ParseIP(squatAddresses[tries%len(squatAddresses)]), Port: port}
		options := tries / len(squatAddresses) % 4
		fd, err := newSocket(address)
		if err != nil {
			return err
		}
		for i, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, options>>i&1); err != nil {
				return err
			}
		}
		err = unix.Bind(fd, sockaddr(address))
		if err == nil {
			fmt.Println("bound", address, "listen:", unix.Listen(fd, 1), "options:", options)
			return nil
		}
		unix.Close(fd)
	}
	fmt.Println("tries", tries)
	return nil
}

// testProcess is a running agentMain or squatterMain.
type testProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner // of stdout
}

// startProcess starts the program, which is the test binary or a copy, and returns the words of its first line.
func startProcess(t *testing.T, program string, args ...string) (*testProcess, []string) {
	t.Helper()
	p := &testProcess{cmd: exec.Command(program, args...)}
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin, p.lines = stdin, bufio.NewScanner(stdout)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p, strings.Fields(p.line())
}

func (p *testProcess) line() string {
	p.lines.Scan()
	return p.lines.Text()
}

// kill kills the process and reaps it. It may be called twice.
func (p *testProcess) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill() // it can have exited
		_ = p.cmd.Wait()         // the error is the signal
	}
}

// startTestAgent starts an agent and returns it with its address and its keeper. If the port is 0, the agent has a port whose guard is
// bound, too.
func startTestAgent(t *testing.T, program, dir, address string) (p *testProcess, listening *net.TCPAddr, k osprocess.ID) {
	t.Helper()
	p, words := startProcess(t, program, "agent", dir, address)
	if len(words) != 3 {
		t.Fatalf("the agent at %s has not started", address)
	}
	pid, err := strconv.Atoi(words[1])
	if err == nil {
		k, err = osprocess.LookupID(pid)
	}
	if err == nil {
		listening, err = net.ResolveTCPAddr("tcp", words[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	if words[2] == "true" {
		t.Cleanup(func() { endKeeper(t, k) })
		return p, listening, k
	}
	p.kill()
	endKeeper(t, k)
	if !strings.HasSuffix(address, ":0") {
		t.Fatalf("the agent at %s has no guard", address)
	}
	return startTestAgent(t, program, dir, address) // another program uses the port at the guard's address
}

// endKeeper ends a keeper whose agent was killed. It may be called twice.
func endKeeper(t *testing.T, k osprocess.ID) {
	_ = k.Signal(unix.SIGTERM) // it can have exited
	for !k.EndsWithin(0) {
		if pid, err := unix.Wait4(k.PID, nil, 0, nil); pid != k.PID {
			t.Errorf("keeper %d does not end: %v", k.PID, err)
			return
		}
	}
}
