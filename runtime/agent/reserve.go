package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// reserveFile is the file that takes space on the disk for the start of the next agent.
const reserveFile = "reserve"

const (
	// reserveSize is the size of the file. A start makes a directory, sockets, and files with the ids of processes.
	reserveSize = 1 << 20
	// minFreeBytes is the free space with which an agent starts without the reserve.
	minFreeBytes = 256 << 10
)

// useReserve removes the reserve if the disk is full, so that the agent can start, and makes the reserve otherwise.
func (d *dataDirectory) useReserve(logger hclog.Logger) {
	var err error
	if store.CheckFreeSpace(d.path, minFreeBytes) == nil {
		err = d.makeReserve()
	} else if err = os.Remove(d.reservePath()); err == nil {
		logger.Error("the disk of the data directory is full: the agent starts with the space that it has reserved, and accepts no new jobs; stop and purge jobs, or remove files", "dir", d.path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		logger.Debug("space for the start on a full disk is not reserved", "error", err)
	}
}

// reserveInterval is the time between two checks of a running agent whether the reserve exists.
const reserveInterval = time.Minute

// keepReserve makes the reserve when the disk has space again, until ctx ends.
func (d *dataDirectory) keepReserve(ctx context.Context) {
	if d.ephemeralState {
		return
	}
	check := time.NewTicker(reserveInterval)
	defer check.Stop()
	for {
		select {
		case <-check.C:
			_ = d.makeReserve() // the next check repeats it
		case <-ctx.Done():
			return
		}
	}
}

// makeReserve makes the reserve if it is missing, and if more than its size stays free.
func (d *dataDirectory) makeReserve() error {
	if info, err := os.Lstat(d.reservePath()); err == nil && info.Size() == reserveSize || store.CheckFreeSpace(d.path, 4*reserveSize) != nil {
		return nil
	}
	f, err := os.OpenFile(d.reservePath(), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, reserveSize), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(d.reservePath()))
	}
	return nil
}

func (d *dataDirectory) reservePath() string { return filepath.Join(d.path, reserveFile) }
