package systemtest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// vmEngineTools are the programs of a Docker engine (Debian: docker.io, busybox-static).
var vmEngineTools = []string{"dockerd", "containerd", "containerd-shim-runc-v2", "runc", "busybox"}

// vmModules are the modules of the kernel that a Docker engine needs: for its images, and for the network of its containers.
var vmModules = []string{"overlay", "bridge", "veth"}

// vmModuleDir has the modules in the virtual machine. Their names sort in the order in which they must be loaded.
const vmModuleDir = "modules"

// writeVMModules copies vmModules, and the modules that they depend on, to the archive.
func (i *initramfs) writeVMModules(kernel string) {
	dir := filepath.Join("/lib/modules", strings.TrimPrefix(filepath.Base(kernel), "vmlinuz-"))
	files, err := findModuleFiles(dir, vmModules)
	i.err = errors.Join(i.err, err)
	for n, file := range files {
		content, err := os.ReadFile(filepath.Join(dir, file))
		i.err = errors.Join(i.err, err)
		i.writeFile(fmt.Sprintf("%s/%02d-%s", vmModuleDir, n, path.Base(file)), 0o644, content)
	}
}

// findModuleFiles returns the files of modules and of those that they depend on, in the order in which they must be loaded. A
// module that is built into the kernel has no file.
func findModuleFiles(dir string, modules []string) (files []string, err error) {
	dependencies, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for _, name := range modules {
		found := bytes.Contains(builtin, []byte("/"+name+".ko"))
		for lines := bufio.NewScanner(bytes.NewReader(dependencies)); lines.Scan() && !found; {
			file, needed, _ := strings.Cut(lines.Text(), ":")
			if found = path.Base(file) == name+".ko"; !found {
				continue
			}
			for _, f := range slices.Backward(append([]string{file}, strings.Fields(needed)...)) {
				if !slices.Contains(files, f) {
					files = append(files, f)
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("%s has no module %s", dir, name)
		}
	}
	return files, nil
}

// loadVMModules loads the modules of the image.
func loadVMModules() error {
	files, err := filepath.Glob("/" + vmModuleDir + "/*.ko")
	for _, file := range files {
		f, openErr := os.Open(file)
		if openErr != nil {
			return openErr
		}
		if loadErr := unix.FinitModule(int(f.Fd()), "", 0); loadErr != nil && !errors.Is(loadErr, unix.EEXIST) {
			err = errors.Join(err, fmt.Errorf("load %s: %w", file, loadErr))
		}
		f.Close()
	}
	return err
}

// removeEngineFiles removes what an engine and its tests leave by design: the parent cgroup of the containers, which must be
// empty, the lock of dockertest, and directories that are not in the data directory of the engine.
func removeEngineFiles() {
	for _, file := range []string{"/sys/fs/cgroup/docker", "/tmp/nomad-lite-engine.lock"} {
		_ = os.Remove(file) // findLeftovers reports a file that remains
	}
	for _, dir := range []string{"/run/containerd", "/run/docker"} {
		_ = os.RemoveAll(dir) // as above
	}
}
