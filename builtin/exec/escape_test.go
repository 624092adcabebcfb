package exec

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/builtin/isolated"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// escape is an attempt of a task to leave its isolation. The script exits with 0 if it has succeeded.
type escape struct {
	name, script string
	user         string // user of both tasks; empty means root
	config       map[string]any
	network      *driver.NetworkIsolation
	memoryMB     int64 // memory limit of the isolated task; 0 means none
	pids         int64 // limit of the isolated task
	controlFails bool  // the attempt does not succeed in raw_exec either, because the machine has no such thing
	byRoot       bool  // only root succeeds in raw_exec

	refused     string // the error of the driver that starts no such task under an agent of root; empty means that it starts
	controlUser string // user of the task of raw_exec, if it is another
}

// escapes are attempts that must fail in exec, and succeed in raw_exec. The variables are set by
// TestEscapes. Most are made by root, which an operator must allow: root has the capabilities that
// the driver gives by default, and other users have fewer. An ordinary user makes all of them as itself.
var escapes = []escape{
	{name: "read a file of the machine", script: `cat $CANARY`},
	{name: "read a file of the machine through the root directory of pid 1", script: `cat /proc/$FIRST_PID/root$CANARY`},
	{name: "read the secrets of another task", script: `cat $OTHER_SECRET`, user: "nobody"},
	{name: "write a file of the machine", script: `echo lost >$CANARY`},
	{name: "read a file of the machine by an absolute link in a volume", script: `cat $VOLUME/absolute`},
	{name: "read a file of the machine by a relative link in a volume", script: `cat $VOLUME/relative`},
	{name: "read a file of the machine by a link to its root directory in a volume", script: `cat $VOLUME/root$CANARY`},
	{name: "write a file of the machine by a link in a volume", script: `echo lost >$VOLUME/absolute`},
	{name: "read the private directory of the task", script: `cat $PRIVATE`},
	{name: "leave the root directory by chroot", script: `perl -e 'mkdir "$ENV{NOMAD_TASK_DIR}/x"; chroot "$ENV{NOMAD_TASK_DIR}/x" or exit 2; chdir ".." for 1..50; chroot "."; exit(-e $ENV{CANARY} ? 0 : 1)'`, byRoot: true},
	{name: "see a process of the machine", script: `test -e /proc/$HOST_PID/stat`},
	{name: "signal a process of the machine", script: `kill -0 $HOST_PID`},
	{name: "read the memory of a process of the machine", script: `head -c 1 /proc/$HOST_PID/environ`},
	{name: "write a setting of the kernel", script: `read -r v </proc/sys/kernel/core_pattern && echo "$v" >/proc/sys/kernel/core_pattern`, byRoot: true},
	{name: "open the trigger of the kernel", script: `: >>/proc/sysrq-trigger`, controlFails: true},
	{name: "write to /sys", script: `: >>/sys/kernel/mm/transparent_hugepage/enabled`, byRoot: true},
	{name: "remount /sys", script: `mount -o remount,rw,bind /sys`, user: "root", byRoot: true},
	{name: "read the messages of the kernel", script: `dmesg >/dev/null`, byRoot: true},
	{name: "make a device and open it", script: `mknod $NOMAD_TASK_DIR/zero c 1 5 && head -c 1 $NOMAD_TASK_DIR/zero`, byRoot: true},
	{name: "make a device in /dev", script: `mknod /dev/nomad-lite-test c 1 11 && rm /dev/nomad-lite-test`, byRoot: true},
	{name: "mount a file system", script: `mkdir $NOMAD_TASK_DIR/m && mount -t tmpfs tmpfs $NOMAD_TASK_DIR/m && umount $NOMAD_TASK_DIR/m`, byRoot: true},
	{name: "make a mount namespace", script: `unshare --mount true`, byRoot: true},
	{name: "make a user namespace", script: `unshare --user true`, user: "nobody"},
	{name: "trace another program", script: `nsenter --target $HOST_PID --mount true`, byRoot: true},
	{name: "become root by a setuid program", script: `test "$($NOMAD_TASK_DIR/id -u)" = 0`, user: "nobody", byRoot: true},
	{name: "change the clock", script: `date -s "$(date)"`, byRoot: true},
	{name: "read the shadow passwords", script: `head -c 1 /etc/shadow`, user: "nobody", controlFails: true},
	{name: "write a program of the machine", script: `: >>/usr/bin/env`, byRoot: true},
	{name: "start more processes than allowed", script: `i=0; while [ $i -lt 60 ]; do sleep 2 & i=$((i+1)); done; exit 0`, pids: 20},
	{name: "use more memory than allowed", script: `head -c 200000000 /dev/zero | tail | wc -c >/dev/null; test ${PIPESTATUS[1]} = 0`, memoryMB: 20},
	{name: "reach the machine without a network", script: `exec 3<>/dev/tcp/127.0.0.1/$PORT`, network: &driver.NetworkIsolation{Mode: driver.NetworkNone}},
	{name: "see the interfaces of the machine", script: `test $(wc -l </proc/net/dev) -gt 3`, network: &driver.NetworkIsolation{Mode: driver.NetworkNone}, controlFails: true},
	{name: "see the terminals of the machine", script: `exec 3<>$TERMINAL`},
	{name: "see the message queues of the machine", script: `ipcs -q | grep -q $QUEUE`},
	{name: "make a set-user-id program", script: `cp /usr/bin/id $NOMAD_TASK_DIR/copy && chmod u+s $NOMAD_TASK_DIR/copy`},
	{name: "make a set-user-id program as a user", script: `cp /usr/bin/id $NOMAD_TASK_DIR/copy && chmod 4755 $NOMAD_TASK_DIR/copy`, user: "nobody"},
	{name: "install a set-group-id program", script: `install -m 2755 /usr/bin/id $NOMAD_TASK_DIR/copy`, user: "nobody"},
	{name: "make a directory whose files get its group", script: `mkdir -m 2777 $NOMAD_TASK_DIR/dir`, user: "nobody"},
	{name: "make a program with a capability", script: `cp /usr/bin/id $NOMAD_TASK_DIR/copy && setcap cap_net_raw+ep $NOMAD_TASK_DIR/copy`, user: "root", byRoot: true},
	{name: "become root by a capability", script: `setpriv --reuid=0 true`, user: "nobody", controlUser: "root", byRoot: true,
		config: map[string]any{"cap_add": []any{"setuid"}}, refused: "driver does not allow the following capabilities: setuid"},
	{name: "read the shadow passwords by a capability", script: `head -c 1 /etc/shadow`, user: "nobody", controlUser: "root", byRoot: true,
		config: map[string]any{"cap_add": []any{"dac_override"}}, refused: "driver does not allow the following capabilities: dac_override"},
	{name: "see the processes of the machine by a mode", script: `test -e /proc/$HOST_PID/stat`, user: "nobody",
		config: map[string]any{"pid_mode": "host"}, refused: "the operator must set allow_pid_mode = true"},
	{name: "see the message queues of the machine by a mode", script: `ipcs -q | grep -q $QUEUE`, user: "nobody",
		config: map[string]any{"ipc_mode": "host"}, refused: "the operator must set allow_ipc_mode = true"},
	{name: "inherit a descriptor", script: `for fd in /proc/$$/fd/*; do case ${fd##*/} in 0|1|2|255) ;; *) test -e $fd && exit 0;; esac; done; exit 1`, controlFails: true},
}

func TestEscapes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two tasks for each attempt to escape; TestTaskOptions runs")
	}
	isRoot := os.Geteuid() == 0
	env := newEscapeEnv(t)
	for _, e := range escapes {
		t.Run(e.name, func(t *testing.T) {
			if limits, reason := process.UnenforcedLimits(); e.pids+e.memoryMB > 0 && len(limits) > 0 {
				t.Skip(reason)
			}
			isolated := runEscape(t, e, env, true, func(s *sdk.StartRequest) (sdk.Task, error) {
				return newDriver(t, isolated.Config{Config: hostprocess.Config{PidsLimit: e.pids}, NoPivotRoot: isInitramfs()}).Start(t.Context(), s)
			})
			if isolated == 0 {
				t.Error("the task has left its isolation")
			}
			if e.controlFails || e.byRoot && !isRoot {
				return
			}
			e.network, e.memoryMB, e.user, e.refused = nil, 0, cmp.Or(e.controlUser, e.user), ""
			control := runEscape(t, e, env, false, func(s *sdk.StartRequest) (sdk.Task, error) {
				return process.Start(t.Context(), s, process.Command{Path: "/bin/bash", Args: evalScript})
			})
			if control != 0 {
				t.Errorf("the attempt fails without isolation, too, with code %d: it proves nothing", control)
			}
		})
	}
}

// newEscapeEnv makes the things of the machine that tasks try to reach, and returns variables with
// their names.
func newEscapeEnv(t *testing.T) map[string]string {
	dir := t.TempDir()
	processtest.OpenDirs(t, dir)
	secret := filepath.Join(dir, "other/secrets")
	if err := os.MkdirAll(secret, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "canary"), filepath.Join(secret, "token")} {
		if err := os.WriteFile(path, []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	volume := filepath.Join(dir, "volume")
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"absolute": filepath.Join(dir, "canary"), "relative": "../canary", "root": "/"} {
		if err := os.Symlink(target, filepath.Join(volume, name)); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	queue, _, errno := unix.Syscall(unix.SYS_MSGGET, unix.IPC_PRIVATE, 0o666, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { unix.Syscall(unix.SYS_MSGCTL, queue, 0, 0) }) // 0 is IPC_RMID
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"CANARY": filepath.Join(dir, "canary"), "OTHER_SECRET": filepath.Join(secret, "token"), "VOLUME": volume,
		"HOST_PID": strconv.Itoa(os.Getpid()), "PORT": strconv.Itoa(listener.Addr().(*net.TCPAddr).Port),
		"TERMINAL": fmt.Sprintf("/dev/pts/%d", number), "QUEUE": strconv.Itoa(int(queue)),
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
}

// evalScript are arguments of a shell that runs the script in the variable SCRIPT.
var evalScript = []string{"-c", `eval "$SCRIPT"`}

// runEscape runs the script in a task, and returns its exit code.
func runEscape(t *testing.T, e escape, env map[string]string, inside bool, start func(*sdk.StartRequest) (sdk.Task, error)) int {
	t.Helper()
	s := newStartRequest(t, map[string]any{"command": "/bin/bash", "args": []any{evalScript[0], evalScript[1]}}, e.config)
	s.User = e.user
	if os.Geteuid() != 0 {
		s.User = ""
	} else if s.User == "" {
		s.User = "root"
	}
	s.Env = map[string]string{"NOMAD_TASK_DIR": "/local", "PRIVATE": "/private/token", "FIRST_PID": "1"}
	if !inside {
		// Where the tests run in a container, pid 1 may have another root directory than they have.
		s.Env = map[string]string{"NOMAD_TASK_DIR": s.TaskDir() + "/local", "PRIVATE": s.TaskDir() + "/private/token", "FIRST_PID": env["HOST_PID"]}
	}
	maps.Copy(s.Env, env)
	if inside {
		s.Mounts = append(s.Mounts, driver.Mount{TaskPath: "/volume", HostPath: env["VOLUME"]})
		s.Env["VOLUME"] = "/volume"
	}
	s.Env["SCRIPT"] = e.script
	s.NetworkIsolation = e.network
	s.Resources = &driver.Resources{Linux: driver.LinuxResources{CPUShares: 1000, MemoryLimitBytes: e.memoryMB << 20}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	task, err := start(s)
	if e.refused != "" && os.Geteuid() != 0 {
		e.refused = "needs an agent of root"
	}
	if e.refused != "" && err != nil && strings.Contains(err.Error(), e.refused) {
		return 1
	}
	if err != nil {
		t.Fatal(err)
	}
	result, err := task.Wait(ctx)
	if err != nil && e.memoryMB == 0 { // a task that is killed for memory has an error too
		t.Error(err)
	}
	if ctx.Err() != nil {
		if err := task.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		if result, err = task.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := task.(sdk.Destroyer).Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if inside {
		assertNoSetIDFiles(t, s)
	}
	return result.ExitCode
}

// assertNoSetIDFiles asserts that no file of the task has a set-user-ID or set-group-ID bit, except the one
// that newStartRequest makes.
func assertNoSetIDFiles(t *testing.T, s *sdk.StartRequest) {
	t.Helper()
	for _, dir := range []string{"alloc", "task/local", "task/tmp", "task/secrets"} {
		err := filepath.WalkDir(filepath.Join(s.AllocDir, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 && path != filepath.Join(s.TaskDir(), "local/id") {
				t.Errorf("the task leaves %s with the mode %s", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// newStartRequest makes the directories of a task, with the files of the machine, as the agent does.
func newStartRequest(t testing.TB, bodies ...map[string]any) *sdk.StartRequest {
	t.Helper()
	body := map[string]any{}
	for _, b := range bodies {
		maps.Copy(body, b)
	}
	value, diags := block.Decode(taskSchema, body, nil)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	config, err := block.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("exec-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	dir := filepath.Join(t.TempDir(), id)
	root := filepath.Join(dir, "task")
	for _, sub := range []string{"alloc/data", "alloc/logs", "task/local", "task/tmp", "task/secrets", "task/private", "task/alloc"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	processtest.OpenDirs(t, dir)
	if err := os.WriteFile(filepath.Join(root, "private/token"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	setuid := filepath.Join(root, "local/id")
	if err := os.WriteFile(setuid, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if target, err := os.Readlink("/" + name); err == nil {
			if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	start := &sdk.StartRequest{TaskConfig: driver.TaskConfig{Name: "task", AllocID: id, AllocDir: dir, DriverConfig: config}}
	for _, name := range []string{"usr", "etc"} {
		if os.Geteuid() != 0 {
			start.Mounts = append(start.Mounts, driver.Mount{HostPath: "/" + name, TaskPath: "/" + name, Readonly: true})
		} else {
			bindReadOnly(t, "/"+name, filepath.Join(root, name))
		}
	}
	return start
}

// bindReadOnly mounts a directory of the machine until the test ends. It is read-only before it has a
// path, so that no removal deletes files of the machine.
func bindReadOnly(t testing.TB, source, target string) {
	t.Helper()
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tree)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}); err != nil {
		t.Fatal(err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
