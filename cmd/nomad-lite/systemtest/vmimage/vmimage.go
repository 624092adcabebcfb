package vmimage

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Initramfs writes an initramfs, the first file system of a virtual machine, as a cpio archive of the format "newc".
// After an error its methods write nothing, and Close returns the error.
type Initramfs struct {
	archive      *bufio.Writer
	inodeCount   int
	writtenNames map[string]bool
	firstErr     error
}

// New returns an Initramfs that is written to w.
func New(w io.Writer) *Initramfs {
	return &Initramfs{archive: bufio.NewWriterSize(w, 1<<20), writtenNames: map[string]bool{}}
}

// writeEntry writes a file to the archive, unless the archive already has it.
func (i *Initramfs) writeEntry(name string, mode uint32, content []byte) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	if i.firstErr != nil || i.writtenNames[name] {
		return
	}
	i.writtenNames[name] = true
	i.inodeCount++
	// The fields are: inode number, mode, uid, gid, number of links, modification time, size, device numbers of the
	// file, device numbers of a device node, length of the name, checksum.
	_, i.firstErr = fmt.Fprintf(i.archive, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		i.inodeCount, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	i.padTo4Bytes(110 + len(name) + 1)
	if i.firstErr == nil {
		_, i.firstErr = i.archive.Write(content)
	}
	i.padTo4Bytes(len(content))
}

func (i *Initramfs) padTo4Bytes(n int) {
	if i.firstErr == nil && n%4 != 0 {
		_, i.firstErr = i.archive.Write(make([]byte, 4-n%4))
	}
}

// WriteDir writes a directory and its parents to the archive.
func (i *Initramfs) WriteDir(name string) {
	if parent := path.Dir(path.Clean(name)); parent != "." && parent != "/" {
		i.WriteDir(parent)
	}
	i.writeEntry(name, 0o040755, nil)
}

// WriteSymlink writes a symbolic link to the archive.
func (i *Initramfs) WriteSymlink(target, name string) { i.writeEntry(name, 0o120777, []byte(target)) }

// WriteFile writes a file and its directories to the archive.
func (i *Initramfs) WriteFile(name string, mode uint32, content []byte) {
	i.WriteDir(path.Dir(name))
	i.writeEntry(name, 0o100000|mode, content)
}

// WriteTree copies the files below a directory of this machine to the directory name of the archive.
func (i *Initramfs) WriteTree(source, name string) {
	err := filepath.WalkDir(source, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(file)
		if err == nil {
			i.WriteFile(name+strings.TrimPrefix(file, source), 0o644, content)
		}
		return err
	})
	i.firstErr = errors.Join(i.firstErr, err)
}

// WriteProgram copies a program of this machine and its libraries to the archive.
func (i *Initramfs) WriteProgram(source, name string) {
	content, err := os.ReadFile(source)
	if err != nil {
		i.firstErr = errors.Join(i.firstErr, err)
		return
	}
	i.WriteFile(name, 0o755, content)
	libraries, err := findSharedLibraries(source)
	i.firstErr = errors.Join(i.firstErr, err)
	for _, library := range libraries {
		// /lib is a symbolic link to usr/lib in the virtual machine.
		if name := "usr" + strings.TrimPrefix(library, "/usr"); !i.writtenNames[name] {
			i.WriteProgram(library, name)
		}
	}
}

// findSharedLibraries returns the paths of the dynamic loader and of the shared libraries that a program imports.
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

// Close writes the end of the archive, and returns the first error of any call.
func (i *Initramfs) Close() error {
	i.writeEntry("TRAILER!!!", 0, nil)
	if i.firstErr == nil {
		i.firstErr = i.archive.Flush()
	}
	return i.firstErr
}

// WriteModules copies the modules of a kernel of this machine, with the modules that they depend on, to a directory of
// the archive. The names of the files sort in the order in which the modules must be loaded.
func (i *Initramfs) WriteModules(kernel, name string, modules ...string) {
	dir := filepath.Join("/lib/modules", strings.TrimPrefix(filepath.Base(kernel), "vmlinuz-"))
	files, err := findModuleFiles(dir, modules)
	i.firstErr = errors.Join(i.firstErr, err)
	for n, file := range files {
		content, err := os.ReadFile(filepath.Join(dir, file))
		i.firstErr = errors.Join(i.firstErr, err)
		i.WriteFile(fmt.Sprintf("%s/%02d-%s", name, n, path.Base(file)), 0o644, content)
	}
}

// findModuleFiles returns the files of the modules and of the modules that they depend on, in the order in which they
// must be loaded. A module that is built into the kernel has no file.
func findModuleFiles(dir string, modules []string) (files []string, err error) {
	dependencies, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for _, name := range modules {
		found := bytes.Contains(builtin, []byte("/"+name+".ko"))
		for lines := bufio.NewScanner(bytes.NewReader(dependencies)); lines.Scan() && !found; {
			file, needed, _ := strings.Cut(lines.Text(), ":")
			if found = path.Base(file) == name+".ko"; !found {
				continue
			}
			for _, f := range slices.Backward(append([]string{file}, strings.Fields(needed)...)) {
				if !slices.Contains(files, f) {
					files = append(files, f)
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("%s has no module %s", dir, name)
		}
	}
	return files, nil
}

// FindKernel returns the path of a kernel of this machine. It prefers Debian's cloud kernel, which has the drivers for
// a virtual machine built in.
func FindKernel() (string, error) {
	for _, pattern := range []string{"/boot/vmlinuz-*-cloud-amd64", "/boot/vmlinuz-*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, kernel := range found {
			if f, err := os.Open(kernel); err == nil {
				f.Close()
				return kernel, nil
			}
		}
	}
	return "", errors.New("there is no kernel to boot in /boot (Debian: apt-get install linux-image-cloud-amd64)")
}
