package peertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// removePeers removes the peers that tests have unpacked, and kills their processes: the stock agent leaves the log collectors of
// some tasks.
func removePeers() error {
	if dir := peers.ProgramDir(); dir != "" {
		for _, pid := range processesOf(dir) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				return fmt.Errorf("kill process %d of the peers: %w", pid, err)
			}
		}
	}
	return peers.RemovePrograms()
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
