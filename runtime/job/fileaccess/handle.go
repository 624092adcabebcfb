package fileaccess

import "io/fs"

// fileInfo is the part of a file's status that decides about its permission.
type fileInfo struct {
	id   fileID
	mode fs.FileMode
	uid  uint32
	size int64
}

// fileSystemKind is a kind of file system with its own rules.
type fileSystemKind int

const (
	ordinaryFileSystem fileSystemKind = iota
	processFileSystem                 // files are views of processes and the kernel
	userFileSystem                    // FUSE: whether other accounts can read it is not in the modes
)
