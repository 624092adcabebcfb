package endurance

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// hashDigits is the number of hex digits to which a commit id and a hash of code are shortened.
const hashDigits = 12

// readCommit returns the commit of the checkout, with the suffix "+changes" if a file other than
// docs/endurance.md differs from the commit.
func readCommit() (string, error) {
	commit, err := commandOutput("git", "rev-parse", fmt.Sprintf("--short=%d", hashDigits), "HEAD")
	if err != nil {
		return "", err
	}
	changes, err := commandOutput("git", "status", "--porcelain", "--", ":(top)", ":(top,exclude)docs/endurance.md")
	if err != nil {
		return "", err
	}
	if changes != "" {
		commit += "+changes"
	}
	return commit, nil
}

// codeUnderTest identifies the code that the test in the working directory is compiled from.
type codeUnderTest struct {
	pkg  string // path of the package below the module
	hash string // hash of the names and the content of the files
}

// readCodeUnderTest hashes the files of the module that the test in the working directory is
// compiled from, the directories testdata beside it and in its parent directories, and the versions of the other modules.
func readCodeUnderTest() (code codeUnderTest, err error) {
	list, err := commandOutput("go", "list", "-deps", "-test", "-json=ImportPath,Dir,Module,GoFiles,CgoFiles,SFiles,HFiles,EmbedFiles", ".")
	if err != nil {
		return code, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return code, err
	}
	files, root := map[string]bool{}, "" // root is the directory of the module
	for decoder := json.NewDecoder(strings.NewReader(list)); ; {
		var pkg struct {
			ImportPath, Dir string
			Module          *struct {
				Path, Dir string
				Main      bool
			}
			GoFiles, CgoFiles, SFiles, HFiles, EmbedFiles []string
		}
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return code, fmt.Errorf("go list: %w", err)
		}
		if pkg.Module == nil || !pkg.Module.Main || strings.HasSuffix(pkg.ImportPath, ".test") {
			continue // other modules are in go.sum, and the go command generates the main package of the test
		}
		root = pkg.Module.Dir
		if path, _, _ := strings.Cut(pkg.ImportPath, " "); pkg.Dir == dir {
			code.pkg = strings.TrimPrefix(strings.TrimSuffix(path, "_test"), pkg.Module.Path+"/")
		}
		for _, name := range slices.Concat(pkg.GoFiles, pkg.CgoFiles, pkg.SFiles, pkg.HFiles, pkg.EmbedFiles) {
			files[filepath.Join(pkg.Dir, name)] = true
		}
	}
	if code.pkg == "" {
		return code, fmt.Errorf("go list: no package of %s", dir)
	}
	files[filepath.Join(root, "go.mod")] = true
	files[filepath.Join(root, "go.sum")] = true
	for parent := dir; ; parent = filepath.Dir(parent) {
		err = filepath.WalkDir(filepath.Join(parent, "testdata"), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				files[path] = true
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return code, err
		}
		if parent == root {
			break
		}
	}
	code.hash, err = hashFiles(root, slices.Sorted(maps.Keys(files)))
	return code, err
}

// hashFiles returns a hash of the content of files and of their names below a directory.
func hashFiles(root string, files []string) (string, error) {
	hash := sha256.New()
	for _, file := range files {
		name, err := filepath.Rel(root, file)
		if err != nil {
			return "", err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %x\n", name, sha256.Sum256(content))
	}
	return hex.EncodeToString(hash.Sum(nil))[:hashDigits], nil
}

// commandOutput returns the standard output of a command without the last newline.
func commandOutput(name string, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, stderr.Bytes())
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
