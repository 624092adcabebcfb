package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// LockFileName is the name of the lock file in a plugin directory. Hidden files are never plugins.
const LockFileName = ".plugins.lock.json"

// ChecksumLockFile records which plugins were installed in a directory. A file with an entry is started only with the
// recorded content; files without an entry are not restricted.
type ChecksumLockFile struct {
	Plugins map[string]LockedPlugin // keys are file names
}

// LockedPlugin is an installed file.
type LockedPlugin struct {
	SHA256      string // checksum of the file, in hex
	Source      string // absolute path of the file that was copied
	InstalledAt time.Time
}

// ReadChecksumLockFile reads the lock file of a plugin directory. It returns an empty ChecksumLockFile if there is
// none, and an error if the file is invalid or other users can write to it.
func ReadChecksumLockFile(pluginDir string) (*ChecksumLockFile, error) {
	root, err := os.OpenRoot(pluginDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return readChecksumLockFile(root, pluginDir)
}

func readChecksumLockFile(root *os.Root, dir string) (*ChecksumLockFile, error) {
	lock := &ChecksumLockFile{Plugins: map[string]LockedPlugin{}}
	path := filepath.Join(dir, LockFileName)
	// Without O_NONBLOCK the open of a FIFO would block.
	f, err := root.OpenFile(LockFileName, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return lock, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if err := checkFilePermissions(info, path, nil); err != nil {
		return nil, err
	}
	const maxSize = 1 << 20
	if err := json.NewDecoder(io.LimitReader(f, maxSize)).Decode(lock); err != nil {
		return nil, fmt.Errorf("%s: %w: install the plugins again after you have removed it", path, err)
	}
	return lock, nil
}

// writeToDir replaces the lock file of a plugin directory.
func (l *ChecksumLockFile) writeToDir(dir string) error {
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".installing-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	opcount.Count(opcount.Sync)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, LockFileName))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", LockFileName, err), os.Remove(f.Name()))
	}
	return nil
}

// InstalledFileState is the result of the comparison of a file with the lock file.
type InstalledFileState string

// The states of a file in a plugin directory.
const (
	FileUnchanged    InstalledFileState = "ok"
	FileChanged      InstalledFileState = "changed"       // the content is not the recorded content: the file is not started
	FileMissing      InstalledFileState = "missing"       // the lock file has an entry, but there is no file
	FileNotInstalled InstalledFileState = "not installed" // the lock file has no entry: the file is started with any content
)

// FileVerification is a file of a plugin directory, or an entry of its lock file.
type FileVerification struct {
	Name   string
	State  InstalledFileState
	SHA256 string // checksum of the file, in hex; empty if it is missing
	LockedPlugin
}

// CompareFilesWithLock compares all executable files of a plugin directory with the lock file. The result is sorted by
// name.
func CompareFilesWithLock(pluginDir string) ([]FileVerification, error) {
	lock, err := ReadChecksumLockFile(pluginDir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(pluginDir)
	if err != nil {
		return nil, err
	}
	missing := make(map[string]bool)
	for name := range lock.Plugins {
		missing[name] = true
	}
	var files []FileVerification
	for _, entry := range entries {
		name := entry.Name()
		path := filepath.Join(pluginDir, name)
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || !base.ValidName(name) {
			continue
		}
		sum, err := HashUnchangedFile(path, fileStat(info))
		if err != nil {
			return nil, err
		}
		f := FileVerification{Name: name, State: FileNotInstalled, SHA256: sum, LockedPlugin: lock.Plugins[name]}
		if missing[name] {
			f.State = FileUnchanged
			if f.LockedPlugin.SHA256 != sum {
				f.State = FileChanged
			}
		}
		delete(missing, name)
		files = append(files, f)
	}
	for name := range missing {
		files = append(files, FileVerification{Name: name, State: FileMissing, LockedPlugin: lock.Plugins[name]})
	}
	sort.Slice(files, func(i, j int) bool { return files[i].Name < files[j].Name })
	return files, nil
}

// StagedInstallation is the copy of a plugin file in a staging directory inside the plugin directory. The caller must
// call Commit, which installs the copy, or Discard.
type StagedInstallation struct {
	FileName string // name of the file in the plugin directory
	SHA256   string // checksum of the copy, in hex

	pluginDir  string
	stagingDir string
	sourcePath string
}

// StageInstallation copies the file sourcePath to a new staging directory inside pluginDir. It creates pluginDir if it
// is missing, and returns an error if other users can write to it.
func StageInstallation(pluginDir, sourcePath, fileName string) (*StagedInstallation, error) {
	if !base.ValidName(fileName) {
		return nil, fmt.Errorf("%q is no name for a plugin: it has letters, digits, dots, dashes and underscores, and starts with a letter or digit; choose one with -name", fileName)
	}
	var err error
	i := &StagedInstallation{FileName: fileName}
	if i.sourcePath, err = filepath.Abs(sourcePath); err != nil {
		return nil, err
	}
	if i.pluginDir, err = filepath.Abs(pluginDir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(i.pluginDir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(i.pluginDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := checkPluginDirPermissions(root, i.pluginDir, nil); err != nil {
		return nil, err
	}
	if i.stagingDir, err = os.MkdirTemp(i.pluginDir, ".installing-*"); err != nil {
		return nil, err
	}
	if err := i.copyToStagingDir(); err != nil {
		return nil, errors.Join(err, i.Discard())
	}
	return i, nil
}

func (i *StagedInstallation) copyToStagingDir() error {
	from, err := os.OpenFile(i.sourcePath, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	if info, err := from.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", i.sourcePath)
	}
	to, err := os.OpenFile(filepath.Join(i.stagingDir, i.FileName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(to, sum), from)
	i.SHA256 = hex.EncodeToString(sum.Sum(nil))
	opcount.Count(opcount.Sync)
	return errors.Join(err, to.Chmod(0o755), to.Sync(), to.Close())
}

// StagingDir returns the directory with the copy, and no other file: a caller can use it as plugin directory to test
// the plugin.
func (i *StagedInstallation) StagingDir() string { return i.stagingDir }

// Commit moves the copy into the plugin directory, where it replaces a file of the same name, and records its
// checksum in the lock file. It blocks while another process commits an installation there.
func (i *StagedInstallation) Commit() error {
	dir, err := os.Open(i.pluginDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := filelock.Lock(dir, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", i.pluginDir, err)
	}
	lock, err := ReadChecksumLockFile(i.pluginDir)
	if err != nil {
		return err
	}
	// The file is moved before the lock file is written: after a crash between both, the file does not have the
	// checksum that is recorded for its predecessor, and is not started until it is installed again.
	if err := os.Rename(filepath.Join(i.stagingDir, i.FileName), filepath.Join(i.pluginDir, i.FileName)); err != nil {
		return err
	}
	lock.Plugins[i.FileName] = LockedPlugin{SHA256: i.SHA256, Source: i.sourcePath, InstalledAt: time.Now().UTC().Truncate(time.Second)}
	opcount.Count(opcount.Sync)
	return errors.Join(lock.writeToDir(i.pluginDir), dir.Sync(), i.Discard())
}

// Discard removes the staging directory with the copy. The plugin directory stays, also if StageInstallation has
// created it.
func (i *StagedInstallation) Discard() error { return os.RemoveAll(i.stagingDir) }
