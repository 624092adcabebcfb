package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/blakesmith/ar"
	"github.com/cavaliergopher/cpio"
)

// unpacked is the content of a package. files has no directories, and directories is set for an RPM alone.
type unpacked struct {
	files       map[string]entry
	directories []string
	scripts     map[string]string
	depends     []string
}

func gunzip(t *testing.T, r io.Reader) io.Reader {
	t.Helper()
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// readTar reads the entries of an archive, and checks their owner and time. Names of directories end with a slash.
func readTar(t *testing.T, r io.Reader) map[string]entry {
	t.Helper()
	entries := map[string]entry{}
	for in := tar.NewReader(r); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || !header.ModTime.Equal(testOptions().time) && header.Name != ".PKGINFO" { // nfpm gives .PKGINFO the time 0
			t.Errorf("%s belongs to %d:%d, time %v", header.Name, header.Uid, header.Gid, header.ModTime)
		}
		entries[strings.TrimPrefix(header.Name, "./")] = entry{header.Mode & 0o7777, string(content)}
	}
}

// withoutDirectories removes the directories, which formats list differently.
func withoutDirectories(entries map[string]entry) map[string]entry {
	for name := range entries {
		if name == "" || strings.HasSuffix(name, "/") {
			delete(entries, name)
		}
	}
	return entries
}

func readDeb(t *testing.T, path string) unpacked {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := unpacked{scripts: map[string]string{}}
	for in := ar.NewReader(bytes.NewReader(content)); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch header.Name {
		case "data.tar.gz":
			p.files = withoutDirectories(readTar(t, gunzip(t, in)))
		case "control.tar.gz":
			for name, e := range readTar(t, gunzip(t, in)) {
				p.scripts[name] = e.content
			}
		}
	}
	p.depends = fieldValues(p.scripts["control"], "Depends: ", "Pre-Depends: ", "Recommends: ")
	return p
}

// readAPK reads a package of Alpine, whose two archives are gzip streams in one file.
func readAPK(t *testing.T, path string) unpacked {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := unpacked{files: map[string]entry{}, scripts: map[string]string{}}
	in := bufio.NewReader(f)
	z, err := gzip.NewReader(in)
	for ; err == nil; err = z.Reset(in) {
		z.Multistream(false)
		content, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		for name, e := range withoutDirectories(readTar(t, bytes.NewReader(content))) {
			if strings.HasPrefix(name, ".") {
				p.scripts[name] = e.content
			} else {
				p.files[name] = e
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	p.depends = fieldValues(p.scripts[".PKGINFO"], "depend = ")
	return p
}

func fieldValues(text string, prefixes ...string) (values []string) {
	for line := range strings.Lines(text) {
		for _, prefix := range prefixes {
			if value, found := strings.CutPrefix(line, prefix); found {
				values = append(values, value)
			}
		}
	}
	return values
}

// The tags of an RPM header that readRPM reads, by their numbers.
var rpmScriptTags = map[uint32]string{1024: "postin", 1025: "preun", 1026: "postun"}

const rpmTagRequires = 1049

// readRPM reads a package: a lead of 96 bytes, a header of signatures that is padded to 8 bytes, the header, and the files as
// a compressed cpio archive.
func readRPM(t *testing.T, path string) unpacked {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, size := readRPMHeader(t, content[96:])
	start := 96 + (size+7)/8*8
	header, size := readRPMHeader(t, content[start:])
	p := unpacked{files: map[string]entry{}, scripts: map[string]string{}}
	for tag, name := range rpmScriptTags {
		if values := header[tag]; len(values) == 1 {
			p.scripts[name] = values[0]
		}
	}
	for _, value := range header[rpmTagRequires] {
		if !strings.HasPrefix(value, "rpmlib(") && value != "/bin/sh" { // features of rpm itself, and the shell of the scripts
			p.depends = append(p.depends, value)
		}
	}
	for in := cpio.NewReader(gunzip(t, bytes.NewReader(content[start+size:]))); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return p
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(strings.TrimPrefix(header.Name, "."), "/")
		switch {
		case header.Mode.IsRegular():
			p.files[name] = entry{int64(header.Mode.Perm()), string(data)}
		case header.Mode.IsDir():
			p.directories = append(p.directories, name)
		}
	}
}

// readRPMHeader returns the texts of a header by their tags, and the size of the header.
func readRPMHeader(t *testing.T, data []byte) (texts map[uint32][]string, size int) {
	t.Helper()
	if !bytes.HasPrefix(data, []byte{0x8e, 0xad, 0xe8, 1}) {
		t.Fatalf("no header of RPM: % x", data[:8])
	}
	count, length := int(binary.BigEndian.Uint32(data[8:])), int(binary.BigEndian.Uint32(data[12:]))
	store := data[16+16*count:][:length]
	texts = map[uint32][]string{}
	for i := range count {
		index := data[16+16*i:]
		tag, kind := binary.BigEndian.Uint32(index), binary.BigEndian.Uint32(index[4:])
		offset, values := binary.BigEndian.Uint32(index[8:]), int(binary.BigEndian.Uint32(index[12:]))
		if kind == 6 || kind == 8 || kind == 9 { // a text, a list of texts, a translated text
			texts[tag] = strings.SplitN(string(store[offset:]), "\x00", values+1)[:values]
		}
	}
	return texts, 16 + 16*count + length
}
