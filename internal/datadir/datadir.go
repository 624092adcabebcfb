package datadir

import (
	"os"
	"path/filepath"
	"strconv"
)

// System is the default data directory of an agent that runs as root.
const System = "/var/lib/nomad-lite"

// Default returns the data directory that an agent of this user has if neither the option data_dir nor the flag -data-dir
// is set. An error means that the user has no home directory.
func Default() (string, error) {
	if os.Geteuid() == 0 {
		return System, nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "nomad-lite"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".local", "state", "nomad-lite"), nil
}

// Temporary returns the path of the directory that contains the temporary data directories of a
// user. The directory may be missing or belong to another user, which package safepath can check.
func Temporary(uid int) string {
	return filepath.Join(os.TempDir(), "nomad-lite-"+strconv.Itoa(uid))
}
