package artifact

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	osprocess "github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// userIDAllocator gives each download a user id, and a group id with the same number.
type userIDAllocator struct {
	accountFilesDir string // directory with the files passwd, group, subuid and subgid

	mu          sync.Mutex
	reservedIDs map[uint32]bool
	idReleased  chan struct{} // closed when an id is released; nil if no reserveID call waits
}

// reserveID returns one of allowedIDs that no account of this machine and no other download of this
// process has. It blocks while all ids are in use. The caller must call releaseID.
func (u *userIDAllocator) reserveID(ctx context.Context, allowedIDs idrange.Set) (uint32, error) {
	accounts, err := readSystemAccounts(u.accountFilesDir)
	if err != nil {
		return 0, err
	}
	for {
		id, wait, err := u.tryReserveID(allowedIDs, accounts)
		if err != nil || wait == nil {
			return id, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// minSharedIDs is the minimum size of download_uids for which FindUnusedUserID takes one of the ids:
// concurrent downloads could need all ids of a smaller set.
const minSharedIDs = 100

// FindUnusedUserID returns one of the user ids in allowedUIDs, in the format of download_uids, that no
// account and no process of this machine has. The id is for a process that is not a download;
// downloads skip an id that a process has.
func FindUnusedUserID(ctx context.Context, allowedUIDs string) (uint32, error) {
	set, err := idrange.ParseDownloadUIDs(allowedUIDs)
	if err != nil {
		return 0, fmt.Errorf("download_uids in the client's artifact block: %w", err)
	}
	if set.Len() < minSharedIDs {
		return 0, fmt.Errorf("download_uids in the client's artifact block has fewer than %d ids, which downloads need: let it name more", minSharedIDs)
	}
	ids := &userIDAllocator{accountFilesDir: downloadUserIDs.accountFilesDir}
	const maxTries = 20
	for range maxTries {
		id, err := ids.reserveID(ctx, set)
		if err != nil {
			return 0, err
		}
		if pids, err := findPIDsOfUser(id); err != nil || len(pids) == 0 {
			return id, err
		}
		ids.releaseID(id)
	}
	return 0, errors.New("other processes have the user ids of downloads: let download_uids in the client's artifact block name a range that nothing else uses")
}

func (u *userIDAllocator) tryReserveID(allowedIDs idrange.Set, accounts *systemAccounts) (id uint32, wait <-chan struct{}, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, busy := allowedIDs.Len(), false
	// The first candidate is random, so that concurrent agents choose different
	// ids.
	for i, from := uint64(0), rand.Uint64N(n); i < n; i++ {
		id := allowedIDs.At((from + i) % n)
		switch {
		case u.reservedIDs[id]:
			busy = true
		case accounts.isIDFree(id):
			if u.reservedIDs == nil {
				u.reservedIDs = make(map[uint32]bool)
			}
			u.reservedIDs[id] = true
			return id, nil, nil
		}
	}
	if !busy {
		return 0, nil, errors.New("no user id is free for a download: each of download_uids in the client's artifact block " +
			"belongs to an account or to containers (/etc/passwd, /etc/group, /etc/subuid, /etc/subgid), or does not exist in this user namespace; " +
			"let it name a range that nothing else uses")
	}
	if u.idReleased == nil {
		u.idReleased = make(chan struct{})
	}
	return 0, u.idReleased, nil
}

// releaseID releases an id that is no longer the user id of a process.
func (u *userIDAllocator) releaseID(id uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.reservedIDs, id)
	if u.idReleased != nil {
		close(u.idReleased)
		u.idReleased = nil
	}
}

// systemAccounts has the ids of the machine's accounts and, in a user namespace,
// the ids that are mapped.
type systemAccounts struct {
	assignedIDs                   idrange.Set
	mappedUserIDs, mappedGroupIDs idrange.Set // ids that exist in this user namespace; empty means all
}

func (a *systemAccounts) isIDFree(id uint32) bool {
	return !a.assignedIDs.Contains(id) && (len(a.mappedUserIDs) == 0 || a.mappedUserIDs.Contains(id)) && (len(a.mappedGroupIDs) == 0 || a.mappedGroupIDs.Contains(id))
}

// readSystemAccounts reads passwd, group, subuid and subgid in dir. A missing file
// counts as empty.
func readSystemAccounts(dir string) (*systemAccounts, error) {
	a := &systemAccounts{}
	for _, file := range []struct {
		name  string
		first int  // index of the field with the id, or with the first id of a range
		count bool // true if the next field is the number of ids in the range
	}{{"passwd", 2, false}, {"passwd", 3, false}, {"group", 2, false}, {"subuid", 1, true}, {"subgid", 1, true}} {
		if err := forEachLine(dir+"/"+file.name, func(line string) {
			fields := strings.Split(line, ":")
			if len(fields) > file.first+1 || len(fields) > file.first && !file.count {
				a.assignedIDs = addIDRange(a.assignedIDs, fields[file.first:], file.count)
			}
		}); err != nil {
			return nil, err
		}
	}
	for name, to := range map[string]*idrange.Set{"uid_map": &a.mappedUserIDs, "gid_map": &a.mappedGroupIDs} {
		if err := forEachLine("/proc/self/"+name, func(line string) {
			if fields := strings.Fields(line); len(fields) == 3 {
				*to = addIDRange(*to, []string{fields[0], fields[2]}, true)
			}
		}); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// addIDRange adds the id in the first field to the set. If hasCount is true, it adds a range: the
// first field is the first id, the second field is the number of ids.
func addIDRange(set idrange.Set, firstAndCount []string, hasCount bool) idrange.Set {
	first, err := strconv.ParseUint(firstAndCount[0], 10, 32)
	if err != nil {
		return set
	}
	n := uint64(1)
	if hasCount {
		if n, err = strconv.ParseUint(firstAndCount[1], 10, 64); err != nil || n == 0 {
			return set
		}
	}
	return append(set, idrange.Range{First: uint32(first), Last: uint32(first + min(n-1, 1<<32-1-first))})
}

func forEachLine(file string, do func(line string)) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find a user id for the download: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		do(lines.Text())
	}
	return lines.Err()
}

// findPIDsOfUser returns the processes that have uid as their real, effective, saved or file system user id.
func findPIDsOfUser(uid uint32) ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		has, err := processHasUID(pid, uid)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		case err != nil:
			return nil, err
		case has:
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func processHasUID(pid int, id uint32) (bool, error) {
	// The Uid line is read instead of the owner of /proc/PID, which is root for a
	// process that is not dumpable.
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false, err
	}
	if bytes.Contains(status, []byte("\nState:\tZ")) || bytes.Contains(status, []byte("\nState:\tX")) {
		return false, nil // a zombie, which was not reaped yet
	}
	_, rest, _ := bytes.Cut(status, []byte("\nUid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	want := strconv.FormatUint(uint64(id), 10)
	for _, field := range bytes.Fields(line) {
		if string(field) == want {
			return true, nil
		}
	}
	return false, nil
}

// killProcessesOfUserAndWait kills the processes that have the user id uid until none is left. It blocks until they
// have exited, at most a second.
func killProcessesOfUserAndWait(uid uint32) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for {
		pids, err := findPIDsOfUser(uid)
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := killPIDsAndWait(ctx, pids, uid); err != nil {
			return fmt.Errorf("processes of the download (user id %d) cannot be ended: %w", uid, err)
		}
	}
}

// killPIDsAndWait kills each of the processes that has the user id ownerUID, and waits for their exits.
// It never kills another process that reuses a pid.
func killPIDsAndWait(ctx context.Context, pids []int, ownerUID uint32) error {
	var killedProcesses []*osprocess.Pidfd
	for _, pid := range pids {
		f, err := osprocess.OpenPidfd(pid)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if has, err := processHasUID(pid, ownerUID); err != nil || !has {
			continue
		}
		if err := f.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		killedProcesses = append(killedProcesses, f)
	}
	for _, f := range killedProcesses {
		if err := f.Wait(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}
