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
)

// format is an archive format.
type format struct {
	names  []string // values of the archive option and file extensions, without the dot
	stream func(context.Context, *os.File) (io.ReadCloser, error)
	// entries unpacks the archive; nil means that the stream is a single file.
	entries func(u *unpacker, f *os.File, stream io.Reader) error
}

// formats are matched by the longest extension.
var formats = []format{
	{[]string{"tar.gz", "tgz"}, gunzip, (*unpacker).tar},
	{[]string{"tar.bz2", "tbz2"}, bunzip, (*unpacker).tar},
	{[]string{"tar.xz", "txz"}, command("xz", "xz-utils", "--memlimit=256MiB"), (*unpacker).tar},
	{[]string{"tar.zst", "tzst"}, command("zstd", "zstd", "--memory=256MB"), (*unpacker).tar},
	{[]string{"tar"}, plain, (*unpacker).tar},
	{[]string{"zip"}, plain, (*unpacker).zip},
	{[]string{"gz"}, gunzip, nil},
	{[]string{"bz2"}, bunzip, nil},
	{[]string{"xz"}, command("xz", "xz-utils", "--memlimit=256MiB"), nil},
	{[]string{"zst"}, command("zstd", "zstd", "--memory=256MB"), nil},
}

// findFormat returns the format by the option, or else by the name. nil means
// that the file is not an archive.
func findFormat(name, option string) (*format, error) {
	if on, err := strconv.ParseBool(option); err == nil && !on {
		return nil, nil
	}
	for i := range formats {
		for _, ending := range formats[i].names {
			if option == ending || option == "" && len(name) > len(ending)+1 && strings.HasSuffix(name, "."+ending) {
				return &formats[i], nil
			}
		}
	}
	if option != "" {
		return nil, fmt.Errorf("the archive option %q is neither a kind of archive that is known here nor false", option)
	}
	return nil, nil
}

// trim removes the extension of the format from a name.
func (f *format) trim(name string) string {
	for _, ending := range f.names {
		if short, ok := strings.CutSuffix(name, "."+ending); ok && short != "" {
			return short
		}
	}
	return name
}

func plain(_ context.Context, f *os.File) (io.ReadCloser, error) {
	return io.NopCloser(bufio.NewReaderSize(f, 64<<10)), nil
}

func gunzip(_ context.Context, f *os.File) (io.ReadCloser, error) {
	return gzip.NewReader(bufio.NewReaderSize(f, 64<<10))
}

func bunzip(_ context.Context, f *os.File) (io.ReadCloser, error) {
	return io.NopCloser(bzip2.NewReader(bufio.NewReaderSize(f, 64<<10))), nil
}

// command returns a function that decompresses with a program, which has the
// confinement of this process.
func command(name, pkg, memory string) func(context.Context, *os.File) (io.ReadCloser, error) {
	return func(ctx context.Context, f *os.File) (io.ReadCloser, error) {
		p := &program{cmd: exec.CommandContext(ctx, name, "-d", "-c", "-q", memory)}
		p.cmd.Stdin, p.cmd.Stderr = f, &p.said
		var err error
		if p.out, err = p.cmd.StdoutPipe(); err != nil {
			return nil, err
		}
		if err := p.cmd.Start(); errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("there is no %s on this machine: install %s", name, pkg)
		} else if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// program is the output of a decompression program. At its end it returns the
// program's error.
type program struct {
	cmd  *exec.Cmd
	out  io.ReadCloser
	said bytes.Buffer
	err  error // result of Wait
}

func (p *program) Read(b []byte) (int, error) {
	n, err := p.out.Read(b)
	if err == io.EOF {
		if err := p.wait(); err != nil {
			return n, fmt.Errorf("%w: %s", err, strings.TrimSpace(p.said.String()))
		}
	}
	return n, err
}

func (p *program) wait() error {
	if p.cmd.ProcessState == nil {
		p.err = p.cmd.Wait()
	}
	return p.err
}

// Close kills the program if it is still running.
func (p *program) Close() error {
	_ = p.cmd.Process.Kill()
	_ = p.wait()
	return nil
}

// unpacker writes the entries of one archive into a new directory.
type unpacker struct {
	root *os.Root
	quota
}

// unpack unpacks a file of the stage into a new directory of the stage. A
// compressed single file is decompressed into a file.
func (d *downloader) unpack(ctx context.Context, format *format, from, to string) error {
	f, err := d.stage.Open(from)
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
	stream, err := format.stream(ctx, f)
	if err != nil {
		return err
	}
	defer stream.Close()
	t := quota{limits: d.Limits, packed: info.Size()}
	if format.entries == nil {
		u := &unpacker{root: d.stage, quota: t}
		return cause(ctx, u.write(to, 0o644, stream))
	}
	if err := d.stage.Mkdir(to, 0o755); err != nil {
		return err
	}
	root, err := d.stage.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	return cause(ctx, format.entries(&unpacker{root: root, quota: t}, f, stream))
}

func (u *unpacker) tar(_ *os.File, stream io.Reader) error {
	for r := tar.NewReader(stream); ; {
		h, err := r.Next()
		if err == io.EOF {
			// The data after the end of the archive are read too, so that a
			// decompression program can report its error.
			_, err = io.Copy(&u.quota, stream)
			return err
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := u.file(); err != nil {
			return err
		}
		name, err := checkName(h.Name)
		if err != nil {
			return err
		}
		mode := h.FileInfo().Mode()
		switch h.Typeflag {
		case tar.TypeDir:
			err = u.dir(name, mode)
		case tar.TypeReg, tar.TypeGNUSparse:
			err = u.regular(name, mode, r)
		case tar.TypeSymlink:
			err = u.symlink(name, h.Linkname)
		case tar.TypeLink:
			err = u.hardLink(name, h.Linkname)
		default:
			err = fmt.Errorf("entry %q is %s", name, kindOf(mode))
		}
		if err != nil {
			return err
		}
	}
}

func (u *unpacker) zip(f *os.File, _ io.Reader) error {
	r, err := zip.NewReader(f, u.packed)
	if err != nil {
		return err
	}
	for _, e := range r.File {
		if err := u.zipEntry(e); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) zipEntry(e *zip.File) error {
	if err := u.file(); err != nil {
		return err
	}
	name, err := checkName(e.Name)
	if err != nil {
		return err
	}
	mode := e.Mode()
	if mode.IsDir() {
		return u.dir(name, mode)
	}
	content, err := e.Open()
	if err != nil {
		return err
	}
	defer content.Close()
	switch {
	case mode.IsRegular():
		return u.regular(name, mode, content)
	case mode.Type() == fs.ModeSymlink:
		target, err := io.ReadAll(io.LimitReader(content, 4096))
		if err != nil {
			return err
		}
		return u.symlink(name, string(target))
	}
	return fmt.Errorf("entry %q is %s", name, kindOf(mode))
}

// dir makes a directory that is writable, whatever its mode in the archive. As
// with files, give removes the special bits.
func (u *unpacker) dir(name string, mode fs.FileMode) error {
	if err := u.parents(path.Join(name, "_")); err != nil || name == "." {
		return err
	}
	return u.root.Chmod(name, mode.Perm()|mode&special|0o700)
}

// parents makes the directories above an entry. They are never symbolic links:
// an entry below a link would be at another path than its name.
func (u *unpacker) parents(name string) error {
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
	if err := u.parents(dir); err != nil {
		return err
	}
	if err := u.quota.dir(); err != nil {
		return err
	}
	return u.root.Mkdir(dir, 0o755)
}

// place removes an existing entry with the name: of two entries of the archive
// with the same name, the later one counts.
func (u *unpacker) place(name string) error {
	if name == "." {
		return errors.New(`an entry that is no directory has the name "."`)
	}
	if err := u.parents(name); err != nil {
		return err
	}
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (u *unpacker) regular(name string, mode fs.FileMode, content io.Reader) error {
	if err := u.place(name); err != nil {
		return err
	}
	return u.write(name, mode, content)
}

// write writes a new file. It keeps special bits; give removes and reports them.
func (u *unpacker) write(name string, mode fs.FileMode, content io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(io.MultiWriter(&u.quota, f), content); err != nil {
		return err
	}
	if err := f.Chmod(mode.Perm() | mode&special | 0o400); err != nil {
		return err
	}
	return f.Close()
}

func (u *unpacker) symlink(name, target string) error {
	if err := checkLink(name, target); err != nil {
		return err
	}
	if err := u.place(name); err != nil {
		return err
	}
	return u.root.Symlink(target, name)
}

// hardLink makes a second name of a file of the archive.
func (u *unpacker) hardLink(name, target string) error {
	clean, err := checkName(target)
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
	if err := u.place(name); err != nil {
		return err
	}
	return u.root.Link(clean, name)
}
