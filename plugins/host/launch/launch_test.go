package launch

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// logBuffer stores the output of a logger.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// awaitLine waits for a log line that contains all parts.
func (l *logBuffer) awaitLine(t *testing.T, parts ...string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for line := range strings.SplitSeq(l.String(), "\n") {
			found := true
			for _, p := range parts {
				found = found && strings.Contains(line, p)
			}
			if found {
				return
			}
		}
	}
	t.Errorf("no log line with %q in:\n%.4000s", parts, l.String())
}

// noRaceExitSleepEnv prevents a binary with the race detector from sleeping when it exits.
const noRaceExitSleepEnv = "GORACE=atexit_sleep_ms=0"

// newConfig returns a Config that starts the test binary as a plugin; mode selects the
// behaviour of the plugin.
func newConfig(t testing.TB, mode string) (Config, *logBuffer) {
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exe.Close() })
	out := &logBuffer{}
	dir, err := os.MkdirTemp("", "launch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		detached, _ := os.ReadDir(dir)
		for _, e := range detached {
			// go-plugin creates a file and removes it before it listens on a socket with
			// the same name: a plugin that is killed in between leaves the file.
			if !t.Failed() && !strings.HasPrefix(e.Name(), "own") && !e.Type().IsRegular() {
				t.Errorf("left in the socket directory: %s", e.Name())
			}
		}
		os.RemoveAll(dir)
	})
	return Config{
		Name:              "tester",
		Path:              "/plugins/tester",
		Executable:        exe,
		Argv:              []string{"/plugins/tester", "test-plugin", mode},
		Env:               append(PluginEnviron(os.Environ(), nil, "", ""), noRaceExitSleepEnv, testRunEnv),
		SocketDir:         dir,
		Keeper:            newInProcessKeeper(t),
		Logger:            hclog.New(&hclog.LoggerOptions{Output: out, Level: hclog.Trace, Name: "host"}),
		HandshakeTimeout:  time.Minute,
		LaunchCallTimeout: time.Minute,
	}, out
}

func mustStartPlugin(t testing.TB, cfg Config) *Plugin {
	t.Helper()
	p, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.KillAndRelease)
	return p
}

// TestLaunchErrors checks the error text for each way in which a plugin can fail before it
// is ready.
func TestLaunchErrors(t *testing.T) {
	t.Parallel()
	// Each test shortens only the timeout that it checks, because the machine may be slow.
	short := func(c *Config) { c.HandshakeTimeout = 5 * time.Second }
	shortCall := func(c *Config) { c.LaunchCallTimeout = 3 * time.Second }
	tests := []struct {
		mode  string
		want  []string // parts of the error after the plugin's name and file
		setup func(*Config)
	}{
		{"text", []string{`wrote "Starting up, please wait …" on stdout`, "logs to stderr"}, nil},
		{"text-exit", []string{`wrote "usage: hello [flags]" on stdout`, "it exited with code 2"}, nil},
		{"partial-exit", []string{`wrote "1|2|un" on stdout`, "it exited with code 6"}, nil},
		{"partial", []string{"timeout while waiting for plugin to start", "5s", `only "1|2|un" without a line end`}, short},
		{"silent", []string{"timeout while waiting for plugin to start", "last words on stderr: waiting for the moon"}, short},
		{"closed-stdout", []string{"closed its stdout without a handshake line"}, nil},
		{"line=9|2|unix|/x|grpc|", []string{"incompatible core API version", "version 9"}, nil},
		{"line=1|1|unix|/x|grpc|", []string{"incompatible API version", "version 1 of Nomad's plugin protocol"}, nil},
		{"line=1|2|unix|/x", []string{`unsupported plugin protocol "netrpc"`}, nil},
		{"line=1|2|udp|/x|grpc|", []string{`unknown address type "udp"`}, nil},
		{"line=1|2|tcp|192.0.2.7:80|grpc|", []string{"not a loopback address"}, nil},
		{"line=1|2|unix|relative|grpc|", []string{"not an absolute path"}, nil},
		{"exit", []string{"wrote no handshake line and exited with code 3", "cannot read licence: no such file"}, nil},
		{"killed", []string{"was killed by signal 9"}, nil},
		{"panic", []string{"exited with code 2, after a panic: the licence is void (", "hostile_test.go:"}, nil},
		{"cookie", []string{"exited with code 1", "a plugin of another program than Nomad"}, nil},
		{"handshake-exit", []string{"exited with code 7", "I have changed my mind"}, nil},
		{"no-socket", []string{"its socket", "does not exist"}, nil},
		{"not-listening", []string{"nobody listens on its socket"}, nil},
		{"foreign", []string{"of uid 65534 listens on it, not the plugin"}, func(c *Config) {
			dir, err := os.MkdirTemp("", "foreign")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			c.Argv[2] += "=" + dir
		}},
		{"mute", []string{"connect: no answer within 3s"}, shortCall},
		{"no-services", []string{"PluginInfo", "unknown service"}, nil},
		{"info=;1;v0.1.0;", []string{`reports itself as ""`}, nil},
		{"info=../x;1;v0.1.0;", []string{`reports itself as "../x"`}, nil},
		{"info=x;one;v0.1.0;", []string{`plugin version "one"`, "malformed version"}, nil},
		{"info=x;1;;", []string{"provided no compatible API versions"}, nil},
		{"info=x;1;v0.2.0,v3;", []string{"no compatible API versions", "v0.2.0, v3"}, nil},
		{"info=x;1;xyz;", []string{`malformed version: "xyz"`}, nil},
		{"info=x;1;v0.1.0;other", []string{"plugin is of unknown type"}, nil},
		{"hang=PluginInfo", []string{"PluginInfo: no answer within 3s"}, shortCall},
		{"hang=ConfigSchema", []string{"ConfigSchema: no answer within 3s"}, shortCall},
		{"hang=SetConfig", []string{"SetConfig: no answer within 3s"}, shortCall},
		{"hang=Init", []string{"Init: no answer within 3s"}, shortCall},
		{"exit-in=PluginInfo", []string{"PluginInfo: exited with code 5", "leaving in PluginInfo"}, nil},
		{"exit-in=SetConfig", []string{"SetConfig: exited with code 5"}, nil},
		{"exit-in=Init", []string{"Init: exited with code 5"}, nil},
		{"holder=exit", []string{"wrote no handshake line and exited with code 4"}, nil},
		{"config-error", []string{"agent.hcl:3,1-9: the plugin rejects its configuration: the root is full"}, func(c *Config) {
			c.ConfigBlockPosition = "agent.hcl:3,1-9"
		}},
		{"good", []string{"agent.hcl:3,1-9: configuration not allowed but config passed"}, func(c *Config) {
			c.ConfigBlock, c.ConfigBlockPosition = map[string]any{}, "agent.hcl:3,1-9"
		}},
		{"schema", []string{`agent.hcl:3,1-9: failed to parse config: Invalid label: No argument or block type is named "bogus"`}, func(c *Config) {
			c.ConfigBlock, c.ConfigBlockPosition = map[string]any{"bogus": 1}, "agent.hcl:3,1-9"
		}},
		{"schema", []string{"Variables not allowed"}, func(c *Config) {
			c.ConfigBlock = map[string]any{"root": "${env.HOME}"}
		}},
		{"good", []string{"a unix socket in it cannot be named"}, func(c *Config) {
			c.SocketDir = "/" + strings.Repeat("long", 30)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			if tt.mode == "foreign" && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			cfg, _ := newConfig(t, tt.mode)
			if tt.setup != nil {
				tt.setup(&cfg)
			}
			if testing.Short() && min(cfg.HandshakeTimeout, cfg.LaunchCallTimeout) < time.Minute {
				t.Skip("waits until a timeout of seconds has passed")
			}
			p, err := Start(t.Context(), cfg)
			if err == nil {
				p.KillAndRelease()
				t.Fatal("started")
			}
			if !strings.HasPrefix(err.Error(), `plugin "tester" (/plugins/tester): `) {
				t.Errorf("error does not name the plugin: %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q\nhas no %q", err, want)
				}
			}
		})
	}
}

// A plugin that panics at each start is started again and again, and each task that waits for it reports the error.
func TestPanicIsLoggedOnce(t *testing.T) {
	t.Parallel()
	cfg, log := newConfig(t, "panic")
	cfg.LoggedPanics = new(LoggedPanics)
	for range 3 {
		_, err := Start(t.Context(), cfg)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want one line", err)
		}
		if text := WithPanicLines(err).Error(); !strings.Contains(text, "goroutine 1 [running]:\n") || !strings.Contains(text, "hostile_test.go:") {
			t.Errorf("the error for programs without a log has no stack: %s", text)
		}
	}
	for _, line := range []string{"panic: the licence is void", "goroutine 1"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("the log has %d times %q, want 1:\n%s", n, line, log)
		}
	}
}

// The same message at another position, or of another plugin, is another panic.
func TestOtherPanicIsNew(t *testing.T) {
	lines := func(message, address, line string) []string {
		return []string{"panic: " + message, "goroutine 7 [running]:", "main.run(" + address + ")", "\t/main.go:" + line + " +" + address}
	}
	r := new(LoggedPanics)
	for _, test := range []struct {
		name, plugin string
		lines        []string
		want         bool
	}{
		{"first", "a", lines("no", "0xc0001", "3"), true},
		{"the same at another address", "a", lines("no", "0xc0002", "3"), false},
		{"another line", "a", lines("no", "0xc0001", "4"), true},
		{"another message", "a", lines("yes", "0xc0001", "3"), true},
		{"another plugin", "b", lines("no", "0xc0001", "3"), true},
	} {
		if got := r.addIfNew(test.plugin, test.lines); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestPanicPosition(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"panic: no\ngoroutine 1 [running]:\nmain.run(0x1)\n\t/a/main.go:3 +0x2f\nmain.main()\n\t/a/main.go:9 +0x1", "/a/main.go:3"},
		{"panic: runtime error: index out of range [5] with length 3\ngoroutine 1 [running]:\npanic({0x1, 0x2})\n\t/go/panic.go:9 +0x1\nruntime.goPanicIndex()\n\t/go/panic.go:7 +0x1\nmain.run(...)\n\t/a/main.go:4", "/a/main.go:4"},
		{"panic: no", ""},
	} {
		if got := panicSourcePosition(strings.Split(test.text, "\n")); got != test.want {
			t.Errorf("%q: %q, want %q", test.text, got, test.want)
		}
	}
}

func TestStartContextEnds(t *testing.T) {
	t.Parallel()
	stop := errors.New("the agent goes")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(300*time.Millisecond, func() { cancel(stop) })
	cfg, _ := newConfig(t, "silent")
	if _, err := Start(ctx, cfg); !errors.Is(err, stop) {
		t.Errorf("got %v, want %v", err, stop)
	}
}

// A program whose file is open for writing is started when the file has been closed.
func TestBusyExecutable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		written time.Duration // the time until the file is closed; 0 means after the test
		want    string
	}{
		{"for a moment", 20 * time.Millisecond, "exited with code 9"},
		{"for good", 0, "text file busy: a process has the file open for writing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg, _ := newConfig(t, "")
			cfg.Path = filepath.Join(t.TempDir(), "plugin")
			f, err := os.OpenFile(cfg.Path, os.O_WRONLY|os.O_CREATE, 0o755)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("#!/bin/sh\nexit 9\n"); err != nil {
				t.Fatal(err)
			}
			closed := make(chan error, 1)
			if tt.written > 0 {
				time.AfterFunc(tt.written, func() { closed <- f.Close() })
			} else {
				closed <- nil
				defer f.Close()
			}
			cfg.Argv, cfg.Executable = []string{cfg.Path}, nil
			p, err := Start(t.Context(), cfg)
			if err == nil {
				p.KillAndRelease()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q\nhas no %q", err, tt.want)
			}
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestExecutableErrors(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("made for amd64 and arm64")
	}
	other, otherName := elf.EM_AARCH64, "arm64"
	if runtime.GOARCH == "arm64" {
		other, otherName = elf.EM_X86_64, "amd64"
	}
	var otherArchELF bytes.Buffer
	_ = binary.Write(&otherArchELF, binary.LittleEndian, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_EXEC), Machine: uint16(other),
		Version: 1, Ehsize: 64, Phentsize: 56, Shentsize: 64,
	})

	tests := []struct {
		name   string
		bytes  []byte
		mode   os.FileMode
		script bool
		want   string
	}{
		{"another architecture", otherArchELF.Bytes(), 0o755, false, "built for " + otherName + ", this machine is " + runtime.GOARCH},
		{"no program at all", []byte("hello, I am text\n"), 0o755, true, "neither an ELF program nor a script"},
		{"an empty file", nil, 0o755, true, "the file is empty"},
		{"a Windows program", []byte("MZ\x00\x00"), 0o755, true, "a Windows program"},
		{"a script without its interpreter", []byte("#!/no/such/sh -e\n"), 0o755, true, "needs the interpreter /no/such/sh"},
		{"no execute bit", []byte("#!/bin/sh\n"), 0o644, true, "no execute bit"},
		{"a script that fails", []byte("#!/bin/sh\necho no luck >&2\nexit 9\n"), 0o755, true, "exited with code 9, its last words on stderr: no luck"},
		{"a loader that is not there", patchBinTrue(t, "/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.X"), 0o755, false, "needs the interpreter /lib64/ld-linux-x86-64.so.X"},
		{"a library that is not there", patchBinTrue(t, "libc.so.6", "libX.so.6"), 0o755, false, "libX.so.6: cannot open shared object file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.bytes == nil && tt.name != "an empty file" {
				t.Skip("/bin/true is not a dynamic program of this kind here")
			}
			cfg, _ := newConfig(t, "")
			cfg.Path = filepath.Join(t.TempDir(), "plugin")
			if err := os.WriteFile(cfg.Path, tt.bytes, tt.mode); err != nil {
				t.Fatal(err)
			}
			cfg.Argv = []string{cfg.Path}
			cfg.Executable = nil
			if !tt.script {
				f, err := os.Open(cfg.Path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				cfg.Executable = f
			}
			p, err := Start(t.Context(), cfg)
			if err == nil {
				p.KillAndRelease()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), cfg.Path) {
				t.Errorf("error %q\nhas no %q", err, tt.want)
			}
		})
	}
}

// patchBinTrue returns /bin/true with a string replaced by another of the same length; nil if
// /bin/true does not contain the string.
func patchBinTrue(t *testing.T, from, to string) []byte {
	b, err := os.ReadFile("/bin/true")
	if err != nil || runtime.GOARCH != "amd64" || !bytes.Contains(b, []byte(from)) {
		return nil
	}
	return bytes.ReplaceAll(b, []byte(from), []byte(to))
}

func TestStart(t *testing.T) {
	t.Parallel()
	cfg, out := newConfig(t, "schema")
	cfg.ConfigBlock = map[string]any{"root": "${upper(\"/srv\")}"}
	cfg.DriverConfig = &base.ClientDriverConfig{ClientMinPort: 14000, ClientMaxPort: 14512}
	p := mustStartPlugin(t, cfg)

	if got := p.Info(); got.Name != "good" || got.Type != base.TypeDriver || got.Version != "1.2.3" {
		t.Errorf("info %+v", got)
	}
	if got := p.apiVersion; got != "0.1.0" {
		t.Errorf("API version %q, want the plugin's own spelling 0.1.0", got)
	}
	// The MessagePack bytes are {"count": 3, "root": "/SRV"}, with sorted keys and strings
	// of type str.
	out.awaitLine(t, "host.tester", "config 1 82a5636f756e7403a4726f6f74a42f535256 0.1.0 14000-14512")
	out.awaitLine(t, "host.tester", "init")
	if c, err := p.Driver().Capabilities(t.Context()); err != nil || !c.Exec {
		t.Errorf("capabilities %+v, %v", c, err)
	}
	if err := p.CheckHealth(t.Context()); err != nil {
		t.Errorf("unreachable: %v", err)
	}

	p.Stop(t.Context())
	out.awaitLine(t, "host.tester", "shutdown")
	if err := p.WaitForExitReason(); !strings.Contains(err.Error(), "exited with code 0") {
		t.Errorf("exit: %v", err)
	}
	if _, err := p.Driver().Capabilities(t.Context()); !errors.Is(err, driver.ErrPluginDown) {
		t.Errorf("call after the end: %v, want %v", err, driver.ErrPluginDown)
	}
	p.Stop(t.Context())
	p.KillAndRelease()
}

// Start accepts a handshake line with a certificate that was not requested, or with
// additional fields.
func TestHandshakeLineVariants(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cert", "more-fields"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cfg, _ := newConfig(t, mode)
			mustStartPlugin(t, cfg)
		})
	}
}

func TestDeviceHasNoDriver(t *testing.T) {
	t.Parallel()
	cfg, _ := newConfig(t, "info=gpu;1;v0.1.0;device")
	if p := mustStartPlugin(t, cfg); p.Info().Type != base.TypeDevice || p.Driver() != nil {
		t.Errorf("info %+v, driver %v", p.Info(), p.Driver())
	}
}

// The socket in the handshake line can be another one in the directory: Close must not
// remove it.
func TestSocketOfAnotherProcessIsRefused(t *testing.T) {
	t.Parallel()
	cfg, _ := newConfig(t, "")
	socket := filepath.Join(cfg.SocketDir, "own-keeper.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg.Argv[2] = "line=1|2|unix|" + socket + "|grpc|"
	if p, err := Start(t.Context(), cfg); err == nil {
		p.KillAndRelease()
		t.Error("started")
	} else if !strings.Contains(err.Error(), "listens on it, not the plugin") {
		t.Error(err)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("the socket is gone: %v", err)
	}
}

func TestKeeperDiesDuringSpawn(t *testing.T) {
	t.Parallel()
	for _, listens := range []bool{false, true} {
		cfg, _ := newConfig(t, "good")
		k := &dyingKeeper{inProcessKeeper: newInProcessKeeper(t)}
		if listens {
			k.socketDir = cfg.SocketDir
		}
		cfg.Keeper = k
		mustStartPlugin(t, cfg)
		if k.firstChild.PID == 0 || !k.firstChild.EndsWithin(10*time.Second) {
			t.Errorf("listens %v: process %v of the dead keeper continues beside the other", listens, k.firstChild)
		}
	}
}

// Done is closed immediately when the plugin has exited, although its child keeps stdout
// and stderr open. The child's output is still logged, and the child does not get SIGPIPE.
func TestChildHoldsStreams(t *testing.T) {
	t.Parallel()
	cfg, out := newConfig(t, "holder=serve")
	p := mustStartPlugin(t, cfg)
	p.Kill()
	<-p.Done()
	if err := p.WaitForExitReason(); !strings.Contains(err.Error(), "killed by signal 9") {
		t.Errorf("exit: %v", err)
	}
	select {
	case <-p.StderrClosed():
		t.Error("drained while the child lives")
	default:
	}
	out.awaitLine(t, "the child still writes")
	killByArg(t, "held=serve", cfg.SocketDir)
	select {
	case <-p.StderrClosed():
	case <-time.After(time.Minute):
		t.Error("not drained after the child's end")
	}
}

// killByArg kills an orphaned grandchild of the test by its argument.
func killByArg(t *testing.T, arg, socketDir string) {
	t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		args, _ := os.ReadFile(dir + "/cmdline")
		env, _ := os.ReadFile(dir + "/environ")
		if strings.Contains(string(args), arg) && strings.Contains(string(env), socketDir) {
			var pid int
			_, _ = fmt.Sscanf(filepath.Base(dir), "%d", &pid)
			p, _ := os.FindProcess(pid)
			_ = p.Kill() // the process can have exited
			return
		}
	}
	t.Errorf("no process with %s", arg)
}

func TestStubbornPluginIsKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits until the timeouts of a shutdown have passed")
	}
	cfg, out := newConfig(t, "stubborn")
	p := mustStartPlugin(t, cfg)
	began := time.Now()
	p.Stop(t.Context())
	if d := time.Since(began); d < 3900*time.Millisecond {
		t.Errorf("stop took %v, want 2s for Shutdown and 2s of grace", d)
	}
	out.awaitLine(t, "failed to exit gracefully")

	// If the context of Stop has ended, Stop kills the plugin without waiting.
	cfg, out = newConfig(t, "stubborn")
	p = mustStartPlugin(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p.exitsWithin(ctx, time.Hour) {
		t.Error("it has ended by itself")
	}
	p.Stop(ctx)
	out.awaitLine(t, "driver shutdown", "context canceled")
	out.awaitLine(t, "failed to exit gracefully")
}

func TestUnresponsivePlugin(t *testing.T) {
	t.Parallel()
	cfg, _ := newConfig(t, "deaf")
	p := mustStartPlugin(t, cfg)
	var err error
	for end := time.Now().Add(time.Minute); err == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
		err = p.CheckHealth(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "does not answer on its socket any more") {
		t.Errorf("unreachable: %v", err)
	}
	select {
	case <-p.Done():
		t.Error("it was to live on")
	default:
	}
}

// TestHostileLogs checks that the memory of the host does not grow with the output of a
// plugin, and that the plugin starts and its later lines are logged.
func TestHostileLogs(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"stderr-first": "",
		"long-line":    "after the long line",
		"storm":        "storm",
		"stdout-later": "stdout is written",
	} {
		t.Run(mode, func(t *testing.T) {
			cfg, out := newConfig(t, mode)
			if mode != "long-line" && mode != "stdout-later" {
				// The plugin logs millions of lines, most of which are below the logger's
				// level.
				cfg.Logger.SetLevel(hclog.Info)
			}
			var statsBefore, statsAfter runtime.MemStats
			runtime.ReadMemStats(&statsBefore)
			p := mustStartPlugin(t, cfg)
			if want != "" {
				out.awaitLine(t, want)
			}
			p.Stop(t.Context())
			logged := uint64(len(out.String()))
			out.mu.Lock()
			logged = max(logged, uint64(out.buf.Cap()))
			out.mu.Unlock()
			runtime.GC()
			runtime.ReadMemStats(&statsAfter)
			// The limit allows for twice the output that this test stores, and for other
			// tests.
			if grown := int64(statsAfter.HeapAlloc) - int64(statsBefore.HeapAlloc) - int64(2*logged); grown > 24<<20 {
				t.Errorf("the heap has grown by %d MiB", grown>>20)
			}
		})
	}
}

func TestLogRelay(t *testing.T) {
	t.Parallel()
	lines := []string{
		`{"@level":"warn","@message":"disk","@module":"hello.disk","@timestamp":"2026-01-02T03:04:05.000000Z","free":12,"dirs":["a","b"]}`,
		`{"@level":"warn","@message":"of the plugin itself","@module":"tester","@timestamp":"` + time.Now().Add(time.Minute).Format(time.RFC3339Nano) + `"}`,
		`{"@level":"warn","@message":"of a part of it","@module":"tester.disk.io"}`,
		`{"@level":"error","@message":7,"error":"no text"}`,
		`{"@level":"loud","@message":"unknown level"}`,
		`{"@level":["info"],"@message":"wrong type"}`,
		`{"message":"no level"}`,
		`[INFO] old style`,
		`plain words`,
		"bell \x07 and \x1b[31mred",
		"panic: it is over",
		"goroutine 1 [running]:",
	}
	cfg, out := newConfig(t, "log="+strings.Join(lines, "\n")+"\n")
	mustStartPlugin(t, cfg)
	for _, want := range [][]string{
		{"[WARN]", "host.tester: disk:", "@module=hello.disk", `dirs="[\"a\",\"b\"]"`, "free=12", "timestamp=2026-01-02T03:04:05.000000Z"},
		{"[WARN]", "host.tester: of the plugin itself: timestamp="},
		{"[WARN]", "host.tester.disk.io: of a part of it"},
		{"[DEBUG]", `"@message":7`},
		{"[DEBUG]", "unknown level"},
		{"[DEBUG]", "wrong type"},
		{"[DEBUG]", "no level"},
		{"[INFO]", "host.tester: old style"},
		{"[DEBUG]", "plain words"},
		{"[DEBUG]", `bell \a and \x1b[31mred`},
		{"[ERROR]", "panic: it is over"},
		{"[ERROR]", "goroutine 1 [running]:"},
	} {
		out.awaitLine(t, want...)
	}
}

func TestPluginEnvironment(t *testing.T) {
	t.Parallel()
	cfg, out := newConfig(t, "env")
	cfg.Env = PluginEnviron([]string{
		"HOME=/root", "NOMAD_TOKEN=secret1", "AWS_SECRET_ACCESS_KEY=secret2", "NOMAD_LITE_TOKEN=secret3",
		"PLUGIN_CLIENT_CERT=secret4", "NOMAD_PLUGIN_MAGIC_COOKIE=secret5", "NOMAD_ADDR=http://here",
		"NOMAD_LITE_PLUGIN_DEBUG=x=/y",
	}, nil, "/run/keeper.sock", "an-id")
	mustStartPlugin(t, cfg)
	for _, want := range []string{
		"env HOME=/root", "env NOMAD_ADDR=http://here", "env NOMAD_LITE_PLUGIN_DEBUG=x=/y", "env NOMAD_LITE_KEEPER=/run/keeper.sock", "env NOMAD_LITE_DIRECTORY_ID=an-id",
		"env NOMAD_PLUGIN_MAGIC_COOKIE=e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
		"env PLUGIN_MIN_PORT=10000", "env PLUGIN_MAX_PORT=25000", "env PLUGIN_PROTOCOL_VERSIONS=2",
		"env PLUGIN_UNIX_SOCKET_DIR=" + cfg.SocketDir, "argv0 /plugins/tester",
	} {
		out.awaitLine(t, want)
	}
	if regexp.MustCompile(`secret\d`).MatchString(out.String()) {
		t.Error("a secret reached the plugin")
	}
}

func TestPluginInheritsAllowedEnv(t *testing.T) {
	t.Parallel()
	environ := []string{"PATH=/bin", "LC_TIME=C", "LC=x", "AWS_SECRET_ACCESS_KEY=s", "DB_PASSWORD=s", "NOMAD_LITE_TOKEN=s", "PLUGIN_CLIENT_CERT=s"}
	for _, tt := range []struct{ allow, want []string }{
		{nil, []string{"PATH=/bin", "LC_TIME=C", "LC=x", "DB_PASSWORD=s"}},
		{[]string{}, nil},
		{[]string{"PATH", "LC_*"}, []string{"PATH=/bin", "LC_TIME=C"}},
		{[]string{"AWS_SECRET_ACCESS_KEY"}, []string{"AWS_SECRET_ACCESS_KEY=s"}},
		{[]string{"*"}, []string{"PATH=/bin", "LC_TIME=C", "LC=x", "AWS_SECRET_ACCESS_KEY=s", "DB_PASSWORD=s"}},
	} {
		if got := PluginEnviron(environ, tt.allow, "", ""); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.allow, got, tt.want)
		}
	}
}

// A zombie has ended, even if its parent has not reaped it.
func TestZombieHasEnded(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	kp, err := osprocess.LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := openProcessHandle(kp)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	go p.kill()
	if !p.waitAndCloseDone() {
		t.Error("the end was not seen")
	}
	<-p.done
	if again, err := openProcessHandle(kp); err != nil {
		t.Errorf("a zombie cannot be opened: %v", err)
	} else {
		again.close()
	}
	if _, err := openProcessHandle(osprocess.ID{PID: kp.PID, StartTime: kp.StartTime + 1}); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("another start time: %v", err)
	}
}

func TestReattach(t *testing.T) {
	t.Parallel()
	cfg, _ := newConfig(t, "schema")
	first := mustStartPlugin(t, cfg)
	rec := first.ReattachConfig()
	first.Detach()

	out := &logBuffer{}
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: out, Level: hclog.Trace, Name: "second"})
	p, err := ReattachOrKill(t.Context(), cfg, rec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.KillAndRelease)
	if p.PID() != rec.Pid || p.Info().Name != "good" || p.apiVersion != "0.1.0" {
		t.Errorf("reattached to pid %d, %+v", p.PID(), p.Info())
	}
	out.awaitLine(t, "second.tester", "init")
	if strings.Contains(out.String(), "config 2") {
		t.Error("SetConfig after a reattach")
	}
	if got := p.ReattachConfig(); got != rec {
		t.Errorf("record %+v, want %+v", got, rec)
	}
	p.Stop(t.Context())
	out.awaitLine(t, "second.tester", "shutdown")
	if err := p.WaitForExitReason(); !strings.Contains(err.Error(), "exited with code 0") {
		t.Errorf("exit: %v", err)
	}

	if _, err := ReattachOrKill(t.Context(), cfg, rec); !errors.Is(err, ErrProcessChanged) {
		t.Errorf("reattach to a dead plugin: %v, want %v", err, ErrProcessChanged)
	}
}

// Reattach does not touch a process that has reused the pid of a ReattachConfig.
func TestForeignProcessIsNotReattached(t *testing.T) {
	t.Parallel()
	stranger := exec.Command("/bin/sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }() // the status of a killed process is an error
	real, err := osprocess.LookupID(stranger.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := osprocess.BootID()
	if err != nil {
		t.Fatal(err)
	}
	good := ReattachConfig{Protocol: "grpc", Network: "unix", Addr: "/tmp/none", Pid: real.PID, StartTimeTicks: real.StartTime, BootID: boot}
	for name, change := range map[string]func(*ReattachConfig){
		"another start time": func(r *ReattachConfig) { r.StartTimeTicks-- },
		"another boot":       func(r *ReattachConfig) { r.BootID = "x" },
		"no boot id":         func(r *ReattachConfig) { r.BootID = "" },
		"no pid":             func(r *ReattachConfig) { r.Pid = 0 },
		"negative pid":       func(r *ReattachConfig) { r.Pid = -1 },
		"no address":         func(r *ReattachConfig) { r.Addr = "" },
		"another protocol":   func(r *ReattachConfig) { r.Protocol = "netrpc" },
	} {
		rec := good
		change(&rec)
		cfg, _ := newConfig(t, "good")
		if _, err := ReattachOrKill(t.Context(), cfg, rec); !errors.Is(err, ErrProcessChanged) {
			t.Errorf("%s: %v, want %v", name, err, ErrProcessChanged)
		}
	}
	if !real.Alive() {
		t.Error("the stranger is dead")
	}
}

// A process that runs but does not respond is not reported as exited.
func TestUnansweredCallNamesTheSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlugin(Config{Name: "x"})
		p.proc = &processHandle{done: make(chan struct{})}
		p.handshake = handshake{network: "unix", addr: "/run/x.sock"}
		err := p.explainCallError(t.Context(), "PluginInfo", driver.ErrPluginDown)
		if want := "PluginInfo: the process runs, and nothing answers gRPC on its socket /run/x.sock"; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	})
}

// A plugin has died together with the agent, or is killed by the next agent. The keeper then stores none of its streams, and
// its socket is removed; newConfig checks both.
func TestDeadPluginLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]func(Config, ReattachConfig){
		"killed before the reattach": func(cfg Config, rec ReattachConfig) {
			id := osprocess.ID{PID: rec.Pid, StartTime: rec.StartTimeTicks}
			if err := id.Signal(syscall.SIGKILL); err != nil || !id.EndsWithin(time.Minute) {
				t.Errorf("kill: %v", err)
			}
			if _, err := ReattachOrKill(t.Context(), cfg, rec); err == nil {
				t.Error("reattached")
			}
		},
		"killed by the next agent": func(cfg Config, rec ReattachConfig) {
			if !KillRecorded(rec, true, cfg.Keeper, cfg.SocketDir, cfg.Logger) {
				t.Error("the process did not exist")
			}
		},
		"killed after an interrupted launch": func(cfg Config, rec ReattachConfig) {
			rec.Protocol, rec.Network, rec.Addr = "", "", ""
			if !KillRecorded(rec, false, cfg.Keeper, cfg.SocketDir, cfg.Logger) {
				t.Error("the process did not exist")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _ := newConfig(t, "schema")
			var spawned ReattachConfig
			cfg.OnSpawn = func(rec ReattachConfig) { spawned = rec }
			p := mustStartPlugin(t, cfg)
			rec := p.ReattachConfig()
			if want := (ReattachConfig{Pid: rec.Pid, StartTimeTicks: rec.StartTimeTicks, BootID: rec.BootID, StreamKeyPrefix: rec.StreamKeyPrefix}); spawned != want {
				t.Errorf("OnSpawn got %+v, want %+v", spawned, want)
			}
			p.Detach()
			release(cfg, rec)
		})
	}
}

// A plugin whose agent and keeper have both died has no reader of its output. The next agent reads the output again, before
// the plugin writes and is killed by SIGPIPE.
func TestReattachReopensOutput(t *testing.T) {
	t.Parallel()
	cfg, _ := newConfig(t, "stdout-later") // writes to stdout and stderr when it is initialised
	p := mustStartPlugin(t, cfg)
	rec := p.ReattachConfig()
	for _, stream := range pipeNames {
		f, err := cfg.Keeper.DuplicateStoredFD(rec.StreamKeyPrefix + stream)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(100*time.Millisecond, func() { f.Close() }) // a killed keeper ends later than the signal is sent
		if err := cfg.Keeper.RemoveFD(t.Context(), rec.StreamKeyPrefix+stream); err != nil {
			t.Fatal(err)
		}
	}
	p.Detach()

	out := &logBuffer{}
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: out, Level: hclog.Trace, Name: "next"})
	p, err := ReattachOrKill(t.Context(), cfg, rec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.KillAndRelease)
	out.awaitLine(t, "stdout is written")
	for _, stream := range pipeNames {
		f, err := cfg.Keeper.DuplicateStoredFD(rec.StreamKeyPrefix + stream)
		if err != nil {
			t.Errorf("the keeper has no %s for the agent after the next: %v", stream, err)
			continue
		}
		f.Close()
	}
}

// The output of a plugin that has redirected it is not taken from its reader.
func TestRedirectedOutputIsNotReopened(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.Stdout = w // stderr is the null device
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // the process can have exited
		_ = cmd.Wait()         // the status of a killed process is an error
	}()
	id, err := osprocess.LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	h, err := openProcessHandle(id)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	for fd, want := range map[int]string{1: "another process reads it", 2: "no pipe"} {
		if f, err := h.reopenOutputPipe(fd); err == nil {
			f.Close()
			t.Errorf("descriptor %d is opened", fd)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("descriptor %d: %v, want %q", fd, err, want)
		}
	}
}

// The plugin of an interrupted launch cannot have tasks, so its children are killed with it.
func TestInterruptedLaunchOfScriptIsKilledWithItsChildren(t *testing.T) {
	t.Parallel()
	cfg, _ := newConfig(t, "good")
	stdout, child, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	id, err := cfg.Keeper.Spawn(t.Context(), keeper.Command{Path: "/bin/sh", Args: []string{"sh", "-c", "sleep 1000 & echo ready; wait"}, Stdout: child})
	child.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if !KillRecorded(ReattachConfig{Pid: id.PID, StartTimeTicks: id.StartTime}, false, cfg.Keeper, cfg.SocketDir, cfg.Logger) {
		t.Error("the process did not exist")
	}
	if n, err := stdout.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("stdout of the child: %d bytes, %v", n, err)
	}
}
