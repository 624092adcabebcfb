package exec

import (
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/builtin/isolated"
	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/internal/netfiles"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/internal/startmark"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	sdkprocess "github.com/nomad-lite/nomad-lite/sdk/process"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	if value := os.Getenv(envProbe); value != "" {
		probe(value)
		return
	}
	if file := os.Getenv(envStart); file != "" {
		startTask(file)
	}
	sdktest.Main(m, func() { sdk.ServeDriver(&Driver{}) })
}

func testPlugin() sdktest.Plugin {
	shell := func(script string) map[string]any {
		return map[string]any{"command": "/bin/sh", "args": []any{"-c", script}}
	}
	// In a PID namespace of its own, sleep would ignore the stop signal.
	runs := map[string]any{"command": "/bin/sleep", "args": []any{"3600"}, "pid_mode": "host"}
	if os.Geteuid() != 0 { // tasks must have such a namespace
		runs = shell("trap 'exit 130' INT TERM; sleep 3600 & wait")
	}
	return sdktest.Plugin{
		Path:   os.Args[0],
		Config: map[string]any{"no_pivot_root": isInitramfs(), "allow_pid_mode": true},
		Tasks: sdktest.Tasks{
			Shell:       shell,
			LongRunning: runs,
		},
	}
}

// isInitramfs reports whether the root file system is an initramfs, as in the virtual machine of the
// system tests. pivot_root(2) is not possible there.
func isInitramfs() bool {
	const ramfsMagic = 0x858458f6
	var fs unix.Statfs_t
	return unix.Statfs("/", &fs) == nil && (fs.Type == ramfsMagic || fs.Type == unix.TMPFS_MAGIC)
}

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a container in each case; TestTaskOptions runs")
	}
	sdktest.Driver(t, testPlugin())
}

func BenchmarkDriver(b *testing.B) { sdktest.Benchmark(b, testPlugin()) }

// runScript runs a script in a task, and returns what it has written.
func runScript(t *testing.T, d *Driver, config map[string]any, change func(*sdk.StartRequest), script string) string {
	t.Helper()
	body := map[string]any{"command": "/bin/bash", "args": []any{evalScript[0], evalScript[1]}}
	s := newStartRequest(t, body, config)
	bindShared(t, s)
	s.Env = map[string]string{"SCRIPT": "exec >/alloc/data/out 2>&1\n" + script, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
	if change != nil {
		change(s)
	}
	task, err := d.Start(t.Context(), s)
	if err != nil {
		return err.Error()
	}
	if _, err := task.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := task.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	out, err := os.ReadFile(filepath.Join(s.AllocDir, "alloc/data/out"))
	if err != nil {
		t.Error(err)
	}
	return string(out)
}

// bindShared mounts the shared directory of the allocation into the root directory of the task.
func bindShared(t *testing.T, s *sdk.StartRequest) {
	t.Helper()
	target := filepath.Join(s.TaskDir(), "alloc")
	if os.Geteuid() != 0 {
		s.Mounts = append(s.Mounts, driver.Mount{HostPath: filepath.Join(s.AllocDir, "alloc"), TaskPath: "/alloc"})
		return
	}
	if err := unix.Mount(filepath.Join(s.AllocDir, "alloc"), target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestTaskOptions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("isolation needs root")
	}
	volume := t.TempDir()
	processtest.OpenDirs(t, volume)
	if err := os.WriteFile(filepath.Join(volume, "file"), []byte("of the volume\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	all := newDriver(t, isolated.Config{AllowCaps: []string{"all"}})
	for _, test := range []struct {
		name   string
		driver *Driver
		config map[string]any
		change func(*sdk.StartRequest)
		script string
		want   string
	}{
		{"the default user", nil, nil, nil, "id -un", "nobody\n"},
		{"a dynamic user", nil, nil, func(s *sdk.StartRequest) { s.User = "nomad-81234" }, "id -u; id -g", "81234\n81234\n"},
		{"the default directory", nil, nil, nil, "pwd", "/\n"},
		{"another directory", nil, map[string]any{"work_dir": "/local"}, nil, "pwd", "/local\n"},
		{"a directory that does not exist", nil, map[string]any{"work_dir": "/nowhere"}, nil, "", "work_dir: chdir /nowhere: no such file or directory"},
		{"a relative directory", nil, map[string]any{"work_dir": "local"}, nil, "", `work_dir "local" is not an absolute path in the root directory of the task`},
		{"an unknown mode", nil, map[string]any{"pid_mode": "shared"}, nil, "", `pid_mode is "shared"; it must be "private" or "host"`},
		{"the processes of the machine", newDriver(t, isolated.Config{AllowHostPIDMode: true}), map[string]any{"pid_mode": "host"}, nil, fmt.Sprintf("test -e /proc/%d && echo seen", os.Getpid()), "seen\n"},
		{"the default mode of the operator", newDriver(t, isolated.Config{DefaultPIDMode: "host"}), nil, nil, fmt.Sprintf("test -e /proc/%d && echo seen", os.Getpid()), "seen\n"},
		{"the task is process 1", nil, nil, nil, "echo $$", "1\n"},
		{"a capability of another user", all, map[string]any{"cap_add": []any{"net_raw"}, "cap_drop": []any{"all"}}, nil, "sed -n 's/^Cap[EPA]...*:.//p' /proc/self/status", "0000000000002000\n0000000000002000\n0000000000002000\n"},
		{"the capabilities of root", nil, map[string]any{"cap_drop": []any{"all"}, "cap_add": []any{"kill"}}, func(s *sdk.StartRequest) { s.User = "root" }, "sed -n 's/^CapEff:.//p' /proc/self/status", "0000000000000020\n"},
		{"a denied user", newDriver(t, isolated.Config{Config: hostprocess.Config{DeniedUIDRanges: "60000-65535"}}), nil, nil, "", "running as uid 65534 is denied by denied_host_uids of the driver"},
		{"a volume", nil, nil, withMount(driver.Mount{TaskPath: "/data/v", HostPath: volume}), "cat /data/v/file", "of the volume\n"},
		{"a volume below a link of the task", nil, nil, func(s *sdk.StartRequest) {
			withMount(driver.Mount{TaskPath: "/local/v", HostPath: volume})(s)
			if err := os.Symlink("/etc", filepath.Join(s.TaskDir(), "local/v")); err != nil {
				t.Error(err)
			}
		}, "cat /etc/file", "of the volume\n"},
		{"a read-only volume", nil, nil, withMount(driver.Mount{TaskPath: "/v", HostPath: volume, Readonly: true}), "touch /v/x", "touch: cannot touch '/v/x': Read-only file system\n"},
		{"a file as volume", nil, nil, withMount(driver.Mount{TaskPath: "/local/file", HostPath: filepath.Join(volume, "file")}), "cat /local/file", "of the volume\n"},
		{"a device for reading", nil, nil, withDevice("r"), "head -c 1 /dev/x/zero | wc -c; (: >/dev/x/zero) 2>&1 | grep -o 'Permission denied'", "1\nPermission denied\n"},
		{"a device outside of /dev", nil, nil, func(s *sdk.StartRequest) {
			s.Devices = []driver.Device{{TaskPath: "/zero", HostPath: "/dev/zero"}}
		}, "", "device /dev/zero: its path for the task, /zero, is not below /dev"},
		{"DNS of the group", nil, nil, func(s *sdk.StartRequest) {
			s.DNS = &driver.DNSConfig{Servers: []string{"192.0.2.1"}, Searches: []string{"a", "b"}, Options: []string{"ndots:2"}}
		}, "cat /etc/resolv.conf", "nameserver 192.0.2.1\nsearch a b\noptions ndots:2\n"},
		{"only the search domains of the group", nil, nil, func(s *sdk.StartRequest) {
			s.DNS = &driver.DNSConfig{Searches: []string{"a"}}
		}, "cat /etc/resolv.conf", netfiles.Resolver{Searches: []string{"a"}}.WithDefaults(netfiles.MachineResolver()).String()},
		{"no root directory by pivot_root", newDriver(t, isolated.Config{NoPivotRoot: true}), nil, nil, "test -e /var || id -un", "nobody\n"},
		{"no filter", newDriver(t, isolated.Config{Seccomp: new(bool)}), nil, nil, "sed -n 's/^Seccomp:.//p' /proc/self/status", "0\n"},
		{"a loopback interface without a network", nil, nil, func(s *sdk.StartRequest) {
			s.NetworkIsolation = &driver.NetworkIsolation{Mode: driver.NetworkNone}
		}, "ls /sys/class/net; cat /sys/class/net/lo/flags", "lo\n0x9\n"},
		{"shared memory of its own", nil, nil, nil, "ls /dev/shm; echo x >/dev/shm/x && cat /dev/shm/x", "x\n"},
		{"standard devices", nil, nil, nil, "echo $(ls /dev)", "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := test.driver
			if d == nil {
				d = &Driver{}
			}
			if got := runScript(t, d, test.config, test.change, test.script); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// The agent has checked the path of a host volume, which has no link then. One that is there later is not followed.
func TestLinkInPathOfVolume(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	processtest.OpenDirs(t, dir)
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "volume"), 0o755), os.Symlink("volume", filepath.Join(dir, "link")), os.WriteFile(filepath.Join(dir, "volume/file"), []byte("of the volume\n"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ path, volume, want string }{
		{"volume", "v", "of the volume\n"}, {"link", "", "of the volume\n"}, // a mount of a hook
		{"link", "v", "link, which must not lead through a symbolic link"}, {"link/file", "v", "link/file, which must not lead through a symbolic link"},
	} {
		change := withMount(driver.Mount{TaskPath: "/local/v", HostPath: filepath.Join(dir, test.path), RequestName: test.volume})
		if got := runScript(t, &Driver{}, nil, change, "cat /local/v/file"); !strings.Contains(got, test.want) {
			t.Errorf("%s of the volume %q: got %q, want %q", test.path, test.volume, got, test.want)
		}
	}
}

// What is mounted is what the path led to without links, also while another process exchanges a directory and a link.
func TestVolumeIsNotExchanged(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	volume, link := filepath.Join(dir, "volume"), filepath.Join(dir, "link")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(volume, "inner"), 0o755), os.MkdirAll(filepath.Join(dir, "canary/inner"), 0o755), os.Symlink("canary", link),
		os.WriteFile(filepath.Join(volume, "inner/file"), []byte("of the volume\n"), 0o644), os.WriteFile(filepath.Join(dir, "canary/inner/file"), []byte("canary\n"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	processtest.OpenDirs(t, filepath.Join(volume, "inner"))
	processtest.OpenDirs(t, filepath.Join(dir, "canary/inner"))
	processtest.ExchangePaths(t, volume, link)
	change := withMount(driver.Mount{TaskPath: "/local/v", HostPath: filepath.Join(volume, "inner"), RequestName: "v"})
	for range 10 {
		switch got := runScript(t, &Driver{}, nil, change, "cat /local/v/file"); {
		case got == "of the volume\n", strings.Contains(got, "which must not lead through a symbolic link"):
		default:
			t.Errorf("the task finds %q", got)
		}
	}
}

func newDriver(t *testing.T, c isolated.Config) *Driver {
	t.Helper()
	d := &Driver{}
	if err := d.SetConfig(c); err != nil {
		t.Fatal(err)
	}
	return d
}

func withMount(m driver.Mount) func(*sdk.StartRequest) {
	return func(s *sdk.StartRequest) { s.Mounts = append(s.Mounts, m) }
}

func withDevice(permissions string) func(*sdk.StartRequest) {
	return func(s *sdk.StartRequest) {
		s.Devices = []driver.Device{{TaskPath: "/dev/x/zero", HostPath: "/dev/zero", Permissions: permissions}}
	}
}

// A task that joins a network namespace by its path has the interfaces of that namespace.
func TestJoinsNetworkOfGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("isolation needs root")
	}
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := osexec.Command("unshare", "--net="+path, "ip", "link", "set", "lo", "up").CombinedOutput()
	if err != nil {
		t.Fatalf("make a network namespace: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	got := runScript(t, &Driver{}, nil, func(s *sdk.StartRequest) {
		s.NetworkIsolation = &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: path}
	}, "ls /sys/class/net; cat /sys/class/net/lo/flags")
	if want := "lo\n0x9\n"; got != want {
		t.Errorf("the interfaces are %q, want %q", got, want)
	}

	// The task has a hostname and a file of its own, and the hostname and the file of the machine do not change.
	before, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	named := func(s *sdk.StartRequest) {
		s.User = "root"
		s.NetworkIsolation = &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: path, Hosts: &driver.HostsConfig{Hostname: "web-0", Address: "172.26.64.5"}}
	}
	got = runScript(t, &Driver{}, nil, named, "uname -n; cat /etc/hosts; (echo x >>/etc/hosts) 2>&1 | grep -o 'Read-only'")
	if want := "web-0\n127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n172.26.64.5 web-0\nRead-only\n"; got != want {
		t.Errorf("hostname and /etc/hosts: %q, want %q", got, want)
	}
	if after, err := os.ReadFile("/etc/hosts"); err != nil || string(after) != string(before) {
		t.Errorf("/etc/hosts of the machine: %q, %v, want %q", after, err, before)
	}
	got = runScript(t, &Driver{}, nil, func(s *sdk.StartRequest) {
		named(s)
		s.NetworkIsolation.Hosts.Hostname = strings.Repeat("h", 65)
	}, "")
	if want := "of the network block has 65 characters, and Linux permits 64"; !strings.HasSuffix(got, want) {
		t.Errorf("a long hostname: %q, want %q", got, want)
	}
	own := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(own, []byte("of the task\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got = runScript(t, &Driver{}, nil, func(s *sdk.StartRequest) {
		named(s)
		s.Mounts = []driver.Mount{{TaskPath: "/etc/hosts", HostPath: own}}
	}, "cat /etc/hosts")
	if want := "of the task\n"; got != want {
		t.Errorf("/etc/hosts with a mount of the task: %q, want %q", got, want)
	}
	if machine, err := os.Hostname(); err != nil || machine == "web-0" {
		t.Errorf("hostname of the machine: %q, %v", machine, err)
	}
}

// A start counts as executed when its mark names the stage. So the stage executes the program then, and only then, also if the
// driver dies before it knows.
func TestStageOfDeadDriver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("isolation needs root")
	}
	for _, test := range []struct {
		forked bool
		want   int // exit code
	}{{true, 7}, {false, 126}} {
		s := newStartRequest(t, map[string]any{"command": "/bin/sh"})
		mark, err := os.Create(filepath.Join(t.TempDir(), "mark"))
		if err != nil {
			t.Fatal(err)
		}
		defer mark.Close()
		launcher := sandbox.New(s, sandbox.Options{NoPivotRoot: isInitramfs(), DefaultUser: "nobody"})
		launch, err := launcher.PrepareLaunch(sdkprocess.Program{Path: "/bin/sh", Args: []string{"-c", "exit 7"}, StartMarkFile: mark})
		if err != nil {
			t.Fatal(err)
		}
		cmd := &osexec.Cmd{Path: launch.Path, Args: launch.Args, Env: launch.Env, ExtraFiles: launch.Files, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{}}
		launch.SetAttributes(cmd.SysProcAttr)
		err = errors.Join(cmd.Start(), startmark.Mark{Forked: test.forked}.WriteToFile(mark))
		launch.Close() // closes the pipes, as the death of the driver does
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the error is the exit code
		if got := cmd.ProcessState.ExitCode(); got != test.want {
			t.Errorf("the mark is forked %v: exit code %d, want %d", test.forked, got, test.want)
		}
	}
}
