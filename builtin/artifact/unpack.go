package artifact

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// archiveFormat describes how a type of archive is recognized and unpacked.
type archiveFormat struct {
	extensions []string // values of the archive option and file extensions, without the dot
	openStream func(context.Context, *os.File) (io.ReadCloser, error)
	// unpackEntries unpacks the archive; nil means that the stream is a single file.
	unpackEntries func(u *unpacker, f *os.File, stream io.Reader) error
}

// findArchiveFormat compares archiveFormats in this order: tar.gz must come before gz.
var archiveFormats = []archiveFormat{
	{[]string{"tar.gz", "tgz"}, openGzip, (*unpacker).unpackTar},
	{[]string{"tar.bz2", "tbz2"}, openBzip2, (*unpacker).unpackTar},
	{[]string{"tar.xz", "txz"}, openStreamWithCommand("xz", "xz-utils", "--memlimit=256MiB"), (*unpacker).unpackTar},
	{[]string{"tar.zst", "tzst"}, openStreamWithCommand("zstd", "zstd", "--memory=256MB"), (*unpacker).unpackTar},
	{[]string{"tar"}, openUncompressed, (*unpacker).unpackTar},
	{[]string{"zip"}, openUncompressed, (*unpacker).unpackZip},
	{[]string{"gz"}, openGzip, nil},
	{[]string{"bz2"}, openBzip2, nil},
	{[]string{"xz"}, openStreamWithCommand("xz", "xz-utils", "--memlimit=256MiB"), nil},
	{[]string{"zst"}, openStreamWithCommand("zstd", "zstd", "--memory=256MB"), nil},
}

// findArchiveFormat returns the format that the archive option or, without the option,
// the file name says. nil means that the file is not an archive.
func findArchiveFormat(fileName, archiveOption string) (*archiveFormat, error) {
	if on, err := strconv.ParseBool(archiveOption); err == nil && !on {
		return nil, nil
	}
	for i := range archiveFormats {
		for _, ending := range archiveFormats[i].extensions {
			if archiveOption == ending || archiveOption == "" && len(fileName) > len(ending)+1 && strings.HasSuffix(fileName, "."+ending) {
				return &archiveFormats[i], nil
			}
		}
	}
	if archiveOption != "" {
		return nil, fmt.Errorf("the archive option %q is neither a kind of archive that is known here nor false", archiveOption)
	}
	return nil, nil
}

// trimExtension removes the extension of the format from a name.
func (f *archiveFormat) trimExtension(name string) string {
	for _, ending := range f.extensions {
		if short, ok := strings.CutSuffix(name, "."+ending); ok && short != "" {
			return short
		}
	}
	return name
}

func openUncompressed(_ context.Context, f *os.File) (io.ReadCloser, error) {
	return io.NopCloser(bufio.NewReaderSize(f, 64<<10)), nil
}

func openGzip(_ context.Context, f *os.File) (io.ReadCloser, error) {
	return gzip.NewReader(bufio.NewReaderSize(f, 64<<10))
}

func openBzip2(_ context.Context, f *os.File) (io.ReadCloser, error) {
	return io.NopCloser(bzip2.NewReader(bufio.NewReaderSize(f, 64<<10))), nil
}

// openStreamWithCommand returns a function that starts a decompression program for a file. The
// program inherits the restrictions of this process.
func openStreamWithCommand(command, debianPackage, memoryFlag string) func(context.Context, *os.File) (io.ReadCloser, error) {
	return func(ctx context.Context, f *os.File) (io.ReadCloser, error) {
		opcount.Count(opcount.Fork)
		p := &decompressor{cmd: exec.CommandContext(ctx, command, "-d", "-c", "-q", memoryFlag)}
		p.cmd.Stdin, p.cmd.Stderr = f, &p.stderr
		var err error
		if p.stdout, err = p.cmd.StdoutPipe(); err != nil {
			return nil, err
		}
		if err := p.cmd.Start(); errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("there is no %s on this machine: install %s", command, debianPackage)
		} else if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// decompressor is the output of a decompression program. At the end of the output,
// Read returns an error if the program has failed.
type decompressor struct {
	cmd     *exec.Cmd
	stdout  io.ReadCloser
	stderr  bytes.Buffer
	waitErr error // result of cmd.Wait
}

func (d *decompressor) Read(b []byte) (int, error) {
	n, err := d.stdout.Read(b)
	if err == io.EOF {
		if err := d.waitForExit(); err != nil {
			return n, fmt.Errorf("%w: %s", err, strings.TrimSpace(d.stderr.String()))
		}
	}
	return n, err
}

func (d *decompressor) waitForExit() error {
	if d.cmd.ProcessState == nil {
		d.waitErr = d.cmd.Wait()
	}
	return d.waitErr
}

// Close kills the program if it is still running.
func (d *decompressor) Close() error {
	_ = d.cmd.Process.Kill() // Kill fails only if the program has exited
	_ = d.waitForExit()      // ignored: Read has already returned the error of a program that was not killed
	return nil
}

// unpacker unpacks one archive into a new directory.
type unpacker struct {
	root *os.Root
	unpackQuota
}

// unpack unpacks a file of the staging directory into a new directory in it. A
// compressed single file is decompressed into a file.
func (d *downloader) unpack(ctx context.Context, format *archiveFormat, from, to string) error {
	f, err := d.stagingRoot.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return errors.New("it is empty")
	}
	stream, err := format.openStream(ctx, f)
	if err != nil {
		return err
	}
	defer stream.Close()
	t := unpackQuota{limits: d.Limits, archiveBytes: info.Size()}
	if format.unpackEntries == nil {
		u := &unpacker{root: d.stagingRoot, unpackQuota: t}
		return contextCauseOrRedactedError(ctx, u.writeNewFile(to, 0o644, stream))
	}
	if err := d.stagingRoot.Mkdir(to, 0o755); err != nil {
		return err
	}
	root, err := d.stagingRoot.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	return contextCauseOrRedactedError(ctx, format.unpackEntries(&unpacker{root: root, unpackQuota: t}, f, stream))
}

func (u *unpacker) unpackTar(_ *os.File, stream io.Reader) error {
	for r := tar.NewReader(stream); ; {
		h, err := r.Next()
		if err == io.EOF {
			// The data after the end of the archive are read too, so that a
			// decompression program can report its error.
			_, err = io.Copy(&u.unpackQuota, stream)
			return err
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := u.addFile(); err != nil {
			return err
		}
		name, err := validateAndCleanEntryName(h.Name)
		if err != nil {
			return err
		}
		mode := h.FileInfo().Mode()
		switch h.Typeflag {
		case tar.TypeDir:
			err = u.makeDir(name, mode)
		case tar.TypeReg, tar.TypeGNUSparse:
			err = u.replaceRegularFile(name, mode, r)
		case tar.TypeSymlink:
			err = u.makeSymlink(name, h.Linkname)
		case tar.TypeLink:
			err = u.makeHardLink(name, h.Linkname)
		default:
			err = fmt.Errorf("entry %q is %s", name, describeUnsupportedFileType(mode))
		}
		if err != nil {
			return err
		}
	}
}

func (u *unpacker) unpackZip(f *os.File, _ io.Reader) error {
	r, err := zip.NewReader(f, u.archiveBytes)
	if err != nil {
		return err
	}
	for _, e := range r.File {
		if err := u.unpackZipEntry(e); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) unpackZipEntry(e *zip.File) error {
	if err := u.addFile(); err != nil {
		return err
	}
	name, err := validateAndCleanEntryName(e.Name)
	if err != nil {
		return err
	}
	mode := e.Mode()
	if mode.IsDir() {
		return u.makeDir(name, mode)
	}
	content, err := e.Open()
	if err != nil {
		return err
	}
	defer content.Close()
	switch {
	case mode.IsRegular():
		return u.replaceRegularFile(name, mode, content)
	case mode.Type() == fs.ModeSymlink:
		target, err := io.ReadAll(io.LimitReader(content, 4096))
		if err != nil {
			return err
		}
		return u.makeSymlink(name, string(target))
	}
	return fmt.Errorf("entry %q is %s", name, describeUnsupportedFileType(mode))
}

// makeDir makes a directory that the owner can write to, whatever mode the archive has for the
// directory. It keeps the special mode bits, which the installer removes and reports.
func (u *unpacker) makeDir(name string, mode fs.FileMode) error {
	if err := u.makeParentDirs(path.Join(name, "_")); err != nil || name == "." {
		return err
	}
	return u.root.Chmod(name, mode.Perm()|mode&specialModeBits|0o700)
}

// makeParentDirs makes the directories above an entry. It returns an error if one of
// them is a symbolic link, because the entry would be written to another directory.
func (u *unpacker) makeParentDirs(name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	info, err := u.root.Lstat(dir)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil && info.Mode().Type() == fs.ModeSymlink:
		return fmt.Errorf("entry %q lies below the symbolic link %q", name, dir)
	case err == nil:
		return fmt.Errorf("entry %q lies below %q, which is no directory", name, dir)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := u.makeParentDirs(dir); err != nil {
		return err
	}
	if err := u.unpackQuota.addImplicitDir(); err != nil {
		return err
	}
	return u.root.Mkdir(dir, 0o755)
}

// makeParentsAndRemoveExisting removes an existing entry with the same name: if an archive has a name
// twice, the later entry replaces the earlier one.
func (u *unpacker) makeParentsAndRemoveExisting(name string) error {
	if name == "." {
		return errors.New(`an entry that is no directory has the name "."`)
	}
	if err := u.makeParentDirs(name); err != nil {
		return err
	}
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (u *unpacker) replaceRegularFile(name string, mode fs.FileMode, content io.Reader) error {
	if err := u.makeParentsAndRemoveExisting(name); err != nil {
		return err
	}
	return u.writeNewFile(name, mode, content)
}

// writeNewFile writes a new file. It keeps the special mode bits, which the installer removes and
// reports.
func (u *unpacker) writeNewFile(name string, mode fs.FileMode, content io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(io.MultiWriter(&u.unpackQuota, f), content); err != nil {
		return err
	}
	if err := f.Chmod(mode.Perm() | mode&specialModeBits | 0o400); err != nil {
		return err
	}
	return f.Close()
}

func (u *unpacker) makeSymlink(name, target string) error {
	if err := checkSymlinkTarget(name, target); err != nil {
		return err
	}
	if err := u.makeParentsAndRemoveExisting(name); err != nil {
		return err
	}
	return u.root.Symlink(target, name)
}

// makeHardLink makes a hard link to a file that was already unpacked.
func (u *unpacker) makeHardLink(name, target string) error {
	clean, err := validateAndCleanEntryName(target)
	if err != nil {
		return fmt.Errorf("hard link %q leads out of the artifact, to %q", name, target)
	}
	info, err := u.root.Lstat(clean)
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("hard link %q leads to %q, which is no file of the artifact", name, target)
	}
	if clean == name {
		return nil
	}
	if err := u.makeParentsAndRemoveExisting(name); err != nil {
		return err
	}
	return u.root.Link(clean, name)
}
