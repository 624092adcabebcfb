package artifact

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// giveEntryExclusivelyToRoot gives a file or directory of the staging directory to root. Afterwards
// no other user can open it, and no process has it open for writing. If the agent is
// not root, the download runs as the same user, and giveEntryExclusivelyToRoot changes nothing.
func (p *installer) giveEntryExclusivelyToRoot(name string, currentMode fs.FileMode) error {
	if os.Geteuid() != 0 {
		return nil
	}
	switch {
	case currentMode.IsDir():
		return errors.Join(p.stagingRoot.Lchown(name, 0, 0), p.stagingRoot.Chmod(name, 0o700))
	case !currentMode.IsRegular():
		return p.stagingRoot.Lchown(name, 0, 0)
	}
	f, err := p.stagingRoot.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := errors.Join(f.Chown(0, 0), f.Chmod(0o600)); err != nil {
		return err
	}
	if isNotOpenForWriting(f) {
		return nil
	}
	return p.replaceWithCopy(name, f)
}

// isNotOpenForWriting reports whether no process has a file open for writing, or mapped.
// It is false if the file system does not support leases.
func isNotOpenForWriting(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err != nil {
		return false
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

// replaceWithCopy replaces a file, which is open as original, with a copy that no process has open.
func (p *installer) replaceWithCopy(name string, original *os.File) error {
	// A file with more than one name is rejected: a copy would change the link
	// count, which takeOwnershipAndCheckFiles checks.
	info, err := original.Stat()
	if err != nil {
		return err
	}
	if info.Sys().(*syscall.Stat_t).Nlink > 1 {
		return errors.New("a process has it open for writing, and it has more than one name")
	}
	copied := path.Join(path.Dir(name), ".copy-"+rand.Text())
	to, err := p.stagingRoot.OpenFile(copied, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.Copy(to, original); err != nil {
		return err
	}
	return errors.Join(to.Close(), p.stagingRoot.Rename(copied, name))
}

// verifyChecksumAndRemoveOthers returns an error if the downloaded file does not have the checksum of
// checksumOption, or the checksum in the stored checksum file if checksumOption names one. It removes everything except
// the downloaded file from the staging directory.
func (p *installer) verifyChecksumAndRemoveOthers(ctx context.Context, displayName, checksumOption string) error {
	info, err := p.stagingRoot.Lstat(fetchedFileName)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Sys().(*syscall.Stat_t).Nlink != 1 {
		return errors.New("the download has left no file, or one with other names")
	}
	if err := p.giveEntryExclusivelyToRoot(fetchedFileName, info.Mode()); err != nil {
		return fmt.Errorf("take %q from the download: %w", displayName, err)
	}
	if strings.HasPrefix(checksumOption, checksumFilePrefix) {
		if checksumOption, err = p.readChecksumFile(); err != nil {
			return err
		}
	}
	want, err := parseChecksum(checksumOption)
	if err != nil {
		return err
	}
	f, err := p.stagingRoot.Open(fetchedFileName)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(want.writtenDataHash, contextReader{ctx, f}); err != nil {
		return err
	}
	if err := want.checkWrittenData(displayName); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil { // readable for the process that unpacks the file
		return err
	}
	entries, err := fs.ReadDir(p.stagingRoot.FS(), ".")
	for _, e := range entries {
		if e.Name() != fetchedFileName {
			err = errors.Join(err, p.stagingRoot.RemoveAll(e.Name()))
		}
	}
	return err
}

func (p *installer) readChecksumFile() (string, error) {
	f, err := p.stagingRoot.OpenFile(checksumFileName, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	return string(text), err
}

// contextReader is a reader that returns an error when its context has ended.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(b)
}
