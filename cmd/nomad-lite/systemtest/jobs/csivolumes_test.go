package jobs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestCorpusRunsWithDirectoriesForCSIVolumes runs the job files of Nomad's own tests and demos that have a CSI volume, with a
// directory in place of each volume.
func TestCorpusRunsWithDirectoriesForCSIVolumes(t *testing.T) {
	slowtest.Skip(t, "starts a Docker engine and three containers")
	corpus := systemtest.SharedDirOrSkip(t, "corpus", "jobspecs")
	engine := dockertest.StartOrSkip(t)
	for _, image := range []string{"busybox:1", "redis:7"} {
		engine.ImportBusyboxImage(t, image, nil, `CMD ["sleep", "3600"]`)
	}
	efs, disk := t.TempDir(), t.TempDir()
	for _, dir := range []string{efs, disk} {
		if err := os.WriteFile(filepath.Join(dir, "marker"), []byte(dir), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	agent := systemtest.StartTestAgent(t, false, fmt.Sprintf(`
client {
  host_volume "efs-vol0" {
    path = %[2]q
    csi  = true
  }
  host_volume "demo-disk" {
    path = %[3]q
    csi  = true
  }
}
plugin "docker" {
  config {
    endpoint = %[1]q
  }
}
`, engine.Host, efs, disk))
	agent.WaitUntil("the driver docker is healthy", func() (string, bool) {
		d := agent.ReadNode().Drivers["docker"]
		return fmt.Sprintf("%+v", d), d != nil && d.Healthy
	})

	cases := []struct {
		file, namespace, job, task, mount, dir string
		readOnly                               bool
	}{
		{file: "e2e-csi-input-use-efs-volume-write", namespace: "write", job: "use-efs-volume", task: "task", mount: "/local/test", dir: efs},
		{file: "e2e-csi-input-use-efs-volume-read", namespace: "read", job: "use-efs-volume", task: "task", mount: "/local/test", dir: efs, readOnly: true},
		{file: "demo-csi-digitalocean-volume-job", namespace: "default", job: "example", task: "redis", mount: "/test", dir: disk},
	}
	for _, c := range cases {
		nomadLite := func(command string, args ...string) string {
			t.Helper()
			out, err := exec.Command("nomad-lite", append([]string{"job", command, "-address", agent.Address, "-namespace", c.namespace}, args...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("job %s for %s: %v\n%s", command, c.file, err, out)
			}
			return string(out)
		}
		// Two files have the same job, so that each gets a namespace.
		if _, err := agent.Namespaces().Register(&api.Namespace{Name: c.namespace}, nil); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(corpus, c.file+".nomad.hcl")
		if c.dir == disk { // a template of Terraform, which fills in the volume
			path = copyWithEdit(t, path, "${volume_id}", "demo-disk")
			nomadLite("run", "-detach", path)
			if status := nomadLite("status", c.job); !strings.Contains(status, `is a directory, and not a block device: write attachment_mode = "file-system" in the volume block`) {
				t.Errorf("a directory as a block device:\n%s", status)
			}
			path = copyWithEdit(t, path, `"block-device"`, `"file-system"`)
		}
		nomadLite("run", "-detach", path)
	}
	for _, c := range cases {
		allocID := ""
		agent.WaitUntil("the job of "+c.file+" runs", func() (state string, ok bool) {
			stubs, _, err := agent.Jobs().Allocations(c.job, false, &api.QueryOptions{Namespace: c.namespace})
			if err != nil || len(stubs) != 1 {
				evals, _, evalsErr := agent.Jobs().Evaluations(c.job, &api.QueryOptions{Namespace: c.namespace})
				text := fmt.Sprintf("%d allocations, %v, %v", len(stubs), err, evalsErr)
				for _, e := range evals {
					text += fmt.Sprintf("; evaluation %s: %s", e.Status, e.StatusDescription)
				}
				return text, false
			}
			allocID = stubs[0].ID
			return fmt.Sprintf("%s %+v", stubs[0].ClientStatus, stubs[0].TaskStates), stubs[0].ClientStatus == api.AllocClientStatusRunning
		})
		inTask := func(script string) (string, error) {
			out, err := exec.Command("nomad-lite", "alloc", "exec", "-address", agent.Address, "-namespace", c.namespace, "-task", c.task, allocID, "sh", "-c", script).CombinedOutput()
			return string(out), err
		}
		if text, err := inTask("cat " + c.mount + "/marker"); err != nil || text != c.dir {
			t.Errorf("%s: the file in the directory is %q, %v, want %q", c.file, text, err, c.dir)
		}
		written := filepath.Join(c.dir, c.namespace)
		out, err := inTask("echo written > " + c.mount + "/" + c.namespace)
		if text, _ := os.ReadFile(written); (err == nil) == c.readOnly || (string(text) == "written\n") == c.readOnly {
			t.Errorf("%s: the task writes %q to the directory: %v\n%s", c.file, text, err, out)
		}
		if c.namespace == "write" { // the task itself has written a file
			agent.WaitUntil("the file of the task is in the directory", func() (string, bool) {
				text, err := os.ReadFile(filepath.Join(c.dir, allocID))
				return fmt.Sprintf("%q, %v", text, err), string(text) == "ok\n"
			})
		}
	}
}

// copyWithEdit copies a job file, with a replaced text.
func copyWithEdit(t *testing.T, path, old, replacement string) (copied string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), old); n != 1 {
		t.Fatalf("%s has %s %d times", path, old, n)
	}
	copied = filepath.Join(t.TempDir(), filepath.Base(path))
	if err := os.WriteFile(copied, []byte(strings.Replace(string(text), old, replacement, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return copied
}
