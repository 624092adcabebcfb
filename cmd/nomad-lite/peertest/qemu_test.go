package peertest

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/vmimage"
)

// qemuConfig is the configuration of the driver qemu of the agents that the tests share. The images are below the temporary
// directory.
func qemuConfig() string {
	return fmt.Sprintf(`
plugin "qemu" {
  config {
    image_paths         = [%q]
    args_allowlist      = ["-kernel", "-initrd", "-append"]
    emulators_allowlist = ["x86_64"]
  }
}
`, os.TempDir())
}

// requireProgram skips the test if a program is not installed, or fails it in CI.
func requireProgram(t testing.TB, name, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("NOMAD_LITE_CI") != "" {
		t.Fatal(err)
	} else if err != nil {
		t.Skipf("%v (Debian: %s)", err, debianPackage)
	}
	return path
}

// These texts come from the guest of TestQemuMachine.
const (
	guestPage     = "served by the guest"
	guestFarewell = "the guest shuts down"
)

// guestInit is the init program of the guest. It serves a page, and powers off when the power button is pressed. It opens the devices of
// the button before it serves the page, because Nomad's driver presses the button once.
const guestInit = `#!/bin/sh
mount -t devtmpfs dev /dev
mount -t proc proc /proc
for module in /modules/*.ko; do insmod $module; done
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
mkfifo /pressed
for device in /dev/input/event*; do
  exec 3<$device
  { dd of=/dev/null bs=24 count=1 <&3 2>/dev/null; echo >/pressed; } &
done
httpd -p 80 -h /www
read line </pressed
echo ` + guestFarewell + `
poweroff -f
`

// writeGuest writes the initramfs of the guest.
func writeGuest(t testing.TB, kernel, path string) {
	t.Helper()
	busybox := requireProgram(t, "busybox", "busybox-static")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := vmimage.New(f)
	for _, dir := range []string{"dev", "proc", "bin"} {
		w.WriteDirAndParents(dir)
	}
	w.WriteProgramAndLibraries(busybox, "bin/busybox")
	for _, name := range []string{"sh", "mount", "insmod", "ip", "httpd", "mkfifo", "dd", "poweroff"} {
		w.WriteSymlink("busybox", "bin/"+name)
	}
	w.WriteKernelModules(kernel, "modules", "virtio_pci", "virtio_net", "button", "evdev")
	w.WriteFile("www/index.html", 0o644, []byte(guestPage))
	w.WriteFile("init", 0o755, []byte(guestInit))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// qemuTask returns a task with the image disk.img of a directory. overrides replace options of its config block.
func qemuTask(dir string, overrides map[string]any) *api.Task {
	task := api.NewTask("vm", "qemu")
	task.Config = map[string]any{"image_path": filepath.Join(dir, "disk.img"), "emulator": "x86_64", "accelerator": "tcg"}
	maps.Copy(task.Config, overrides)
	task.Resources = &api.Resources{CPU: new(100), MemoryMB: new(256), Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}}
	return task
}

func writeDisk(t testing.TB, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestQemuMachine runs the same virtual machine under both agents: it boots, serves a forwarded port, and shuts down when the job is
// stopped.
func TestQemuMachine(t *testing.T) {
	requireProgram(t, "qemu-system-x86_64", "qemu-system-x86")
	kernel, err := vmimage.FindReadableKernel()
	if err != nil && os.Getenv("NOMAD_LITE_CI") != "" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	writeDisk(t, dir)
	writeGuest(t, kernel, filepath.Join(dir, "initrd"))
	forEachHost(t, func(t *testing.T, h *host) {
		task := qemuTask(dir, map[string]any{
			"graceful_shutdown": true, "guest_agent": true, "port_map": []map[string]any{{"http": 80}},
			"args": []string{"-kernel", kernel, "-initrd", filepath.Join(dir, "initrd"), "-append", "console=ttyS0 quiet mitigations=off panic=-1"},
		})
		task.KillTimeout = new(waitTimeout)
		job := newJob("machine", task)
		alloc := h.run(t, job, "the task runs", isRunning)

		url := fmt.Sprintf("http://127.0.0.1:%d/", alloc.AllocatedResources.Tasks[task.Name].Networks[0].DynamicPorts[0].Value)
		client := &http.Client{Timeout: time.Second} // QEMU accepts a connection before the guest does
		got := ""
		err := waitFor("the page of the guest", func() bool {
			response, err := client.Get(url)
			if err != nil {
				return false
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			got = string(body)
			return err == nil
		})
		if err != nil || got != guestPage {
			t.Errorf("%s has the page %q, want %q (%v)\n%s", url, got, guestPage, err, h.taskLog(t, alloc, task.Name))
		}

		began := time.Now()
		if _, _, err := h.Jobs().Deregister(*job.ID, false, nil); err != nil {
			t.Fatal(err)
		}
		pressed := h.name != "Nomad" // the driver of nomad-lite needs no help
		await(t, "the end of the machine", func() bool {
			// Nomad's driver closes its connection to the monitor right after it has sent the command, and QEMU drops a command that it has
			// not read by then.
			if !pressed && time.Since(began) > waitTimeout/10 {
				t.Log("QEMU has dropped the command of Nomad's driver")
				pressButton(t, alloc)
				pressed = true
			}
			var err error
			if alloc, _, err = h.Allocations().Info(alloc.ID, nil); err != nil {
				t.Fatal(err)
			}
			return hasEnded(alloc)
		})
		if took := time.Since(began); took > waitTimeout/2 {
			t.Errorf("the machine took %v to shut down", took)
		}
		if event := lastEvent(alloc, task.Name, api.TaskTerminated); event == nil || event.DisplayMessage != "Exit Code: 0" {
			t.Errorf("the machine ends with %+v, want exit code 0", event)
		}
		if log := h.taskLog(t, alloc, task.Name); !strings.Contains(log, guestFarewell) {
			t.Errorf("the guest did not shut down; its console is\n%s", log)
		}
	})
}

// pressButton presses the power button of a machine by the monitor's socket in the task's directory, as an operator can.
func pressButton(t testing.TB, alloc *api.Allocation) {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(taskDirOfEmulator(t, alloc), "qm.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) // QEMU drops a command whose connection is closed before it has read the command
	if _, err := io.WriteString(conn, "system_powerdown\n"); err != nil {
		t.Fatal(err)
	}
}

// taskDirOfEmulator returns the task's directory, from the environment of the emulator.
func taskDirOfEmulator(t testing.TB, alloc *api.Allocation) string {
	t.Helper()
	for _, environ := range allocProcesses(alloc) {
		for _, variable := range environ {
			if dir, ok := strings.CutPrefix(variable, "NOMAD_TASK_DIR="); ok {
				return filepath.Dir(dir)
			}
		}
	}
	t.Fatalf("no process has the environment of allocation %s", alloc.ID)
	return ""
}

// taskLog returns the standard output and the standard error of a task.
func (h *host) taskLog(t testing.TB, alloc *api.Allocation, task string) (text string) {
	t.Helper()
	for _, stream := range []string{"stdout", "stderr"} {
		r, err := h.AllocFS().Cat(alloc, "alloc/logs/"+task+"."+stream+".0", nil)
		if err != nil {
			t.Fatalf("%s: read the %s of task %q: %v", h.name, stream, task, err)
		}
		content, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		text += string(content)
	}
	return text
}

// TestQemuErrors compares the errors for options that the operator or the driver rejects. The texts are those of Nomad's driver; the driver
// of nomad-lite adds the remedy.
func TestQemuErrors(t *testing.T) {
	requireProgram(t, "qemu-system-x86_64", "qemu-system-x86")
	dir := t.TempDir()
	writeDisk(t, dir)
	forEachHost(t, func(t *testing.T, h *host) {
		for _, test := range []struct {
			name      string
			overrides map[string]any
			memoryMB  int
			want      string
		}{
			{"image", map[string]any{"image_path": "/etc/passwd"}, 256, "image_path is not in the allowed paths"},
			{"no-image", map[string]any{"image_path": ""}, 256, "image_path must be set"},
			{"emulator", map[string]any{"emulator": "mips"}, 256, "'mips' is not an allowed emulator"},
			{"argument", map[string]any{"args": []string{"-device", "e1000"}}, 256, `"-device" is not in args_allowlist`},
			{"drive", map[string]any{"drive_interface": "nvme"}, 256, "unsupported drive_interface"},
			{"memory", nil, 127, "qemu memory assignment out of bounds"},
			{"port", map[string]any{"port_map": []map[string]any{{"nosuch": 80}}}, 256, `unknown port label "nosuch"`},
		} {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				task := qemuTask(dir, test.overrides)
				task.Resources.MemoryMB = &test.memoryMB
				alloc := h.run(t, newJob("machine-error-"+test.name, task), "the task fails", hasEnded)
				event := lastEvent(alloc, task.Name, api.TaskDriverFailure)
				if event == nil || !strings.Contains(strings.ToLower(event.DriverError+event.Details["driver_error"]), test.want) {
					t.Errorf("the event is %+v, want an error with %q", event, test.want)
				}
			})
		}
	})
}
