package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// reserveFile is the file that takes space on the disk for the starts of later agents.
const reserveFile = "reserve"

const (
	reserveSize = 1 << 20
	// reservePart is the part of the reserve that a start on a full disk frees. A start makes directories and sockets, and files with
	// the ids of processes. Where all of these exist, as when tasks run, it needs no new block.
	reservePart = 128 << 10
	// minFreeBytes is the free space with which an agent starts without the reserve.
	minFreeBytes = 256 << 10
)

// useReserve frees a part of the reserve if the disk is full, so that the agent can start, and makes the reserve otherwise. A part,
// because running tasks can fill it before the agent does.
func (d *dataDirectory) useReserve(logger hclog.Logger) {
	if store.CheckFreeSpace(d.path, minFreeBytes) == nil {
		if err := d.makeReserve(); err != nil {
			logger.Debug("space for the start on a full disk is not reserved", "error", err)
		}
		return
	}
	size := d.sizeOfReserve()
	if size > 0 {
		if err := os.Truncate(d.reservePath(), max(0, size-reservePart)); err != nil {
			logger.Debug("reserved space is not freed", "error", err)
		}
	}
	logger.Error("disk of the data directory is full, using the reserve", "dir", d.path, "reserved_bytes", size)
}

// reserveInterval is the time between two checks of a running agent whether the reserve has its size.
const reserveInterval = time.Minute

// keepReserve restores the reserve when the agent has started, and makes it when the disk has space again, until ctx ends. started is
// closed when the agent has started.
func (d *dataDirectory) keepReserve(ctx context.Context, started <-chan struct{}) {
	if d.ephemeralState {
		return
	}
	select {
	case <-started:
	case <-ctx.Done():
		return
	}
	check := time.NewTicker(reserveInterval)
	defer check.Stop()
	for {
		_ = d.makeReserve() // the next check repeats it
		select {
		case <-check.C:
		case <-ctx.Done():
			return
		}
	}
}

// makeReserve makes the reserve if it is missing, and if more than its size stays free. A reserve that a start has used gets as
// much of its size back as the disk has.
func (d *dataDirectory) makeReserve() error {
	size := d.sizeOfReserve()
	if size >= reserveSize || size < 0 && store.CheckFreeSpace(d.path, 4*reserveSize) != nil {
		return nil
	}
	f, err := os.OpenFile(d.reservePath(), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for wanted := int64(reserveSize); wanted > size; wanted -= reservePart {
		if err = unix.Fallocate(int(f.Fd()), 0, 0, wanted); !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			break
		}
	}
	if err != nil && size < 0 {
		err = errors.Join(err, os.Remove(d.reservePath()))
	}
	return err
}

// sizeOfReserve returns the size of the reserve; -1 if it is missing.
func (d *dataDirectory) sizeOfReserve() int64 {
	info, err := os.Lstat(d.reservePath())
	if err != nil {
		return -1
	}
	return info.Size()
}

func (d *dataDirectory) reservePath() string { return filepath.Join(d.path, reserveFile) }
