//go:build !linux

package fileaccess

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// fileID identifies a file or directory.
type fileID struct {
	device uint64 // 0
	path   string
}

// dirHandle is a directory path. Only on Linux is there protection from a directory that is exchanged between the check and its
// use.
type dirHandle struct{ path string }

func (d dirHandle) close() {}

func openTop(path string) (dirHandle, fileInfo, error) {
	info, err := statOf(path, os.Lstat)
	return dirHandle{path}, info, err
}

func (d dirHandle) openDir(name string) (dirHandle, fileInfo, error) {
	return openTop(filepath.Join(d.path, name))
}

func statOf(path string, stat func(string) (fs.FileInfo, error)) (fileInfo, error) {
	st, err := stat(path)
	if err != nil {
		return fileInfo{}, err
	}
	return newFileInfo(path, st), nil
}

func newFileInfo(path string, st fs.FileInfo) fileInfo {
	mode := st.Mode()
	if runtime.GOOS == "windows" {
		mode &^= 0o007 // the mode does not say which accounts can read the file
	}
	return fileInfo{id: fileID{path: path}, mode: mode, size: st.Size()}
}

func idOfPath(path string) (fileID, error) {
	_, err := os.Stat(path)
	return fileID{path: path}, err
}

func (d dirHandle) lstat(name string) (fileInfo, error) {
	return statOf(filepath.Join(d.path, name), os.Lstat)
}

func (d dirHandle) readlink(name string) (string, error) {
	return os.Readlink(filepath.Join(d.path, name))
}

func (d dirHandle) openFile(name string) (*os.File, fileInfo, fileSystemKind, error) {
	path := filepath.Join(d.path, name)
	f, err := os.Open(path)
	if err != nil {
		return nil, fileInfo{}, 0, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fileInfo{}, 0, err
	}
	return f, newFileInfo(path, st), ordinaryFileSystem, nil
}

func (d dirHandle) list(count func(int) error) ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, count(len(names))
}

func (d dirHandle) fileSystem() fileSystemKind { return ordinaryFileSystem }
