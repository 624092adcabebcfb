package qemu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/sdk"
)

// imageFDSet is the number of QEMU's set of file descriptors through which QEMU opens an image.
const imageFDSet = 1

// diskImage is the disk image of a virtual machine.
type diskImage struct {
	path      string     // path that QEMU opens
	format    string     // empty means that QEMU detects the format
	openFiles []*os.File // descriptors of the image, through which QEMU opens it; none if QEMU opens the path itself
}

func (i diskImage) driveOptions() string {
	options := "file=" + escapeOptionValue(i.path)
	if i.format != "" {
		options += ",format=" + i.format
	}
	return options
}

// resolveAndOpenDiskImage resolves the symbolic links in the path of an image, and checks the path. QEMU
// itself opens an image below image_paths of the operator. resolveAndOpenDiskImage opens an image in the task
// directory or the shared alloc directory, because other tasks could exchange the image under its
// path. Such an image must not name other files, such as a backing file, because QEMU would open
// them.
func (c *pluginConfig) resolveAndOpenDiskImage(path string, start *sdk.StartRequest) (diskImage, error) {
	if path == "" {
		return diskImage{}, errors.New("image_path must be set")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(start.TaskDir(), path)
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return diskImage{}, fmt.Errorf("image_path: %w", err)
	}
	for _, dir := range []string{start.TaskDir(), filepath.Join(start.AllocDir, "alloc")} {
		if name, ok := relativePathInDir(dir, resolved); ok {
			i, err := openImageInJobDir(dir, name)
			if err != nil {
				return diskImage{}, fmt.Errorf("image_path %s: %w", path, err)
			}
			return i, nil
		}
	}
	for _, allowed := range c.ImagePaths {
		if _, ok := relativePathInDir(allowed, resolved); ok {
			return diskImage{path: resolved}, nil
		}
	}
	return diskImage{}, fmt.Errorf("image_path is not in the allowed paths: %s is not in the directory of the task, in the shared directory of the allocation, or in image_paths of the plugin", resolved)
}

// relativePathInDir returns the path of a file relative to a directory, or "." for the directory itself. resolvedPath
// has no symbolic links. A directory that does not exist has no files.
func relativePathInDir(dir, resolvedPath string) (name string, ok bool) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", false
	}
	name, err = filepath.Rel(dir, resolvedPath)
	return name, err == nil && filepath.IsLocal(name)
}

// openImageInJobDir opens an image in a directory of the job.
func openImageInJobDir(dir, name string) (i diskImage, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return diskImage{}, err
	}
	defer root.Close()
	defer func() {
		if err != nil {
			closeFiles(i.openFiles)
		}
	}()
	// QEMU opens an image for reading first, and then for writing. Without O_NONBLOCK, opening a FIFO would block.
	for _, mode := range []int{os.O_RDONLY, os.O_RDWR} {
		f, err := root.OpenFile(name, mode|unix.O_NONBLOCK, 0)
		if err != nil {
			return i, err
		}
		i.openFiles = append(i.openFiles, f)
	}
	reader, err := i.openFiles[0].Stat()
	if err != nil {
		return i, err
	}
	writer, err := i.openFiles[1].Stat()
	if err != nil {
		return i, err
	}
	if !reader.Mode().IsRegular() || !os.SameFile(reader, writer) {
		return i, errors.New("it is not a regular file")
	}
	header := make([]byte, headerSize)
	n, err := io.ReadFull(i.openFiles[0], header)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return i, err
	}
	i.path = fmt.Sprintf("/dev/fdset/%d", imageFDSet)
	i.format, err = detectJobImageFormat(header[:n])
	return i, err
}

// headerSize is the number of bytes at the start of an image that detectJobImageFormat needs.
const headerSize = 104

// Fields of the header of a qcow2 image.
const (
	qcow2Magic           = "QFI\xfb"
	qcow2VersionOffset   = 4
	qcow2BackingOffset   = 8  // 64 bits: offset of the name of the backing file; 0 means no backing file
	qcow2FeaturesOffset  = 72 // 64 bits: incompatible features; only in version 3
	qcow2ExternalDataBit = 1 << 2
)

// detectJobImageFormat returns the format of an image of the job. The format is not left to QEMU, which detects formats that name other files.
func detectJobImageFormat(header []byte) (string, error) {
	if len(header) == headerSize && bytes.HasPrefix(header, []byte(qcow2Magic)) {
		version := binary.BigEndian.Uint32(header[qcow2VersionOffset:])
		switch {
		case version != 2 && version != 3:
			return "", fmt.Errorf("its qcow2 version is %d; convert it to version 3", version)
		case binary.BigEndian.Uint64(header[qcow2BackingOffset:]) != 0:
			return "", errors.New("it has a backing file, which only images in image_paths of the plugin can have")
		case version == 3 && binary.BigEndian.Uint64(header[qcow2FeaturesOffset:])&qcow2ExternalDataBit != 0:
			return "", errors.New("it has an external data file, which only images in image_paths of the plugin can have")
		}
		return "qcow2", nil
	}
	for _, other := range []struct{ magic, name string }{{"KDMV", "VMDK"}, {"COWD", "VMDK"}, {"# Disk Descriptor", "VMDK"}, {"conectix", "VHD"}, {"vhdxfile", "VHDX"}, {"<<< ", "VDI"}, {"QED\x00", "QED"}} {
		if strings.HasPrefix(string(header), other.magic) {
			return "", fmt.Errorf("its format is %s, which only images in image_paths of the plugin can have; convert it to qcow2 or raw", other.name)
		}
	}
	return "raw", nil
}
