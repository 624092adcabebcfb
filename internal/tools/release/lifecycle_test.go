package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// skipUnlessSlow skips a test that compiles the product, as internal/testsupport/slowtest of the product's module does.
func skipUnlessSlow(t *testing.T) {
	t.Helper()
	if os.Getenv("NOMAD_LITE_SLOW") == "" || testing.Short() {
		t.Skip("compiles the product; NOMAD_LITE_SLOW=1 without -short, as in make test-slow and CI, runs it")
	}
}

// copySources copies the files of the work tree that git knows, with their changes, to a directory without a repository.
func copySources(t *testing.T, dir string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	names, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Split(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted in the work tree
		}
		if err == nil && !info.Mode().IsRegular() {
			continue // a symbolic link; the program is built from regular files
		}
		var content []byte
		if err == nil {
			content, err = os.ReadFile(filepath.Join(root, name))
		}
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// release writes the release of a version for this machine from sources, and returns its directory.
func release(t *testing.T, sources, version string) string {
	t.Helper()
	o := options{version: version, sourceDir: sources, outDir: filepath.Join(t.TempDir(), "dist"), revision: "0123456789abcdef", targets: []string{hostTarget()}}
	if err := o.complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := writeRelease(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o.outDir
}

// TestRelease builds the same version twice in different folders and compares all files, and builds another version. It
// installs, upgrades, removes and purges the package of Debian under a running agent, and installs the archive.
func TestRelease(t *testing.T) {
	skipUnlessSlow(t)
	t.Setenv("SOURCE_DATE_EPOCH", "1790000000")
	sources, copied := filepath.Join(t.TempDir(), "sources"), filepath.Join(t.TempDir(), "a folder with another name")
	copySources(t, sources)
	if err := os.CopyFS(copied, os.DirFS(sources)); err != nil {
		t.Fatal(err)
	}
	first, second, next := release(t, sources, "0.1.0"), release(t, copied, "0.1.0"), release(t, sources, "0.1.1")
	t.Run("Reproducible", func(t *testing.T) {
		compareDirectories(t, first, second)
		if out, err := exec.Command("cmp", filepath.Join(first, "SHA256SUMS"), filepath.Join(next, "SHA256SUMS")).CombinedOutput(); err == nil {
			t.Errorf("another version has the same files: %s", out)
		}
	})
	t.Run("Schemas", func(t *testing.T) {
		for name, property := range map[string]string{"nomad-job.schema.json": "job", "nomad-agent.schema.json": "client"} {
			var schema struct{ Properties map[string]any }
			text, err := os.ReadFile(filepath.Join(first, name))
			if err == nil {
				err = json.Unmarshal(text, &schema)
			}
			if err != nil || schema.Properties[property] == nil {
				t.Errorf("%s has no property %s: %v", name, property, err)
			}
		}
	})
	t.Run("DebianLifecycle", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to install a package in a root directory")
		}
		for _, program := range []string{"dpkg", "unshare", "busybox"} {
			if _, err := exec.LookPath(program); err != nil {
				skipOrFail(t, err)
			}
		}
		root := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "testdata/lifecycle.sh", root,
			filepath.Join(first, "nomad-lite_0.1.0_"+runtime.GOARCH+".deb"), filepath.Join(next, "nomad-lite_0.1.1_"+runtime.GOARCH+".deb"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{
			"== install\n", "nomad-lite 0.1.0\n== upgrade\n", "nomad-lite 0.1.1\n== back\n", "== nothing left\n",
			"== install again\n", "nomad-lite is upgraded.", "To start its agent: nomad-lite agent -config /etc/nomad-lite.d",
			"Tasks that run continue, and /var/lib/nomad-lite remains.",
			"/var/lib/nomad-lite/removed/nomad-lite agent stop -all /var/lib/nomad-lite",
			"apt purge nomad-lite", "/etc/nomad-lite.d remain for /usr/local/bin/nomad-lite", "cannot be executed, and so ends no tasks",
		} {
			if !strings.Contains(string(out), want) {
				t.Errorf("the output does not contain %q:\n%s", want, out)
			}
		}
	})
	t.Run("InstallScript", func(t *testing.T) { testInstallScript(t, first) })
	for _, engine := range []string{"docker", "podman"} {
		t.Run("ImageRunsOn/"+engine, func(t *testing.T) {
			testImage(t, engine, filepath.Join(first, "nomad-lite_0.1.0_linux_"+runtime.GOARCH+".image.tar"))
		})
	}
}

// skipOrFail skips a test that lacks a program, or fails in CI, which has all of them.
func skipOrFail(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("NOMAD_LITE_CI") != "" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// compareDirectories fails unless both directories have the same files, byte for byte.
func compareDirectories(t *testing.T, a, b string) {
	t.Helper()
	if out, err := exec.Command("diff", "-r", a, b).CombinedOutput(); err != nil {
		t.Errorf("two builds of the same sources differ: %v\n%s", err, out)
	}
	if entries, err := os.ReadDir(a); err != nil || len(entries) != 11 {
		t.Errorf("%d files and error %v, want 11 files: archive, image, module list, 3 packages, site, 2 schemas, install.sh, SHA256SUMS", len(entries), err)
	}
}

// runInstallScript executes install.sh with a directory instead of a URL, and with a umask that lets no other user read files.
func runInstallScript(t *testing.T, script, from, prefix string) (output string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `umask 077; exec sh "$@"`, "sh", script, "-p", prefix)
	cmd.Env = append(os.Environ(), "NOMAD_LITE_URL=file://"+from, "NOMAD_LITE_PROGRAM_ONLY=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestInstallScriptReportsErrors(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		skipOrFail(t, err)
	}
	dist := t.TempDir()
	name := "nomad-lite_0.1.0_linux_" + runtime.GOARCH
	if err := writeTarGz(filepath.Join(dist, name+".tar.gz"), name, archiveFiles(testTexts, []byte("no program")), testOptions().time); err != nil {
		t.Fatal(err)
	}
	if _, err := writeChecksums(dist); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "install.sh")
	if err := os.WriteFile(script, installScript("0.1.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]string{
		t.TempDir(): "is installed, but cannot be executed",
		"/opt/a b":  "choose a path of letters",
		"/opt/a|b":  "choose a path of letters",
		"opt":       "write an absolute path",
		"/":         "write an absolute path",
	} {
		if output, err := runInstallScript(t, script, dist, prefix); err == nil || !strings.Contains(output, want) {
			t.Errorf("prefix %s: error %v, want %q in:\n%s", prefix, err, want, output)
		}
	}
}

// testInstallScript installs the archive below a directory, from a directory instead of the Internet.
func testInstallScript(t *testing.T, dist string) {
	if _, err := exec.LookPath("curl"); err != nil {
		skipOrFail(t, err)
	}
	install := func(from string) (prefix, output string, err error) {
		prefix = t.TempDir()
		output, err = runInstallScript(t, filepath.Join(dist, "install.sh"), from, prefix)
		return prefix, output, err
	}
	prefix, output, err := install(dist)
	if err != nil || !strings.Contains(output, "installed: nomad-lite 0.1.0") {
		t.Fatalf("%v\n%s", err, output)
	}
	version, err := exec.Command(filepath.Join(prefix, "bin/nomad-lite"), "version").Output()
	if want := "nomad-lite 0.1.0\nRevision 0123456789abcdef\nDate 2026-09-21T14:13:20Z\n"; err != nil || string(version) != want {
		t.Errorf("version %q and error %v, want %q", version, err, want)
	}
	unit, err := os.ReadFile(filepath.Join(prefix, "lib/systemd/system/nomad-lite.service"))
	if err != nil || !strings.Contains(string(unit), "\nExecStart="+prefix+"/bin/nomad-lite agent -config /etc/nomad-lite.d\n") {
		t.Errorf("unit: %v\n%s", err, unit)
	}
	for _, name := range []string{"share/man/man1/nomad-lite.1", "share/bash-completion/completions/nomad-lite", "lib/nomad-lite/purge"} {
		if _, err := os.Stat(filepath.Join(prefix, name)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"bin", "bin/nomad-lite", "lib/nomad-lite", "share/man/man1"} {
		if info, err := os.Stat(filepath.Join(prefix, name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v and error %v, want mode 0755 although the umask was 077", name, info, err)
		}
	}

	damaged := t.TempDir()
	if err := os.CopyFS(damaged, os.DirFS(dist)); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(damaged, "nomad-lite_0.1.0_linux_"+runtime.GOARCH+".tar.gz")
	if err := os.WriteFile(archive, []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	prefix, output, err = install(damaged)
	entries, readErr := os.ReadDir(prefix)
	if err == nil || !strings.Contains(output, "nothing is installed") || len(entries) > 0 || readErr != nil {
		t.Errorf("a damaged archive: error %v, files %v\n%s", err, entries, output)
	}
}

// helloJob is the job of docs/how-to/install.md: a task in the agent's container, which has one program.
const helloJob = `
job "hello" {
  type = "batch"
  group "hello" {
    task "hello" {
      driver = "raw_exec"
      config {
        command = "/usr/bin/nomad-lite"
        args    = ["version"]
      }
    }
  }
}
`

// containerJob has a task in a container beside the agent's, which reads a file that the agent has written.
const containerJob = `
job "container" {
  group "container" {
    task "container" {
      driver = "docker"
      template {
        data        = "from the template"
        destination = "local/text"
      }
      config {
        image   = "busybox:1"
        command = "/bin/busybox"
        args    = ["sh", "-c", "while :; do echo $(/bin/busybox cat /local/text), tick; /bin/busybox sleep 1; done"]
      }
    }
  }
}
`

// testImage executes the commands of docs/how-to/install.md for the image of a release with an engine.
func testImage(t *testing.T, engine, image string) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run containers in namespaces of the test")
	}
	engineProgram := map[string]string{"docker": "dockerd", "podman": "podman"}[engine]
	for _, program := range []string{engine, engineProgram, "unshare", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			skipOrFail(t, fmt.Errorf("the image is not tested on %s: %w", engine, err))
		}
	}
	document, err := os.ReadFile("../../../docs/how-to/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(document), "\n### In a container\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var commands strings.Builder
	for line := range strings.Lines(section) {
		if command, isCode := strings.CutPrefix(line, "    docker "); isCode {
			commands.WriteString(engine + " " + strings.ReplaceAll(command, "amd64", runtime.GOARCH))
		}
	}
	dir := t.TempDir()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "rootfs", "bin"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "rootfs", "bin", "busybox"), program, 0o755)
	}
	if err == nil {
		err = os.Symlink(image, filepath.Join(dir, filepath.Base(image)))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"commands":            commands.String(),
		"hello.nomad.hcl":     helloJob,
		"container.nomad.hcl": containerJob,
		// The default limits of podman can be above those of this machine, and crun refuses hybrid cgroups.
		"containers.conf": "[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n" +
			"[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--net", "--fork", "--kill-child",
		"sh", "testdata/image.sh", engine, dir)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+filepath.Join(dir, "containers.conf"), "DOCKER_HOST=")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "== nothing left\n") {
		t.Fatalf("%v\n%s", err, out)
	}
}
