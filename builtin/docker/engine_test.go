package docker

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// TestEngine runs cases that need the real engine, and share one.
func TestEngine(t *testing.T) {
	slowtest.SkipLong(t, "starts an engine and many containers")
	e := dockertest.StartOrSkip(t)
	d := newTestDriver(t, e.Host, map[string]any{"gc": list(map[string]any{"image": false})})
	start := func(t *testing.T, d *Driver, config map[string]any, change func(*sdk.StartRequest)) *task {
		t.Helper()
		body := map[string]any{"image": dockertest.Image, "command": "/bin/sh"}
		for name, value := range config {
			body[name] = value
		}
		s := newTestStart(t, body)
		s.AllocID = filepath.Base(t.TempDir()) + strings.ReplaceAll(t.Name(), "/", "-")
		s.ID = s.AllocID + "/web/0badcafe"
		for _, dir := range []string{"alloc", "web/local", "web/secrets"} {
			if err := os.MkdirAll(filepath.Join(s.AllocDir, dir), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Join(s.TaskDir(), "local"), 0o777); err != nil { // the mode of MkdirAll depends on the umask
			t.Fatal(err)
		}
		if change != nil {
			change(s)
		}
		task, err := d.Start(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := task.Destroy(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return task
	}
	wait := func(t *testing.T, task *task) driver.ExitResult {
		t.Helper()
		exit, err := task.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return exit
	}
	script := func(text string) map[string]any { return map[string]any{"args": list("-c", text)} }

	t.Run("a task beyond its memory is reported as OOM-killed", func(t *testing.T) {
		task := start(t, d, script("sleep 0.1; x=x; while :; do x=$x$x; done"), func(s *sdk.StartRequest) {
			s.Resources = &driver.Resources{MemoryMB: 20} // runc can need more than 10 MB to start a container
		})
		if exit := wait(t, task); !exit.OOMKilled || exit.Successful() {
			t.Errorf("the exit result is %+v, want OOM-killed", exit)
		}
	})

	t.Run("user and limits and files of the task", func(t *testing.T) {
		config := script(`test "$(id -u)" = 65534 && test "$(pwd)" = /www && test "$A" = 1 && test "$(ulimit -n)" = 77 && echo yes >/local/answer &&
			! touch /x 2>/dev/null && grep -q "^1.2.3.4.name" /etc/hosts && grep -q "^nameserver 9.9.9.9" /etc/resolv.conf && test "$(cat /proc/sys/net/ipv4/ip_default_ttl)" = 33 &&
			touch /scratch/y && ! grep -q CapEff.*[1-9a-f] /proc/self/status && test -c /dev/other && test "$(hostname)" = box`)
		for name, value := range map[string]any{
			"work_dir": "/www", "ulimit": list(map[string]any{"nofile": "77"}), "readonly_rootfs": true, "extra_hosts": list("name:1.2.3.4"),
			"dns_servers": list("9.9.9.9"), "sysctl": list(map[string]any{"net.ipv4.ip_default_ttl": "33"}), "cap_drop": list("all"), "hostname": "box",
			"mount":   list(map[string]any{"type": "tmpfs", "target": "/scratch", "tmpfs_options": list(map[string]any{"size": 1 << 20})}),
			"devices": list(map[string]any{"host_path": "/dev/null", "container_path": "/dev/other"}),
		} {
			config[name] = value
		}
		task := start(t, d, config, func(s *sdk.StartRequest) { s.User = "nobody" })
		if exit := wait(t, task); !exit.Successful() {
			t.Errorf("the exit result is %+v", exit)
		}
		if text, err := os.ReadFile(filepath.Join(task.start.TaskDir(), "local/answer")); string(text) != "yes\n" {
			t.Errorf("the file of the task has %q, %v", text, err)
		}
	})

	t.Run("limits", func(t *testing.T) { testLimits(t, d, start, wait) })

	t.Run("an archive is loaded", func(t *testing.T) {
		saved, err := e.ImageSave(t.Context(), []string{dockertest.Image})
		if err != nil {
			t.Fatal(err)
		}
		var archive bytes.Buffer
		if _, err := archive.ReadFrom(saved); err != nil {
			t.Fatal(err)
		}
		config := script("exit 5")
		config["load"] = "image.tar"
		task := start(t, d, config, func(s *sdk.StartRequest) {
			if err := os.WriteFile(filepath.Join(s.TaskDir(), "local/image.tar"), archive.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		})
		if exit := wait(t, task); exit.ExitCode != 5 {
			t.Errorf("the exit result is %+v, want exit code 5", exit)
		}
	})

	t.Run("a cancelled command is killed", func(t *testing.T) {
		task := start(t, d, script("exec sleep 3600"), nil)
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan struct{})
		go func() { <-started; cancel() }()
		_, err := task.Exec(ctx, driver.Exec{Command: []string{"/bin/sh", "-c", "echo started; exec sleep 7777"}, Stdout: writerFunc(func(p []byte) { close(started) })})
		if err == nil {
			t.Error("a cancelled command succeeded")
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			top, err := e.ContainerTop(t.Context(), task.state.ContainerID, client.ContainerTopOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(top.Processes) == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("processes of the container: %v", top.Processes)
			}
		}
	})

	t.Run("statistics", func(t *testing.T) {
		task := start(t, d, script("while :; do :; done"), nil)
		if _, err := task.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		stats, err := task.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if cpu := stats.Total.CPU.Percent; cpu <= 0 || cpu > 200 || stats.Total.Memory.Usage == 0 {
			t.Errorf("a busy loop uses %v%% of a core and %d bytes", cpu, stats.Total.Memory.Usage)
		}
	})

	t.Run("the image is removed with its last container", func(t *testing.T) {
		collects := newTestDriver(t, e.Host, map[string]any{"gc": list(map[string]any{"image_delay": "0s"})})
		const name = "nomad-lite-test:short-lived"
		id, err := e.ContainerCommit(t.Context(), start(t, d, script("exit 0"), nil).state.ContainerID, client.ContainerCommitOptions{Reference: name})
		if err != nil {
			t.Fatal(err)
		}
		config := script("exit 0")
		config["image"] = name
		task := start(t, collects, config, nil)
		wait(t, task)
		if _, err := e.ImageInspect(t.Context(), id.ID); err != nil {
			t.Fatalf("the image was removed too early: %v", err)
		}
		if err := task.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, err := e.ImageInspect(t.Context(), id.ID); isContainerGone(err) {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("the image is still there: %v", err)
			}
		}
	})

	t.Run("tasks of a group share a network", func(t *testing.T) { testGroupNetwork(t, e, d, start, wait) })

	t.Run("a terminal has one stream", func(t *testing.T) {
		config := script("test -t 0 && test -t 1 && echo terminal; head -c 50000 /dev/zero | tr '\\0' x; echo; echo end")
		config["tty"] = true
		path := filepath.Join(t.TempDir(), "stdout")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string)
		go func() {
			var b bytes.Buffer
			_, _ = b.ReadFrom(f) // ends when the file is closed
			got <- b.String()
		}()
		task := start(t, d, config, func(s *sdk.StartRequest) { s.StdoutPath, s.StderrPath = path, os.DevNull })
		wait(t, task)
		if pending := unixPending(t, f); pending > 0 {
			t.Errorf("%d bytes are not read", pending)
		}
		f.Close()
		if text, want := <-got, "terminal\r\n"+strings.Repeat("x", 50000)+"\r\nend\r\n"; text != want {
			t.Errorf("the output has %d bytes that start with %.20q, want %d bytes", len(text), text, len(want))
		}
	})
	if names := e.ContainerNames(t); len(names) > 0 {
		t.Errorf("containers remain: %v", names)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }
