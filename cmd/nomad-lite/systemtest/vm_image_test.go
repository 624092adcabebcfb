package systemtest

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// initramfs writes an initramfs, which is the first file system of a virtual machine: a cpio
// archive of the format "newc". After an error it writes nothing more.
type initramfs struct {
	w            *bufio.Writer
	inodeCount   int
	writtenNames map[string]bool
	err          error
}

func newInitramfs(w io.Writer) *initramfs {
	return &initramfs{w: bufio.NewWriterSize(w, 1<<20), writtenNames: map[string]bool{}}
}

// writeEntry writes a file to the archive, unless the archive already has it.
func (i *initramfs) writeEntry(name string, mode uint32, content []byte) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	if i.err != nil || i.writtenNames[name] {
		return
	}
	i.writtenNames[name] = true
	i.inodeCount++
	// The fields are: inode, mode, uid, gid, number of links, modification time, size, device
	// numbers of the file, device numbers of a device node, length of the name, checksum.
	_, i.err = fmt.Fprintf(i.w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		i.inodeCount, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	i.pad(110 + len(name) + 1)
	if i.err == nil {
		_, i.err = i.w.Write(content)
	}
	i.pad(len(content))
}

func (i *initramfs) pad(n int) {
	if i.err == nil && n%4 != 0 {
		_, i.err = i.w.Write(make([]byte, 4-n%4))
	}
}

// writeDir writes a directory and its parents to the archive.
func (i *initramfs) writeDir(name string) {
	if parent := path.Dir(path.Clean(name)); parent != "." && parent != "/" {
		i.writeDir(parent)
	}
	i.writeEntry(name, 0o040755, nil)
}

func (i *initramfs) writeSymlink(target, name string) { i.writeEntry(name, 0o120777, []byte(target)) }

func (i *initramfs) writeFile(name string, mode uint32, content []byte) {
	i.writeDir(path.Dir(name))
	i.writeEntry(name, 0o100000|mode, content)
}

// writeTree copies a directory of this machine, with its content, to the archive.
func (i *initramfs) writeTree(source, name string) {
	err := filepath.WalkDir(source, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(file)
		if err == nil {
			i.writeFile(name+strings.TrimPrefix(file, source), 0o644, content)
		}
		return err
	})
	i.err = errors.Join(i.err, err)
}

// writeProgram copies a program of this machine and its libraries to the archive.
func (i *initramfs) writeProgram(source, name string) {
	content, err := os.ReadFile(source)
	if err != nil {
		i.err = errors.Join(i.err, err)
		return
	}
	i.writeFile(name, 0o755, content)
	libraries, err := findSharedLibraries(source)
	i.err = errors.Join(i.err, err)
	for _, library := range libraries {
		// /lib is a symbolic link to usr/lib in the virtual machine.
		if name := "usr" + strings.TrimPrefix(library, "/usr"); !i.writtenNames[name] {
			i.writeProgram(library, name)
		}
	}
}

// findSharedLibraries returns the libraries and the loader of a program.
func findSharedLibraries(program string) ([]string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	defer f.Close()
	var libraryPaths []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text, err := io.ReadAll(p.Open())
			if err != nil {
				return nil, err
			}
			libraryPaths = append(libraryPaths, strings.TrimRight(string(text), "\x00"))
		}
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	for _, name := range names {
		found := ""
		for _, dir := range []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				found = filepath.Join(dir, name)
				break
			}
		}
		if found == "" {
			return nil, fmt.Errorf("%s needs %s, which is not where libraries are", program, name)
		}
		libraryPaths = append(libraryPaths, found)
	}
	return libraryPaths, nil
}

// close writes the end of the archive.
func (i *initramfs) close() error {
	i.writeEntry("TRAILER!!!", 0, nil)
	if i.err == nil {
		i.err = i.w.Flush()
	}
	return i.err
}
