package rawexec

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// scrub removes the variables whose names match one of the patterns, in which *
// stands for any text.
func scrub(env map[string]string, patterns []string) {
	for name := range env {
		for _, pattern := range patterns {
			if ok, err := path.Match(pattern, name); err == nil && ok {
				delete(env, name)
			}
		}
	}
}

// idRange is inclusive.
type idRange struct {
	first, last uint64
}

// parseRanges reads "0,10-15,22".
func parseRanges(text string) ([]idRange, error) {
	var ranges []idRange
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(strings.TrimSpace(from), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an id nor a range of ids", part)
		}
		last, err := strconv.ParseUint(strings.TrimSpace(to), 10, 32)
		if err != nil || last < first {
			return nil, fmt.Errorf("%q is neither an id nor a range of ids", part)
		}
		ranges = append(ranges, idRange{first, last})
	}
	return ranges, nil
}

func contains(ranges []idRange, id uint32) bool {
	for _, r := range ranges {
		if r.first <= uint64(id) && uint64(id) <= r.last {
			return true
		}
	}
	return false
}

// checkUser refuses a task whose user, named or not, the operator has denied.
func (c *config) checkUser(name string) error {
	if len(c.uids) == 0 && len(c.gids) == 0 {
		return nil
	}
	cred, err := process.Credential(name)
	if err != nil {
		return err
	}
	if contains(c.uids, cred.Uid) {
		return fmt.Errorf("running as uid %d is denied by denied_host_uids of the driver", cred.Uid)
	}
	for _, gid := range append(cred.Groups, cred.Gid) {
		if contains(c.gids, gid) {
			return fmt.Errorf("running with gid %d is denied by denied_host_gids of the driver", gid)
		}
	}
	return nil
}
