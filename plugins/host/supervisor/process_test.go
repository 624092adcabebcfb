package supervisor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperserver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
	"github.com/nomad-lite/nomad-lite/plugins/proto/basepb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
)

func TestMain(m *testing.M) {
	switch args := strings.Join(os.Args[1:], " "); {
	case args == "test-keeper":
		if err := keeperserver.Serve(context.Background(), keeperwire.ProtocolVersion); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case strings.HasPrefix(args, "plugin serve "):
		servePlugin(os.Args[3])
		os.Exit(0)
	}
	// Without this option a binary with the race detector sleeps for a second when it
	// exits.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	// Most tests wait for processes and use no CPU time.
	_ = flag.Set("test.parallel", "8")
	code := m.Run()
	if left := leftovers(); code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, "left behind:\n"+left)
		code = 1
	}
	os.Exit(code)
}

// leftovers waits up to a minute for the goroutines of the tests to end, and returns the stacks
// of the goroutines that still run.
func leftovers() string {
	var leftoverStacks string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		leftoverStacks = ""
		buf := make([]byte, 1<<20)
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "leftovers") {
				continue
			}
			if strings.Contains(g, "nomad-lite/plugins") || strings.Contains(g, "go-plugin") || strings.Contains(g, "google.golang.org/grpc") {
				leftoverStacks += g + "\n\n"
			}
		}
		if leftoverStacks == "" {
			return ""
		}
	}
	return leftoverStacks
}

// servePlugin is the main function of a plugin process.
func servePlugin(mode string) {
	stderr := os.Stderr
	d := &pluginProcessDriver{name: mode}
	switch mode {
	case "legacy":
		serveLegacyPlugin()
		return
	case "deaf":
		l := listenUnix()
		s := grpc.NewServer()
		basewire.RegisterServer(s, d)
		driverwire.RegisterServer(s, &unreachableDriver{pluginProcessDriver: d, closeListener: s.Stop})
		_ = s.Serve(l)
		time.Sleep(10 * eventuallyTimeout)
		return
	case "storm":
		go func() {
			for i := 0; ; i++ {
				fmt.Fprintf(stderr, `{"@level":"info","@message":"storm","n":%d}`+"\n", i)
			}
		}()
	case "broken":
		fmt.Fprintln(os.Stderr, "no licence")
		os.Exit(3)
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName:   &basewire.GRPCPlugin{Impl: d},
			driverwire.PluginName: &driverwire.GRPCPlugin{Impl: d},
		},
		GRPCServer: plugin.DefaultGRPCServer,
		Logger:     hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true, Output: stderr}),
	})
}

func listenUnix() net.Listener {
	l, err := net.Listen("unix", filepath.Join(os.Getenv(plugin.EnvUnixSocketDir), fmt.Sprintf("own%d", os.Getpid())))
	if err != nil {
		panic(err)
	}
	fmt.Printf("1|2|unix|%s|grpc|\n", l.Addr())
	return l
}

// pluginProcessDriver is a driver without tasks.
type pluginProcessDriver struct {
	driver.Driver
	name string
}

func (d *pluginProcessDriver) PluginInfo(context.Context) (*base.Info, error) {
	return &base.Info{Type: base.TypeDriver, Name: d.name, Version: "0.1.0", APIVersions: []string{"v0.1.0"}}, nil
}
func (d *pluginProcessDriver) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }
func (d *pluginProcessDriver) SetConfig(context.Context, *base.Config) error       { return nil }
func (d *pluginProcessDriver) Init(context.Context) error                          { return nil }
func (d *pluginProcessDriver) Shutdown(context.Context) error                      { return nil }
func (d *pluginProcessDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	return &driver.Capabilities{Exec: true}, nil
}
func (d *pluginProcessDriver) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	ch := make(chan driver.Fingerprint, 1)
	ch <- driver.Fingerprint{
		Health: driver.HealthHealthy, HealthDescription: "Healthy",
		Attributes: map[string]driver.Attribute{"driver." + d.name + ".pid": {Value: int64(os.Getpid())}},
	}
	return ch, nil
}
func (d *pluginProcessDriver) TaskEvents(ctx context.Context) (<-chan *driver.TaskEvent, error) {
	ch := make(chan *driver.TaskEvent, 1)
	ch <- &driver.TaskEvent{TaskID: "id", AllocID: "alloc", TaskName: "task", Message: "hello", Timestamp: time.Now()}
	return ch, nil
}

// unreachableDriver stops listening soon after its first fingerprint.
type unreachableDriver struct {
	*pluginProcessDriver
	closeListener func()
}

func (d *unreachableDriver) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	time.AfterFunc(100*time.Millisecond, d.closeListener)
	return d.pluginProcessDriver.Fingerprint(ctx)
}

// legacyDriver behaves like a driver for an early version of Nomad: it has neither Init nor
// Shutdown, and omits optional fields. Its server has none of go-plugin's services.
type legacyDriver struct {
	driverpb.UnimplementedDriverServer
	basepb.UnimplementedBasePluginServer
}

func serveLegacyPlugin() {
	l := listenUnix()
	s := grpc.NewServer()
	driverpb.RegisterDriverServer(s, legacyDriver{})
	basepb.RegisterBasePluginServer(s, legacyDriver{})
	_ = s.Serve(l)
}

func (legacyDriver) PluginInfo(context.Context, *basepb.PluginInfoRequest) (*basepb.PluginInfoResponse, error) {
	return &basepb.PluginInfoResponse{Type: 2, Name: "hello-world-example", PluginVersion: "v0.1.0", PluginApiVersions: []string{"v0.1.0"}}, nil
}

func (legacyDriver) ConfigSchema(context.Context, *basepb.ConfigSchemaRequest) (*basepb.ConfigSchemaResponse, error) {
	return &basepb.ConfigSchemaResponse{}, nil
}

func (legacyDriver) SetConfig(context.Context, *basepb.SetConfigRequest) (*basepb.SetConfigResponse, error) {
	return &basepb.SetConfigResponse{}, nil
}

func (legacyDriver) Capabilities(context.Context, *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	return &driverpb.CapabilitiesResponse{}, nil
}

func (legacyDriver) Fingerprint(_ *driverpb.FingerprintRequest, stream grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	if err := stream.Send(&driverpb.FingerprintResponse{Health: 2}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (legacyDriver) TaskEvents(_ *driverpb.TaskEventsRequest, stream grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	if err := stream.Send(&driverpb.DriverTaskEvent{Message: "bare"}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// socketDirFunc returns a function for Config.EnsureSocketDir that always returns the same
// existing directory.
func socketDirFunc(dir string) func() (string, error) {
	return func() (string, error) { return dir, nil }
}

// newSupervisorWithKeeper starts a keeper and a supervisor. The test fails if processes that they have
// started remain.
func newSupervisorWithKeeper(t testing.TB, cc catalog.Config, onEvent func(string, driver.TaskEvent)) *Supervisor {
	t.Helper()
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	k, err := keeper.ConnectOrStart(t.Context(), keeper.Config{DataDir: filepath.Join(dir, "keeper"), KeeperArgv: []string{"nomad-lite-keeper", "test-keeper"}, Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	sockets := filepath.Join(dir, "sockets")
	if err := os.Mkdir(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := catalog.New(cc)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Catalog: c, Keeper: k, KeeperSocketPath: k.SocketPath(), EnsureSocketDir: socketDirFunc(sockets)})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx, Tasks{OnEvent: onEvent}) })
	t.Cleanup(func() {
		began := time.Now()
		cancel()
		wg.Wait()
		if d := time.Since(began); d > time.Minute {
			t.Errorf("the end took %v", d)
		}
		if keys, err := k.FetchStoredFDKeys(context.Background()); err != nil || len(keys) > 0 {
			t.Errorf("the keeper still holds %v, %v", keys, err)
		}
		procs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, p := range procs {
			env, _ := os.ReadFile(p)
			if strings.Contains(string(env), sockets) {
				t.Errorf("process %s is left", p)
			}
		}
		if left, _ := os.ReadDir(sockets); len(left) > 0 && !strings.HasPrefix(left[0].Name(), "own") {
			t.Errorf("sockets are left: %v", left)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return s
}

func newCatalogBuiltins(names ...string) (out []catalog.Builtin) {
	for _, n := range names {
		out = append(out, catalog.Builtin{Name: n})
	}
	return out
}

// installPlugins copies this test binary into a plugin directory.
func installPlugins(t testing.TB, names ...string) string {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// ForkLock prevents other tests from forking while the file is open for writing: a
	// forked process would inherit the open file, and executing the file would fail with
	// ETXTBSY until that process calls exec.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for _, name := range names {
		to := filepath.Join(dir, name)
		if os.Link(self, to) == nil {
			continue
		}
		src, err := os.Open(self)
		if err != nil {
			t.Fatal(err)
		}
		dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(dst, src)
		if err := errors.Join(err, src.Close(), dst.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// awaitHealthy waits for the fingerprints of drivers, for longer than WaitBrieflyForFirstReports does, because the
// machine may be slow.
func awaitHealthy(t *testing.T, s *Supervisor, names []string) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		infoChanged, drivers := s.InfoChanged(), s.DriverInfoByName()
		sick := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return drivers[name].Healthy })
		if len(sick) == 0 {
			return
		}
		select {
		case <-infoChanged:
		case <-limit:
			t.Fatalf("drivers %v of %+v are not healthy; plugins %+v", sick, drivers, s.Plugins())
		}
	}
}

func TestDriversOfBuiltinsAndFiles(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("ends a plugin without Shutdown, which is killed after two seconds")
	}
	dir := installPlugins(t, "strange-file", "scripted.real")
	script := "#!/bin/sh\nexec \"$0.real\" plugin serve \"$1\"\n"
	syscall.ForkLock.RLock() // see install
	err := os.WriteFile(filepath.Join(dir, "scripted"), []byte(script), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	var eventCount atomic.Int32
	s := newSupervisorWithKeeper(t, catalog.Config{
		Builtins:  newCatalogBuiltins("one", "two", "broken"),
		PluginDir: dir,
		Blocks: []catalog.PluginBlock{
			{Name: "strange-file", Args: []string{"plugin", "serve", "legacy"}},
			{Name: "scripted", Args: []string{"three"}},
		},
	}, func(name string, ev driver.TaskEvent) {
		if (name == "hello-world-example" && ev.Message == "bare") || ev.Message == "hello" {
			eventCount.Add(1)
		}
	})
	names := []string{"one", "two", "three", "hello-world-example"}
	awaitHealthy(t, s, names)
	for _, name := range names {
		d, err := s.Driver(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Capabilities(t.Context()); err != nil {
			t.Errorf("driver %s: %v", name, err)
		}
	}
	if _, err := s.Driver(t.Context(), "broken"); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "exited with code 3, its last words on stderr: no licence") {
		t.Errorf("broken driver: %v", err)
	}
	eventually(t, "each driver has sent its task event", func() bool { return eventCount.Load() >= 4 })
	if got := eventCount.Load(); got != 4 {
		t.Errorf("%d task events, want one of each driver", got)
	}
}

// After kill -9 of a plugin, calls fail with ErrPluginDown, and the next call of Driver
// returns another process without delay.
func TestPluginKilled(t *testing.T) {
	t.Parallel()
	s := newSupervisorWithKeeper(t, catalog.Config{Builtins: newCatalogBuiltins("one")}, nil)
	d, err := s.Driver(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := s.Plugins()[0].PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err = d.Capabilities(t.Context()); err != nil {
			break
		}
	}
	if !errors.Is(err, driver.ErrPluginDown) {
		t.Errorf("call at a dead plugin: %v", err)
	}
	d, err = s.Driver(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Capabilities(t.Context()); err != nil {
		t.Error(err)
	}
	if now := s.Plugins()[0].PID; now == pid || now == 0 {
		t.Errorf("pid %d, was %d", now, pid)
	}
	eventually(t, "it is healthy again", func() bool { return s.DriverInfoByName()["one"].Healthy })
}

// eventuallyTimeout is the time after which a test has failed. It is long, because the
// machine may be slow.
const eventuallyTimeout = time.Minute

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(eventuallyTimeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// After kill -9 of the keeper, the plugin continues and is not launched again. When the
// plugin dies, a new keeper starts the next process.
func TestKeeperKilled(t *testing.T) {
	t.Parallel()
	s := newSupervisorWithKeeper(t, catalog.Config{Builtins: newCatalogBuiltins("one")}, nil)
	d, err := s.Driver(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	pid := s.Plugins()[0].PID
	k := s.cfg.Keeper.(*keeper.Client)
	reattached := k.Status().KeeperProcess
	if err := reattached.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for k.Status().KeeperProcess == reattached {
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := d.Capabilities(t.Context()); err != nil || s.Plugins()[0].PID != pid {
		t.Errorf("after the death of the keeper: %v, pid %d, was %d", err, s.Plugins()[0].PID, pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err = d.Capabilities(t.Context()); err != nil {
			break
		}
	}
	d, err = s.Driver(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Capabilities(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestUnreachablePluginIsReplaced(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits five seconds for the second launch")
	}
	s := newSupervisorWithKeeper(t, catalog.Config{Builtins: newCatalogBuiltins("deaf")}, nil)
	var pid int
	eventually(t, "a process is there", func() bool {
		pid = s.Plugins()[0].PID
		return pid != 0
	})
	eventually(t, "another process is there", func() bool {
		now := s.Plugins()[0].PID
		return now != pid && now != 0
	})
	eventually(t, "the first has been killed", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

func TestLogStormAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newSupervisorWithKeeper(t, catalog.Config{Builtins: newCatalogBuiltins("storm")}, nil)
	if _, err := s.Driver(t.Context(), "storm"); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkLaunchToFingerprint measures the time from the start of a supervisor to the
// first fingerprint. For comparison it reports the time in which the kernel starts any
// process.
func BenchmarkLaunchToFingerprint(b *testing.B) {
	dir := b.TempDir()
	k, err := keeper.ConnectOrStart(b.Context(), keeper.Config{DataDir: filepath.Join(dir, "k"), KeeperArgv: []string{"nomad-lite-keeper", "test-keeper"}, Ephemeral: true})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	c, err := catalog.New(catalog.Config{Builtins: newCatalogBuiltins("one")})
	if err != nil {
		b.Fatal(err)
	}
	sockets, err := os.MkdirTemp("", "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(sockets)
	var totalLaunchTime time.Duration
	for b.Loop() {
		s := New(Config{Catalog: c, Keeper: k, EnsureSocketDir: socketDirFunc(sockets)})
		ctx, cancel := context.WithCancel(b.Context())
		var wg sync.WaitGroup
		began := time.Now()
		wg.Go(func() { _ = s.Run(ctx, Tasks{}) })
		if err := s.WaitBrieflyForFirstReports(ctx); err != nil {
			b.Fatal(err)
		}
		totalLaunchTime += time.Since(began)
		if !s.DriverInfoByName()["one"].Healthy {
			b.Fatal("not healthy")
		}
		cancel()
		wg.Wait()
	}
	b.ReportMetric(float64(totalLaunchTime.Microseconds())/1000/float64(b.N), "ms/launch")
}

func BenchmarkForkExecBaseline(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/launch")
}
