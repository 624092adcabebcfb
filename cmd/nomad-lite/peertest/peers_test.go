package peertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/slowtest"
)

// peersEnvVar names the folder with the peers; the default is shared/peers beside the repository.
const peersEnvVar = "NOMAD_LITE_PEERS"

// unpackPeers unpacks the peers into a temporary directory, once.
var unpackPeers = sync.OnceValues(func() (dir string, err error) {
	folder := peersFolder()
	if dir, err = os.MkdirTemp("", "nomad-lite-peers"); err != nil {
		return "", err
	}
	if out, err := exec.Command(filepath.Join(folder, "unpack"), dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack the peers of %s: %w\n%s", folder, err, out)
	}
	unpackedPeers = dir
	return dir, nil
})

// unpackedPeers is the directory of unpackPeers, empty before the first call.
var unpackedPeers string

func peersFolder() string {
	if folder := os.Getenv(peersEnvVar); folder != "" {
		return folder
	}
	return filepath.Join("..", "..", "..", "..", "shared", "peers")
}

// peerProgram returns the path of a peer program. It skips the test if the peers are absent, or slow
// tests are not enabled.
func peerProgram(t testing.TB, name string) string {
	t.Helper()
	slowtest.Skip(t, "starts programs of others, for two minutes")
	if _, err := os.Stat(filepath.Join(peersFolder(), "unpack")); err != nil {
		t.Skipf("no peer programs: set %s to the folder that contains them: %v", peersEnvVar, err)
	}
	dir, err := unpackPeers()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// removePeers removes the unpacked peers, and kills their processes: the stock agent leaves the log collectors of some tasks.
func removePeers() error {
	if unpackedPeers == "" {
		return nil
	}
	for _, pid := range processesOf(unpackedPeers) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("kill process %d of the peers: %w", pid, err)
		}
	}
	return os.RemoveAll(unpackedPeers)
}

// processesOf returns the processes whose programs are below a directory.
func processesOf(dir string) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/exe") // the pattern is valid
	var pids []int
	for _, link := range links {
		var pid int
		if program, err := os.Readlink(link); err != nil || !strings.HasPrefix(program, dir+"/") {
			continue // the process has another program, or has exited
		}
		if _, err := fmt.Sscanf(link, "/proc/%d/exe", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// linkPlugins makes a plugin directory: the keys of links are file names, the values are programs. The links are hard links,
// because nomad-lite starts no program through a link that leads out of the directory.
func linkPlugins(dir string, links map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, program := range links {
		if err := os.Link(program, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
