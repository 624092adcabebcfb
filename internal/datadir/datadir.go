package datadir

import (
	"os"
	"path/filepath"
	"strconv"
)

// System is the data directory of an agent of root.
const System = "/var/lib/nomad-lite"

// Default returns the data directory of an agent of this user without data_dir or -data-dir. The error means that the user has no
// home directory.
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
