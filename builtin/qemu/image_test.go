package qemu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestImagePaths(t *testing.T) {
	start := newStart(t, map[string]any{"image_path": "x"})
	images, outside := t.TempDir(), t.TempDir()
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{images + "/disk.img", outside + "/disk.img", images + "-2.img", start.AllocDir + "/alloc/disk.img", start.TaskDir() + "/local/disk.img", start.AllocDir + "/other/local/disk.img"} {
		writeImage(t, path, powerOff)
	}
	link(images+"/disk.img", outside+"/link-into-images.img")
	link(outside+"/disk.img", images+"/link-to-outside.img")
	link(images, outside+"/images")
	link(outside+"/disk.img", start.TaskDir()+"/local/link-to-outside.img")
	link(images+"/disk.img", start.TaskDir()+"/local/link-to-images.img")
	link("disk.img", start.TaskDir()+"/local/link.img")
	if err := unix.Mkfifo(start.TaskDir()+"/local/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	c := pluginConfig{ImagePaths: []string{outside + "/nosuch", outside + "/images", outside + "/disk.img.d"}}
	const notAllowed, opened = "image_path is not in the allowed paths", "/dev/fdset/1"
	for path, want := range map[string]string{
		images + "/disk.img":                                  images + "/disk.img",
		outside + "/images/disk.img":                          images + "/disk.img",
		outside + "/link-into-images.img":                     images + "/disk.img",
		images + "/../" + filepath.Base(images) + "/disk.img": images + "/disk.img",
		"local/link-to-images.img":                            images + "/disk.img",
		images + "/link-to-outside.img":                       notAllowed,
		images + "-2.img":                                     notAllowed,
		outside + "/disk.img":                                 notAllowed,
		"local/link-to-outside.img":                           notAllowed,
		"../other/local/disk.img":                             notAllowed,
		"/etc/passwd":                                         notAllowed,
		"local/disk.img":                                      opened,
		"local/link.img":                                      opened,
		"../alloc/disk.img":                                   opened,
		start.AllocDir + "/alloc/disk.img":                    opened,
		start.TaskDir() + "/local/disk.img":                   opened,
		"local/fifo":                                          "it is not a regular file",
		"local/nosuch.img":                                    "no such file or directory",
	} {
		got, err := c.resolveAndOpenDiskImage(path, start)
		result := got.path
		if err != nil {
			result = err.Error()
		}
		if wantFiles := 2 * strings.Count(want, opened); !strings.Contains(result, want) || err == nil && (result != want || len(got.openFiles) != wantFiles) {
			t.Errorf("%s: the image is %q with %d descriptors, want %q with %d", path, result, len(got.openFiles), want, wantFiles)
		}
		closeFiles(got.openFiles)
	}
}

// qcow2Header returns the header of a qcow2 image.
func qcow2Header(version uint32, backing, features uint64) []byte {
	header := make([]byte, headerSize)
	copy(header, qcow2Magic)
	binary.BigEndian.PutUint32(header[qcow2VersionOffset:], version)
	binary.BigEndian.PutUint64(header[qcow2BackingOffset:], backing)
	binary.BigEndian.PutUint64(header[qcow2FeaturesOffset:], features)
	return header
}

func TestFormatOfJobImage(t *testing.T) {
	for _, test := range []struct {
		name   string
		header []byte
		want   string
	}{
		{"a boot sector", waitForButton, "raw"},
		{"an empty file", nil, "raw"},
		{"qcow2", qcow2Header(3, 0, 1), "qcow2"},
		{"qcow2 of version 2", qcow2Header(2, 0, 0), "qcow2"},
		{"qcow2 that is cut off", qcow2Header(3, 0, 0)[:20], "raw"},
		{"a backing file", qcow2Header(3, 512, 0), "it has a backing file, which only images in image_paths of the plugin can have"},
		{"an external data file", qcow2Header(3, 0, 4), "it has an external data file, which only images in image_paths of the plugin can have"},
		{"the first version of qcow", qcow2Header(1, 0, 0), "its qcow2 version is 1; convert it to version 3"},
		{"VMDK", []byte("KDMV\x01"), "its format is VMDK, which only images in image_paths of the plugin can have; convert it to qcow2 or raw"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := detectJobImageFormat(test.header)
			if err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("the format is %q, want %q", got, test.want)
			}
		})
	}
}
