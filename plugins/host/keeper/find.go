package keeper

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// RunningKeeper is a keeper and the data directory that it serves.
type RunningKeeper struct {
	Process osprocess.ID
	// DataDir is a path of the data directory that is valid as long as the keeper runs, also after the directory was renamed or
	// removed.
	DataDir string
}

// OwnerFile is the name of the file in a data directory in which the agent writes the random id of the directory, as the
// field "id" of a JSON object.
const OwnerFile = "owner"

// RunsForDirectory reports whether a keeper of this user runs for the data directory with the given id.
func RunsForDirectory(directoryID string) bool {
	for _, k := range FindRunning() {
		var owner struct {
			ID string `json:"id"`
		}
		text, err := os.ReadFile(filepath.Join(k.DataDir, OwnerFile))
		if err == nil && json.Unmarshal(text, &owner) == nil && owner.ID == directoryID {
			return true
		}
	}
	return false
}

// FindRunning searches /proc for the keepers of this user that run on the machine.
func FindRunning() (keepers []RunningKeeper) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	buffer := make([]byte, 4096)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := readCommandLine(e.Name(), buffer)
		if err != nil || !bytes.HasSuffix(cmdline, []byte("\x00"+keeperwire.CommandName+"\x00")) {
			continue
		}
		p, err := osprocess.LookupID(pid)
		if err != nil {
			continue
		}
		if dir := dataDirOfKeeper(p); dir != "" {
			keepers = append(keepers, RunningKeeper{p, dir})
		}
	}
	return keepers
}

// readCommandLine reads the command line of a process. The result is valid until the next use of buffer. Each start of an agent reads
// the command lines of all processes, and os.ReadFile makes ten system calls for a file instead of three.
func readCommandLine(pid string, buffer []byte) ([]byte, error) {
	path := "/proc/" + pid + "/cmdline"
	n := 0
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		n, err = unix.Read(fd, buffer)
		unix.Close(fd)
	}
	if err == unix.EINTR || n == len(buffer) {
		return os.ReadFile(path)
	}
	return buffer[:max(n, 0)], err
}

// FindWithLostDir returns the keepers of this user that [DataDir.Keeper] does not find, because the data directory at path, or its
// content, is lost: the PID file was removed from the directory, or no path leads to the directory for which a keeper was
// started at path.
func FindWithLostDir(path string) (keepers []osprocess.ID) {
	current, _ := os.Stat(path) // SameFile accepts the result of an error
	for _, k := range FindRunning() {
		dir, err := os.Stat(k.DataDir)
		if err != nil {
			continue
		}
		if os.SameFile(dir, current) {
			if pidFile, err := os.ReadFile(filepath.Join(k.DataDir, keeperwire.PIDFileName)); err != nil || !recordsProcess(pidFile, k.Process) {
				keepers = append(keepers, k.Process)
			}
		} else if k.dirAtStart() == path && k.isDirUnreachable(dir) {
			keepers = append(keepers, k.Process)
		}
	}
	return keepers
}

// dirAtStart returns the path that the data directory had when the keeper was started, or "" if it is unknown.
func (k *RunningKeeper) dirAtStart() string {
	env, err := osprocess.ReadEnv(k.Process.PID)
	if err != nil {
		return ""
	}
	for variable := range bytes.SplitSeq(env, []byte{0}) {
		var setup keeperwire.Setup
		if text, isSetup := bytes.CutPrefix(variable, []byte(keeperwire.SetupEnvVar+"=")); isSetup && json.Unmarshal(text, &setup) == nil {
			return setup.Dir
		}
	}
	return ""
}

// removedSuffix is the end of the link to a file in /proc/PID/fd after the file was removed.
const removedSuffix = " (deleted)"

// isDirUnreachable reports whether the data directory was removed, or its file system was unmounted. dir is the directory. A
// keeper in another mount namespace has paths of its own.
func (k *RunningKeeper) isDirUnreachable(dir os.FileInfo) bool {
	link, err := os.Readlink(k.DataDir)
	if err != nil {
		return false
	}
	if atLink, err := os.Stat(link); err == nil && os.SameFile(atLink, dir) {
		return false
	}
	if strings.HasSuffix(link, removedSuffix) {
		return true
	}
	own, errOwn := os.Readlink("/proc/self/ns/mnt")
	other, errOther := os.Readlink(filepath.Join("/proc", strconv.Itoa(k.Process.PID), "ns/mnt"))
	return errOwn == nil && errOther == nil && own == other
}

// dataDirOfKeeper returns a path of the data directory for which the keeper p runs, or "" if p is no keeper or
// belongs to another user.
func dataDirOfKeeper(p osprocess.ID) string {
	proc := filepath.Join("/proc", strconv.Itoa(p.PID))
	var st unix.Stat_t
	if unix.Stat(proc, &st) != nil || int(st.Uid) != os.Geteuid() {
		return "" // another user could claim to have any directory
	}
	fds := filepath.Join(proc, "fd")
	entries, err := os.ReadDir(fds)
	if err != nil {
		return ""
	}
	parentOfPIDFile := ""
	descriptorByLink := make(map[string]string, len(entries))
	for _, e := range entries {
		descriptor := filepath.Join(fds, e.Name())
		link, err := os.Readlink(descriptor)
		if err != nil {
			continue
		}
		link = strings.TrimSuffix(link, removedSuffix)
		descriptorByLink[link] = descriptor
		// The keeper reads its PID file through its own descriptor, because the file can have been removed with the directory.
		if filepath.Base(link) != keeperwire.PIDFileName {
			continue
		}
		if text, err := os.ReadFile(descriptor); err == nil && recordsProcess(text, p) {
			parentOfPIDFile = filepath.Dir(link)
		}
	}
	return descriptorByLink[parentOfPIDFile]
}

// recordsProcess reports whether the content of a PID file names the process p.
func recordsProcess(pidFile []byte, p osprocess.ID) bool {
	var recorded osprocess.ID
	return json.Unmarshal(pidFile, &recorded) == nil && recorded == p
}
