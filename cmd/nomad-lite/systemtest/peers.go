package systemtest

import (
	"os"
	"os/exec"
	"path/filepath"
)

// FindPeer returns the path of the packed program of others, which is no part of the repository. The error is an os.ErrNotExist
// if the machine does not have the program.
func FindPeer(name string) (string, error) {
	folder := os.Getenv("NOMAD_LITE_PEERS")
	if folder == "" {
		folder = filepath.Join(RepositoryDir(), "..", "shared", "peers")
	}
	packed := filepath.Join(folder, name+".xz")
	_, err := os.Stat(packed)
	return packed, err
}

// UnpackPeer unpacks a program that FindPeer finds to a path.
func UnpackPeer(name, path string) error {
	packed, err := FindPeer(name)
	if err != nil {
		return err
	}
	// A plugin directory has no file that is not complete.
	unpacked := filepath.Join(filepath.Dir(filepath.Dir(path)), name+".unpacked")
	out, err := os.OpenFile(unpacked, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	unpack := exec.Command("xz", "-dc", packed)
	unpack.Stdout = out
	err = unpack.Run()
	out.Close()
	if err != nil {
		return err
	}
	return os.Rename(unpacked, path)
}
