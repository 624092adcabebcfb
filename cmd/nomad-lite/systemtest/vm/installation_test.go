package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// installation is the life of an installation on a Debian with systemd, from the first command of README.md to its removal.
type installation struct {
	name string

	// boots are the steps of each boot of the machine, which are functions of testdata/installation/life.sh. The step
	// losePowerStep is the last one of its boot. The other boots end with a reboot by systemd.
	boots [][]string
}

// losePowerStep is the step in which the power of the machine is cut, and losePowerLine the line by which it asks for it.
const (
	losePowerStep = "lose_power"
	losePowerLine = "vm-cut"
)

// These are the versions of two releases of the same commit.
const (
	installedVersion = "0.1.0"
	upgradedVersion  = "0.1.1"
)

var installations = []installation{
	{"installation of the package", [][]string{{
		"record_machine", "install_package", "hundred_tasks", "upgrade_package", "save_snapshot", "restore_under_tasks", "restore_all",
		"go_back_package", "remove_package", "install_again", "remove_again", "purge_package", "nothing_left",
	}}},
	{"installation of the archive", [][]string{{
		"record_machine", "install_archive", "hundred_tasks", "upgrade_archive", "save_snapshot", "restore_under_tasks", "restore_all",
		"go_back_archive", "remove_archive", "nothing_left",
	}}},
	{"installation and reboots", [][]string{
		{"record_machine", "install_package", "hundred_tasks", losePowerStep},
		{"tasks_run_again"},
		{"tasks_run_again", "purge_package", "nothing_left"},
	}},
}

// chosenInstallations returns the installations whose names contain the text, without its underscores.
func chosenInstallations(text string) []installation {
	return slices.DeleteFunc(slices.Clone(installations), func(i installation) bool {
		return !strings.Contains(i.name, strings.ReplaceAll(text, "_", " "))
	})
}

// testVMInstallations runs installations, each on a machine of its own.
func testVMInstallations(t *testing.T, kernel string, chosen []installation) {
	began := time.Now()
	disk := filepath.Join(t.TempDir(), "disk")
	writeInstallationDisk(t, disk)
	t.Logf("disk made in %v", time.Since(began).Round(100*time.Millisecond))
	for _, i := range chosen {
		t.Run(i.name, func(t *testing.T) {
			m := vm{kernel: kernel, disk: filepath.Join(t.TempDir(), "disk")}
			runHostCommand(t, exec.Command("cp", "--sparse=always", disk, m.disk))
			i.run(t, m)
		})
	}
}

// run boots the machine of an installation for each of its boots. The first step that fails ends the test.
func (i installation) run(t *testing.T, m vm) {
	for n, steps := range i.boots {
		losesPower := slices.Contains(steps, losePowerStep)
		reports, rest := m.bootKernel(t, "root=/dev/nvme0n1 rw systemd.show_status=0 vm_steps="+strings.Join(steps, ","), func(line string) bool {
			return losesPower && strings.TrimSpace(line) == losePowerLine
		})
		for _, step := range steps {
			report, ok := reports[step]
			failed := !strings.HasPrefix(report.result, "ok") && step != losePowerStep
			if !t.Run(fmt.Sprintf("boot %d/%s", n+1, step), func(t *testing.T) {
				switch {
				case !ok:
					t.Fatalf("the machine did not get that far; what else it wrote:\n%s", rest)
				case failed:
					t.Fatalf("%s\n%s", report.result, report.output)
				case testing.Verbose():
					t.Logf("%s\n%s", report.result, report.output)
				}
			}) {
				return
			}
		}
	}
}

// installationPackages are the packages of Debian that the machine has beside the essential ones.
const installationPackages = "systemd,systemd-sysv,dbus,procps,iproute2,ca-certificates,curl"

// writeInstallationDisk makes the file system of the machine: a Debian, two releases, and the commands of the documents.
func writeInstallationDisk(t *testing.T, disk string) {
	for program, pkg := range map[string]string{"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("the disk of the machine needs %s (Debian: apt-get install %s): %v", program, pkg, err)
		}
	}
	files := filepath.Join(t.TempDir(), "life")
	if err := os.CopyFS(files, os.DirFS("testdata/installation")); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(files, "life.sh")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{installedVersion, upgradedVersion} {
		copyRelease(t, version, files)
	}
	for name, section := range map[string]struct{ document, heading string }{
		"README.commands":   {"README.md", "## Installed in a minute"},
		"recovery.commands": {"docs/how-to/recovery.md", "## The state file is lost"},
		"remove.commands":   {"docs/how-to/install.md", "### Remove an archive"},
	} {
		writeTestFile(t, filepath.Join(files, name), documentedCommands(t, section.document, section.heading))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	// The hooks execute mke2fs where the files have their owners, also if this test is not root. There mmdebstrap has not yet
	// removed what forbids services to start, if it is not skipped.
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--variant=minbase", "--include="+installationPackages, "--format=null",
		"--skip=chroot/policy-rc.d,chroot/start-stop-daemon",
		"--customize-hook=copy-in "+files+" /",
		`--customize-hook=mv "$1/life/life.service" "$1/etc/systemd/system/"`,
		`--customize-hook=chroot "$1" systemctl enable life.service`,
		`--customize-hook=chroot "$1" systemctl mask serial-getty@ttyS0.service`, // it would write to the console of the steps
		`--customize-hook=rm "$1/etc/resolv.conf"`,
		// The bind mount is without the file systems that are mounted in the directory, such as /proc. The disk is sparse; an
		// allocation needs 300 MB of it.
		`--customize-hook=mount --bind "$1" "$1/mnt" && mke2fs -q -t ext4 -d "$1/mnt" '`+disk+`' 48G && umount "$1/mnt"`,
		"bookworm", "/dev/null")
	runHostCommand(t, cmd)
}

// copyRelease makes a release of this commit, and copies its files for the machine.
func copyRelease(t *testing.T, version, dir string) {
	dist := filepath.Join(t.TempDir(), "dist")
	pack := exec.Command("go", "run", "-C", filepath.Join(systemtest.RepositoryDir(), "internal/tools"), "./release", "-version", version,
		"-source", systemtest.RepositoryDir(), "-out", dist, "-targets", "linux/"+runtime.GOARCH, "-revision", "vm-test")
	pack.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1790000000", "GOFLAGS=", "CGO_ENABLED=0")
	runHostCommand(t, pack)
	// install.sh and SHA256SUMS have the same names in all releases.
	for from, to := range map[string]string{
		"nomad-lite_" + version + "_amd64.deb":          "nomad-lite_" + version + "_amd64.deb",
		"nomad-lite_" + version + "_linux_amd64.tar.gz": "nomad-lite_" + version + "_linux_amd64.tar.gz",
		"install.sh": "install-" + version + ".sh",
	} {
		runHostCommand(t, exec.Command("cp", filepath.Join(dist, from), filepath.Join(dir, to)))
	}
	sums, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	writeTestFile(t, filepath.Join(dir, "SHA256SUMS"), string(earlier)+string(sums))
}

// documentedCommands returns the lines of code in a section of a document.
func documentedCommands(t *testing.T, document, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(systemtest.RepositoryDir(), document))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n#")
	var commands strings.Builder
	for line := range strings.Lines(section) {
		if command, isCode := strings.CutPrefix(line, "    "); isCode {
			commands.WriteString(command)
		}
	}
	if !found || commands.Len() == 0 {
		t.Fatalf("%s has no section %q with commands", document, heading)
	}
	return commands.String()
}

func writeTestFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// runHostCommand runs a command of this machine to its successful end.
func runHostCommand(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
