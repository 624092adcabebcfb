package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"time"
)

// writeTarGz writes an archive of the files below the directory root.
func writeTarGz(path, root string, files []file, modified time.Time) error {
	return writeFile(path, func(out io.Writer) error {
		w, err := gzip.NewWriterLevel(out, gzip.BestCompression)
		if err != nil {
			return err
		}
		return errors.Join(writeTar(w, rooted(root, files), modified), w.Close())
	})
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// rooted returns the files with their paths below a directory.
func rooted(root string, files []file) []file {
	below := make([]file, len(files))
	for i, f := range files {
		below[i], below[i].path = f, root+"/"+f.path
	}
	return below
}

// writeTar writes the files, which belong to root, and all directories that contain them, in the order of their paths.
func writeTar(out io.Writer, files []file, modified time.Time) error {
	w := tar.NewWriter(out)
	for _, f := range withParents(files) {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: int64(unixMode(f)), Size: int64(len(f.content)), ModTime: modified, Format: tar.FormatUSTAR}
		if f.mode.IsDir() {
			header.Typeflag, header.Name = tar.TypeDir, f.path+"/"
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	return w.Close()
}

// unixMode returns the permissions and the sticky bit of a file, as archives have them.
func unixMode(f file) uint32 {
	mode := uint32(f.mode.Perm())
	if f.mode&os.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}

// writeZip writes an archive of the files below the directory root.
func writeZip(path, root string, files []file, modified time.Time) error {
	return writeFile(path, func(out io.Writer) error {
		w := zip.NewWriter(out)
		for _, f := range withParents(rooted(root, files)) {
			header := &zip.FileHeader{Name: f.path, Method: zip.Deflate, Modified: modified}
			header.SetMode(f.mode)
			if f.mode.IsDir() {
				header.Name, header.Method = strings.TrimSuffix(f.path, "/")+"/", zip.Store
			}
			entry, err := w.CreateHeader(header)
			if err != nil {
				return err
			}
			if _, err := io.Copy(entry, bytes.NewReader(f.content)); err != nil {
				return err
			}
		}
		return w.Close()
	})
}
