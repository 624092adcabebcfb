package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// MkdirPlugin is the name of the builtin plugin, which makes a directory for each volume.
const MkdirPlugin = "mkdir"

// mkdirVersion is the version of Nomad's plugin mkdir, which the builtin plugin reports in the node's attributes.
const mkdirVersion = "0.0.1"

// mkdirPlugin makes directories named by volume id in a directory that only the agent's account can enter.
type mkdirPlugin struct{ volumesDir string }

// mkdirParameters are the parameters for the plugin mkdir's volumes.
type mkdirParameters struct {
	mode     uint32
	uid, gid int // -1 means the agent account's id
}

func parseMkdirParameters(parameters map[string]string) (mkdirParameters, error) {
	p := mkdirParameters{mode: 0o700, uid: -1, gid: -1}
	for name, text := range parameters {
		var err error
		switch name {
		case "mode":
			var mode uint64
			if mode, err = strconv.ParseUint(text, 8, 12); err != nil {
				err = errors.New(`must be an octal mode, such as "0750"`)
			}
			p.mode = uint32(mode)
		case "uid":
			p.uid, err = parseOwnerID(text)
		case "gid":
			p.gid, err = parseOwnerID(text)
		default:
			err = errors.New("is not known: the plugin mkdir has mode, uid and gid")
		}
		if err != nil {
			return p, fmt.Errorf("parameter %s = %q: %w", name, text, err)
		}
	}
	return p, nil
}

func parseOwnerID(text string) (int, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id == 1<<32-1 { // the last number means "no change" for the kernel
		return 0, errors.New("must be a number, such as \"1000\"")
	}
	return int(id), nil
}

// createAndOpenVolumesDir opens the volumes directory, and creates it if it is missing. It returns an error if
// accounts other than root and the agent's can change the directory.
func createAndOpenVolumesDir(dir string) (fd int, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return -1, err
	}
	if err := safepath.CheckDir(dir); err != nil {
		return -1, err
	}
	return safepath.OpenDir(dir)
}

// create implements plugin. If the volume was created before, it keeps the owner and the directory's mode.
func (m mkdirPlugin) create(_ context.Context, r pluginRequest) (createResult, error) {
	parameters, err := parseMkdirParameters(r.parameters)
	if err != nil {
		return createResult{}, err
	}
	if err := uuid.Validate(r.volumeID); err != nil {
		return createResult{}, fmt.Errorf("volume id %q: %w", r.volumeID, err)
	}
	parent, err := createAndOpenVolumesDir(m.volumesDir)
	if err != nil {
		return createResult{}, err
	}
	defer unix.Close(parent)
	path := filepath.Join(m.volumesDir, r.volumeID)
	err = unix.Mkdirat(parent, r.volumeID, 0o700)
	exists := errors.Is(err, unix.EEXIST)
	if err != nil && !exists {
		return createResult{}, &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	fd, err := safepath.OpenAt(parent, r.volumeID, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return createResult{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if exists && r.alreadyCreated {
		return createResult{Path: path}, nil
	}
	if parameters.uid >= 0 || parameters.gid >= 0 {
		if err := unix.Fchown(fd, parameters.uid, parameters.gid); err != nil {
			return createResult{}, &fs.PathError{Op: "chown", Path: path, Err: err}
		}
	}
	if err := unix.Fchmod(fd, parameters.mode); err != nil { // after Fchown, which clears the set-user-id and set-group-id bits
		return createResult{}, &fs.PathError{Op: "chmod", Path: path, Err: err}
	}
	return createResult{Path: path}, nil
}

// delete implements plugin. It removes only the directory in m.volumesDir named by the volume's id.
func (m mkdirPlugin) delete(_ context.Context, r pluginRequest) error {
	if err := uuid.Validate(r.volumeID); err != nil {
		return fmt.Errorf("volume id %q: %w", r.volumeID, err)
	}
	return allocdir.RemoveTreeExceptMounts(m.volumesDir, r.volumeID)
}
