package vm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// vmEngineTools are the programs of a Docker engine (Debian: docker.io, busybox-static).
var vmEngineTools = []string{"dockerd", "containerd", "containerd-shim-runc-v2", "runc", "busybox"}

// vmModules are the modules of the kernel for the images and the networks of a Docker engine, for the network mode bridge, and for
// the network of the machine.
var vmModules = []string{"overlay", "bridge", "veth", "nft_chain_nat", "nft_ct", "nft_fib_inet", "nft_masq", "nft_nat", "nft_meta_bridge", "nf_conntrack_netlink", "virtio_pci", "virtio_net"}

// vmModuleDir has the modules in the virtual machine.
const vmModuleDir = "modules"

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
