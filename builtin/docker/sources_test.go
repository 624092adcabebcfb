package docker

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// A driver that cannot mount sources itself refuses those that another task can replace while the engine mounts them.
func TestSourcesThatTasksCanReplace(t *testing.T) {
	enabled := map[string]any{"volumes": list(map[string]any{"enabled": true})}
	for _, test := range []struct {
		name   string
		plugin map[string]any
		source string
		want   string // end of the source without a mount of the driver; empty means refused
		bound  bool   // the driver mounts the source if it can
		own    bool
	}{
		{"directory of the task", nil, "local", "/web/local", false, false},
		{"shared directory", nil, "../alloc", "/alloc", false, false},
		{"below the directory of the task", nil, "local/a/b", "/web/local/a/b", true, true},
		{"below the shared directory", nil, "../alloc/data", "", true, false},
		{"below the shared directory, with all paths allowed", enabled, "../alloc/data", "/alloc/data", true, false},
		{"path of the host", enabled, "/etc", "/etc", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			task := map[string]any{"volumes": list(test.source + ":/x:ro")}
			plan, err := buildPlan(t, test.plugin, task, nil, nil)
			if err != nil || (len(plan.driverMountedSources) == 1) != test.bound || plan.engineMountsTaskReplaceablePaths {
				t.Fatalf("with mounts: %+v, %v", plan, err)
			}
			if plan, err = buildPlan(t, test.plugin, task, nil, errors.New("of a reason")); test.want == "" {
				if err == nil || !strings.Contains(err.Error(), "because of a reason. Name a path below the local directory of the task") {
					t.Errorf("without mounts: %v", err)
				}
				return
			}
			if err != nil || len(plan.driverMountedSources) > 0 || plan.engineMountsTaskReplaceablePaths != test.own || !strings.HasSuffix(plan.createOptions.HostConfig.Binds[0], test.want+":/x:ro") {
				t.Errorf("without mounts: %+v, %v", plan, err)
			}
		})
	}
}

// newMountEngine returns an engine that calls create for each container. The API does not start anything.
func newMountEngine(t *testing.T, create func(*container.HostConfig)) *fakeEngine {
	e := newFakeEngine(t)
	e.handle("GET /images/i:1/json", reply(http.StatusOK, map[string]any{"Id": testImageID}))
	e.handle("GET /containers/json", reply(http.StatusOK, list()))
	e.handle("POST /containers/create", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ HostConfig container.HostConfig }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		create(&body.HostConfig)
		reply(http.StatusCreated, map[string]any{"Id": "c1"})(w, r)
	})
	e.handle("POST /containers/c1/start", reply(http.StatusNoContent, nil))
	e.handle("GET /containers/c1/json", reply(http.StatusOK, map[string]any{"Id": "c1", "Config": map[string]any{}, "State": map[string]any{}}))
	e.handle("DELETE /containers/c1", reply(http.StatusNoContent, nil))
	return e
}

func sources(host *container.HostConfig) []string {
	var all []string
	for _, bind := range host.Binds {
		source, _, _ := strings.Cut(bind, ":")
		all = append(all, source)
	}
	for _, m := range host.Mounts {
		all = append(all, m.Source)
	}
	return all
}

// The engine is the witness: when it gets a path it opens what is there, as often as it likes. While another task exchanges
// directories and links, that is never a file outside of the allocation.
func TestSourcesAreMountedAsChecked(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	canary := t.TempDir()
	if err := os.WriteFile(filepath.Join(canary, "canary"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	created := 0
	e := newMountEngine(t, func(host *container.HostConfig) {
		created++
		for range 20 {
			for _, source := range sources(host) {
				for _, name := range []string{"canary", "d/canary", "etc/passwd"} {
					if _, err := os.Stat(filepath.Join(source, name)); err == nil {
						t.Errorf("the engine finds %s in %s", name, source)
					}
				}
			}
		}
	})
	d := newTestDriver(t, e.host, nil)
	root := t.TempDir()
	shared := filepath.Join(root, "11111111-2222-3333-4444-555555555555/alloc")
	dirs := []string{"data", "data/d", "data/d/d"}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(shared, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"up": canary, "data/root": "/", "data/d/up": "../../../../../.."} {
		if err := os.Symlink(target, filepath.Join(shared, link)); err != nil {
			t.Fatal(err)
		}
	}
	processtest.ExchangePaths(t, filepath.Join(shared, "data"), filepath.Join(shared, "up"))

	attempts := 120
	if testing.Short() {
		attempts = 30
	}
	names := []string{"data", "d", "up", "root", ".", "..", "", "new", "data/d", "data/d/d"}
	for i := range attempts {
		source := []string{"../alloc", shared, "../alloc/./", "local/../../alloc", "/" + shared + "/data/.."}[random.IntN(5)]
		for range 1 + random.IntN(3) {
			source += "/" + names[random.IntN(len(names))]
		}
		if i%3 == 0 {
			source = "../alloc/data/d" // can succeed
		}
		task := map[string]any{"image": "i:1", "volumes": list(source + ":/x" + []string{"", ":ro", ":rw,z", ":rslave"}[random.IntN(4)])}
		if random.IntN(2) == 0 {
			task = map[string]any{"image": "i:1", "mount": list(map[string]any{"type": "bind", "source": source, "target": "/x"})}
		}
		start := newTestStart(t, task)
		start.AllocDir = filepath.Dir(shared)
		start.ID = fmt.Sprintf("%s/web/%d", start.AllocID, i)
		makeTaskDirs(t, start)
		task2, err := d.Start(t.Context(), start)
		if err != nil {
			if !errorNamesSource(err) {
				t.Errorf("%s: %v", source, err)
			}
			continue
		}
		if err := task2.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d of %d containers were created", created, attempts)
	if os.Geteuid() == 0 && created == 0 {
		t.Error("no container was created, so that the engine has found nothing")
	}
	if mounts := mountsBelow(t, root); len(mounts) > 0 {
		t.Errorf("mounts remain: %q", mounts)
	}
}

// errorNamesSource reports whether an error is about the source of a mount.
func errorNamesSource(err error) bool {
	return strings.Contains(err.Error(), "mount ") || strings.Contains(err.Error(), "volumes: ")
}

func mountsBelow(t *testing.T, dir string) (paths []string) {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if path := strings.Fields(lines.Text())[4]; strings.HasPrefix(path, dir+"/") {
			paths = append(paths, path)
		}
	}
	return paths
}

// newMountStart returns a start whose container needs a mount of the driver.
func newMountStart(t *testing.T) *sdk.StartRequest {
	t.Helper()
	start := newTestStart(t, map[string]any{"image": "i:1", "volumes": list("../alloc/data/d:/x", "local/file:/y:ro")})
	makeTaskDirs(t, start)
	if err := os.MkdirAll(filepath.Join(start.AllocDir, "alloc/data/d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(start.TaskDir(), "local/file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	return start
}

func skipUnlessMounting(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Skip("mount: ", err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
}

// A process that dies at any step leaves mounts that the next start, or the host, removes.
func TestLeftoverMountsAreRemoved(t *testing.T) {
	skipUnlessMounting(t)
	var host *container.HostConfig
	e := newMountEngine(t, func(h *container.HostConfig) { host = h })
	d := newTestDriver(t, e.host, nil)
	start := newMountStart(t)
	task := safeOpen(t, start.TaskDir())
	mounts := filepath.Join(start.TaskDir(), driver.MountsDir)
	b := sourceMounter{engine: d.engine, start: start}
	plan := func() []driverMountedSource {
		var tc taskConfig
		if err := start.DecodeConfig(&tc); err != nil {
			t.Fatal(err)
		}
		plan, err := planContainer(&d.config, &tc, start, nil)
		if err != nil {
			t.Fatal(err)
		}
		return plan.driverMountedSources
	}
	for i, die := range []func() error{
		func() error { return os.Mkdir(mounts, 0o700) },
		func() error { return errors.Join(os.Mkdir(mounts, 0o700), unix.Mount("tmpfs", mounts, "tmpfs", 0, "")) },
		func() error { dir, err := b.makeAndOpenMountsDir(); unix.Close(dir); return err },
		func() error { return b.replaceAllMounts(t.Context(), plan()[:1]) },
		func() error { return b.replaceAllMounts(t.Context(), plan()) },
		func() error { _, err := d.Start(t.Context(), start); return err },
	} {
		for _, next := range []string{"start", "end"} {
			start.ID = fmt.Sprintf("%s/web/%d-%s", start.AllocID, i, next)
			if err := die(); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			if next == "end" {
				// The host unmounts the directory, when the task does not start again.
				if err := errors.Join(unmountAllAt(task, driver.MountsDir), os.Remove(mounts)); err != nil {
					t.Errorf("step %d: %v", i, err)
				}
				continue
			}
			start.ID += "-next"
			task, err := d.Start(t.Context(), start)
			if err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			if got := mountsBelow(t, start.AllocDir); len(got) != 3 {
				t.Errorf("step %d: mounts %q, want the directory and two sources", i, got)
			}
			if text, err := os.ReadFile(sources(host)[len(sources(host))-1]); string(text) != "text" {
				t.Errorf("step %d: the file has %q, %v", i, text, err)
			}
			if err := task.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if got := mountsBelow(t, start.AllocDir); len(got) > 0 {
			t.Errorf("step %d: mounts remain: %q", i, got)
		}
		if _, err := os.Lstat(mounts); err == nil {
			t.Errorf("step %d: %s remains", i, mounts)
		}
	}
}

func safeOpen(t *testing.T, dir string) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// The clean-up of an earlier start does not unmount the sources of the next one.
func TestLateDestroyKeepsMounts(t *testing.T) {
	skipUnlessMounting(t)
	d := newTestDriver(t, newMountEngine(t, func(*container.HostConfig) {}).host, nil)
	start := newMountStart(t)
	first, err := d.Start(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	again := *start
	again.ID += "-again"
	second, err := d.Start(t.Context(), &again)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if got := mountsBelow(t, start.AllocDir); len(got) != 3 {
		t.Errorf("mounts %q, want those of the second start", got)
	}
	if err := second.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if got := mountsBelow(t, start.AllocDir); len(got) > 0 {
		t.Errorf("mounts remain: %q", got)
	}
}

// Without mounts of the driver, no container of the task runs while the engine opens a path in the directory of the task.
func TestOwnContainersAreRemovedFirst(t *testing.T) {
	e := newMountEngine(t, func(*container.HostConfig) {})
	d := newTestDriver(t, e.host, nil)
	start := newTestStart(t, map[string]any{"image": "i:1", "volumes": list("local/link/file:/y")})
	makeTaskDirs(t, start)
	local := filepath.Join(start.TaskDir(), "local")
	if err := errors.Join(os.Mkdir(filepath.Join(local, "old"), 0o755), os.Symlink("old", filepath.Join(local, "link"))); err != nil {
		t.Fatal(err)
	}
	e.handle("GET /containers/json", reply(http.StatusOK, list(map[string]any{"Id": "c0"})))
	e.handle("DELETE /containers/c0", func(w http.ResponseWriter, r *http.Request) {
		// The last act of the container.
		if err := errors.Join(os.Remove(filepath.Join(local, "link")), os.Symlink("/etc", filepath.Join(local, "link"))); err != nil {
			t.Error(err)
		}
		reply(http.StatusNoContent, nil)(w, r)
	})
	remote := newTestDriver(t, "tcp://127.0.0.1:1", nil)
	b := sourceMounter{engine: remote.engine, start: start}
	var tc taskConfig
	if err := start.DecodeConfig(&tc); err != nil {
		t.Fatal(err)
	}
	plan, err := planContainer(&d.config, &tc, start, b.cannotBindMountReason())
	if err != nil || !plan.engineMountsTaskReplaceablePaths {
		t.Fatalf("%+v, %v", plan, err)
	}
	if plan, err = d.mountSourcesOrReplan(t.Context(), plan, b, &d.config, &tc); err == nil || !strings.Contains(err.Error(), "the path /etc/file is outside of the directories of the task") {
		t.Errorf("%+v, %v", plan, err)
	}
}

const envListen = "DOCKER_TEST_LISTEN"

// TestListener is not a test: it is the engine of TestEngineWithoutTheMounts, in a process of its own.
func TestListener(t *testing.T) {
	path := os.Getenv(envListen)
	if path == "" {
		t.Skip("it is a part of TestEngineWithoutTheMounts")
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("listening")
	for {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
}

// An engine that does not see the mounts of the driver gets no path in which they would be missing.
func TestEngineWithoutTheMounts(t *testing.T) {
	skipUnlessMounting(t)
	socket := filepath.Join(t.TempDir(), "engine.sock")
	engine := exec.Command(os.Args[0], "-test.run=^TestListener$")
	engine.Env = append(os.Environ(), envListen+"="+socket)
	engine.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := engine.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Process.Kill(); engine.Wait() })
	for lines := bufio.NewScanner(out); lines.Text() != "listening"; {
		if !lines.Scan() {
			t.Fatal("the engine does not listen")
		}
	}
	for _, test := range []struct{ host, want string }{
		{"unix://" + socket, "the engine does not see mounts of the agent"},
		{"tcp://127.0.0.1:1", "the engine at tcp://127.0.0.1:1 can be on another machine"},
	} {
		d := newTestDriver(t, test.host, nil)
		start := newMountStart(t)
		b := sourceMounter{engine: d.engine, start: start}
		var tc taskConfig
		if err := start.DecodeConfig(&tc); err != nil {
			t.Fatal(err)
		}
		plan := &containerPlan{driverMountedSources: []driverMountedSource{{hostMountSource: hostMountSource{taskOrAllocDir: filepath.Join(start.AllocDir, "alloc"), relativePath: "data/d"}, mountPointName: "0"}}}
		_, err := d.mountSourcesOrReplan(t.Context(), plan, b, &d.config, &tc)
		if err == nil || !strings.Contains(err.Error(), "/alloc/data/d is below a directory in which tasks can write") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error with %q", test.host, err, test.want)
		}
		if err := unmountSources(start); err != nil {
			t.Error(err)
		}
		if got := mountsBelow(t, start.AllocDir); len(got) > 0 {
			t.Errorf("%s: mounts remain: %q", test.host, got)
		}
	}
}

// A task cannot replace a device that a job names: its path is in no directory that others can write.
func TestDevicesInDirectoriesOfTasks(t *testing.T) {
	_, err := buildPlan(t, nil, map[string]any{"devices": list(map[string]any{"host_path": "/no/such/device"})}, nil, nil)
	if err != nil {
		t.Errorf("a device that can be on another machine: %v", err)
	}
	start := newTestStart(t, map[string]any{"image": "i:1"})
	makeTaskDirs(t, start)
	shared := filepath.Join(start.AllocDir, "alloc")
	if err := errors.Join(os.Chmod(shared, 0o777), os.Symlink("/dev/null", filepath.Join(shared, "device"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"device", "later"} {
		_, err := buildPlan(t, nil, map[string]any{"devices": list(map[string]any{"host_path": filepath.Join(shared, name)})}, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "devices: everybody may write to "+shared) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An archive that a task names is a file of its local directory, and ends.
func TestOpenArchive(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.Mkdir(path("local"), 0o700), os.WriteFile(path("outside"), []byte("x"), 0o600), os.WriteFile(path("local/image"), []byte("text"), 0o600),
		unix.Mkfifo(path("local/fifo"), 0o600), os.WriteFile(path("local/sparse"), nil, 0o600), os.Truncate(path("local/sparse"), 1<<42),
		os.Symlink("image", path("local/link")), os.Symlink("../outside", path("local/out")), os.Symlink("/dev/zero", path("local/zero")),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"image": "", "link": "", "fifo": "is not a regular file", ".": "is not a regular file", "none": "no such file", "out": "must be in the task's local directory",
		"../outside": "must be in the task's local directory", "zero": "must be in the task's local directory", "sparse": "has 4398046511104 bytes, and its disk",
	} {
		archive, err := openImageArchive(path("local"), name)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want an error with %q", name, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := io.ReadAll(archive)
		if err != nil || string(text) != "text" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		archive.Close()
	}
	archive, err := openImageArchive(path("local"), "image")
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if err := os.WriteFile(path("local/image"), []byte("text that grows"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(archive); err != nil || string(text) != "text" {
		t.Errorf("an archive that grows has %q, %v", text, err)
	}
}

// The engines of the machine mount what the driver has checked, also while another task exchanges directories and links.
func TestEnginesMountWhatIsChecked(t *testing.T) {
	slowtest.SkipLong(t, "starts two engines and many containers")
	for name, start := range map[string]func(testing.TB) *dockertest.Engine{"docker": dockertest.StartOrSkip, "podman": dockertest.StartPodmanOrSkip} {
		t.Run(name, func(t *testing.T) {
			e := start(t)
			skipUnlessMounting(t)
			d := newTestDriver(t, e.Host, map[string]any{"gc": list(map[string]any{"image": false})})
			s := newTestStart(t, map[string]any{
				"image": dockertest.Image, "command": "/bin/sh", "network_mode": "none",
				"args":    list("-c", "test ! -e /x/canary && test ! -e /x/etc && echo $A >/x/written && test $(cat /y) = text && ! echo >/y"),
				"volumes": list("../alloc/data/d:/x", "local/file:/y:ro"),
			})
			makeTaskDirs(t, s)
			shared, canary := filepath.Join(s.AllocDir, "alloc"), t.TempDir()
			if err := errors.Join(
				os.MkdirAll(filepath.Join(shared, "data/d"), 0o755), os.MkdirAll(filepath.Join(canary, "d"), 0o755),
				os.WriteFile(filepath.Join(canary, "d/canary"), nil, 0o600), os.Symlink(canary, filepath.Join(shared, "link")),
				os.WriteFile(filepath.Join(s.TaskDir(), "local/file"), []byte("text"), 0o600),
			); err != nil {
				t.Fatal(err)
			}
			started := 0
			for i := 0; started < 5 && i < 200; i++ {
				if i == 1 { // the first container starts in peace
					processtest.ExchangePaths(t, filepath.Join(shared, "data"), filepath.Join(shared, "link"))
				}
				s.ID = fmt.Sprintf("%s/web/%d", s.AllocID, i)
				task, err := d.Start(t.Context(), s)
				if err != nil {
					if i == 0 || !errorNamesSource(err) {
						t.Fatal(err)
					}
					continue
				}
				started++
				if exit, err := task.Wait(t.Context()); err != nil || !exit.Successful() {
					t.Errorf("container %d: %+v, %v", i, exit, err)
				}
				if err := task.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}
			t.Logf("%d containers were started", started)
			if _, err := os.Stat(filepath.Join(canary, "d/written")); err == nil {
				t.Error("a container has written to a directory of the host")
			}
			if mounts := mountsBelow(t, s.AllocDir); len(mounts) > 0 {
				t.Errorf("mounts remain: %q", mounts)
			}
		})
	}
}
