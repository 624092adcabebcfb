package docker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// streamPosition is how far the output of one stream was passed on: up to the message that
// is number Count of those with its Time, and Bytes of the next message with that time.
type streamPosition struct {
	Time   int64 // nanoseconds since 1970; 0 means the start of the stream
	Count  uint64
	Bytes  uint64
	Newest int64 // greatest time of a message up to the position, which is greater than Time if the clock was set back
	Boot   int64 // time of the machine's boot by the clock of that moment, see bootTime
}

// oldestNext returns the time from which the engine must send its log, so that the messages after the position are sent. Engines
// before version 24 leave out each message that is older; those after the position are older than it if the clock was set
// back since then.
func (p streamPosition) oldestNext(boot int64) int64 {
	if p.Time == 0 {
		return 0
	}
	return p.Time - max(0, p.Boot-boot)
}

// bootTime returns the time of the machine's boot by the present clock, in nanoseconds since 1970. It is smaller after the clock
// was set back.
func bootTime() int64 {
	var boot unix.Timespec
	now := time.Now().UnixNano()
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // Linux always has this clock
	return now - boot.Nano()
}

// positionFile keeps the positions of both streams in a file that is mapped into memory:
// a store is in the file at once, also if the process is killed after it.
type positionFile struct {
	data []byte
}

// The file has two slots for each stream, and the number of the valid one. A store writes
// the other slot first, so that one slot is complete at every moment.
const (
	slotSize         = 40
	streamSize       = 8 + 2*slotSize
	positionFileSize = 2 * streamSize
)

// openPositionFile opens or creates a file in the directory of a task.
func openPositionFile(dir *os.Root, name string) (*positionFile, error) {
	f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", name))
	}
	if err := f.Truncate(positionFileSize); err != nil {
		return nil, err
	}
	data, err := unix.Mmap(int(f.Fd()), 0, positionFileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	return &positionFile{data: data}, nil
}

// memoryPositions keeps positions as long as the process lives.
func memoryPositions() *positionFile { return &positionFile{data: make([]byte, positionFileSize)} }

func (p *positionFile) valid(stream int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&p.data[stream*streamSize]))
}

func (p *positionFile) slot(stream int, n uint32) []byte {
	offset := stream*streamSize + 8 + int(n&1)*slotSize
	return p.data[offset : offset+slotSize]
}

func (p *positionFile) load(stream int) streamPosition {
	slot := p.slot(stream, p.valid(stream).Load())
	return streamPosition{
		Time:   int64(binary.NativeEndian.Uint64(slot)),
		Count:  binary.NativeEndian.Uint64(slot[8:]),
		Bytes:  binary.NativeEndian.Uint64(slot[16:]),
		Newest: int64(binary.NativeEndian.Uint64(slot[24:])),
		Boot:   int64(binary.NativeEndian.Uint64(slot[32:])),
	}
}

func (p *positionFile) store(stream int, position streamPosition) {
	n := p.valid(stream).Load() + 1
	slot := p.slot(stream, n)
	binary.NativeEndian.PutUint64(slot, uint64(position.Time))
	binary.NativeEndian.PutUint64(slot[8:], position.Count)
	binary.NativeEndian.PutUint64(slot[16:], position.Bytes)
	binary.NativeEndian.PutUint64(slot[24:], uint64(position.Newest))
	binary.NativeEndian.PutUint64(slot[32:], uint64(position.Boot))
	p.valid(stream).Store(n)
}

// unmap ends the use of the file. The positions cannot be used afterwards.
func (p *positionFile) unmap() {
	if p.data != nil {
		_ = unix.Munmap(p.data) // fails only for memoryPositions, which the garbage collector frees
		p.data = nil
	}
}
