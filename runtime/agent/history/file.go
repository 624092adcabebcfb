package history

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Interval is the time between two samples.
const Interval = 10 * time.Second

// Retention is how long a sample is kept, if the file has room for all samples in this time.
const Retention = 6 * time.Hour

// Key identifies a task, a job or the node in a file. It is a hash, so that all entries have one size.
type Key uint64

// NodeKey is the node's key.
var NodeKey = newKey("node")

// TaskKey returns the key of an allocation's task.
func TaskKey(allocID, task string) Key { return newKey("task", allocID, task) }

// JobKey returns a job's key.
func JobKey(namespace, jobID string) Key { return newKey("job", namespace, jobID) }

// newKey returns an object's key. Names come from API users, so the hash must resist the search for two names with one key.
func newKey(parts ...string) Key {
	text := make([]byte, 0, 512) // on the stack, because two keys are computed for each task and sample
	for _, part := range parts {
		text = append(append(text, part...), 0)
	}
	sum := sha256.Sum256(text)
	return Key(binary.LittleEndian.Uint64(sum[:]))
}

// Entry is the usage of one task, or the node, in a sample.
type Entry struct {
	Key       Key
	Job       Key     // the task's job; 0 for the node
	CPUMHz    float32 // negative if unknown
	MemoryKiB uint32  // UnknownSize if unknown
	DiskKiB   uint32  // UnknownSize if unknown
	Restarts  uint32  // restarts since the allocation started
}

// UnknownSize is the value for an unknown size.
const UnknownSize = math.MaxUint32

// ToKiB returns a size in KiB, at most the largest size that an Entry can have.
func ToKiB(bytes uint64) uint32 { return uint32(min(bytes>>10, UnknownSize-1)) }

// The file has a header, and then samples that fill the ring one after the other; a sample does not continue at the ring's start.
// All numbers are little endian.
//
//	header: magic [8]byte, version uint32, file size uint64, CRC-32C of these uint32, zeros
//	sample: magic uint32, CRC-32C of the rest uint32, sequence number uint64, Unix time in milliseconds int64,
//	        number of entries uint32, zero uint32, entries
//	entry:  key uint64, job key uint64, CPU in MHz float32, memory, disk and restarts uint32
//
// Another layout needs another fileVersion: a file with another version is emptied.
const (
	fileVersion      = 1
	headerSize       = 4096
	sampleMagic      = 0x314c4148
	sampleHeaderSize = 32
	entrySize        = 32
	// DefaultSize is the size of an agent's file. A sample of 1,000 tasks has 32 KB, so the file has room for almost three hours
	// with 1,000 tasks, and for Retention with 480 tasks.
	DefaultSize = 32 << 20
	// maxSamples limits the index's memory.
	maxSamples = int(Retention / Interval)
)

var (
	fileMagic = []byte("nomlhist")
	crcTable  = crc32.MakeTable(crc32.Castagnoli)
)

// sampleRef is a sample's place in the file.
type sampleRef struct {
	sequence     uint64
	offset, size int64
}

// File is a sample ring in a file with a fixed size. When it is full, a new sample overwrites the oldest samples. A File does not
// sync: the kernel keeps what a killed process has written. Its methods may be called concurrently.
type File struct {
	size int64

	mu           sync.Mutex
	file         *os.File
	index        []sampleRef // samples in the file, the oldest first
	lastSequence uint64      // newest sample's sequence number; 0 if there never was one
	newestEnd    int64       // offset of the newest sample's end
	written      []byte      // buffer for Append
}

// OpenFile opens a file with the given size, and makes it if it is missing. A file that is torn, truncated, or has another size
// or version loses the damaged samples, or all of them.
func OpenFile(path string, size int64) (*File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open usage history: %w", err)
	}
	f := &File{file: file, size: size, newestEnd: headerSize}
	if err := f.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("read usage history: %w", err), file.Close())
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}

func newHeader(size int64) []byte {
	h := append(make([]byte, 0, headerSize), fileMagic...)
	h = binary.LittleEndian.AppendUint32(h, fileVersion)
	h = binary.LittleEndian.AppendUint64(h, uint64(size))
	h = binary.LittleEndian.AppendUint32(h, crc32.Checksum(h, crcTable))
	return h[:headerSize]
}

// load fills the index, and empties a file with another header.
func (f *File) load() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	header := make([]byte, headerSize)
	if _, err := f.file.ReadAt(header, 0); err != nil && err != io.EOF {
		return err
	}
	if info.Size() != f.size || !slices.Equal(header, newHeader(f.size)) {
		return f.reset()
	}
	return f.findSamples()
}

func (f *File) reset() error {
	if err := f.file.Truncate(0); err != nil {
		return err
	}
	if err := f.file.Truncate(f.size); err != nil { // without a write, so that a short history needs little disk space
		return err
	}
	_, err := f.file.WriteAt(newHeader(f.size), 0)
	return err
}

// findSamples fills the index with the complete samples in the file.
func (f *File) findSamples() error {
	var head [sampleHeaderSize]byte
	window := make([]byte, 64<<10)
	start := int64(math.MaxInt64) // the window's offset; no offset is in it
	for offset := int64(headerSize); offset+sampleHeaderSize <= f.size; {
		if offset < start || offset+sampleHeaderSize > start+int64(len(window)) {
			// The unwritten part of the ring is a hole, which is not read.
			if next, err := f.file.Seek(offset, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
				break
			} else if err == nil {
				offset = max(offset, next/entrySize*entrySize)
			}
			if start = offset; offset+sampleHeaderSize > f.size {
				break
			}
			if _, err := f.file.ReadAt(window[:min(int64(len(window)), f.size-start)], start); err != nil {
				return err
			}
		}
		copy(head[:], window[offset-start:])
		if ref, ok := f.parseRef(head[:], offset); ok {
			_, _, err := f.readSample(ref, nil)
			if err == nil {
				f.index = append(f.index, ref)
				offset += ref.size
				continue
			}
			if !errors.Is(err, errDamaged) {
				return err
			}
		}
		offset += entrySize
	}
	slices.SortFunc(f.index, func(a, b sampleRef) int { return cmp.Compare(a.sequence, b.sequence) })
	if len(f.index) > 0 {
		newest := f.index[len(f.index)-1]
		f.lastSequence, f.newestEnd = newest.sequence, newest.offset+newest.size
	}
	f.dropOldest(f.countBeforeGap())
	f.dropOldest(max(0, len(f.index)-maxSamples))
	return nil
}

// countBeforeGap counts the samples before the last gap in the sequence numbers. These samples are older than a damaged sample,
// or are at the end of the ring, where the later samples did not fit.
func (f *File) countBeforeGap() int {
	for i := len(f.index) - 1; i > 0; i-- {
		if f.index[i].sequence != f.index[i-1].sequence+1 {
			return i
		}
	}
	return 0
}

// parseRef returns the place of the sample with the given header. ok is false if it is not a sample header.
func (f *File) parseRef(head []byte, offset int64) (ref sampleRef, ok bool) {
	ref = sampleRef{
		sequence: binary.LittleEndian.Uint64(head[8:]), offset: offset,
		size: sampleHeaderSize + entrySize*int64(binary.LittleEndian.Uint32(head[24:])),
	}
	return ref, binary.LittleEndian.Uint32(head) == sampleMagic && offset+ref.size <= f.size
}

var errDamaged = errors.New("sample is damaged")

// readSample reads a sample into buf, which it enlarges if necessary. The error is errDamaged if the place has another
// or an incomplete sample.
func (f *File) readSample(ref sampleRef, buf []byte) (sampleTime time.Time, sample []byte, err error) {
	buf = slices.Grow(buf[:0], int(ref.size))[:ref.size]
	if _, err := f.file.ReadAt(buf, ref.offset); err == io.EOF { // another program has truncated the file
		return time.Time{}, buf, errDamaged
	} else if err != nil {
		return time.Time{}, buf, err
	}
	found, ok := f.parseRef(buf, ref.offset)
	if !ok || found != ref || crc32.Checksum(buf[8:], crcTable) != binary.LittleEndian.Uint32(buf[4:]) {
		return time.Time{}, buf, errDamaged
	}
	return time.UnixMilli(int64(binary.LittleEndian.Uint64(buf[16:]))), buf, nil
}

// Append appends a sample. It overwrites the oldest samples if the file is full. A file has room for one sample with the entries
// that fill it; Append drops further entries.
func (f *File) Append(t time.Time, entries []Entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries = entries[:min(int64(len(entries)), (f.size-headerSize-sampleHeaderSize)/entrySize)]
	ref := sampleRef{sequence: f.lastSequence + 1, offset: f.newestEnd, size: sampleHeaderSize + entrySize*int64(len(entries))}
	if ref.offset+ref.size > f.size {
		f.dropOverlapped(ref.offset, f.size)
		ref.offset = headerSize
	}
	f.dropOverlapped(ref.offset, ref.offset+ref.size)
	b := slices.Grow(f.written[:0], int(ref.size))
	b = binary.LittleEndian.AppendUint32(b, sampleMagic)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, ref.sequence)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.UnixMilli()))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)))
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint64(b, uint64(e.Key))
		b = binary.LittleEndian.AppendUint64(b, uint64(e.Job))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(e.CPUMHz))
		b = binary.LittleEndian.AppendUint32(b, e.MemoryKiB)
		b = binary.LittleEndian.AppendUint32(b, e.DiskKiB)
		b = binary.LittleEndian.AppendUint32(b, e.Restarts)
	}
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], crcTable))
	f.written = b
	if _, err := f.file.WriteAt(b, ref.offset); err != nil {
		return fmt.Errorf("write usage history: %w", err)
	}
	f.dropOldest(max(0, len(f.index)+1-maxSamples))
	f.index = append(f.index, ref)
	f.lastSequence, f.newestEnd = ref.sequence, ref.offset+ref.size
	return nil
}

// dropOverlapped drops the samples that overlap the given part of the ring, and all older ones.
func (f *File) dropOverlapped(start, end int64) {
	count := 0
	for i, ref := range f.index {
		if ref.offset < end && start < ref.offset+ref.size {
			count = i + 1
		}
	}
	f.dropOldest(count)
}

// dropOldest drops the oldest samples from the index, without a new array.
func (f *File) dropOldest(count int) { f.index = slices.Delete(f.index, 0, count) }

// Read calls visit with the samples in the time from since to now, the oldest first. The entries are valid only during the visit
// call. When the clock was set back, samples with a later time than a newer sample are omitted.
func (f *File) Read(since, now time.Time, visit func(t time.Time, entries []Entry)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	chosen, err := f.chooseSamples(since, now)
	if err != nil {
		return err
	}
	var buf []byte
	var entries []Entry
	for _, ref := range chosen {
		var t time.Time
		if t, buf, err = f.readSample(ref, buf); errors.Is(err, errDamaged) {
			continue
		} else if err != nil {
			return fmt.Errorf("read usage history: %w", err)
		}
		entries = entries[:0]
		for b := buf[sampleHeaderSize:]; len(b) > 0; b = b[entrySize:] {
			entries = append(entries, Entry{
				Key: Key(binary.LittleEndian.Uint64(b)), Job: Key(binary.LittleEndian.Uint64(b[8:])),
				CPUMHz: math.Float32frombits(binary.LittleEndian.Uint32(b[16:])), MemoryKiB: binary.LittleEndian.Uint32(b[20:]),
				DiskKiB: binary.LittleEndian.Uint32(b[24:]), Restarts: binary.LittleEndian.Uint32(b[28:]),
			})
		}
		visit(t, entries)
	}
	return nil
}

// chooseSamples returns the samples for Read. The newest sample is right about the time, because the agent read the
// clock last for it, unless it is later than now.
func (f *File) chooseSamples(since, now time.Time) ([]sampleRef, error) {
	var chosen []sampleRef
	var head [sampleHeaderSize]byte
	before := now.UnixMilli() + 1
	for _, ref := range slices.Backward(f.index) {
		if _, err := f.file.ReadAt(head[:], ref.offset); err == io.EOF { // another program has truncated the file
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read usage history: %w", err)
		}
		if t := int64(binary.LittleEndian.Uint64(head[16:])); t >= since.UnixMilli() && t < before {
			before = t
			chosen = append(chosen, ref)
		}
	}
	slices.Reverse(chosen)
	return chosen, nil
}
