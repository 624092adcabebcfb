package systemtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// FindThirdPartyProgramArchive returns the path of a compressed program of another project, which is no part of the
// repository. The error is an os.ErrNotExist if the machine does not have the program.
func FindThirdPartyProgramArchive(name string) (string, error) {
	folder := os.Getenv("NOMAD_LITE_PEERS")
	if folder == "" {
		folder = filepath.Join(RepositoryDir(), "..", "shared", "peers")
	}
	packed := filepath.Join(folder, name+".xz")
	_, err := os.Stat(packed)
	return packed, err
}

// UnpackThirdPartyProgram decompresses a program of another project to a path.
func UnpackThirdPartyProgram(name, path string) error {
	packed, err := FindThirdPartyProgramArchive(name)
	if err != nil {
		return err
	}
	// path can be in a plugin directory, in which an agent must not find an incomplete file. So the file is renamed
	// when it is complete.
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

// SharedDirOrSkip returns the absolute path of a directory with samples of Nomad, which are not part of this
// repository. It skips the test if there is no such directory.
func SharedDirOrSkip(t testing.TB, names ...string) string {
	t.Helper()
	shared := os.Getenv("NOMAD_LITE_SHARED")
	if shared == "" {
		shared = filepath.Join(RepositoryDir(), "..", "shared")
	}
	dir, err := filepath.Abs(filepath.Join(append([]string{shared}, names...)...))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("nothing at %s: set NOMAD_LITE_SHARED to the directory that holds %s", dir, filepath.Join(names...))
	}
	return dir
}
