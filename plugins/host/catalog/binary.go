package catalog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// CheckedPluginFile is an open plugin file that has passed the checks. The caller must call Close.
type CheckedPluginFile struct {
	// File is the open file that was checked.
	File *os.File

	// Path is the path of the file, for messages. It is executed if IsScript is set.
	Path string

	// Argv is the command line, with argv[0].
	Argv []string

	// IsScript means that the file is not an ELF file. It must be executed by its path, because the interpreter
	// opens the file again.
	IsScript bool
}

// Close closes the file, and lets processes open it for writing again.
func (b *CheckedPluginFile) Close() error {
	// The plugin and the keeper can have descriptors of the same open file, with which the lease would continue.
	_, _ = unix.FcntlInt(b.File.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // fails if the file has no lease
	return b.File.Close()
}

// openForWritingTimeout is how long OpenAndCheck waits for the writers of a file: an installer may be writing it, or a child
// that the installer has forked has not called exec yet, and still has the file open.
const openForWritingTimeout = 250 * time.Millisecond

// OpenAndCheck opens the plugin's file and checks it. Each call reads the lock file and checks
// the file again: `plugin install` replaces both while an agent runs. The error is ETXTBSY if a process has the file open for
// writing; until Close, no process can open it for writing, so that the content that was checked is executed. The kernel
// ensures that only if the file belongs to this user or this process has CAP_LEASE, and if the file system has leases.
func (e Entry) OpenAndCheck(ctx context.Context, logger hclog.Logger) (checked *CheckedPluginFile, err error) {
	err = wait.WhileError(ctx, unix.ETXTBSY, openForWritingTimeout, func() error {
		checked, err = e.openAndCheck(logger)
		return err
	})
	return checked, err
}

func (e Entry) openAndCheck(logger hclog.Logger) (*CheckedPluginFile, error) {
	if e.Err != nil {
		return nil, e.Err
	}
	if e.Builtin {
		// /proc/self/exe is opened, not the path of the executable: an upgrade may have
		// replaced the file at the path.
		f, err := os.Open("/proc/self/exe")
		if err != nil {
			return nil, err
		}
		return &CheckedPluginFile{File: f, Path: "/proc/self/exe", Argv: append([]string{builtinArgv0}, e.Args...)}, nil
	}

	root, err := os.OpenRoot(e.pluginDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := checkPluginDirPermissions(root, e.pluginDir, logger); err != nil {
		return nil, err
	}
	// Without O_NONBLOCK the open of a FIFO would block.
	f, err := root.OpenFile(e.fileName, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, explainStatError(root, e.fileName, err)
	}
	b := &CheckedPluginFile{File: f, Path: e.Path, Argv: append([]string{e.Path}, e.Args...)}
	// During an installation the file and the lock file can be of different versions. The file is then refused, and the
	// supervisor launches the plugin again after its back-off.
	lock, err := readChecksumLockFile(root, e.pluginDir)
	if err == nil {
		err = b.checkAndSetIsScript(e, lock.Plugins[e.fileName].SHA256, logger)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// checkAndSetIsScript sets IsScript, and returns an error if the file must not be started: it is not a regular file,
// other users can replace or write it, or its checksum is not the required one. lockedSHA256 is the checksum of the file
// in the lock file; "" if it has no entry.
func (b *CheckedPluginFile) checkAndSetIsScript(e Entry, lockedSHA256 string, logger hclog.Logger) error {
	info, err := b.File.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	if err := checkFilePermissions(info, "the file", logger); err != nil {
		return err
	}
	// The file may be a symbolic link, so the directories between the plugin directory and
	// its target are checked too.
	if err := safepath.CheckParents(e.Path); err != nil {
		return err
	}
	if err := b.preventWrites(); err != nil {
		return err
	}

	var fileMagic [4]byte
	n, err := b.File.ReadAt(fileMagic[:], 0)
	if err != nil && err != io.EOF {
		return err
	}
	b.IsScript = !bytes.Equal(fileMagic[:n], []byte("\x7fELF"))

	return b.checkSHA256(e, lockedSHA256)
}

// preventWrites takes a lease of the file, which the kernel grants only if no process has the file open for writing: the mode
// says nothing about a descriptor that another user has opened before the file got its owner and mode.
func (b *CheckedPluginFile) preventWrites() error {
	_, err := unix.FcntlInt(b.File.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("a process has it open for writing, and could change it after the check: %w", unix.ETXTBSY)
	}
	return nil // other errors mean that there are no leases here
}

// checkSHA256 returns an error if the checksum of the file is not the one in the plugin block or in the lock file. It
// does not read the file if neither has a checksum.
func (b *CheckedPluginFile) checkSHA256(e Entry, lockedSHA256 string) error {
	required := ""
	if e.Block != nil {
		required = e.Block.SHA256
	}
	if required == "" && lockedSHA256 == "" {
		return nil
	}
	sum, err := b.SHA256()
	switch {
	case err != nil:
		return err
	case required != "" && !strings.EqualFold(required, sum):
		return fmt.Errorf("its sha256 is %s, but %s wants %s", sum, e.Block.Range, required)
	case lockedSHA256 != "" && lockedSHA256 != sum:
		return fmt.Errorf("it has changed since it was installed: its sha256 is %s, and not %s. If the change is wanted: nomad-lite plugin install FILE", sum, lockedSHA256)
	}
	return nil
}

// SHA256 reads the whole open file and returns its checksum, in hex.
func (b *CheckedPluginFile) SHA256() (string, error) { return sha256HexOfFile(b.File) }

// HashUnchangedFile returns the SHA-256 checksum of the file at path, in hex. It returns an error if
// the file's metadata differs from expectedStat before or after the file is read.
func HashUnchangedFile(path string, expectedStat FileStat) (string, error) {
	// Without O_NONBLOCK the open of a FIFO would block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	unchanged := func() error {
		info, err := f.Stat()
		if err == nil && fileStat(info) != expectedStat {
			err = fmt.Errorf("%s has changed", path)
		}
		return err
	}
	if err := unchanged(); err != nil {
		return "", err
	}
	sum, err := sha256HexOfFile(f)
	if err != nil {
		return "", err
	}
	return sum, unchanged()
}

// sha256HexOfFile returns the SHA-256 checksum of the whole file, in hex.
func sha256HexOfFile(f *os.File) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, math.MaxInt64)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// checkPluginDirPermissions returns an error if an untrusted user could replace the directory or a file
// in it.
func checkPluginDirPermissions(root *os.Root, dir string, logger hclog.Logger) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if err := checkFilePermissions(info, "the plugin directory "+dir, logger); err != nil {
		return err
	}
	if err := safepath.CheckParents(dir); err != nil {
		return fmt.Errorf("the plugin directory %s: %w", dir, err)
	}
	return nil
}

// checkFilePermissions returns an error if users other than root and the agent's user may write to
// the file.
func checkFilePermissions(info fs.FileInfo, nameInErrors string, logger hclog.Logger) error {
	return checkOwnerAndMode(nameInErrors, info.Mode().Perm(), int(info.Sys().(*syscall.Stat_t).Uid), os.Geteuid(), logger)
}

// checkOwnerAndMode returns an error if users other than root and agentUID may write to a file with the given
// mode and owner.
func checkOwnerAndMode(nameInErrors string, mode fs.FileMode, ownerUID, agentUID int, logger hclog.Logger) error {
	switch {
	case ownerUID != 0 && ownerUID != agentUID:
		return fmt.Errorf("%s belongs to uid %d; it must belong to root or to uid %d, who runs it", nameInErrors, ownerUID, agentUID)
	case mode&0o002 != 0:
		return fmt.Errorf("other users may write to %s (mode %04o); chmod o-w makes it safe", nameInErrors, mode)
	case mode&0o020 != 0 && agentUID == 0:
		return fmt.Errorf("its group may write to %s (mode %04o); chmod g-w makes it safe", nameInErrors, mode)
	case mode&0o020 != 0 && logger != nil:
		logger.Warn("a group may write where plugins come from", "what", nameInErrors, "mode", fmt.Sprintf("%04o", mode))
	}
	return nil
}
