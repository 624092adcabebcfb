package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// stat holds the used fields of /proc/<pid>/stat.
type stat struct {
	state        byte
	user, system uint64 // clock ticks
	start        uint64
	rss          uint64 // pages
	exit         int
}

// readStat reads /proc/<pid>/stat. The name of the program is in parentheses and
// may contain any byte, so the last parenthesis ends it.
func readStat(pid int) (stat, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(line)
}

func parseStat(line []byte) (s stat, err error) {
	i := bytes.LastIndexByte(line, ')')
	if i < 0 {
		return stat{}, errors.New("read process status: no name")
	}
	const first, state, user, system, start, rss, exit = 3, 3, 14, 15, 22, 24, 52
	fields := bytes.Fields(line[i+1:])
	if len(fields) <= rss-first {
		return stat{}, errors.New("read process status: too few fields")
	}
	number := func(field int) uint64 {
		n, parseErr := strconv.ParseUint(string(fields[field-first]), 10, 64)
		err = errors.Join(err, parseErr)
		return n
	}
	s = stat{
		state:  fields[state-first][0],
		user:   number(user),
		system: number(system),
		start:  number(start),
		rss:    number(rss),
	}
	if len(fields) > exit-first {
		s.exit = int(number(exit))
	}
	return s, err
}

// descendants returns a process and its descendants that still have a parent
// among them. Other descendants are found only by a cgroup.
func descendants(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pids[i]))
		if err != nil {
			continue
		}
		for _, t := range tasks {
			children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pids[i], t.Name()))
			if err != nil {
				continue
			}
			for _, field := range bytes.Fields(children) {
				if child, err := strconv.Atoi(string(field)); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
	return pids
}
