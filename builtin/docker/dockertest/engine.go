package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

// Image is the name of an image that each engine has: a static busybox, with the file
// /www/index.html, whose content is "hello\n".
const Image = "nomad-lite-test:1"

// Engine is a Docker engine whose data, containers and socket are in a directory of the
// test. Other engines of the machine are not affected.
type Engine struct {
	Host string // Host is the address of the engine, for DOCKER_HOST
	*client.Client

	dataDir      string
	startCommand []string // command line that starts the engine
	cmd          *exec.Cmd
	busyboxPath  string // path of a static busybox
}

// startTimeout is the time within which a started engine must answer.
const startTimeout = 60 * time.Second

// StartOrSkip starts a Docker engine. The engine and its containers are removed when the test ends. StartOrSkip
// skips the test with -short, without root, or if a program is not installed; with NOMAD_LITE_CI
// set, a missing program fails the test. Only one engine of tests runs at a time, because engines
// share the bridge of the machine.
func StartOrSkip(t testing.TB) *Engine {
	t.Helper()
	skipOrLockEngine(t)
	return startDocker(t)
}

// StartPodmanOrSkip is like Start, and starts podman with its Docker API. It uses runc, because crun
// refuses hybrid cgroups.
func StartPodmanOrSkip(t testing.TB) *Engine {
	t.Helper()
	skipOrLockEngine(t)
	return startPodman(t)
}

// StartDockerAndPodmanOrSkip starts both engines, for a test that needs both. Their containers are in
// different networks.
func StartDockerAndPodmanOrSkip(t testing.TB) (docker, podman *Engine) {
	t.Helper()
	skipOrLockEngine(t)
	return startDocker(t), startPodman(t)
}

func startDocker(t testing.TB) *Engine {
	t.Helper()
	e := startEngine(t, "dockerd", "docker.io", func(dir, host string) []string {
		return []string{"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
			"--host", host, "--iptables=false", "--ip-masq=false", "--ip-forward=false"}
	})
	e.ImportBusyboxImage(t, Image, nil)
	return e
}

func startPodman(t testing.TB) *Engine {
	t.Helper()
	e := startEngine(t, "podman", "podman", func(dir, host string) []string {
		UsePodmanConfig(t, filepath.Join(dir, "containers.conf"))
		return []string{"--root", filepath.Join(dir, "data"), "--runroot", filepath.Join(dir, "exec"), "--tmpdir", filepath.Join(dir, "tmp"),
			"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "runc", "--network-backend", "cni", "system", "service", "--time", "0", host}
	})
	e.ImportBusyboxImage(t, Image, nil)
	return e
}

// UsePodmanConfig writes a configuration, which podman uses until the test ends instead of the configuration of the
// machine. Without CAP_SYS_RESOURCE, podman cannot set limits of containers above its own limits,
// which it lowers to kernel.pid_max when it starts. The limits in the written configuration exceed
// neither limit.
func UsePodmanConfig(t testing.TB, path string) {
	t.Helper()
	var limits []string
	for name, resource := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(resource, &limit); err != nil {
			t.Fatal(err)
		}
		const maxLimit = 1 << 14 // less than each default of kernel.pid_max
		n := min(limit.Max, maxLimit)
		limits = append(limits, fmt.Sprintf("%q", fmt.Sprintf("%s=%d:%d", name, n, n)))
	}
	text := "[containers]\ndefault_ulimits = [" + strings.Join(limits, ", ") + "]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONTAINERS_CONF", path)
}

// skipOrLockEngine skips the test if it must not start an engine, and waits until no other test has one.
func skipOrLockEngine(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a Docker engine needs root")
	}
	if testing.Short() {
		t.Skip("starts a Docker engine")
	}
	lockEngineUntilTestEnds(t)
}

// startEngine starts the program of a Debian package, with the arguments for its directory and its address.
func startEngine(t testing.TB, program, debianPackage string, buildArgs func(dir, host string) []string) *Engine {
	t.Helper()
	unavailable := t.Skipf
	if os.Getenv("NOMAD_LITE_CI") != "" {
		unavailable = t.Fatalf
	}
	if _, err := exec.LookPath(program); err != nil {
		unavailable("install %s: %v", debianPackage, err)
	}
	busybox, err := findStaticBusybox()
	if err != nil {
		unavailable("install busybox-static: %v", err)
	}
	// The path is short, because the length of a socket's path is limited.
	dir, err := os.MkdirTemp("/tmp", "nomad-lite-engine")
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{Host: "unix://" + filepath.Join(dir, "docker.sock"), dataDir: dir, busyboxPath: busybox}
	e.startCommand = append([]string{program}, buildArgs(dir, e.Host)...)
	if e.Client, err = client.New(client.WithHost(e.Host)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.removeAllContainers(t)
		e.Stop(t, syscall.SIGTERM)
		killPodmanMonitors(t, dir)
		unmountBelow(t, dir) // a killed engine leaves mounts
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the directory of the engine: %v", err)
		}
	})
	e.StartProcess(t)
	return e
}

// killPodmanMonitors kills the processes of podman that monitor commands in containers: they live for five
// minutes after the command.
func killPodmanMonitors(t testing.TB, dir string) {
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Error(err)
	}
	for _, path := range processes {
		cmdline, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(cmdline), "/usr/bin/conmon\x00") || !strings.Contains(string(cmdline), dir+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Error(err)
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Errorf("kill a process of podman: %v", err)
		}
	}
}

func unmountBelow(t testing.TB, dir string) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Error(err)
	}
	// The last mount is unmounted first, because a mount can be below an earlier mount.
	for _, line := range slices.Backward(strings.Split(strings.TrimSpace(string(mounts)), "\n")) {
		const mountPoint = 4 // index of the field with the mount point
		if fields := strings.Fields(line); strings.HasPrefix(fields[mountPoint], dir+"/") {
			if err := unix.Unmount(fields[mountPoint], unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", fields[mountPoint], err)
			}
		}
	}
}

// lockEngineUntilTestEnds waits until no other test has an engine.
func lockEngineUntilTestEnds(t testing.TB) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "nomad-lite-engine.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// StartProcess starts the process of the engine, again after Stop. It must be called in the goroutine of the test.
func (e *Engine) StartProcess(t testing.TB) {
	t.Helper()
	if err := e.TryStartProcess(); err != nil {
		t.Fatal(err)
	}
}

// TryStartProcess is like StartProcess, and can be called in any goroutine.
func (e *Engine) TryStartProcess() error {
	// The containerd of an engine that was killed has been killed, too. Until its parent reaps it, the next engine would
	// find its process, and wait for it.
	if err := os.Remove(filepath.Join(e.dataDir, "exec/containerd/containerd.pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	log, err := os.OpenFile(filepath.Join(e.dataDir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd = exec.Command(e.startCommand[0], e.startCommand[1:]...)
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := e.cmd.Start(); err != nil {
		e.cmd = nil
		return err
	}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(50 * time.Millisecond) {
		_, err := e.Client.Ping(context.Background(), client.PingOptions{NegotiateAPIVersion: true})
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(filepath.Join(e.dataDir, "log"))
			return fmt.Errorf("the engine does not answer: %w\n%s", err, text[max(0, len(text)-4000):])
		}
	}
}

// Stop sends a signal to the engine, and waits for the exit of the engine. It does nothing if the
// engine does not run.
func (e *Engine) Stop(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if e.cmd == nil {
		return
	}
	if err := e.cmd.Process.Signal(signal); err != nil {
		t.Errorf("stop the engine: %v", err)
	}
	_ = e.cmd.Wait() // ignored: Wait returns an error for a process that was killed by a signal
	e.cmd = nil
}

// ContainerNames returns the names of all containers, also of those that have exited.
func (e *Engine) ContainerNames(t testing.TB) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout) // an engine can hang
	defer cancel()
	list, err := e.Client.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		t.Errorf("list the containers: %v", err) // not Fatal, because a cleanup calls ContainerNames and must continue
		return nil
	}
	var names []string
	for _, c := range list.Items {
		names = append(names, strings.TrimPrefix(c.Names[0], "/"))
	}
	return names
}

func (e *Engine) removeAllContainers(t testing.TB) {
	if e.cmd == nil {
		if err := e.TryStartProcess(); err != nil {
			t.Error(err)
			return
		}
	}
	for _, name := range e.ContainerNames(t) {
		if _, err := e.Client.ContainerRemove(context.Background(), name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			t.Errorf("remove the container %s: %v", name, err)
		}
	}
}

// findStaticBusybox returns the path of a static busybox.
func findStaticBusybox() (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("ldd", path).CombinedOutput(); err == nil {
		return "", fmt.Errorf("%s is not static: %s", path, out)
	}
	return path, nil
}

// ImportBusyboxImage makes an image of a static busybox and of the executable files in
// contentByPath. The instructions have the form of a Dockerfile, such as ENV and ENTRYPOINT.
func (e *Engine) ImportBusyboxImage(t testing.TB, image string, contentByPath map[string][]byte, dockerfileInstructions ...string) {
	t.Helper()
	e.ImportBusyboxImageWithLinks(t, image, contentByPath, nil, dockerfileInstructions...)
}

// ImportBusyboxImageWithLinks is like ImportBusyboxImage, and the image also has symbolic links.
func (e *Engine) ImportBusyboxImageWithLinks(t testing.TB, image string, contentByPath map[string][]byte, linkTargetByPath map[string]string, dockerfileInstructions ...string) {
	t.Helper()
	archive, err := buildImageArchive(e.busyboxPath, contentByPath, linkTargetByPath)
	if err != nil {
		t.Fatal(err)
	}
	name, tag, _ := strings.Cut(image, ":")
	source := client.ImageImportSource{Source: bytes.NewReader(archive), SourceName: "-"}
	result, err := e.Client.ImageImport(context.Background(), source, name, client.ImageImportOptions{Tag: tag, Changes: dockerfileInstructions})
	if err != nil {
		t.Fatal(err)
	}
	defer result.Close()
	var progress bytes.Buffer
	if _, err := progress.ReadFrom(result); err != nil || strings.Contains(progress.String(), `"error"`) {
		t.Fatalf("import the image: %v: %s", err, progress.String())
	}
	if e.startCommand[0] == "podman" { // podman's API ignores the tag of an import
		if _, err := e.Client.ImageTag(context.Background(), client.ImageTagOptions{Source: name + ":latest", Target: image}); err != nil {
			t.Fatal(err)
		}
	}
}

// buildImageArchive returns the file system of the image as a tar archive.
func buildImageArchive(busyboxPath string, contentByPath map[string][]byte, linkTargetByPath map[string]string) ([]byte, error) {
	program, err := os.ReadFile(busyboxPath)
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(busyboxPath, "--list").Output()
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(content)
		}
	}
	for _, dir := range []string{"bin", "etc", "www", "root"} {
		add(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	add(tar.Header{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			add(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
		}
	}
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"))
	add(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	add(tar.Header{Name: "www/index.html", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("hello\n"))
	for _, name := range slices.Sorted(maps.Keys(contentByPath)) {
		add(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, contentByPath[name])
	}
	for _, name := range slices.Sorted(maps.Keys(linkTargetByPath)) {
		add(tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: linkTargetByPath[name]}, nil)
	}
	if err != nil {
		return nil, err
	}
	return archive.Bytes(), w.Close()
}
