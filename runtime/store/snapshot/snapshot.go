package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// File names in an archive, also used by Unpack.
const (
	metaFile  = "meta.json"
	StateFile = "state.db"
	KeyFile   = "keyring.json"
	sumsFile  = "SHA256SUMS"
)

// currentFormat is the archive format's number.
const currentFormat = 1

// Meta describes a snapshot.
type Meta struct {
	Format  int       // Format is the archive's format number
	Version string    // Version is the nomad-lite version that wrote the archive
	Time    time.Time // Time is when the state was copied
	Index   uint64    // Index is the index of the state's last change
	NodeID  string    // NodeID is the id of the agent's node
	HasKeys bool      // HasKeys: the archive has the keys for the variables
}

// Options are Write's options.
type Options struct {
	Version  string // this build's version
	NodeID   string
	OmitKeys bool // the archive has no keys, so its variables can be read only together with the agent's key file
	// WorkDir is a directory on the file system for an uncompressed state copy, which has no name there. If it is empty, the
	// copy is in memory.
	WorkDir string
}

// Write writes a state snapshot to w. State changes wait only while the state is copied to Options.WorkDir.
func Write(ctx context.Context, s *store.Store, o Options, w io.Writer) (*Meta, error) {
	state, err := store.OpenUnnamedFile(o.WorkDir)
	if err != nil {
		return nil, err
	}
	defer state.Close()
	meta := &Meta{Format: currentFormat, Version: o.Version, Time: time.Now().UTC(), NodeID: o.NodeID}
	index, keys, err := s.WriteCopy(ctx, state)
	if err != nil {
		return nil, err
	}
	info, err := state.Stat()
	if err != nil {
		return nil, err
	}
	meta.Index, meta.HasKeys = index, keys != nil && !o.OmitKeys
	description, err := meta.encode()
	if err != nil {
		return nil, err
	}
	files := []archivedFile{newArchivedText(metaFile, description), {StateFile, io.NewSectionReader(state, 0, info.Size())}}
	if meta.HasKeys {
		text, err := keys.Encode()
		if err != nil {
			return nil, err
		}
		files = append(files, newArchivedText(KeyFile, text))
	}
	return meta, writeArchive(w, files, meta.Time)
}

// encode returns the text of the file meta.json.
func (m *Meta) encode() ([]byte, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	return append(text, '\n'), err
}

// archivedFile is a file in an archive.
type archivedFile struct {
	name    string
	content *io.SectionReader
}

func newArchivedText(name string, text []byte) archivedFile {
	return archivedFile{name, io.NewSectionReader(bytes.NewReader(text), 0, int64(len(text)))}
}

// writeArchive writes the files and their checksums.
func writeArchive(w io.Writer, files []archivedFile, modTime time.Time) error {
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	var sums bytes.Buffer
	write := func(f archivedFile) error {
		if err := archive.WriteHeader(&tar.Header{Name: f.name, Mode: 0o600, Size: f.content.Size(), ModTime: modTime}); err != nil {
			return err
		}
		sum := sha256.New()
		_, err := io.Copy(io.MultiWriter(archive, sum), f.content)
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum.Sum(nil)), f.name)
		return err
	}
	for _, f := range files {
		if err := write(f); err != nil {
			return err
		}
	}
	if err := write(newArchivedText(sumsFile, sums.Bytes())); err != nil {
		return err
	}
	return errors.Join(archive.Close(), zipped.Close())
}

// Unpack's limits in bytes, uncompressed.
const (
	maxTextBytes    = 64 << 10 // the description, and the checksums
	maxKeyFileBytes = 1 << 20  // the largest key file that an agent reads
	maxStateBytes   = 1 << 30  // much more than any agent's state that was seen
	maxOtherBytes   = 4 << 20  // the whole archive but the state file
)

// maxBytes are an archive's files, and their size limits.
var maxBytes = map[string]int64{metaFile: maxTextBytes, sumsFile: maxTextBytes, KeyFile: maxKeyFileBytes, StateFile: maxStateBytes}

// errTooLarge: an archive has more data than Unpack reads.
var errTooLarge = errors.New("too much data")

// damaged returns an error with the remedy for a snapshot not as Write has written it, unless the cause is a file on this
// machine.
func damaged(cause error) error {
	var fileErr *fs.PathError
	if errors.As(cause, &fileErr) {
		return fmt.Errorf("the snapshot: %w", cause)
	}
	return fmt.Errorf("the snapshot is damaged or incomplete: %w: copy it again, or use another one", cause)
}

// Unpack writes a snapshot's state file and key file into a directory, in which neither exists, and verifies their checksums.
// If dir is empty, it only verifies them. After an error the directory can have incomplete files.
//
// The archive may come from an untrusted source: Unpack writes nothing but these two files, and fails when it has read more
// than 1 GiB and 4 MiB of uncompressed data.
func Unpack(r io.Reader, dir string) (*Meta, error) {
	zipped, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a snapshot: %w: 'nomad-lite operator snapshot save' saves one", err)
	}
	limited := &limitedReader{zipped, maxStateBytes + maxOtherBytes}
	sums := make(map[string]hash.Hash)
	var description, wantedSums []byte
	for archive := tar.NewReader(limited); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, damaged(err)
		}
		name := header.Name
		switch limit := maxBytes[name]; {
		case limit == 0:
			return nil, fmt.Errorf("the snapshot has the file %.100q: a later version may have written it, or use another one", name)
		case sums[name] != nil:
			return nil, damaged(fmt.Errorf("%s is in it twice", name))
		case header.Typeflag != tar.TypeReg:
			return nil, damaged(fmt.Errorf("%s is not a regular file", name))
		case header.Size > limit:
			return nil, damaged(fmt.Errorf("%s has %d bytes, and %d are permitted", name, header.Size, limit))
		}
		sums[name] = sha256.New()
		switch content := io.TeeReader(archive, sums[name]); {
		case name == metaFile:
			description, err = io.ReadAll(content)
		case name == sumsFile:
			wantedSums, err = io.ReadAll(content)
		case dir == "":
			_, err = io.Copy(io.Discard, content)
		default:
			err = writeNewFile(filepath.Join(dir, name), content)
		}
		if err != nil {
			return nil, damaged(fmt.Errorf("%s: %w", name, err))
		}
	}
	if _, err := io.Copy(io.Discard, limited); err != nil { // the compressed data has a checksum at its end too
		return nil, damaged(err)
	}
	delete(sums, sumsFile)
	return verify(sums, wantedSums, description)
}

// Redact verifies the archive in r and writes it without the keys for the variables to w. dir is an empty directory for the
// unpacked files, which Redact does not remove. After an error, w may have a part of the archive.
func Redact(r io.Reader, w io.Writer, dir string) error {
	meta, err := Unpack(r, dir)
	if err != nil {
		return err
	}
	meta.HasKeys = false
	state, err := os.Open(filepath.Join(dir, StateFile))
	if err != nil {
		return err
	}
	defer state.Close()
	info, err := state.Stat()
	if err != nil {
		return err
	}
	description, err := meta.encode()
	if err != nil {
		return err
	}
	return writeArchive(w, []archivedFile{newArchivedText(metaFile, description), {StateFile, io.NewSectionReader(state, 0, info.Size())}}, meta.Time)
}

// limitedReader is like io.LimitedReader, but reading more than the limit is an error.
type limitedReader struct {
	io.Reader
	remainingBytes int64
}

// Read implements io.Reader.
func (l *limitedReader) Read(b []byte) (int, error) {
	n, err := l.Reader.Read(b)
	if l.remainingBytes -= int64(n); l.remainingBytes < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// verify compares the checksums of the files with those in the archive, and returns the description.
func verify(sums map[string]hash.Hash, wantedSums, description []byte) (*Meta, error) {
	isVerified := make(map[string]bool)
	for line := range strings.Lines(string(wantedSums)) {
		text, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if sum := sums[name]; sum == nil || hex.EncodeToString(sum.Sum(nil)) != text {
			return nil, damaged(fmt.Errorf("the checksum of %.100q is wrong", name))
		}
		isVerified[name] = true
	}
	if len(isVerified) != len(sums) || sums[metaFile] == nil || sums[StateFile] == nil {
		return nil, damaged(errors.New("a file or a checksum is missing"))
	}
	var meta Meta
	if err := json.Unmarshal(description, &meta); err != nil {
		return nil, damaged(fmt.Errorf("%s: %w", metaFile, err))
	}
	if meta.Format != currentFormat {
		return nil, fmt.Errorf("the snapshot has format %d, and this version reads format %d: use version %.100s or a later one", meta.Format, currentFormat, meta.Version)
	}
	if meta.HasKeys != (sums[KeyFile] != nil) {
		return nil, damaged(errors.New("its description and its key file do not agree"))
	}
	return &meta, nil
}

func writeNewFile(path string, content io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	opcount.Count(opcount.Sync)
	return errors.Join(err, f.Sync(), f.Close())
}
