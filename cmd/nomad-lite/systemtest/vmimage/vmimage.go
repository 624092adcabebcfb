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

// InitramfsWriter writes an initramfs, the first file system of a virtual machine, as a cpio archive of the format
// "newc". After an error its methods write nothing, and Close returns the error.
type InitramfsWriter struct {
	archive      *bufio.Writer
	inodeCount   int
	writtenNames map[string]bool
	firstErr     error
}

// New returns an InitramfsWriter that writes to w.
func New(w io.Writer) *InitramfsWriter {
	return &InitramfsWriter{archive: bufio.NewWriterSize(w, 1<<20), writtenNames: map[string]bool{}}
}

// writeEntryOnce writes a file to the archive, unless the archive already has it.
func (i *InitramfsWriter) writeEntryOnce(name string, mode uint32, content []byte) {
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

func (i *InitramfsWriter) padTo4Bytes(writtenBytes int) {
	if i.firstErr == nil && writtenBytes%4 != 0 {
		_, i.firstErr = i.archive.Write(make([]byte, 4-writtenBytes%4))
	}
}

// WriteDirAndParents writes a directory and its parents to the archive.
func (i *InitramfsWriter) WriteDirAndParents(name string) {
	if parent := path.Dir(path.Clean(name)); parent != "." && parent != "/" {
		i.WriteDirAndParents(parent)
	}
	i.writeEntryOnce(name, 0o040755, nil)
}

// WriteSymlink writes a symbolic link to the archive.
func (i *InitramfsWriter) WriteSymlink(target, name string) {
	i.writeEntryOnce(name, 0o120777, []byte(target))
}

// WriteFile writes a file and its directories to the archive.
func (i *InitramfsWriter) WriteFile(name string, mode uint32, content []byte) {
	i.WriteDirAndParents(path.Dir(name))
	i.writeEntryOnce(name, 0o100000|mode, content)
}

// WriteTree copies the files below a directory of this machine to archiveDir, a directory of the archive.
func (i *InitramfsWriter) WriteTree(hostDir, archiveDir string) {
	err := filepath.WalkDir(hostDir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(file)
		if err == nil {
			i.WriteFile(archiveDir+strings.TrimPrefix(file, hostDir), 0o644, content)
		}
		return err
	})
	i.firstErr = errors.Join(i.firstErr, err)
}

// WriteProgramAndLibraries copies a program of this machine and its libraries to the archive.
func (i *InitramfsWriter) WriteProgramAndLibraries(hostPath, archivePath string) {
	content, err := os.ReadFile(hostPath)
	if err != nil {
		i.firstErr = errors.Join(i.firstErr, err)
		return
	}
	i.WriteFile(archivePath, 0o755, content)
	libraries, err := findSharedLibraries(hostPath)
	i.firstErr = errors.Join(i.firstErr, err)
	for _, library := range libraries {
		// /lib is a symbolic link to usr/lib in the virtual machine.
		if name := "usr" + strings.TrimPrefix(library, "/usr"); !i.writtenNames[name] {
			i.WriteProgramAndLibraries(library, name)
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
func (i *InitramfsWriter) Close() error {
	i.writeEntryOnce("TRAILER!!!", 0, nil)
	if i.firstErr == nil {
		i.firstErr = i.archive.Flush()
	}
	return i.firstErr
}

// WriteKernelModules copies the modules of a kernel of this machine, with the modules that they depend on, to a
// directory of the archive. The names of the files sort in the order in which the modules must be loaded.
func (i *InitramfsWriter) WriteKernelModules(kernelPath, archiveDir string, modules ...string) {
	dir := filepath.Join("/lib/modules", strings.TrimPrefix(filepath.Base(kernelPath), "vmlinuz-"))
	files, err := findModuleFilesInLoadOrder(dir, modules)
	i.firstErr = errors.Join(i.firstErr, err)
	for n, file := range files {
		content, err := os.ReadFile(filepath.Join(dir, file))
		i.firstErr = errors.Join(i.firstErr, err)
		i.WriteFile(fmt.Sprintf("%s/%02d-%s", archiveDir, n, path.Base(file)), 0o644, content)
	}
}

// findModuleFilesInLoadOrder returns the files of the modules and of the modules that they depend on, in the order in
// which they must be loaded. A module that is built into the kernel has no file.
func findModuleFilesInLoadOrder(dir string, modules []string) (files []string, err error) {
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

// FindReadableKernel returns the path of a kernel of this machine. It prefers Debian's cloud kernel, which has the
// drivers for a virtual machine built in.
func FindReadableKernel() (string, error) {
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
