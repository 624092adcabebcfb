package sdk_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	sdktest.Main(m, func() {
		if os.Getenv(envServeHook) != "" {
			sdk.ServeHook(&hostCallingHook{})
			return
		}
		if os.Getenv(envServeDevice) != "" {
			sdk.ServeDevice(dongleDevice{})
			return
		}
		sdk.ServeDriver(&loggingDriver{})
	})
}

// loggingDriver writes to each log and output stream that a plugin has.
type loggingDriver struct{}

func (*loggingDriver) Info() sdk.DriverInfo { return sdk.DriverInfo{Name: "talker"} }

func (*loggingDriver) Start(_ context.Context, start *sdk.StartRequest) (*loggingTask, error) {
	if start.Name == "panics" {
		panic("not today")
	}
	fmt.Println("printed")
	fmt.Fprintln(os.Stderr, "printed as an error")
	log.Print("[WARN] logged by package log")
	hclog.L().Info("logged by hclog")
	start.Logger().Info("logged for the task")
	return &loggingTask{make(chan struct{})}, nil
}

type loggingTask struct{ done chan struct{} }

func (t *loggingTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	select {
	case <-t.done:
	case <-ctx.Done():
	}
	return driver.ExitResult{}, ctx.Err()
}

func (t *loggingTask) Kill(context.Context) error {
	close(t.done)
	return nil
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// launchPlugin starts this binary as a plugin, as a host does. The variables of env select the plugin that it
// serves.
func launchPlugin(t *testing.T, plugins plugin.PluginSet, stderr io.Writer, env ...string) *plugin.Client {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "TMPDIR="+socketDir(t))...)
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  basewire.Handshake,
		Plugins:          plugins,
		Cmd:              cmd,
		SkipHostEnv:      true,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
		Stderr:           stderr,
	})
	t.Cleanup(client.Kill)
	return client
}

// dispense returns the client of a service of a plugin.
func dispense[S any](t *testing.T, client *plugin.Client, name string) S {
	t.Helper()
	rpc, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	service, err := rpc.Dispense(name)
	if err != nil {
		t.Fatal(err)
	}
	return service.(S)
}

func launchDriver(t *testing.T, stderr io.Writer, env ...string) (driver.Driver, *plugin.Client) {
	t.Helper()
	client := launchPlugin(t, plugin.PluginSet{driverwire.PluginName: &driverwire.GRPCPlugin{}}, stderr, env...)
	return dispense[driver.Driver](t, client, driverwire.PluginName), client
}

// startDebugged starts this binary by hand, and waits until it waits for a host.
func startDebugged(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	var output lockedBuffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "NOMAD_LITE_SDKTEST_BY_HAND=1")...)
	cmd.Stderr = &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	waitUntil(t, "it says that it waits", func() bool { return strings.Contains(output.String(), "waiting for a host") })
	return cmd
}

// socketDir returns a short path, because the path of a socket has a low limit.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestPluginOutputIsLogged(t *testing.T) {
	var stderr lockedBuffer
	d, _ := launchDriver(t, &stderr)
	if _, _, err := d.StartTask(t.Context(), &driver.TaskConfig{ID: "a/t/0", AllocID: "a", Name: "t"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"@level":"info","@message":"printed"`,
		`"@level":"info","@message":"printed as an error"`,
		`"@level":"warn","@message":"logged by package log"`,
		`"@level":"info","@message":"logged by hclog"`,
		`"@level":"info","@message":"logged for the task","@module":"talker"`,
		`"alloc_id":"a","task":"t"`,
	} {
		waitUntil(t, "the host reads "+want+" in "+stderr.String(), func() bool { return strings.Contains(stderr.String(), want) })
	}
}

func TestPanicLeavesThePluginRunningAndItsStackInTheLog(t *testing.T) {
	var stderr lockedBuffer
	d, client := launchDriver(t, &stderr)
	_, _, err := d.StartTask(t.Context(), &driver.TaskConfig{ID: "a/panics/0", AllocID: "a", Name: "panics"})
	if err == nil || !strings.Contains(err.Error(), "method *sdk_test.loggingDriver.Start panicked: not today") {
		t.Errorf("StartTask: %v", err)
	}
	for _, want := range []string{`"@level":"error"`, `"method":"*sdk_test.loggingDriver.Start"`, `(*loggingDriver).Start(`, `serve_test.go:`} {
		waitUntil(t, "the host reads "+want, func() bool { return strings.Contains(stderr.String(), want) })
	}
	if _, _, err := d.StartTask(t.Context(), &driver.TaskConfig{ID: "a/t/0", AllocID: "a", Name: "t"}); err != nil || client.Exited() {
		t.Errorf("the next task: %v, plugin exited: %v", err, client.Exited())
	}
}

func TestHangupAndInterruptDoNotEndThePlugin(t *testing.T) {
	d, client := launchDriver(t, io.Discard)
	for _, signal := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGPIPE} {
		if err := unix.Kill(client.ReattachConfig().Pid, signal); err != nil {
			t.Fatal(err)
		}
	}
	// This call would fail if one of the signals had ended the process.
	if _, err := d.Capabilities(t.Context()); err != nil || client.Exited() {
		t.Errorf("Capabilities: %v, plugin exited: %v", err, client.Exited())
	}
}

func TestLostHostDoesNotEndThePlugin(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), basewire.Handshake.MagicCookieKey+"="+basewire.Handshake.MagicCookieValue, "PLUGIN_PROTOCOL_VERSIONS=2", "TMPDIR="+socketDir(t))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	// The pipes have no readers, as after a crash of the host.
	stdout.Close()
	stderr.Close()

	conn, err := grpc.NewClient("unix:"+strings.Split(line, "|")[3], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d := driverwire.NewClient(conn, make(chan struct{}))
	for i := range 300 { // the log lines of 300 starts exceed the capacity of a pipe
		id := fmt.Sprintf("a/t/%d", i)
		if _, _, err := d.StartTask(t.Context(), &driver.TaskConfig{ID: id, AllocID: "a", Name: "t"}); err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
	}
	if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
		t.Error(err)
	}
}

func TestLargeMessages(t *testing.T) {
	d, _ := launchDriver(t, io.Discard)
	config := &driver.TaskConfig{ID: "a/t/0", AllocID: "a", Name: "t", DeviceEnv: map[string]string{"BIG": strings.Repeat("x", 6<<20)}}
	handle, _, err := d.StartTask(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(handle.Config.DeviceEnv["BIG"]); got != 6<<20 {
		t.Errorf("%d bytes came back, want 6 MiB", got)
	}
}

func TestDebugDriver(t *testing.T) {
	socket := filepath.Join(socketDir(t), "debug.sock")
	env := sdk.EnvDebug + "=talker=" + socket
	debugged := startDebugged(t, env)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v, want mode 0600", info, err)
	}

	first, client := launchDriver(t, io.Discard, env)
	if _, _, err := first.StartTask(t.Context(), &driver.TaskConfig{ID: "a/t/0", AllocID: "a", Name: "t"}); err != nil {
		t.Fatal(err)
	}
	client.Kill()
	// The plugin serves in the process under debug; the process that the host starts
	// passes calls on to it.
	second, client := launchDriver(t, io.Discard, env)
	if status, err := second.InspectTask(t.Context(), "a/t/0"); err != nil || status.State != driver.TaskRunning {
		t.Errorf("after the host has come back the task is %+v, %v", status, err)
	}
	if _, err := second.InspectTask(t.Context(), "a/t/1"); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("an unknown task: %v, want %v", err, driver.ErrTaskNotFound)
	}

	another := exec.Command(os.Args[0])
	another.Env = debugged.Env
	if out, err := another.CombinedOutput(); err == nil || !strings.Contains(string(out), "another process listens there") {
		t.Errorf("a second one under debug: %v, %s", err, out)
	}

	if err := debugged.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := debugged.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
	waitUntil(t, "the host notices that the plugin is gone", client.Exited)
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left behind")
	}

	// Without a process to attach to, the plugin prints an error message.
	stub := exec.Command(os.Args[0])
	stub.Env = append(os.Environ(), env, basewire.Handshake.MagicCookieKey+"="+basewire.Handshake.MagicCookieValue, "PLUGIN_PROTOCOL_VERSIONS=2")
	if out, err := stub.CombinedOutput(); err == nil || !strings.Contains(string(out), "no plugin listens there") {
		t.Errorf("nobody to attach to: %v, %s", err, out)
	}
}
