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

// streamPosition is the position up to which the output of one stream was written to the host.
// Written are all messages before MessageTimeNanos, WrittenMessagesAtTime messages with this time, and
// WrittenBytesOfNextMessage bytes of the next message with this time.
type streamPosition struct {
	MessageTimeNanos          int64 // nanoseconds since 1970; 0 is the start of the stream
	WrittenMessagesAtTime     uint64
	WrittenBytesOfNextMessage uint64
	NewestMessageTimeNanos    int64 // greatest time of a message up to the position, which is greater than MessageTimeNanos if the clock was set back
	BootTimeNanos             int64 // result of bootUnixNanos when the position was stored
}

// earliestNanosOfNextMessage returns the time from which the engine must send its log, so that the messages after
// the position are sent. Engines before version 24 leave out each message with an earlier time. If
// the clock was set back after the position was stored, later messages have earlier times than the
// position.
func (p streamPosition) earliestNanosOfNextMessage(bootTimeNanos int64) int64 {
	if p.MessageTimeNanos == 0 {
		return 0
	}
	return p.MessageTimeNanos - max(0, p.BootTimeNanos-bootTimeNanos)
}

// bootUnixNanos returns the time of the machine's boot by the current clock, in nanoseconds since 1970.
// The result is smaller after the clock was set back.
func bootUnixNanos() int64 {
	var boot unix.Timespec
	now := time.Now().UnixNano()
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // Linux always has this clock
	return now - boot.Nano()
}

// positionFile keeps the positions of both streams in a file that is mapped into memory. A stored
// position is in the file immediately, and stays there if the process is killed.
type positionFile struct {
	mappedBytes []byte
}

// For each stream, the file has the number of the valid slot and two slots. A store writes the
// other slot first, so that one slot is complete at every moment.
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
	return &positionFile{mappedBytes: data}, nil
}

// newInMemoryPositionFile returns a positionFile without a file, whose positions are lost when the process
// exits.
func newInMemoryPositionFile() *positionFile {
	return &positionFile{mappedBytes: make([]byte, positionFileSize)}
}

func (p *positionFile) validSlotNumber(stream int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&p.mappedBytes[stream*streamSize]))
}

func (p *positionFile) slotBytes(stream int, slotNumber uint32) []byte {
	offset := stream*streamSize + 8 + int(slotNumber&1)*slotSize
	return p.mappedBytes[offset : offset+slotSize]
}

func (p *positionFile) loadPosition(stream int) streamPosition {
	slot := p.slotBytes(stream, p.validSlotNumber(stream).Load())
	return streamPosition{
		MessageTimeNanos:          int64(binary.NativeEndian.Uint64(slot)),
		WrittenMessagesAtTime:     binary.NativeEndian.Uint64(slot[8:]),
		WrittenBytesOfNextMessage: binary.NativeEndian.Uint64(slot[16:]),
		NewestMessageTimeNanos:    int64(binary.NativeEndian.Uint64(slot[24:])),
		BootTimeNanos:             int64(binary.NativeEndian.Uint64(slot[32:])),
	}
}

func (p *positionFile) storePosition(stream int, position streamPosition) {
	n := p.validSlotNumber(stream).Load() + 1
	slot := p.slotBytes(stream, n)
	binary.NativeEndian.PutUint64(slot, uint64(position.MessageTimeNanos))
	binary.NativeEndian.PutUint64(slot[8:], position.WrittenMessagesAtTime)
	binary.NativeEndian.PutUint64(slot[16:], position.WrittenBytesOfNextMessage)
	binary.NativeEndian.PutUint64(slot[24:], uint64(position.NewestMessageTimeNanos))
	binary.NativeEndian.PutUint64(slot[32:], uint64(position.BootTimeNanos))
	p.validSlotNumber(stream).Store(n)
}

// unmap unmaps the file. No method may be called afterwards.
func (p *positionFile) unmap() {
	if p.mappedBytes != nil {
		_ = unix.Munmap(p.mappedBytes) // Munmap fails only for the memory of newInMemoryPositionFile, which the garbage collector frees
		p.mappedBytes = nil
	}
}
