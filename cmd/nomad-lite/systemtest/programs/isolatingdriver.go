package programs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// serveIsolatingDriver serves a driver whose tasks see only a part of the host's files. `isolating-driver chroot`
// serves the driver in_chroot, and `isolating-driver image` the driver in_image. A task is a shell script. Both drivers
// need mount namespaces, and the programs unshare, mount and chroot.
func serveIsolatingDriver() { sdk.ServeDriver(&isolatingDriverPlugin{os.Args[1]}) }

type isolatingDriverPlugin struct{ chrootOrImage string }

func (d *isolatingDriverPlugin) Info() sdk.DriverInfo {
	isolation := driver.FSIsolationChroot
	if d.chrootOrImage == "image" {
		isolation = driver.FSIsolationImage
	}
	return sdk.DriverInfo{
		Name: "in_" + d.chrootOrImage, Version: "0.1.0",
		TaskSchema:   hclspec.Object(map[string]*hclspec.Spec{"script": hclspec.Attr("script", "string", true)}),
		Capabilities: driver.Capabilities{FSIsolation: isolation},
	}
}

// isolationScripts maps an isolation to the script that mounts the task's files and then executes the task's own
// script. The arguments are the task directory, the shared alloc directory, USER:GROUP, and the task's script. The
// mounts are in a mount namespace that ends with the task.
var isolationScripts = map[string]string{
	// The task directory becomes the root directory of the task. The agent has mounted the host's programs.
	"chroot": `set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd "$1"
mkdir -p dev
mount --rbind /dev dev
exec chroot --userspec="$3" --groups= . /bin/sh -c "$4"
`,
	// A new root directory that has only the host's programs stands for an image.
	"image": `set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t tmpfs -o mode=755 tmpfs /mnt
cd /mnt
mkdir usr dev local secrets tmp alloc
for dir in usr dev; do mount --rbind /$dir $dir; done
for dir in local secrets tmp; do mount --bind "$1/$dir" $dir; done
mount --bind "$2" alloc
for dir in bin sbin lib lib64; do ln -s usr/$dir $dir; done
exec chroot --userspec="$3" --groups= . /bin/sh -c "$4"
`,
}

func (d *isolatingDriverPlugin) Start(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var config struct {
		Script string `codec:"script"`
	}
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	user := start.User
	if user == "" {
		user = map[string]string{"chroot": "nobody", "image": "0"}[d.chrootOrImage]
	}
	cred, err := process.Credential(user)
	if err != nil {
		return nil, err
	}
	asRoot := *start
	asRoot.User = "" // the process runs as root until it has changed its root directory
	return process.Start(ctx, &asRoot, process.Command{Path: "/usr/bin/unshare", Dir: "/", Args: []string{
		"--mount", "/bin/sh", "-c", isolationScripts[d.chrootOrImage], "isolate",
		start.TaskDir(), filepath.Join(start.AllocDir, "alloc"), fmt.Sprintf("%d:%d", cred.Uid, cred.Gid), config.Script,
	}})
}

func (*isolatingDriverPlugin) Recover(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	return new(shellDriverPlugin).Recover(ctx, start)
}

func (*isolatingDriverPlugin) Adopt(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	return process.Adopt(ctx, start)
}
