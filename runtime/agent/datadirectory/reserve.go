package datadirectory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// reserveFile is a file in the data directory that reserves disk space, so that an agent can start when the disk is full.
const reserveFile = "reserve"

const (
	reserveSize = 1 << 20 // bytes
	// reservePart is how many bytes an agent frees when it starts on a full disk. The start creates directories, sockets, and
	// files with process ids. If all of these exist, for example because tasks run, the start needs no new block.
	reservePart = 128 << 10
	// minFreeBytes is the free space from which an agent can start without the reserve.
	minFreeBytes = 256 << 10
)

// freeOrMakeDiskReserve frees a part of the reserve if the disk is full, so that the agent can start, and makes the reserve
// otherwise. The other parts are for later starts, because running tasks can fill the freed part before the agent uses it.
func (d *Directory) freeOrMakeDiskReserve(logger hclog.Logger) {
	if dir, err := helperdir.OpenOrCreate(d.Path); err == nil {
		if dir.EnsureFreeInodes() {
			logger.Error("disk of the data directory has no free inodes, using reserved ones", "dir", d.Path)
		}
		dir.Close()
	}
	if store.CheckFreeDiskSpace(d.Path, minFreeBytes) == nil {
		if err := d.makeOrGrowDiskReserve(); err != nil {
			logger.Debug("space for the start on a full disk is not reserved", "error", err)
		}
		return
	}
	size := d.diskReserveBytes()
	if size > 0 {
		if err := os.Truncate(d.diskReservePath(), max(0, size-reservePart)); err != nil {
			logger.Debug("reserved space is not freed", "error", err)
		}
	}
	logger.Error("disk of the data directory is full, using the reserve", "dir", d.Path, "reserved_bytes", size)
}

// reserveInterval is the time between two iterations of MaintainDiskReserve.
const reserveInterval = time.Minute

// MaintainDiskReserve reserves space and inodes when the agent has started and in intervals after that, until ctx ends. The
// caller closes started when the agent has started.
func (d *Directory) MaintainDiskReserve(ctx context.Context, started <-chan struct{}) {
	if d.IsStateEphemeral {
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
		_ = d.makeOrGrowDiskReserve() // after an error the next iteration calls it again
		if dir, err := helperdir.OpenOrCreate(d.Path); err == nil {
			_ = dir.ReserveInodes() // after an error the next iteration calls it again
			dir.Close()
		}
		select {
		case <-check.C:
		case <-ctx.Done():
			return
		}
	}
}

// makeOrGrowDiskReserve makes the reserve if it is missing and the disk has four times its size free. If a start has freed a
// part, makeOrGrowDiskReserve enlarges the reserve again as far as the disk has space.
func (d *Directory) makeOrGrowDiskReserve() error {
	size := d.diskReserveBytes()
	if size >= reserveSize || size < 0 && store.CheckFreeDiskSpace(d.Path, 4*reserveSize) != nil {
		return nil
	}
	f, err := os.OpenFile(d.diskReservePath(), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
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
		err = errors.Join(err, os.Remove(d.diskReservePath()))
	}
	return err
}

// diskReserveBytes returns the reserve's size in bytes; -1 if the reserve is missing.
func (d *Directory) diskReserveBytes() int64 {
	info, err := os.Lstat(d.diskReservePath())
	if err != nil {
		return -1
	}
	return info.Size()
}

func (d *Directory) diskReservePath() string { return filepath.Join(d.Path, reserveFile) }
